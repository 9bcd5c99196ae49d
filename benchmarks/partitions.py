"""Failover by the number of partitions: `python benchmarks/partitions.py [--systems kafka rocketmq
flotilla] [--counts 1 100 1000 3000] [--kills 3] [--quick]`.

Kafka elects a leader for each partition, RocketMQ and Flotilla a master for a whole broker. One
topic has so many partitions (queues), all led by one of three brokers; that one is killed, and a
client sends a message to each of them until each has accepted one. Told are the times from the kill
to the first, the median and the last of them, and the bytes that nodes sent to each other up to the
last one, from the counters of the links from their namespaces, Ethernet headers included; the
client's own traffic passes the bridge and is not counted.

The client's work grows with the number too, and its messages are replicated. Therefore both are
measured once more when all is over, with the killed broker still down: the time and the bytes of
one message to each, and the bytes of a second without any. `excess` is what the failover sent
beyond those. `route`: bytes of an answer that tells a client where all of them are.

A system's cluster is the same for all counts, and its topic grows. Then the killed broker is
started, and the next kill comes when all replicas are in sync. The last line has the figures as
JSON.
"""

import argparse
import asyncio
import json
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from signal import SIGKILL
from statistics import median
from typing import Any, ClassVar

from _cluster import BODY, Cluster, alone, bed_of, raised, until
from _figures import quantile, table

from clusters.flotilla.client import CallOutcome
from clusters.flotilla.net.wire import Op
from clusters.hosts.local.hosts import BRIDGE
from clusters.kit import Service, plugin
from clusters.systems.flotilla.layout import address as with_port
from clusters.systems.kafka import wire
from clusters.systems.kafka.driver import Kafka
from clusters.systems.kafka.kafka_client import KafkaLink
from clusters.systems.kafka.records import encode_batch
from clusters.systems.rocketmq.client import BROKER, NAMES_PORT, NAMESERVER, RocketClient
from clusters.systems.rocketmq.remoting import ROUTE, RemotingError, RemotingLink
from clusters.systems.rocketmq.service import RocketMq
from harness import registry
from harness.contracts import System, TestBed
from harness.contracts.calls import Refused
from harness.errors import BedFailed
from harness.trial import Trial

COUNTS, QUICK = (1, 100, 1_000, 3_000), (1, 20)
TOPIC = "partitions"
AGAIN_S = 0.05  # between two rounds of a client
ANSWER_WITHIN_S, WHOLE_WITHIN_S, LOOK_EVERY_S = 40.0, 300.0, 1.0
ACKED_WITHIN_MS = 30_000  # request.timeout.ms of Kafka's producers
ALL_WITHIN_S, START_WITHIN_S = 300.0, 400.0
IDLE_S, CALM_S = 5.0, 5.0
OPEN = 32  # sends of a client at once
UNSENT = (OSError, EOFError, TimeoutError, Refused, RemotingError, wire.KafkaError)

Accepted = Callable[[int], None]


class Subject(ABC):
    """A cluster with one topic, whose partitions are all led by one broker."""

    trial: ClassVar[Trial]
    bed: TestBed

    @abstractmethod
    async def grow(self, count: int) -> None:
        """Have so many partitions."""

    @abstractmethod
    async def leader(self) -> str:
        """The broker that leads all, once there is full redundancy."""

    @abstractmethod
    async def send(self, partitions: Sequence[int], accepted: Accepted) -> None:
        """A message to each of them, and no second one if that fails."""

    @abstractmethod
    async def route_bytes(self) -> int:
        """The size of an answer that says where all partitions are."""

    async def kill(self, node: str) -> None:
        agent, process = self.bed.agents[node], self.bed.system.process(node)
        await agent.signal(process, SIGKILL)
        await agent.exited(process)

    async def start(self, node: str) -> None:
        await self.bed.system.start_node(self.bed, node)


def patient(service: type[Service], trial: Trial) -> System:
    """The system's driver, with more time to start: a machine may be busy."""
    more: Any = type(service.__name__, (service,), {"start_s": START_WITHIN_S})
    driver: System = plugin(more).system(trial)
    return driver


async def in_parallel(
    partitions: Sequence[int], accepted: Accepted, one: Callable[[int], Any]
) -> None:
    """Send some at once, until one fails, which is raised when all have ended."""
    left, failures = iter(partitions), []

    async def worker() -> None:
        for partition in left:
            try:
                await one(partition)
            except UNSENT as e:
                failures.append(e)
            else:
                accepted(partition)
            if failures:
                return

    await asyncio.gather(*(worker() for _ in range(OPEN)))
    if failures:
        raise failures[0]


# --------------------------------------------------------------------------------------- systems


