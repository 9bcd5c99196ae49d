"""What the nodes of a run cannot do although their kind of hosts can; checked before the load.

Kinds of hosts declare what they `can`, and plans that need more are refused before anything starts.
Some abilities depend on the kernel and may differ between nodes; the agents test those themselves.
A fault that needs such an ability declares `unsupported_reason`.
"""

import asyncio

from harness import registry
from harness.contracts import TestBed
from nemesis._plan.toml import Plan


async def unsupported_reason(plan: Plan, bed: TestBed) -> str:
    """Return why the plan cannot be carried out on these nodes, or '' if it can."""
    for kind in sorted({fault.kind for fault in plan}):
        if why := await registry.fault(kind).unsupported_reason(bed):
            return f"{kind} cannot be done: {why}; choose other faults or other hosts"
    return ""


async def why_unable_to_pace(bed: TestBed) -> str:
    """Return the first node that cannot hold packets back and the reason, or ''."""
    reasons = await asyncio.gather(*(agent.lacks("pace") for agent in bed.agents.values()))
    return next(filter(None, reasons), "")
