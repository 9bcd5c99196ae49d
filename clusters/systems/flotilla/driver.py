"""The driver of Flotilla: installs, starts, queries and stops its nodes.

It starts each node as `python -m clusters.flotilla NODE.toml` through the node's agent, asks it for
its role, and at the end reads the log of every broker. Profiles are in `profiles.toml`. The setting
`mutant` starts a known-bad variant instead.
"""

import asyncio
import json
import signal
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import tomli_w

from clusters.flotilla.config import CONTROLLER_TYPES, convertible_modes
from clusters.flotilla.net.wire import HEADER, Op, frame, from_json
from clusters.supply import sources_here
from clusters.systems.flotilla import log_dump, membership
from clusters.systems.flotilla.client import FlotillaClient
from clusters.systems.flotilla.cluster_state import (
    BrokerSetLayout,
    cluster_state,
    common_range,
    host_of,
    missing_redundancy,
)
from clusters.systems.flotilla.ensemble import PROGRAMS, Ensemble, fetched
from clusters.systems.flotilla.event_view import EventView
from clusters.systems.flotilla.frames import FlotillaFrames
from clusters.systems.flotilla.laws import Laws, LogSegment, log_bytes
from clusters.systems.flotilla.layout import (
    PORTS,
    Layout,
    address,
    broker_sets,
    cluster_nodes,
    refuse_brokers_for_control,
    refuse_clients_without_zone,
    refuse_too_few_zones,
    refuse_unknown_brokers,
)
from clusters.systems.flotilla.modes import (
    BROKER,
    CONTAINER,
    CONTROLLER,
    COORDINATOR,
    HA_CONTROLLER,
    NAMESERVER,
)
from clusters.systems.flotilla.profiles import (
    COORDINATORS,
    FlotillaSettings,
    claims,
    in_force,
    mutants,
    profiles,
    refuse_impossible,
    refuse_late_questions,
    settings,
)
from clusters.systems.flotilla.swarm import swarm
from harness.contracts import (
    CLIENT,
    Agent,
    ClockOffset,
    ClusterState,
    MessageClient,
    Node,
    SystemPlugin,
    TestBed,
)
from harness.errors import BadRequest, BedFailed, NodeGone
from harness.registry import load
from harness.run.broker_sets import BrokerSetData
from harness.trial import Trial
from harness.zones import assign_zones

__all__ = ["Flotilla", "claims", "in_force", "mutants", "profiles", "swarm", "system"]

PROCESS = "flotilla"
STORE = "store"
LOG = "commitlog"  # in a store: its segment files, each named by its first offset
OUTPUT = "flotilla.log"  # standard output and error of the node
START_WITHIN_S = 20.0
ANSWER_WITHIN_S = 0.5  # a paused node never answers
STOP_WITHIN_S = 5.0
READ_WITHIN_S = 120.0
DIGEST_WITHIN_S = 60.0
LOOK_EVERY_S = 0.1
HOSTS_WITHOUT_JAVA = frozenset({"simulated"})  # they run no programs
HOSTS_WITH_ZONES = frozenset({"ssh"})  # their inventory may say where a node is
_DESCRIBE = frame(Op.DESCRIBE, 1, b"{}")
_REPLY_HEAD = HEADER.size - 4  # the agent removes the length


def system(trial: Trial) -> "Flotilla":
    wanted = load("workload", trial.workload)(trial).client_settings()
    chosen = settings(trial)
    if wanted.get("once"):
        chosen = chosen.without_retries()
    nodes = cluster_nodes(trial.nodes, chosen.mode)
    (first, *_) = broker_sets(nodes, chosen)
    electable = len(first.nodes) - chosen.learners
    refuse_impossible(chosen.values, electable, wanted.get("body_bytes", 0))
    refuse_late_questions(chosen.values, wanted.get("asked_within_s"))
    refuse_unknown_brokers(nodes, chosen)
    placed = assign_zones(nodes, trial.zones)
    if chosen.in_ensemble and trial.hosts in HOSTS_WITHOUT_JAVA:
        raise BadRequest(
            f'the trial\'s settings: {COORDINATORS} = "zookeeper" needs hosts that run Java, and '
            f"{trial.hosts} hosts run no programs; choose local hosts, or leave it out"
        )
    if trial.hosts not in HOSTS_WITH_ZONES:
        refuse_too_few_zones(placed, chosen)
        refuse_brokers_for_control(placed, chosen)
    refuse_clients_without_zone(placed, chosen, bool(wanted.get("selects", False)))
    return Flotilla(trial, chosen, wanted.get("topics", {}))