class OnKafka(Subject):
    """A client as Kafka's producers are: all that a broker leads is in one request."""

    trial = Trial(name="partitions", system="kafka", profile="safe", settings={"heap_mb": 512})

    def __init__(self, bed: TestBed) -> None:
        self.bed = bed
        self._links: dict[str, KafkaLink] = {}
        self._names = {node.address: node.name for node in bed.of_role(BROKER)}
        self._batch = encode_batch([BODY])

    @classmethod
    @asynccontextmanager
    async def raised(cls, folder: Path) -> AsyncIterator["OnKafka"]:
        async with bed_of(folder, patient(Kafka, cls.trial)) as bed:
            yield cls(bed)

    async def grow(self, count: int) -> None:
        await until(partial(self._grown, count), "the partitions", ALL_WITHIN_S, LOOK_EVERY_S)

    async def _ask(self, address: str, kind: int, body: bytes) -> wire.AnswerReader:
        link = self._links.pop(address, None)
        async with asyncio.timeout(ANSWER_WITHIN_S):
            if link is None or link.closed:
                link = await KafkaLink.open(address)
            found = await link.request(kind, body)
        self._links[address] = link
        return found

    async def _known(self) -> wire.Metadata:
        """From the first broker that answers."""
        for address in self._names:
            with suppress(*UNSENT):
                answer = await self._ask(address, wire.METADATA, wire.metadata([TOPIC]))
                return wire.metadata_in(answer)
        raise ConnectionError("no broker answers")

    async def _grown(self, count: int) -> bool:
        """The first broker is the preferred leader of all; the others follow in both orders."""
        with suppress(*UNSENT):
            known = await self._known()
            there, within_ms = len(known.partitions), round(ANSWER_WITHIN_S * 1000)
            if there == count:
                return True
            first, *rest = sorted(known.brokers)
            orders = [(first, *order) for order in permutations(rest)]
            placed = [
                wire.array(struct.pack(">i", each) for each in orders[n % len(orders)])
                for n in range(there, count)
            ]
            if there:
                kind, numbers = wire.CREATE_PARTITIONS, struct.pack(">i", count)
            else:
                kind, numbers = wire.CREATE_TOPICS, struct.pack(">ih", -1, -1)
                placed = [struct.pack(">i", n) + each for n, each in enumerate(placed)]
            topic = wire.string(TOPIC) + numbers + wire.array(placed)
            topic += b"" if there else wire.array([])  # its configuration
            asked = wire.array([topic]) + struct.pack(">ib", within_ms, 0)
            await self._ask(next(iter(self._names)), kind, asked)
        return False

    async def leader(self) -> str:
        found: list[str] = []

        async def led_by_one() -> bool:
            with suppress(*UNSENT):
                known = await self._known()
                states = known.partitions.values()
                leaders = {state.leader for state in states}
                whole = all(len(state.in_sync) == len(self._names) for state in states)
                preferred = {state.replicas[0] for state in states}
                if whole and leaders == preferred:
                    found.append(self._names[known.brokers[min(leaders)]])
                    return True
                if whole:
                    await self._elect_preferred()
            return False

        await until(led_by_one, "one leader of all", WHOLE_WITHIN_S, LOOK_EVERY_S)
        return found[0]

    async def _elect_preferred(self) -> None:
        """Have the first replica of each partition lead it."""
        all_partitions = struct.pack(">bii", 0, -1, round(ANSWER_WITHIN_S * 1000))
        await self._ask(next(iter(self._names)), wire.ELECT_LEADERS, all_partitions)

    async def send(self, partitions: Sequence[int], accepted: Accepted) -> None:
        known = await self._known()
        led = defaultdict(list)
        for n in partitions:
            leader = known.partitions[TOPIC, n].leader
            if leader in known.brokers:
                led[known.brokers[leader]].append(n)
        await asyncio.gather(*(self._produce(*each, accepted) for each in led.items()))

    async def _produce(self, address: str, partitions: Sequence[int], accepted: Accepted) -> None:
        size = len(self._batch)
        each = wire.array(struct.pack(">ii", n, size) + self._batch for n in partitions)
        head = wire.string(None) + struct.pack(">hi", -1, ACKED_WITHIN_MS)
        with suppress(*UNSENT):
            found = await self._ask(
                address, wire.PRODUCE, head + wire.array([wire.string(TOPIC) + each])
            )

            def partition() -> None:
                number, code = found.i32(), found.i16()
                found.raw(24)  # offset, time, begin of the log
                if not code:
                    accepted(number)

            found.array(lambda: (found.string(), found.array(partition)))

    async def route_bytes(self) -> int:
        found = await self._ask(next(iter(self._names)), wire.METADATA, wire.metadata([TOPIC]))
        return len(found.raw(sys.maxsize))


