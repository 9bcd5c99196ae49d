"""The driver of Redis with Sentinel.

Redis is third-party software: Debian's programs `redis-server` and `redis-cli`, found on each
node's PATH. This module is the driver; beside it are the client and the interpretation of the
nodes' replies. Nothing else in Seatrial knows Redis. The roles are the harness's words: a *broker*
holds a copy of the data (a Redis server), a *controller* decides who is master (a sentinel), so
selectors, plans and checkers mean what they mean elsewhere. A sentinel leads the others only for a
single failover, so there is no `controller-leader`.

A Redis primary acknowledges what it has in memory and copies it later. When the sentinels no longer
hear it, a majority of them promotes a replica. Clients that still reach the old primary go on
writing to it until a sentinel that hears it again makes it a replica of the new one; then it
replaces its data by the new primary's. What it acknowledged in between is lost. Redis is designed
this way, which is why it is here: a harness that does not find this loss finds nothing.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from clusters.systems.redis.client import MAIN, RedisClient
from clusters.systems.redis.replies import (
    BROKER,
    CONTROLLER,
    COPY_SCRIPT,
    PORTS,
    QUESTIONS,
    Event,
    Replies,
    Reply,
    Row,
    address,
    cluster_state,
    events,
    initial_events,
    missing_redundancy,
    out_of_step,
    parse_copy,
    parse_reply,
    sort_events,
)
from harness.contracts import CLIENT, ClusterState, MessageClient, Node, SystemPlugin, TestBed
from harness.contracts.membership import REJOIN
from harness.errors import BadRequest, BedFailed, NodeGone, UnknownName
from harness.registry import load
from harness.trial import Trial

NAMES = {
    BROKER: "redis",
    CONTROLLER: "sentinel",
    CLIENT: "client",
}  # in the order in which they start
COUNTS = {BROKER: 3, CONTROLLER: 3, CLIENT: 2}
MAX_NODES = 100  # nodes of a role
PROGRAMS = ("redis-server", "redis-cli")
UNSUPPORTED_WORKLOADS = (
    "lock",
    "rebalance",
    "register",
    "topics",
)  # workloads that need more than lists
PROCESS = "redis"
LOG, DATA = "redis.log", "data"
START_WITHIN_S = 30.0
ANSWER_WITHIN_S = 1.0
STOP_WITHIN_S = 5.0
READ_WITHIN_S = 30.0
LOOK_EVERY_S = 0.1
CHUNK = 10_000  # messages of a replica per read
ASK_EACH_OTHER_S = 1.0  # a sentinel asks the others about its suspicion
WALL = "import time; print(time.time_ns() - time.monotonic_ns())"

# -------------------------------------------------------------------------------- configuration

DEFAULTS: Mapping[str, Any] = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "min-replicas-to-write": 0,
    "min-replicas-max-lag": 10,
    "down-after-milliseconds": 2000,
    "failover-timeout": 5000,
}
CHOICES = {"appendonly": ("yes", "no"), "appendfsync": ("always", "everysec", "no")}
OF_SENTINEL = ("down-after-milliseconds", "failover-timeout")


@dataclass(frozen=True)
class RedisProfile:
    """A named configuration. `expected`: plan -> verdict, or the code of the finding."""

    name: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, str] = field(default_factory=dict)


PROFILES = (
    RedisProfile(
        "default",
        "acknowledged as soon as the primary has it in memory",
        expected={"redis-split": "LOST_ACKED"},
    ),
    RedisProfile(
        "min-replicas",
        "the same, but a primary without a replica for a second or two refuses writes",
        {"min-replicas-to-write": 1, "min-replicas-max-lag": 1},
        {"redis-split": "LOST_ACKED"},
    ),
)


def profiles() -> Mapping[str, RedisProfile]:
    """Return all profiles by name."""
    return {profile.name: profile for profile in PROFILES}


# Sentinel's manual promises failover when a primary fails or is cut off. It also states that
# acknowledged writes may be lost in it; a trial shows how many. So failovers are claimed.
CLAIMS: Mapping[str, str] = dict.fromkeys(
    (
        *("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "clock", "crash"),
        *("starve-cpu", "starve-memory", "starve-descriptors", "disk-full", "read-only"),
    ),
    "all",
)


def claims(trial: Trial) -> Mapping[str, str]:
    """Return the faults that every profile claims to survive."""
    return CLAIMS


def settings(trial: Trial) -> Mapping[str, Any]:
    """Return the profile's settings with the trial's over them. Raises UnknownName, or BadRequest
    that names the key."""
    name = trial.profile or PROFILES[0].name
    if name not in profiles():
        raise UnknownName("profile", name, profiles())
    for key, value in trial.settings.items():
        if key not in DEFAULTS:
            raise UnknownName("setting", key, DEFAULTS)
        _check(key, value)
    return {**DEFAULTS, **profiles()[name].settings, **trial.settings}


def in_force(trial: Trial) -> Mapping[str, Any]:
    """Return all settings of a trial's cluster, whether from the trial, its profile or a
    default."""
    return settings(trial)


def _check(key: str, value: Any) -> None:
    if key in CHOICES:
        if value not in CHOICES[key]:
            choices = ", ".join(CHOICES[key])
            raise BadRequest(f"the trial's settings: {key} must be one of {choices}, not {value!r}")
        return
    least = 1 if key in OF_SENTINEL else 0
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadRequest(
            f"the trial's settings: {key} must be a whole number from {least}, not {value!r}"
        )


def cluster_nodes(counts: Mapping[str, Any]) -> list[Node]:
    """Return the nodes, without addresses. Raises BadRequest if a count is invalid."""
    for role, count in counts.items():
        if role not in COUNTS:
            raise UnknownName("role", role, COUNTS)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_NODES:
            raise BadRequest(
                f"nodes.{role} must be a whole number from 1 to {MAX_NODES}, not {count!r}"
            )
    wanted = {**COUNTS, **counts}
    return [
        Node(f"{NAMES[r]}-{n + 1}", r, own_wall_clock=r == CONTROLLER)
        for r in NAMES
        for n in range(wanted[r])
    ]


def server_config(node: Node, first: Node, folder: str, values: Mapping[str, Any]) -> str:
    """Return redis.conf. `first` is the primary at the beginning."""
    lines = [
        *_common(node, f"{folder}/{DATA}"),
        'save ""',
        f"replica-announce-ip {node.address}",
        "repl-diskless-sync-delay 0",  # serve a new replica at once
        "repl-ping-replica-period 1",
        "repl-timeout 10",
        *(f"{key} {value}" for key, value in values.items() if key not in OF_SENTINEL),
        *([f"replicaof {first.address} {PORTS[BROKER]}"] if node != first else []),
    ]
    return "\n".join([*lines, ""])


def sentinel_config(
    node: Node, first: Node, quorum: int, folder: str, values: Mapping[str, Any]
) -> str:
    """Return sentinel.conf, which the sentinel rewrites as it learns and votes."""
    lines = [
        *_common(node, folder),
        f"sentinel announce-ip {node.address}",
        f"sentinel monitor {MAIN} {first.address} {PORTS[BROKER]} {quorum}",
        *(f"sentinel {key} {MAIN} {values[key]}" for key in OF_SENTINEL),
        f"sentinel parallel-syncs {MAIN} {MAX_NODES}",
    ]
    return "\n".join([*lines, ""])


def _common(node: Node, folder: str) -> list[str]:
    here = [f"bind {node.address}", f"port {PORTS[node.role]}", "protected-mode no"]
    return [*here, f'dir "{folder}"', 'logfile ""', "daemonize no"]


# ---------------------------------------------------------------------------------------- driver


def system(trial: Trial) -> "Redis":
    if trial.workload in UNSUPPORTED_WORKLOADS:
        raise BadRequest(
            f"redis has no clients for the workload {trial.workload}; it has them for log, "
            "messages and set"
        )
    wanted = load("workload", trial.workload)(trial).client_settings()
    if wanted.get("selects"):
        raise BadRequest(
            "redis has no clients that select queues; leave load.client_selects out of the trial"
        )
    topics = wanted.get("topics", {})
    return Redis(cluster_nodes(trial.nodes), settings(trial), topics)


PLUGIN = SystemPlugin(
    system=system,
    profiles=profiles,
    claims=claims,
    in_force=in_force,
    calls=lambda trial: ("append", "entries", "end", "read", "write"),
)


class Redis:
    """Installs, starts, watches and stops Redis servers and their sentinels."""

    log, data = LOG, DATA
    can = frozenset({REJOIN})

    def __init__(
        self, nodes: Sequence[Node], values: Mapping[str, Any], topics: Mapping[str, int]
    ) -> None:
        self._nodes, self._values = nodes, values
        self._keys = [f"{topic}-{n}" for topic, queues in topics.items() for n in range(queues)]
        self.detection_s = values["down-after-milliseconds"] / 1000 + ASK_EACH_OTHER_S

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def process(self, node: str) -> str:
        return PROCESS

    def client(self, settings: Mapping[str, Any]) -> MessageClient:
        return RedisClient(settings)

    def client_settings(self, nodes: Sequence[Node]) -> Mapping[str, Any]:
        """Return the settings of a client. `nodes`: address -> index in names.json; `names`: ->
        name."""
        return {
            "sentinels": [address(node) for node in nodes if node.role == CONTROLLER],
            "nodes": {address(n): at for at, n in enumerate(nodes) if n.role == BROKER},
            "names": {address(n): n.name for n in nodes if n.role == BROKER},
        }

    # starting the cluster

    async def install(self, bed: TestBed) -> None:
        await asyncio.gather(*(self._install(bed, node) for node in _cluster(bed)))

    async def _install(self, bed: TestBed, node: Node) -> None:
        agent, folder = bed.agents[node.name], bed.hosts.folder(node.name)
        for program in PROGRAMS:
            if (await agent.run(["sh", "-c", f"command -v {program}"])).code:
                raise BedFailed(
                    f"{node.name} has no {program}; to fix it: sudo apt-get install -y "
                    "redis-server, on the node's host, or for containers on this machine"
                )
        first, quorum = bed.of_role(BROKER)[0], len(bed.of_role(CONTROLLER)) // 2 + 1
        if node.role == BROKER:
            config = server_config(node, first, folder, self._values)
        else:
            config = sentinel_config(node, first, quorum, folder, self._values)
        await agent.put(f"{folder}/{_config(node)}", config.encode())

    async def start(self, bed: TestBed) -> None:
        """Start the servers, then the sentinels, which ask a primary for its replicas when they
        first connect and then only every ten seconds."""
        servers, sentinels = bed.of_role(BROKER), bed.of_role(CONTROLLER)
        await asyncio.gather(*(self.start_node(bed, node.name) for node in servers))
        view: Reply = {"ip": servers[0].address, "port": str(PORTS[BROKER])}

        async def lacking() -> str:
            return out_of_step(await _ask_all(bed, servers), servers, view)

        await _wait_until_complete(bed, START_WITHIN_S, lacking)
        await asyncio.gather(*(self.start_node(bed, node.name) for node in sentinels))
        names = [node.name for node in servers]
        for event in initial_events(bed.now_ns(), sentinels[0].name, names):
            bed.record.event(*event)

    async def start_node(self, bed: TestBed, node: str) -> None:
        folder, agent, whose = bed.hosts.folder(node), bed.agents[node], bed.node(node)
        await agent.run(["mkdir", "-p", f"{folder}/{DATA}"])
        as_what = ["--sentinel"] if whose.role == CONTROLLER else []
        await agent.start(
            PROCESS,
            ["redis-server", f"{folder}/{_config(whose)}", *as_what],
            env={"TZ": "UTC"},
            cwd=folder,
            log=f"{folder}/{LOG}",
        )

    # querying it

    async def cluster_state(self, bed: TestBed) -> ClusterState:
        nodes = _cluster(bed)
        return cluster_state(await _ask_all(bed, nodes), nodes)

    async def healthy(self, bed: TestBed, within_s: float) -> Mapping[str, Any]:
        nodes = _cluster(bed)

        async def lacking() -> str:
            return missing_redundancy(await _ask_all(bed, nodes), nodes)

        await _wait_until_complete(bed, within_s, lacking)
        now = await self.cluster_state(bed)
        return {"masters": now.masters, "epochs": now.epochs, "in_set": now.in_set}

    # collecting its history

    async def collect(self, bed: TestBed) -> None:
        servers, sentinels = bed.of_role(BROKER), bed.of_role(CONTROLLER)
        await asyncio.gather(*(self._copy(bed, node) for node in servers))
        for nodes in (sentinels, servers):  # in this order no server is elected meanwhile
            await asyncio.gather(*(_stop(bed, node.name) for node in nodes))
        names = {address(node): node.name for node in servers}
        logs = await asyncio.gather(*(_events(bed, node.name, names) for node in sentinels))
        for event in sort_events(logs):
            bed.record.event(*event)

    async def _copy(self, bed: TestBed, node: Node) -> None:
        """Write one server's lists into the history, or a note if they cannot be read."""
        for key in self._keys:
            try:
                bed.record.replicas(node.name, await _read_list(bed, node, key))
            except BedFailed as e:
                bed.record.note(f"NO_REPLICA {node.name}: {str(e)[-500:]}")
                return


