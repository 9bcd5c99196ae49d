"""Flotilla: RocketMQ 5's controller-mode high availability, in Python. By default one nameserver,
three controllers, one broker set of three and two client nodes.

The driver lays the nodes out, starts each as `python -m clusters.flotilla NODE.toml` through its
agent, asks them who they are, and at the end reads what every broker's log holds. Profiles are in
`_profiles/flotilla.toml`. The setting `mutant` starts a variant that is known to be bad instead.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from clusters.flotilla.net.wire import HEADER, Op, frame, from_json
from clusters.systems import _flotilla_compared, _flotilla_dump, _flotilla_members
from clusters.systems._flotilla_client import FlotillaClient
from clusters.systems._flotilla_laws import Laws, Readable, log_bytes
from clusters.systems._flotilla_layout import (
    BROKER,
    CONTROLLER,
    NAMESERVER,
    PORTS,
    Layout,
    address,
    broker_sets,
    laid_out,
)
from clusters.systems._flotilla_limits import refuse_impossible
from clusters.systems._flotilla_profiles import (
    Settings,
    claims,
    in_force,
    mutants,
    profiles,
    settings,
)
from clusters.systems._flotilla_seen import Seen
from clusters.systems._flotilla_standing import BrokerSet, missing, standing
from clusters.systems._flotilla_swarm import swarm
from harness.contracts import CLIENT, Agent, Bed, Clock, MessageClient, Node, Standing, SystemPlugin
from harness.errors import BedFailed, NodeGone
from harness.registry import load
from harness.run.broker_sets import Dealt
from harness.trial import Trial

__all__ = ["Flotilla", "claims", "in_force", "mutants", "profiles", "swarm", "system"]

PROCESS = "flotilla"
STORE = "store"
LOG = f"{STORE}/commitlog"  # its segments, each named by its offset
OUTPUT = "flotilla.log"  # what it prints, where nothing better is to be had
START_WITHIN_S = 20.0
ANSWER_WITHIN_S = 0.5  # a paused node does not answer; a busy one has this long
STOP_WITHIN_S = 5.0
READ_WITHIN_S = 120.0
LOOK_EVERY_S = 0.1
_DESCRIBE = frame(Op.DESCRIBE, 1, b"{}")
_REPLY_HEAD = HEADER.size - 4  # of an answer whose length was cut off


def system(trial: Trial) -> "Flotilla":
    wanted = load("workload", trial.workload)(trial).client_settings()
    chosen = settings(trial)
    if wanted.get("once"):
        chosen = chosen.without_retries()
    (first, *_) = broker_sets(laid_out(trial.nodes), chosen)
    electable = len(first.nodes) - chosen.learners
    refuse_impossible(chosen.values, electable, wanted.get("body_bytes", 0))
    return Flotilla(trial, chosen, wanted.get("topics", {}))


PLUGIN = SystemPlugin(
    system=system,
    profiles=profiles,
    claims=claims,
    mutants=mutants,
    in_force=in_force,
    swarm=swarm,
)


class Flotilla:
    """Installs, starts, watches and stops a Flotilla cluster."""

    log = "events.jsonl"
    can = frozenset({"handover", "members"})
    members = _flotilla_members.ROLES
    stopped_first = _flotilla_members.STOPPED_FIRST
    data = STORE

    def __init__(self, trial: Trial, chosen: Settings, topics: Mapping[str, int]) -> None:
        self._settings, self._topics, self._seed = chosen, topics, trial.seed
        self._nodes = laid_out(trial.nodes)
        self.detection_s = _detection_s(chosen)

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def process(self, node: str) -> str:
        return PROCESS

    def client_settings(self, nodes: Sequence[Node]) -> Mapping[str, Any]:
        return self._layout(nodes).client(nodes)

    def dealt(self, nodes: Sequence[Node], keys: Sequence[str]) -> Mapping[str, Dealt]:
        return self._layout(nodes).dealt(keys)

    def client(self, settings: Mapping[str, Any]) -> MessageClient:
        return FlotillaClient(settings)

    # raising it

    async def install(self, bed: Bed) -> None:
        layout = self._layout(bed.nodes)

        async def put(node: Node) -> None:
            folder = bed.hosts.folder(node.name)
            config = layout.config(node, folder)
            await bed.agents[node.name].put(f"{folder}/node.toml", config.encode())

        await asyncio.gather(*(put(node) for node in bed.nodes if node.role != CLIENT))

    async def start(self, bed: Bed) -> None:
        for role in (NAMESERVER, CONTROLLER, BROKER):
            nodes = [node.name for node in bed.of_role(role)]
            await asyncio.gather(*(self._start_ready(bed, node) for node in nodes))

    async def start_node(self, bed: Bed, node: str) -> None:
        """Start the node's process; whether it then serves is what the trial is about."""
        await self._spawn(bed, node, lambda line: None)

    async def _start_ready(self, bed: Bed, node: str) -> None:
        """Start a node and wait until it listens. BedFailed, with its last words, otherwise."""
        ready = asyncio.Event()
        await self._spawn(bed, node, lambda line: ready.set() if line[:6] == "ready " else None)
        listening = asyncio.ensure_future(ready.wait())
        exited = asyncio.ensure_future(bed.agents[node].exited(PROCESS))
        both = (listening, exited)
        await asyncio.wait(both, timeout=START_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        if not ready.is_set():
            why = "it ended" if exited.done() else f"it does not listen after {START_WITHIN_S:g} s"
            raise BedFailed(f"{node} did not start: {why}; {await self._last_words(bed, node)}")

    async def _spawn(self, bed: Bed, node: str, on_line: Callable[[str], None]) -> None:
        folder = bed.hosts.folder(node)
        python = bed.hosts.python(node)
        # -S -s: a node needs the standard library and the folder of our packages, nothing else
        argv = [python.executable, "-P", "-S", "-s", "-X", "frozen_modules=on", "-m"]
        await bed.agents[node].start(
            PROCESS,
            [*argv, *self._settings.program, f"{folder}/node.toml"],
            env={"PYTHONPATH": python.packages, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"},
            cwd=folder,
            log=f"{folder}/{OUTPUT}",
            on_line=on_line,
        )

    async def _last_words(self, bed: Bed, node: str) -> str:
        log = f"{bed.hosts.folder(node)}/{OUTPUT}"
        try:
            words = (await bed.agents[node].get(log)).decode(errors="replace").strip()
        except BedFailed:
            words = ""
        return f"its last words: {words.splitlines()[-1]}" if words else "it said nothing"

    # changing who is a member of it, as an operator does

    async def dismiss(self, bed: Bed, node: str) -> None:
        if bed.node(node).role == BROKER:
            await _flotilla_members.forgotten(bed, bed.node(node), self._set_of(bed, node))
        else:
            await _flotilla_members.changed(bed, {"remove": node})

    async def start_newcomer(self, bed: Bed, node: str) -> None:
        if bed.node(node).role != BROKER:
            folder = bed.hosts.folder(node)
            config = self._layout(bed.nodes).newcomer(bed.node(node), folder)
            await bed.agents[node].put(f"{folder}/node.toml", config.encode())
        await self.start_node(bed, node)

    async def enrol(self, bed: Bed, node: str) -> None:
        if bed.node(node).role != BROKER:  # which registers by itself
            await _flotilla_members.changed(bed, {"add": {node: address(bed.node(node))}})

    async def enrolled(self, bed: Bed, node: str) -> bool:
        if bed.node(node).role == BROKER:
            return await _flotilla_members.is_replica(bed, bed.node(node), self._set_of(bed, node))
        return await _flotilla_members.is_voter(bed, node)

    async def hand_over(self, bed: Bed, node: str) -> str:
        return await _flotilla_members.handed_over(bed, self._set_of(bed, node))

    def _set_of(self, bed: Bed, broker: str) -> str:
        return next(each.name for each in self._sets(bed) if broker in each.nodes)

    # watching it

    async def standing(self, bed: Bed) -> Standing:
        nodes = [node for node in bed.nodes if node.role in PORTS]
        answers = await asyncio.gather(*(_described(bed, node) for node in nodes))
        described = {n.name: answer for n, answer in zip(nodes, answers, strict=True)}
        return standing(described, self._sets(bed))

    # for hosts that see what nodes decide and write

    def seen(self, nodes: Sequence[Node]) -> Seen:
        """Who is who."""
        return Seen(self._layout(nodes).sets)

    def laws(
        self,
        nodes: Sequence[Node],
        now_ns: Callable[[], int],
        file: Callable[[str, str], Readable | None],
    ) -> Laws:
        """What must never be seen. `file`: of a node, by its path in the node's folder."""
        values = self._settings.values
        size = int(values["mappedFileSizeCommitLog"])

        def read(node: str, start: int, end: int) -> bytes | None:
            def segment(base: int) -> Readable | None:
                return file(node, f"{LOG}/{base:020d}")

            return log_bytes(segment, size, start, end)

        return Laws(self._layout(nodes).sets, values, now_ns, read)

    async def healthy(self, bed: Bed, within_s: float) -> Mapping[str, Any]:
        deadline_ns = bed.now_ns() + round(within_s * 1e9)
        while why := _unhealthy(now := await self.standing(bed), self._sets(bed), self._topics):
            if bed.now_ns() >= deadline_ns:
                raise BedFailed(f"the cluster is not healthy after {within_s:g} s: {why}")
            await bed.sleep(LOOK_EVERY_S)
        return {
            "masters": now.masters,
            "epochs": now.epochs,
            "in_set": now.in_set,
            "controller_leader": now.controller_leader,
        }

    async def compared(self, bed: Bed) -> Mapping[str, Any] | None:
        """Digests of all replicas' logs, for `harness.run.replica_comparison`."""
        now = await self.standing(bed)
        return await _flotilla_compared.compared(bed, now, self._sets(bed), LOG)

    # taking its history

    async def collect(self, bed: Bed) -> None:
        for role in (CONTROLLER, BROKER):  # in this order nobody is elected while brokers leave
            await asyncio.gather(*(_stopped(bed, node.name) for node in bed.of_role(role)))
        nodes = [node.name for node in bed.nodes if node.role in PORTS]
        logs = await asyncio.gather(*(_events(bed, node) for node in nodes))
        for t, node, kind, fields in sorted((e for log in logs for e in log), key=_when):
            bed.record.event(t, node, kind, fields)
        for broker_set in self._sets(bed):
            reads = (self._replica(bed, broker_set, node) for node in broker_set.nodes)
            await asyncio.gather(*reads)

    async def _replica(self, bed: Bed, broker_set: BrokerSet, node: str) -> None:
        """One broker's copy of the log, into the history; a note when it can not be had."""
        folder, agent = bed.hosts.folder(node), bed.agents[node]
        python, out = bed.hosts.python(node), f"{folder}/messages.bin"
        script = f"{python.packages}/clusters/systems/_flotilla_dump.py"
        argv = [python.executable, "-S", "-s", script, f"{folder}/store", out]
        try:
            ran = await agent.run(argv, timeout_s=READ_WITHIN_S)
            if ran.code:
                raise BedFailed(ran.err.strip() or "no reason")
            read = await agent.get(out)
            await agent.run(["rm", "-f", out])
        except BedFailed as e:
            bed.record.note(f"NO_REPLICA {node}: {str(e)[-500:]}")
            return
        layout = self._layout(bed.nodes)
        queues = [layout.key(broker_set, *place) for place in json.loads(ran.out)["queues"]]
        rows = _flotilla_dump.ROW.iter_unpack(read)
        bed.record.replicas(node, [(queues[queue], *rest) for queue, *rest in rows])

    def _layout(self, nodes: Sequence[Node]) -> Layout:
        return Layout(nodes, self._settings, self._topics, self._seed)

    def _sets(self, bed: Bed) -> list[BrokerSet]:
        return broker_sets(bed.nodes, self._settings)


async def _described(bed: Bed, node: Node) -> Mapping[str, Any] | None:
    """What a node says of itself; None when it does not answer."""
    asked = bed.agents[node.name].ask(PORTS[node.role], _DESCRIBE, ANSWER_WITHIN_S)
    try:
        return from_json((await asked)[_REPLY_HEAD:])
    except (BedFailed, ConnectionError, TimeoutError, ValueError):
        return None


def _unhealthy(now: Standing, sets: Sequence[BrokerSet], topics: Mapping[str, int]) -> str:
    """Why clients can not work with full redundancy; empty: they can."""
    if why := missing(now, sets):
        return why
    for node, said in now.detail.items():
        if said["role"] != NAMESERVER:
            continue
        for broker_set in sets:
            route = said["brokers"].get(broker_set.name, {"addrs": {}})
            if broker_set.addresses.get(route["addrs"].get("0")) != now.masters[broker_set.name]:
                return f"{node} does not know the master of {broker_set.name}"
        if unknown := sorted(set(topics) - set(said["topics"])):
            return f"{node} does not know the topic {unknown[0]}"
    return ""


async def _stopped(bed: Bed, node: str) -> None:
    """The process ends; on a node that is gone nothing can be ended."""
    with suppress(NodeGone):
        await _stop(bed.agents[node])


async def _stop(agent: Agent) -> None:
    """Ask the process to end, then make it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if (await agent.state(PROCESS)).state not in ("running", "stopped"):
            return
        await agent.signal(PROCESS, number)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await agent.exited(PROCESS)
        except TimeoutError:
            continue


Event = tuple[int, str, str, Mapping[str, Any]]


async def _events(bed: Bed, node: str) -> list[Event]:
    """A node's event log on the clock of record; each node writes by its own monotonic one."""
    epoch_ns = round(asyncio.get_running_loop().time() * 1e9) - bed.now_ns()
    clock = bed.hosts.clock(node)
    try:
        log = await bed.agents[node].get(f"{bed.hosts.folder(node)}/{Flotilla.log}")
    except BedFailed as e:
        bed.record.note(f"NO_EVENTS {node}: {e}")
        return []
    return list(filter(None, (_event(line, clock, epoch_ns) for line in log.splitlines())))


def _event(line: bytes, clock: Clock, epoch_ns: int) -> Event | None:
    """One line; None for the torn last one of a killed node."""
    try:
        fields = from_json(line)
        t = clock.drivers_ns(round(fields.pop("mono") * 1e9)) - epoch_ns
        fields.pop("t")
        return t, fields.pop("node"), fields.pop("kind"), fields
    except (ValueError, KeyError):
        return None


def _when(event: Event) -> tuple[int, str]:
    return event[0], event[1]


def _detection_s(chosen: Settings) -> float:
    """The longest it may take to notice a silent master: its last heartbeat ages, then a scan."""
    ms = (
        chosen.values["controllerHeartBeatTimeoutMills"]
        + chosen.values["scanNotActiveBrokerInterval"]
    )
    return float(ms) / 1000 * float(chosen.values["timeScale"])
