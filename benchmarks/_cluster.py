"""A Flotilla that the benchmark raises itself, for what no trial does, such as 20,000 topics.

Its nodes are namespaces of this machine. The benchmark goes on as process 1 of namespaces of its
own, on the bridge between the nodes: it reaches all of them by address, sees their processes, and
nothing outlives it. Import nothing here that starts threads: a process that has some can not enter.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient, SendResult
from clusters.flotilla.client.admin import Admin
from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.hosts.local.hosts import LocalHosts
from clusters.systems.flotilla.driver import Flotilla
from clusters.systems.flotilla.layout import address
from clusters.systems.flotilla.modes import CONTROLLER, NAMESERVER
from clusters.systems.flotilla.profiles import settings
from harness.contracts import CLIENT, ClusterState, System, TestBed
from harness.trial import Trial

LOOK_EVERY_S = 0.005
WITHIN_S = 60.0
BODY = b"x" * 100


def alone(main: Callable[[Path], Coroutine[Any, Any, int]]) -> int:
    """Carry it out in namespaces of its own, with a folder that goes with it; the exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        LocalHosts(folder).enter()
        return asyncio.run(main(folder))


async def until(
    holds: Callable[[], Awaitable[bool]],
    what: str,
    within_s: float = WITHIN_S,
    every_s: float = LOOK_EVERY_S,
) -> None:
    """Wait for it. SystemExit says what did not come."""
    deadline_s = time.monotonic() + within_s
    while not await holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(every_s)


class Silent:
    """A recorder for faults of which only the last row of each is wanted."""

    def __init__(self) -> None:
        self.faults: dict[int, Mapping[str, Any]] = {}

    def fault(self, row: Mapping[str, Any]) -> None:
        self.faults[row["id"]] = row

    def note(self, text: str) -> None:
        print(text)

    alarm = note

    def event(self, *_fields: object) -> None: ...


@dataclass(frozen=True)
class Cluster:
    bed: TestBed
    system: Flotilla
    client: ClusterClient
    admin: Admin

    # who is who; a nameserver's own words list all topics, so it is not asked each time

    async def cluster_state(self) -> ClusterState:
        few = [node for node in self.bed.nodes if node.role != NAMESERVER]
        return await self.system.cluster_state(replace(self.bed, nodes=few))

    async def whole(self) -> ClusterState:
        """Once there is full redundancy."""
        found: list[ClusterState] = []

        async def look() -> bool:
            found.append(await self.cluster_state())
            led = bool(found[-1].controller_leader) or not self.bed.of_role(CONTROLLER)
            return found[-1].redundant and led

        await until(look, "full redundancy")
        return found[-1]

    async def master(self) -> str:
        (name,) = (await self.cluster_state()).masters.values()
        return name

    def address(self, node: str) -> str:
        return address(self.bed.node(node))

    async def described(self, node: str) -> Mapping[str, Any] | None:
        """What it says of itself; None when it does not answer."""
        with suppress(*CALL_ERRORS):
            return await self.admin.describe(self.address(node))
        return None

    async def pid(self, node: str) -> int:
        return (await self.bed.agents[node].state(self.system.process(node))).pid

    def with_record(self, record: Any) -> TestBed:
        """The bed for a nemesis whose doings are told to this recorder."""
        return replace(self.bed, record=record)

    # what is done to it

    async def kill(self, node: str) -> None:
        """Returns when it is gone."""
        agent, process = self.bed.agents[node], self.system.process(node)
        await agent.signal(process, SIGKILL)
        await agent.exited(process)

    async def start(self, node: str) -> None:
        await self.system.start_node(self.bed, node)


@asynccontextmanager
async def bed_of(folder: Path, system: System) -> AsyncIterator[TestBed]:
    """A system's nodes without clients, that serve."""
    hosts, record = LocalHosts(folder), Silent()
    wanted = [node for node in system.nodes() if node.role != CLIENT]
    async with hosts.start_nodes(wanted) as (nodes, agents):
        recorder: Any = record
        bed = TestBed(
            nodes=nodes,
            agents=agents,
            hosts=hosts,
            system=system,
            record=recorder,
            now_ns=time.monotonic_ns,
            acknowledged=lambda: 0,
            sleep=asyncio.sleep,
        )
        await system.install(bed)
        await system.start(bed)
        yield bed
    await until(_no_links, "the end of all links")


