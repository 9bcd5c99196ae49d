"""What the runner keeps an eye on, load and final reads: which nodes end, and who is who.

A process that ends is recorded as the event `exit`, whoever ended it: the recovery checker knows
the faults and tells a kill from a crash. One that ends where its disk is full convicts nobody: it
had to stop, and what failed is the bed. One that goes on there refuses what it is asked, or does
anything else, so disks are looked at now and then.

A node whose agent can not be reached any more is gone for good, and that too is the bed's failure.
Whoever calls the agent finds out; a view of each agent tells the runner, once and at once, because
somebody always waits for an answer of each: here for the end of its process.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from math import inf
from typing import Any, cast

from harness.contracts import CLIENT, Agent, Bed, Node, Standing
from harness.errors import BedFailed, NodeGone

STANDING_EVERY_S = 0.5
FULL_BYTES = 64_000_000  # less than a node may ask for at once
DISK_EVERY_S = 5.0
RESTART_POLL_S = 0.1

Lost = Callable[[str, str], None]  # a node, and why


def noticed(agents: Mapping[str, Agent], gone: Lost) -> Mapping[str, Agent]:
    """The same agents; `gone` is called when one turns out to be."""
    return {node: cast(Agent, _Noticed(node, agent, gone)) for node, agent in agents.items()}


class _Noticed:
    """An agent's calls, watched for NodeGone."""

    def __init__(self, node: str, agent: Agent, gone: Lost) -> None:
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


def exits(bed: Bed, full: Lost) -> Iterator[Coroutine[Any, Any, None]]:
    """A watch for each node of the cluster; `full` is called when one ends on a full disk."""
    return (_exits(bed, node, full) for node in bed.nodes if node.role != CLIENT)


def disks(bed: Bed, full: Lost) -> Iterator[Coroutine[Any, Any, None]]:
    """A watch for the disk of each node of the cluster; `full` is called when it is full."""
    return (_disk(bed, node, full) for node in bed.nodes if node.role != CLIENT)


async def standings(bed: Bed, say: Callable[[Mapping[str, Any]], None]) -> None:
    """For ever: tell who plays which part."""
    while True:
        with suppress(NodeGone):
            say({"standing": _told(await bed.standing())})
        await bed.sleep(STANDING_EVERY_S)


def _told(now: Standing) -> Mapping[str, Any]:
    return {
        "masters": dict(now.masters),
        "epochs": dict(now.epochs),
        "in_set": list(now.in_set),
        "controller_leader": now.controller_leader,
    }


async def _exits(bed: Bed, node: Node, full: Lost) -> None:
    with suppress(NodeGone):
        while True:
            await _exit(bed, node, full)


async def _exit(bed: Bed, node: Node, full: Lost) -> None:
    """One end of the node's process, and its next beginning."""
    agent, process = bed.agents[node.name], bed.system.process(node.name)
    pid = (await agent.state(process)).pid
    code = await agent.exited(process)
    at_ns = bed.now_ns()
    free_bytes = await _free_bytes(bed, node)
    if free_bytes < FULL_BYTES:
        full(node.name, _left(bed, node, free_bytes))
    else:
        bed.record.event(at_ns, node.name, "exit", {"code": code, "pid": pid})
    while (await agent.state(process)).pid == pid:
        await bed.sleep(RESTART_POLL_S)


async def _disk(bed: Bed, node: Node, full: Lost) -> None:
    with suppress(NodeGone):
        while (free_bytes := await _free_bytes(bed, node)) >= FULL_BYTES:
            await bed.sleep(DISK_EVERY_S)
        full(node.name, _left(bed, node, free_bytes))


async def _free_bytes(bed: Bed, node: Node) -> float:
    """What is left where the node writes; infinite when nobody can say."""
    try:
        asked = await bed.agents[node.name].run(["df", "-Pk", bed.hosts.folder(node.name)])
        return int(asked.out.splitlines()[-1].split()[3]) * 1024 if asked.code == 0 else inf
    except NodeGone:
        raise
    except BedFailed:
        return inf


def _left(bed: Bed, node: Node, free_bytes: float) -> str:
    return f"only {free_bytes / 1e6:.0f} MB are free under {bed.hosts.folder(node.name)}"
