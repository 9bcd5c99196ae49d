"""What the runner monitors during load and final reads: exits, full disks, lost nodes, roles.

A process that exits is recorded as the event `exit`, whatever ended it: the recovery checker knows
the faults and tells a kill from a crash. One that exits on a full disk is no crash: it had to stop,
and the test bed failed. One that continues there may refuse requests or misbehave, so free space is
checked every few seconds.

A node whose agent cannot be reached any more is gone for good, and that too is a failure of the
test bed. A wrapper around each agent notifies the runner once and at once, because a call to each
agent is always pending: here, for the exit of its process.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from math import inf
from typing import Any, cast

from harness.contracts import CLIENT, Agent, ClusterState, Node, Recorder, TestBed
from harness.errors import BedFailed, NodeGone
from harness.history.notes import DISK_FULL, FULL, GONE, NODE_GONE
from harness.history.rundir import RunDir
from harness.text.own_words import IN_STATE

STATE_EVERY_S = 0.5
FULL_BYTES = 64_000_000  # less than a node may ask for at once
DISK_EVERY_S = 5.0
RESTART_POLL_S = 0.1

OnLoss = Callable[[str, str], None]  # called with a node, and the reason


class NodeLosses:
    """Nodes that the test bed lost: their agents cannot be reached, or their disks are full."""

    def __init__(
        self,
        run: RunDir,
        record: Recorder,
        now_ns: Callable[[], int],
        send_status: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._run, self._record, self._now_ns, self._send = run, record, now_ns, send_status
        self._lost: dict[str, dict[str, str]] = {GONE: {}, FULL: {}}  # how -> node -> why

    def sentences(self) -> list[str]:
        """Return a sentence for each lost node."""
        return [
            f"{node} is {how}: {why}"
            for how, nodes in self._lost.items()
            for node, why in nodes.items()
        ]

    def add(self, how: str, node: str, why: str) -> bool:
        """Record the loss of a node in the history and in run.json; return False if it is known.

        Raises BedFailed if it cannot be written.
        """
        if node in self._lost[how]:
            return False
        self._lost[how][node] = why
        code = {GONE: NODE_GONE, FULL: DISK_FULL}[how]
        self._record.note(f"{code} {node}: {why}")
        self._record.event(self._now_ns(), node, how, {"why": why})
        self._send({"lost": f"{node} is {how}: {why}"})
        try:
            self._run.update_state(**{how: self._lost[how]})
        except OSError as e:
            raise BedFailed(f"{node} is {how} ({why}), and nothing can be written here: {e}") from e
        return True


def watch_agents(agents: Mapping[str, Agent], gone: OnLoss) -> Mapping[str, Agent]:
    """Return the agents wrapped: `gone` is called when one turns out to be unreachable."""
    return {node: cast(Agent, _WatchedAgent(node, agent, gone)) for node, agent in agents.items()}


class _WatchedAgent:
    """An agent whose calls are watched for NodeGone."""

    def __init__(self, node: str, agent: Agent, gone: OnLoss) -> None:
        self._node, self._agent, self._gone = node, agent, gone

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        call = getattr(self._agent, verb)

        async def watched(*args: Any, **fields: Any) -> Any:
            try:
                return await call(*args, **fields)
            except NodeGone as e:
                self._gone(self._node, str(e).removeprefix(f"{self._node} is gone: "))
                raise

        return watched


def watch_exits(bed: TestBed, full: OnLoss) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield a watcher for each node of the cluster; `full` is called when one exits on a full
    disk."""
    return (_exits(bed, node, full) for node in bed.nodes if node.role != CLIENT)


def watch_disks(bed: TestBed, full: OnLoss) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield a watcher for the disk of each node of the cluster; `full` is called when it is
    full."""
    return (_disk(bed, node, full) for node in bed.nodes if node.role != CLIENT)


async def report_cluster_state(
    bed: TestBed, say: Callable[[Mapping[str, Any]], None], words: Mapping[str, str]
) -> None:
    """Report the cluster state again and again, until cancelled, with the system's own words."""
    own = {IN_STATE: dict(words)} if words else {}
    while True:
        with suppress(NodeGone):
            say({"standing": {**_state_json(await bed.cluster_state()), **own}})
        await bed.sleep(STATE_EVERY_S)


def _state_json(now: ClusterState) -> Mapping[str, Any]:
    return {
        "masters": dict(now.masters),
        "epochs": dict(now.epochs),
        "in_set": list(now.in_set),
        "controller_leader": now.controller_leader,
    }


async def _exits(bed: TestBed, node: Node, full: OnLoss) -> None:
    with suppress(NodeGone):
        while True:
            await _exit(bed, node, full)


async def _exit(bed: TestBed, node: Node, full: OnLoss) -> None:
    """Record one exit of the node's process, and wait until it runs again."""
    agent, process = bed.agents[node.name], bed.system.process(node.name)
    pid = (await agent.state(process)).pid
    code = await agent.exited(process)
    at_ns = bed.now_ns()
    free_bytes = await _free_bytes(bed, node)
    if free_bytes < FULL_BYTES:
        full(node.name, _space_left(bed, node, free_bytes))
    else:
        bed.record.event(at_ns, node.name, "exit", {"code": code, "pid": pid})
    while (await agent.state(process)).pid == pid:
        await bed.sleep(RESTART_POLL_S)


async def _disk(bed: TestBed, node: Node, full: OnLoss) -> None:
    with suppress(NodeGone):
        while (free_bytes := await _free_bytes(bed, node)) >= FULL_BYTES:
            await bed.sleep(DISK_EVERY_S)
        full(node.name, _space_left(bed, node, free_bytes))


async def _free_bytes(bed: TestBed, node: Node) -> float:
    """Return the free space where the node writes; infinite if it cannot be determined."""
    try:
        listing = await bed.agents[node.name].run(["df", "-Pk", bed.hosts.folder(node.name)])
        return int(listing.out.splitlines()[-1].split()[3]) * 1024 if listing.code == 0 else inf
    except NodeGone:
        raise
    except BedFailed:
        return inf


def _space_left(bed: TestBed, node: Node, free_bytes: float) -> str:
    return f"only {free_bytes / 1e6:.0f} MB are free under {bed.hosts.folder(node.name)}"
