"""What the nodes of a run can not do although their kind of hosts can: asked before the load.

Kinds of hosts say what they `can`, and plans that ask for more are refused before anything starts.
Some abilities are the kernel's, and nodes may have different ones: those the agents try themselves.
A fault's module that needs such an ability offers `lacking(bed)`.
"""

import asyncio
from collections.abc import Awaitable, Callable

from harness import registry
from harness.contracts import Bed
from nemesis._plan import Plan


async def lacking(plan: Plan, bed: Bed) -> str:
    """Why the plan can not be carried out on these nodes, in a sentence; nothing when it can."""
    for kind in sorted({fault.kind for fault in plan}):
        ask: Callable[[Bed], Awaitable[str]] | None
        ask = getattr(registry.module("fault", kind), "lacking", None)
        if ask is not None and (why := await ask(bed)):
            return f"{kind} cannot be done: {why}; choose other faults or other hosts"
    return ""


async def unable_to_pace(bed: Bed) -> str:
    """The first node that can not hold packets back, and why."""
    said = await asyncio.gather(*(agent.lacks("pace") for agent in bed.agents.values()))
    return next(filter(None, said), "")
