"""What the nodes of a run can not do although their kind of hosts can: asked before the load.

Kinds of hosts say what they `can`, and plans that ask for more are refused before anything starts.
Some abilities are the kernel's, and nodes may have different ones: those the agents try themselves.
A fault that needs such an ability declares `lacking`.
"""

import asyncio

from harness import registry
from harness.contracts import Bed
from nemesis._plan.plan import Plan


async def lacking(plan: Plan, bed: Bed) -> str:
    """Why the plan can not be carried out on these nodes, in a sentence; nothing when it can."""
    for kind in sorted({fault.kind for fault in plan}):
        if why := await registry.fault(kind).lacking(bed):
            return f"{kind} cannot be done: {why}; choose other faults or other hosts"
    return ""


async def unable_to_pace(bed: Bed) -> str:
    """The first node that can not hold packets back, and why."""
    said = await asyncio.gather(*(agent.lacks("pace") for agent in bed.agents.values()))
    return next(filter(None, said), "")
