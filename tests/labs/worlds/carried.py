"""Plans, carried out in the world in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from harness.contracts import PlannedFault
from nemesis import carry_out
from nemesis._plan import plan as _plan
from nemesis._plan.plan import Plan


def planned(*faults: PlannedFault) -> Plan:
    """With defaults filled in, as a loaded plan has them."""
    return _plan.load(_plan.dump(faults)).faults


def carried_out(
    world: Any,
    plan: Plan,
    folder: Path,
    meanwhile: Callable[[asyncio.Event], Awaitable[None]] | None = None,
) -> Path:
    """Carry out the plan while `meanwhile` happens; the ledger."""

    async def story(world: Any) -> None:
        stop = asyncio.Event()
        other = asyncio.ensure_future(meanwhile(stop)) if meanwhile else None
        began_ns = world.bed.now_ns()
        await carry_out(plan, world.bed, folder / "ledger", stop, Random(1), began_ns)
        if other:
            await other

    world.run(story)
    return folder / "ledger"