class OnRocketMq(Subject):
    """Messages of one queue each, many at once on one connection, as RocketMQ's clients send."""

    trial = Trial(name="partitions", system="rocketmq", profile="async-flush")

    def __init__(self, bed: TestBed, client: RocketClient) -> None:
        self.bed, self._client, self._topic = bed, client, TOPIC

    @classmethod
    @asynccontextmanager
    async def raised(cls, folder: Path) -> AsyncIterator["OnRocketMq"]:
        driver = patient(RocketMq, cls.trial)
        async with bed_of(folder, driver) as bed:
            client = RocketClient(driver.client_settings(bed.nodes), 0)
            try:
                yield cls(bed, client)
            finally:
                await client.close()

    async def grow(self, count: int) -> None:
        """By one more topic; those before it stay."""
        self._topic = f"{TOPIC}-of-{count}"
        await self._client.set_up({self._topic: count})

    async def leader(self) -> str:
        found: list[str] = []

        async def whole() -> bool:
            state = await self.bed.system.cluster_state(self.bed)
            if state.redundant:
                found.extend(state.masters.values())
            return state.redundant

        await until(whole, "full redundancy", WHOLE_WITHIN_S, LOOK_EVERY_S)
        return found[0]

    async def send(self, partitions: Sequence[int], accepted: Accepted) -> None:
        await in_parallel(partitions, accepted, self._send)

    async def _send(self, queue: int) -> None:
        await self._client.append(f"{self._topic}-{queue}", BODY)

    async def route_bytes(self) -> int:
        (server,) = self.bed.of_role(NAMESERVER)
        link = await RemotingLink.open(server.address, NAMES_PORT, ANSWER_WITHIN_S)
        asked = {"topic": self._topic, "acceptStandardJsonOnly": True}
        try:
            return len((await link.call(ROUTE, asked, within_s=ANSWER_WITHIN_S)).body)
        finally:
            await link.close()


class OnFlotilla(Subject):
    trial = Trial(name="partitions", profile="allack-min2", settings={"timeScale": 1.0})

    def __init__(self, cluster: Cluster) -> None:
        self.bed, self._cluster = cluster.bed, cluster

    @classmethod
    @asynccontextmanager
    async def raised(cls, folder: Path) -> AsyncIterator["OnFlotilla"]:
        async with raised(folder, cls.trial, {}) as cluster:
            yield cls(cluster)

    async def grow(self, count: int) -> None:
        await self._cluster.client.topics.create(TOPIC, count)

    async def leader(self) -> str:
        (master,) = (await self._cluster.whole()).masters.values()
        return master

    async def send(self, partitions: Sequence[int], accepted: Accepted) -> None:
        await in_parallel(partitions, accepted, self._send)

    async def _send(self, queue: int) -> None:
        done: asyncio.Future[CallOutcome] = asyncio.get_running_loop().create_future()
        self._cluster.client.producer.send(
            TOPIC, queue, b"key", BODY, lambda result: done.set_result(result.outcome)
        )
        if await done is not CallOutcome.HAPPENED:
            raise ConnectionError(f"queue {queue}")

    async def route_bytes(self) -> int:
        (server, *_) = self.bed.of_role(NAMESERVER)
        known = await self._cluster.admin.ask(with_port(server), Op.ROUTE, {"topic": TOPIC})
        return len(json.dumps(known, separators=(",", ":")))


SYSTEMS: dict[str, Any] = {"kafka": OnKafka, "rocketmq": OnRocketMq, "flotilla": OnFlotilla}


# ------------------------------------------------------------------------------------- measuring


def sent_by_nodes() -> int:
    """Bytes that nodes have sent to each other: what came out of their namespaces, without what the
    bridge handed on to this process."""
    came = {}
    for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        came[name.strip()] = int(numbers.split()[0])
    return sum(n for name, n in came.items() if name.startswith("node")) - came[BRIDGE]


@dataclass(frozen=True)
class Failover:
    """Seconds and bytes of one kill."""

    first: float
    middle: float
    last: float
    round_s: float
    sent: float
    round_sent: float
    idle_sent: float  # in a second
    route: float

    @property
    def excess(self) -> float:
        return self.sent - self.round_sent - self.idle_sent * self.last


async def round_of(subject: Subject, count: int) -> list[float]:
    """The moments at which each partition accepted a message that was sent after now."""
    at_s: dict[int, float] = {}
    why = ""

    def accepted(partition: int) -> None:
        at_s.setdefault(partition, time.monotonic())

    async def all_accepted() -> bool:
        nonlocal why
        left = [n for n in range(count) if n not in at_s]
        try:
            await subject.send(left, accepted)
        except UNSENT as e:
            why = f"{type(e).__name__} {e}"
        return len(at_s) == count

    try:
        await until(all_accepted, f"{count:,} accepted messages", ALL_WITHIN_S, AGAIN_S)
    except SystemExit as e:
        raise SystemExit(f"{e}, but {len(at_s):,}; {why}") from e
    return sorted(at_s.values())


