"""What the runner keeps an eye on, load and final reads: which nodes end, and who is who.

A process that ends is recorded as the event `exit`, whoever ended it: the recovery checker knows
the faults and tells a kill from a crash. Both watchers end with an error when an agent is gone.

One that ends where its disk is full convicts nobody: it had to stop, and what failed is the bed.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from harness.contracts import CLIENT, Bed, Node
from harness.errors import BedFailed

STANDING_EVERY_S = 0.5
FULL_BYTES = 64_000_000  # less than a node may ask for at once
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
        at_ns = bed.now_ns()
        await _refuse_full_disk(bed, node)
        bed.record.event(at_ns, node.name, "exit", {"code": code, "pid": pid})
        while (await agent.state(process)).pid == pid:
            await bed.sleep(RESTART_POLL_S)


async def _refuse_full_disk(bed: Bed, node: Node) -> None:
    folder = bed.hosts.folder(node.name)
    asked = await bed.agents[node.name].run(["df", "-Pk", folder])
    if asked.code != 0:
        return  # nobody can say
    free_bytes = int(asked.out.splitlines()[-1].split()[3]) * 1024
    if free_bytes < FULL_BYTES:
        raise BedFailed(
            f"{node.name} ended where no space was left on the device: {free_bytes / 1e6:.0f} MB "
            f"are free under {folder}; free space or choose another folder with --runs"
        )