def _cluster(bed: TestBed) -> list[Node]:
    return [node for node in bed.nodes if node.role != CLIENT]


def _config(node: Node) -> str:
    return f"{NAMES[node.role]}.conf"


def _cli(node: Node, *words: str) -> list[str]:
    return ["redis-cli", "-h", node.address, "-p", str(PORTS[node.role]), *words]


async def _ask_all(bed: TestBed, nodes: Sequence[Node]) -> Replies:
    """Return the reply of each node, or None for one that does not answer."""

    async def ask(node: Node) -> Reply | None:
        agent, question = bed.agents[node.name], QUESTIONS[node.role]
        try:
            ran = await agent.run(_cli(node), question, timeout_s=ANSWER_WITHIN_S)
        except BedFailed:
            return None
        return None if ran.code else parse_reply(node.role, ran.out)

    answers = await asyncio.gather(*map(ask, nodes))
    return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}


async def _wait_until_complete(
    bed: TestBed, within_s: float, lacking: Callable[[], Awaitable[str]]
) -> None:
    """Wait until nothing is lacking. Raises BedFailed with what is, on timeout."""
    deadline_ns = bed.now_ns() + round(within_s * 1e9)
    while why := await lacking():
        if bed.now_ns() >= deadline_ns:
            raise BedFailed(f"the cluster is not healthy after {within_s:g} s: {why}")
        await bed.sleep(LOOK_EVERY_S)