CALLS = (
    *("append", "append_later", "prepare", "decide", "questions", "pop", "acknowledge", "hide"),
    *("entries", "end", "read", "write", "cas"),
    *("acquire", "release", "create_topic", "member"),
)


def calls(trial: Trial) -> Sequence[str]:
    lacks = settings(trial).mode.lacks
    return [call for call in CALLS if call not in lacks]


def prepare(trial: Trial) -> None:
    """Fetch the programs that a ZooKeeper ensemble needs, if the trial has one. Raises BedFailed,
    with the ways to get them."""
    if settings(trial).in_ensemble:
        fetched()


PLUGIN = SystemPlugin(
    system=system,
    profiles=profiles,
    claims=claims,
    mutants=mutants,
    in_force=in_force,
    calls=calls,
    prepare=prepare,
    optional_supply=lambda: {program.name: sources_here(program) for program in PROGRAMS},
    swarm=swarm,
)


class Flotilla:
    """Installs, starts, watches and stops a Flotilla cluster."""

    log = "events.jsonl"
    members = membership.ROLES
    stopped_first = membership.STOPPED_FIRST
    frame_reader = FlotillaFrames
    data = STORE
    consensus_kinds = CONTROLLER_TYPES

    def __init__(self, trial: Trial, chosen: FlotillaSettings, topics: Mapping[str, int]) -> None:
        self._settings, self._topics, self._seed = chosen, topics, trial.seed
        self._zones = trial.zones
        self._nodes = cluster_nodes(trial.nodes, chosen.mode)
        self._consensus: dict[str, str] = {}  # controller -> how it agrees, if that was changed
        self._ensemble = Ensemble(chosen) if chosen.in_ensemble else None
        self.can = chosen.mode.can
        self.modes = convertible_modes(HA_CONTROLLER in chosen.mode.counts)
        self.detection_s = _detection_s(chosen)

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def process(self, node: str) -> str:
        return PROCESS

    def client_settings(self, nodes: Sequence[Node]) -> Mapping[str, Any]:
        return self._layout(nodes).client(assign_zones(nodes, self._zones))

    def broker_sets(
        self, nodes: Sequence[Node], keys: Sequence[str]
    ) -> Mapping[str, BrokerSetData]:
        return self._layout(nodes).broker_sets_of_keys(keys)

    def client(self, settings: Mapping[str, Any]) -> MessageClient:
        return FlotillaClient(settings)

    # starting the cluster

    async def install(self, bed: TestBed) -> None:
        layout = self._layout(bed.nodes)

        async def put(node: Node) -> None:
            folder = bed.hosts.folder(node.name)
            config = layout.config(node, folder)
            await bed.agents[node.name].put(f"{folder}/node.toml", config.encode())
            for path, inner in layout.inner_files(node, folder).items():
                await bed.agents[node.name].put(path, inner.encode())

        await asyncio.gather(*(put(node) for node in self._own_nodes(bed)))
        if self._ensemble:
            await self._ensemble.install(bed)

    def _own_nodes(self, bed: TestBed) -> list[Node]:
        """Return the nodes that run Flotilla."""
        return [node for node in bed.nodes if node.role in PORTS and not self._is_java(node)]

    def _is_java(self, node: Node) -> bool:
        return self._ensemble is not None and node.role == COORDINATOR

    async def start(self, bed: TestBed) -> None:
        roles = [role for role in self._settings.mode.counts if role != CLIENT]
        for role in roles:
            nodes = [node.name for node in bed.of_role(role)]
            await asyncio.gather(*(self._start_ready(bed, node) for node in nodes))

    async def start_node(self, bed: TestBed, node: str) -> None:
        """Start the node's process, and do not wait until it serves."""
        if self._ensemble and self._is_java(bed.node(node)):
            await self._ensemble.configure(bed, node)
            await self._run(bed, node, self._ensemble.argv(bed, node), {}, lambda line: None)
        else:
            await self._spawn(bed, node, lambda line: None)

    async def _start_ready(self, bed: TestBed, node: str) -> None:
        """Start a node and wait until it listens. Raises BedFailed with the last line of its
        output."""
        if self._is_java(bed.node(node)):
            await self._start_server(bed, node)
            return
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
            raise BedFailed(f"{node} did not start: {why}; {await self._last_output(bed, node)}")

    async def _start_server(self, bed: TestBed, node: str) -> None:
        """Start a server of ZooKeeper and wait until it serves, which needs a majority of them."""
        assert self._ensemble is not None
        await self.start_node(bed, node)
        deadline_ns = bed.now_ns() + round(self._ensemble.start_s * 1e9)
        while await self._ensemble.describe(bed, node) is None:
            ended = (await bed.agents[node].state(PROCESS)).state == "exited"
            if ended or bed.now_ns() >= deadline_ns:
                late = f"it does not serve after {self._ensemble.start_s:g} s"
                why = f"{'it ended' if ended else late}; {await self._last_output(bed, node)}"
                raise BedFailed(f"{node} did not start: {why}")
            await bed.sleep(LOOK_EVERY_S)

    async def _spawn(self, bed: TestBed, node: str, on_line: Callable[[str], None]) -> None:
        python = bed.hosts.python(node)
        # -S -s: a node needs the standard library and our packages only
        argv = [python.executable, "-P", "-S", "-s", "-X", "frozen_modules=on", "-m"]
        argv += [*self._settings.program, f"{bed.hosts.folder(node)}/node.toml"]
        env = {"PYTHONPATH": python.packages, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
        await self._run(bed, node, argv, env, on_line)

    async def _run(
        self,
        bed: TestBed,
        node: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> None:
        folder = bed.hosts.folder(node)
        await bed.agents[node].start(
            PROCESS, argv, env=env, cwd=folder, log=f"{folder}/{OUTPUT}", on_line=on_line
        )

    async def _last_output(self, bed: TestBed, node: str) -> str:
        log = f"{bed.hosts.folder(node)}/{OUTPUT}"
        try:
            words = (await bed.agents[node].get(log)).decode(errors="replace").strip()
        except BedFailed:
            words = ""
        return f"its last output: {words.splitlines()[-1]}" if words else "it printed nothing"

    # changing its members, as an operator does

    async def remove_member(self, bed: TestBed, node: str) -> None:
        if bed.node(node).role == BROKER:
            await membership.remove_broker(bed, bed.node(node), self._set_of(bed, node))
        else:
            await membership.change_controllers(bed, {"remove": node})

    async def start_new_member(self, bed: TestBed, node: str) -> None:
        if bed.node(node).role != BROKER:
            folder = bed.hosts.folder(node)
            layout, kind = self._layout(bed.nodes), self.consensus(node)
            config = layout.new_member_config(bed.node(node), folder, kind)
            await bed.agents[node].put(f"{folder}/node.toml", config.encode())
        await self.start_node(bed, node)

    async def add_member(self, bed: TestBed, node: str) -> None:
        if bed.node(node).role != BROKER:  # a broker registers by itself
            await membership.change_controllers(bed, {"add": {node: address(bed.node(node))}})

    async def is_member(self, bed: TestBed, node: str) -> bool:
        if bed.node(node).role == BROKER:
            return await membership.is_replica(bed, bed.node(node), self._set_of(bed, node))
        return await membership.is_voter(bed, node)

    async def hand_over(self, bed: TestBed, node: str) -> str:
        return await membership.hand_over(bed, self._set_of(bed, node))

    async def drill_zone(self, bed: TestBed, zone: str) -> str:
        return await membership.drill_zone(bed, zone)

    async def return_zone(self, bed: TestBed, zone: str) -> None:
        await membership.return_zone(bed, zone)

    # converting its sets to another mode, likewise

    async def mode_of(self, bed: TestBed, broker_set: str) -> str:
        found = await membership.modes_of(bed, self._set_named(bed, broker_set))
        latest = max(found, key=lambda broker: broker.in_force.number, default=None)
        return latest.in_force.mode if latest else ""

    async def is_converting(self, bed: TestBed, broker_set: str) -> bool:
        of = self._set_named(bed, broker_set)
        found = await membership.modes_of(bed, of)
        differ = len({broker.in_force.number for broker in found}) > 1
        return differ or len(found) < len(of.nodes) or any(broker.pending for broker in found)

    async def convert(self, bed: TestBed, broker_set: str, mode: str) -> str:
        values = self._settings.values
        waits_s = values.get("convertTimeout", 3000) / 1000 * values["timeScale"]
        return await membership.convert(bed, self._set_named(bed, broker_set), mode, waits_s)

    def _set_named(self, bed: TestBed, name: str) -> BrokerSetLayout:
        return next(each for each in self._sets(bed) if each.name == name)

    # how its controllers agree, likewise

    def consensus(self, node: str) -> str:
        usual = str(self._settings.values.get("controllerType", CONTROLLER_TYPES[0]))
        return self._consensus.get(node, usual)

    async def set_consensus(self, bed: TestBed, node: str, kind: str) -> None:
        path = f"{bed.hosts.folder(node)}/node.toml"
        config = tomllib.loads((await bed.agents[node].get(path)).decode())
        await bed.agents[node].put(path, tomli_w.dumps({**config, "controllerType": kind}).encode())
        self._consensus[node] = kind

    async def running_consensus(self, bed: TestBed, node: str) -> str:
        found = await _describe(bed, node, PORTS[CONTROLLER])
        return str(found["controllerType"]) if found else ""

    # changing the brokers of its containers, likewise

    async def inner_broker(self, bed: TestBed, node: str, which: str) -> str:
        now = await self.cluster_state(bed)
        of = membership.inner_broker(now, self._sets(bed), node, which)
        return of.name if of else ""

    async def remove_inner(self, bed: TestBed, node: str, broker: str) -> None:
        await membership.remove_inner(bed, node, self._inner_config(bed, node, broker))

    async def add_inner(self, bed: TestBed, node: str, broker: str, mistakes: bool) -> None:
        if await self.serves_inner(bed, node, broker):
            return
        config = self._inner_config(bed, node, broker)
        if mistakes:
            await membership.add_by_mistake(bed, node, config)
        await membership.add_inner(bed, node, config)

    async def serves_inner(self, bed: TestBed, node: str, broker: str) -> bool:
        of = next(each for each in self._sets(bed) if each.name == broker)
        return await membership.serves_inner(bed, node, of.inner_port)

    def _inner_config(self, bed: TestBed, node: str, broker: str) -> Mapping[str, Any]:
        layout = self._layout(bed.nodes)
        of = next(each for each in layout.sets if each.name == broker)
        return layout.inner_config(bed.node(node), of, bed.hosts.folder(node))

    def _set_of(self, bed: TestBed, broker: str) -> str:
        return next(each.name for each in self._sets(bed) if broker in each.nodes)

    # querying it

    async def cluster_state(self, bed: TestBed) -> ClusterState:
        sets = self._sets(bed)
        asked = {node.name: (node.name, PORTS[node.role]) for node in self._own_nodes(bed)}
        inside = [(of, name) for of in sets if of.inner_port for name in of.nodes]
        asked |= {of.replica(name): (name, of.inner_port) for of, name in inside}
        answers = await asyncio.gather(
            *(_describe(bed, *where) for where in asked.values()), *self._ask_servers(bed)
        )
        names = [*asked, *(node.name for node in bed.nodes if self._is_java(node))]
        return cluster_state(dict(zip(names, answers, strict=True)), sets)

    def _ask_servers(self, bed: TestBed) -> list[Awaitable[Mapping[str, Any] | None]]:
        """Ask the servers of ZooKeeper, if there are any."""
        servers = [node for node in bed.nodes if self._is_java(node)]
        return [self._ensemble.describe(bed, node.name) for node in servers if self._ensemble]

    # for hosts that see all decisions and events of the nodes

    def event_view(self, nodes: Sequence[Node]) -> EventView:
        """Return a view of the cluster that follows the nodes' event logs."""
        return EventView(self._layout(nodes).sets)

    def laws(
        self,
        nodes: Sequence[Node],
        now_ns: Callable[[], int],
        file: Callable[[str, str], LogSegment | None],
    ) -> Laws:
        """Return the laws of this cluster, which hosts report its decisions and events to.

        file: returns an open file of a node, by its path in the node's folder
        """
        values = self._settings.values
        size = int(values["mappedFileSizeCommitLog"])
        sets = self._layout(nodes).sets
        stores = {of.replica(node): of.store(node) for of in sets for node in of.nodes}

        def read(replica: str, start: int, end: int) -> bytes | None:
            def segment(base: int) -> LogSegment | None:
                return file(host_of(replica), f"{stores[replica]}/{LOG}/{base:020d}")

            return log_bytes(segment, size, start, end)

        return Laws(sets, values, now_ns, read)

    async def healthy(self, bed: TestBed, within_s: float) -> Mapping[str, Any]:
        deadline_ns = bed.now_ns() + round(within_s * 1e9)
        while why := _unhealthy(
            now := await self.cluster_state(bed), self._sets(bed), self._topics
        ):
            if bed.now_ns() >= deadline_ns:
                raise BedFailed(f"the cluster is not healthy after {within_s:g} s: {why}")
            await bed.sleep(LOOK_EVERY_S)
        return {
            "masters": now.masters,
            "epochs": now.epochs,
            "in_set": now.in_set,
            "controller_leader": now.controller_leader,
        }

    async def compare_replicas(self, bed: TestBed) -> Mapping[str, Any] | None:
        """Return digests of all replicas' logs, for `harness.run.replica_comparison`."""
        now = await self.cluster_state(bed)
        found = {}
        for broker_set in self._sets(bed):
            begin, end = common_range(now, broker_set)
            if begin < end:
                digests = (
                    _digest(bed, node, broker_set.store(node), begin, end)
                    for node in broker_set.nodes
                )
                by_node = dict(zip(broker_set.nodes, await asyncio.gather(*digests), strict=True))
                found[broker_set.name] = {"bytes": end - begin, "digests": by_node}
        return found or None

    # collecting its history

    async def collect(self, bed: TestBed) -> None:
        # in this order no broker is elected meanwhile
        for role in (CONTROLLER, HA_CONTROLLER, BROKER, CONTAINER, COORDINATOR):
            await asyncio.gather(*(_stop_if_there(bed, node.name) for node in bed.of_role(role)))
        logs = await asyncio.gather(*(_events(bed, node.name) for node in self._own_nodes(bed)))
        for t, node, kind, fields in sorted((e for log in logs for e in log), key=_order):
            bed.record.event(t, node, kind, fields)
        for broker_set in self._sets(bed):
            reads = (self._replica(bed, broker_set, node) for node in broker_set.nodes)
            await asyncio.gather(*reads)

    async def _replica(self, bed: TestBed, broker_set: BrokerSetLayout, node: str) -> None:
        """Write one broker's copy of the log into the history, or a note if it cannot be read."""
        folder, agent = bed.hosts.folder(node), bed.agents[node]
        store = broker_set.store(node)
        name = f"{broker_set.name}-messages.bin" if broker_set.inner_port else "messages.bin"
        python, out = bed.hosts.python(node), f"{folder}/{name}"
        script = f"{python.packages}/clusters/systems/flotilla/log_dump.py"
        argv = [python.executable, "-S", "-s", script, f"{folder}/{store}", out]
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
        queues = [layout.queue_key(broker_set, *place) for place in json.loads(ran.out)["queues"]]
        rows = log_dump.ROW.iter_unpack(read)
        bed.record.replicas(node, [(queues[queue], *rest) for queue, *rest in rows])

    def _layout(self, nodes: Sequence[Node]) -> Layout:
        return Layout(nodes, self._settings, self._topics, self._seed)

    def _sets(self, bed: TestBed) -> list[BrokerSetLayout]:
        return broker_sets(bed.nodes, self._settings)


async def _digest(bed: TestBed, node: str, store: str, begin: int, end: int) -> str:
    python, folder = bed.hosts.python(node), bed.hosts.folder(node)
    script = f"{python.packages}/clusters/systems/flotilla/log_digest.py"
    argv = [python.executable, "-S", "-s", script, f"{folder}/{store}/{LOG}"]
    argv += [str(begin), str(end)]
    ran = await bed.agents[node].run(argv, timeout_s=DIGEST_WITHIN_S)
    if ran.code:
        words = ran.err.strip().splitlines()[-1:] or ["no reason"]
        raise BedFailed(f"the log of {node} could not be read: {words[0]}")
    return ran.out.strip()


async def _describe(bed: TestBed, node: str, port: int) -> Mapping[str, Any] | None:
    """Return the node's answer to `describe`, or None if it does not answer."""
    asked = bed.agents[node].ask(port, _DESCRIBE, ANSWER_WITHIN_S)
    try:
        return from_json((await asked)[_REPLY_HEAD:])
    except (BedFailed, ConnectionError, TimeoutError, ValueError):
        return None


def _unhealthy(
    now: ClusterState, sets: Sequence[BrokerSetLayout], topics: Mapping[str, int]
) -> str:
    """Return why clients cannot work with full redundancy, or an empty string."""
    if why := missing_redundancy(now, sets):
        return why
    for node, answer in now.detail.items():
        if answer["role"] != NAMESERVER:
            continue
        for broker_set in sets:
            route = answer["brokers"].get(broker_set.name, {"addrs": {}})
            if broker_set.addresses.get(route["addrs"].get("0")) != now.masters[broker_set.name]:
                return f"{node} does not know the master of {broker_set.name}"
        if unknown := sorted(set(topics) - set(answer["topics"])):
            return f"{node} does not know the topic {unknown[0]}"
    return ""


async def _stop_if_there(bed: TestBed, node: str) -> None:
    """End the node's process, unless the node is gone."""
    with suppress(NodeGone):
        await _stop(bed.agents[node])


async def _stop(agent: Agent) -> None:
    """Ask the process to end, then kill it."""
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


async def _events(bed: TestBed, node: str) -> list[Event]:
    """Return a node's event log on the clock of record. Each node writes times of its own monotonic
    clock."""
    epoch_ns = round(asyncio.get_running_loop().time() * 1e9) - bed.now_ns()
    clock = bed.hosts.clock(node)
    try:
        log = await bed.agents[node].get(f"{bed.hosts.folder(node)}/{Flotilla.log}")
    except BedFailed as e:
        bed.record.note(f"NO_EVENTS {node}: {e}")
        return []
    return list(filter(None, (_event(line, clock, epoch_ns) for line in log.splitlines())))


def _event(line: bytes, clock: ClockOffset, epoch_ns: int) -> Event | None:
    """Return the event of one line, or None if the line is torn, as the last one of a
    killed node."""
    try:
        fields = from_json(line)
        t = clock.drivers_ns(round(fields.pop("mono") * 1e9)) - epoch_ns
        fields.pop("t")
        return t, fields.pop("node"), fields.pop("kind"), fields
    except (ValueError, KeyError):
        return None


def _order(event: Event) -> tuple[int, str]:
    return event[0], event[1]


def _detection_s(chosen: FlotillaSettings) -> float:
    """Return the longest time to notice a silent master, and until its lease is over."""
    ms = sum(chosen.values[name] for name in chosen.mode.detection)
    ms = max(ms, chosen.lease_ms)
    return float(ms) / 1000 * float(chosen.values["timeScale"])
