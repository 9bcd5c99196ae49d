"""The offset between a node's monotonic clock and the driver's.

On the same kernel both read the same clock. Otherwise the node is asked many times for the reading
of its clock; the quickest answer bounds the offset best, to half of its round trip (Cristian 1989).
After that the clocks may drift apart, which the error includes. A clock that NTP slews, or that
stopped with its machine, drifts further; a later comparison finds that out (`harness.run.clocks`).
"""

import time
from collections.abc import Mapping
from typing import Any

from clusters.hosts._agent import agent as agent_program
from clusters.hosts._agent.driver import PipeAgent
from harness.contracts import ClockOffset
from harness.run.tasks import run_all
from harness.trial import Trial

READINGS = 20
OTHER_PARTS_S = 600.0  # of a run: before the load, and after it
DRIFT = 50e-6  # between two quartz clocks, each within 25 ppm
SAME = ClockOffset()


def max_run_s(trial: Trial) -> float:
    """Return the maximum length of a run, for which its clocks have to be valid."""
    return trial.duration_s + trial.recover_within_s + OTHER_PARTS_S


async def compare_clock(agent: PipeAgent, identity: Mapping[str, Any], for_s: float) -> ClockOffset:
    """Return the clock of a node whose `hello` was `identity`; valid for so many seconds
    from now."""
    if identity.get("clock") == agent_program.clock_id():
        return SAME
    now = await _best_reading(agent)
    return ClockOffset(now.offset_ns, now.error_ns + round(for_s * 1e9 * DRIFT))


async def compare_again(
    agents: Mapping[str, PipeAgent], clocks: Mapping[str, ClockOffset]
) -> dict[str, ClockOffset]:
    """Compare again those of these clocks that are not the driver's."""
    now: dict[str, ClockOffset] = {}

    async def ask(node: str) -> None:
        now[node] = await _best_reading(agents[node])

    await run_all(*(ask(node) for node, clock in clocks.items() if clock.error_ns))
    return now


async def _best_reading(agent: PipeAgent) -> ClockOffset:
    """Return the quickest of many readings."""
    return min([await _reading(agent) for _ in range(READINGS)], key=lambda clock: clock.error_ns)


async def _reading(agent: PipeAgent) -> ClockOffset:
    asked_ns = time.monotonic_ns()
    theirs_ns = await agent.monotonic_ns()
    answered_ns = time.monotonic_ns()
    return ClockOffset(theirs_ns - (asked_ns + answered_ns) // 2, (answered_ns - asked_ns) // 2 + 1)