async def _read_list(bed: TestBed, node: Node, key: str) -> list[Row]:
    """Return all elements of the list, read in chunks."""
    rows: list[Row] = []
    while True:
        at = len(rows)
        argv = _cli(node, "EVAL", COPY_SCRIPT, "1", key, str(at), str(at + CHUNK - 1))
        ran = await bed.agents[node.name].run(argv, timeout_s=READ_WITHIN_S)
        if ran.code:
            raise BedFailed(ran.err.strip() or "no reason")
        rows += parse_copy(ran.out, key, at)
        if len(rows) < at + CHUNK:
            return rows


async def _stop(bed: TestBed, node: str) -> None:
    """Ask the process to end, then kill it, unless the node is gone."""
    agent = bed.agents[node]
    with suppress(NodeGone):
        for number in (signal.SIGTERM, signal.SIGKILL):
            if (await agent.state(PROCESS)).state not in ("running", "stopped"):
                return
            await agent.signal(PROCESS, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_WITHIN_S):
                    await agent.exited(PROCESS)


async def _events(bed: TestBed, node: str, names: Mapping[str, str]) -> list[Event]:
    """Return the events of a sentinel's log, whose times are of the wall clock, on the clock of
    record."""
    agent, python = bed.agents[node], bed.hosts.python(node).executable
    our_epoch_ns = round(asyncio.get_running_loop().time() * 1e9) - bed.now_ns()
    try:
        log = (await agent.get(f"{bed.hosts.folder(node)}/{LOG}")).decode(errors="replace")
        ran = await agent.run([python, "-I", "-S", "-c", WALL])
        if ran.code:
            raise BedFailed(ran.err.strip() or "its clocks cannot be read")
    except BedFailed as e:
        bed.record.note(f"NO_EVENTS {node}: {e}")
        return []
    begin_ns = int(ran.out) + our_epoch_ns + bed.hosts.clock(node).offset_ns
    events_of_node = events(log, node, names)
    return [(t - begin_ns, source, kind, fields) for t, source, kind, fields in events_of_node]
