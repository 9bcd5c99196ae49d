"""What the runner keeps an eye on while the load runs: node processes that end, and who is who.

A process that ends is recorded as the event `exit`, whoever ended it: the recovery checker knows
the faults and tells a kill from a crash. Both watchers end with an error when an agent is gone.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from harness.contracts import CLIENT, Bed, Node

STANDING_EVERY_S = 0.5
RESTART_POLL_S = 0.1


def exits(bed: Bed) -> Iterator[Coroutine[Any, Any, None]]:
    """A watch for each node of the cluster."""
    return (_exits(bed, node) for node in bed.nodes if node.role != CLIENT)


async def standings(bed: Bed, say: Callable[[Mapping[str, Any]], None]) -> None:
    """For ever: tell who plays which part."""
    while True:
        now = await bed.system.standing(bed)
        told = {
            "masters": dict(now.masters),
            "epochs": dict(now.epochs),
            "in_set": list(now.in_set),
            "controller_leader": now.controller_leader,
        }
        say({"standing": told})
        await bed.sleep(STANDING_EVERY_S)


async def _exits(bed: Bed, node: Node) -> None:
    agent, process = bed.agents[node.name], bed.system.process(node.name)
    while True:
        pid = (await agent.state(process)).pid
        code = await agent.exited(process)
        bed.record.event(bed.now_ns(), node.name, "exit", {"code": code, "pid": pid})
        while (await agent.state(process)).pid == pid:
            await bed.sleep(RESTART_POLL_S)