async def failover(subject: Subject, count: int) -> Failover:
    leader = await subject.leader()
    await round_of(subject, count)
    await asyncio.sleep(CALM_S)
    before, killed_s = sent_by_nodes(), time.monotonic()
    await subject.kill(leader)
    at_s = await round_of(subject, count)
    sent = sent_by_nodes() - before
    await asyncio.sleep(CALM_S)
    before = sent_by_nodes()
    await asyncio.sleep(IDLE_S)
    idle_sent = (sent_by_nodes() - before) / IDLE_S
    before, began_s = sent_by_nodes(), time.monotonic()
    round_s = (await round_of(subject, count))[-1] - began_s
    round_sent = sent_by_nodes() - before - idle_sent * round_s
    await subject.start(leader)
    await subject.leader()
    route = await subject.route_bytes()
    times = (at_s[0] - killed_s, quantile(at_s, 0.5) - killed_s, at_s[-1] - killed_s)
    return Failover(*times, round_s, sent, round_sent, idle_sent, route)


async def measure(
    name: str, counts: Sequence[int], kills: int, folder: Path
) -> dict[int, list[Failover]]:
    """What could be measured: a cluster that does not come ends it, with its reason."""
    found: dict[int, list[Failover]] = {}
    try:
        async with SYSTEMS[name].raised(folder / name) as subject:
            for count in counts:
                await subject.grow(count)
                found[count] = []
                for number in range(kills):
                    found[count].append(await failover(subject, count))
                    words = json.dumps(asdict(found[count][-1]))
                    print(
                        f"{name}, {count:,}, kill {number + 1}: {words}",
                        file=sys.stderr,
                        flush=True,
                    )
    except (*UNSENT, BedFailed, SystemExit) as e:
        print(f"{name}: {e or type(e).__name__}", flush=True)
    return found


def row(name: str, count: int, found: Sequence[Failover], one: Sequence[Failover]) -> list[str]:
    """A line of the table. `one`: the system with the smallest count."""

    def middle(what: str, of: Sequence[Failover] = found) -> float:
        return float(median(getattr(each, what) for each in of))

    last = [each.last for each in found]
    return [
        *(name, f"{count:,}", f"{middle('first'):.2f}", f"{middle('middle'):.2f}"),
        f"{middle('last'):.2f} ({min(last):.2f} to {max(last):.2f})",
        f"{middle('last') / middle('last', one):.2f}",
        *(f"{middle('round_s'):.2f}", f"{middle('sent') / 1000:,.0f}"),
        f"{middle('excess') / 1000:,.0f}",
        f"{middle('route') / 1000:,.1f}",
    ]


def figures(name: str, count: int, found: Sequence[Failover]) -> dict[str, float]:
    """The record of suites/claims.toml: the least seconds, since other work of the machine only
    adds to them, and the median of bytes."""
    of = {"first": min, "last": min, "excess": median}
    return {
        f"{name}_{each}_{count}": take(getattr(f, each) for f in found) for each, take in of.items()
    }


HEADINGS = (
    *("system", "partitions", "first, s", "median, s", "last, s", "of the fewest"),
    *("a round without a fault, s", "kB between nodes", "excess, kB", "route, kB"),
)


async def story(asked: argparse.Namespace, folder: Path) -> int:
    rows, complete, kept = [], True, dict[str, float]()
    for name in asked.systems:
        found = await measure(name, asked.counts, asked.kills, folder)
        complete &= [len(some) for some in found.values()] == [asked.kills] * len(asked.counts)
        there = {n: some for n, some in found.items() if some}
        rows += [row(name, n, some, there[min(there)]) for n, some in there.items()]
        for n, some in there.items():
            kept |= figures(name, n, some)
    print(table(HEADINGS, rows))
    print(json.dumps({name: round(value, 4) for name, value in kept.items()}))
    return 0 if complete else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--systems", nargs="+", choices=tuple(SYSTEMS), default=tuple(SYSTEMS))
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS)
    parser.add_argument("--kills", type=int, default=3, help="for each number of partitions")
    parser.add_argument("--quick", action="store_true", help="few partitions: to see that it works")
    asked = parser.parse_args()
    if asked.quick:
        asked.counts, asked.kills = QUICK, 1
    for name in asked.systems:  # programs, while there is a network
        trial = SYSTEMS[name].trial
        if prepare := registry.system(trial.system).prepare:
            prepare(trial)
    return alone(partial(story, asked))


if __name__ == "__main__":
    sys.exit(main())