async def _no_links() -> bool:
    """The kernel removes those to namespaces that are gone when it has time."""
    return "node" not in Path("/proc/self/net/dev").read_text()


@asynccontextmanager
async def raised(folder: Path, trial: Trial, topics: Mapping[str, int]) -> AsyncIterator[Cluster]:
    """A cluster with full redundancy that has these topics, and a client that knows them."""
    system = Flotilla(trial, settings(trial), topics)
    async with bed_of(folder, system) as bed:
        client = ClusterClient(ClientSettings.of(system.client_settings(bed.nodes)))
        admin = Admin([address(node) for node in bed.of_role(CONTROLLER)])
        client.start()
        cluster = Cluster(bed, system, client, admin)
        try:
            await cluster.whole()
            await until(lambda: _knows(client, topics), "the client knows all topics")
            yield cluster
        finally:
            client.close()
            admin.close()


async def _knows(client: ClusterClient, topics: Mapping[str, int]) -> bool:
    if known := all(client.routes.place(topic, 0) for topic in topics):
        return known
    client.routes.refresh()
    return False


# --------------------------------------------------------------------------------------- load


@dataclass(frozen=True, slots=True)
class Sent:
    begun_s: float
    ended_s: float
    ok: bool

    @property
    def ms(self) -> float:
        return (self.ended_s - self.begun_s) * 1000


class Load:
    """Sends to topics by lot, each at its own moment: an answer that is late holds up no other."""

    EVERY_S = 0.002

    def __init__(
        self, client: ClusterClient, topics: Sequence[str], per_s: float, queue: int = 0
    ) -> None:
        self.sent: list[Sent] = []
        self._client, self._topics, self._per_s, self._queue = client, topics, per_s, queue
        self._random = Random(1)
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._over = False

    async def __aenter__(self) -> "Load":
        self._began_s, self._count = self._loop.time(), 0
        self._tick()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._over = True
        await until(self._all_ended, "the end of all sends")

    async def served(self, since_s: float) -> float:
        """When the first send ended that was begun since then and acknowledged."""
        seen, found = len(self.sent), float("nan")

        async def look() -> bool:
            nonlocal seen, found
            new, seen = self.sent[seen:], len(self.sent)
            found = min((s.ended_s for s in new if s.ok and s.begun_s >= since_s), default=found)
            return found == found

        await until(look, "an acknowledged send")
        return found

    async def _all_ended(self) -> bool:
        return self._open == 0

    def _tick(self) -> None:
        if self._over:
            return
        due = int((self._loop.time() - self._began_s) * self._per_s)
        for _ in range(due - self._count):
            self._send()
        self._count = due
        self._loop.call_later(self.EVERY_S, self._tick)

    def _send(self) -> None:
        begun_s = self._loop.time()
        self._open += 1

        def done(result: SendResult) -> None:
            self._open -= 1
            ok = result.outcome is CallOutcome.HAPPENED
            self.sent.append(Sent(begun_s, self._loop.time(), ok))

        topic = self._topics[int(self._random.random() * len(self._topics))]
        self._client.producer.send(topic, self._queue, b"key", BODY, done)


async def poured(
    client: ClusterClient,
    topics: Sequence[str],
    count: int,
    open_sends: int = 256,
    queue: int = 0,
    body: bytes = BODY,
) -> int:
    """So many messages to the topics in turn, as fast as they are answered; how many failed."""
    failed = sent = ended = 0
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send() -> None:
        nonlocal sent
        topic = topics[sent % len(topics)]
        sent += 1
        client.producer.send(topic, queue, b"key", body, done)

    def done(result: SendResult) -> None:
        nonlocal failed, ended
        failed += result.outcome is not CallOutcome.HAPPENED
        ended += 1
        if sent < count:
            send()
        elif ended == count:
            over.set_result(None)

    for _ in range(min(open_sends, count)):
        send()
    await over
    return failed
