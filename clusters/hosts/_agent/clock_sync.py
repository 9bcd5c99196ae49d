"""A node's monotonic clock against the driver's.

On the same kernel both read the same clock. Elsewhere the node is asked what its clock reads, many
times; the quickest answer bounds the offset best, to half of the time it took (Cristian 1989). From
then on the clocks may drift apart, which the error allows for. A clock that NTP slews, or that
stood still with its machine, drifts further, which is found out when it is compared again
(`harness.run.clocks`).
"""

import time
from collections.abc import Mapping
from typing import Any

from clusters.hosts._agent import agent as _agent
from clusters.hosts._agent.driver import PipeAgent
from harness.contracts import Clock
from harness.run.tasks import together
from harness.trial import Trial

ASKED = 20
OTHER_PARTS_S = 600.0  # of a run: from its start to the load, and from there to its end
DRIFT = 50e-6  # of two quartz clocks, both within 25 ppm
SAME = Clock()


def whole_s(trial: Trial) -> float:
    """How long a run takes at most, for which its clocks have to be good."""
    return trial.duration_s + trial.recover_within_s + OTHER_PARTS_S


async def compared(agent: PipeAgent, identity: Mapping[str, Any], for_s: float) -> Clock:
    """The clock of a node whose `hello` was `identity`; good for so many seconds from now."""
    if identity.get("clock") == _agent.clock():
        return SAME
    now = await _now(agent)
    return Clock(now.offset_ns, now.error_ns + round(for_s * 1e9 * DRIFT))


async def again(agents: Mapping[str, PipeAgent], clocks: Mapping[str, Clock]) -> dict[str, Clock]:
    """Those of these clocks that are not ours, as they are now."""
    now: dict[str, Clock] = {}

    async def ask(node: str) -> None:
        now[node] = await _now(agents[node])

    await together(*(ask(node) for node, clock in clocks.items() if clock.error_ns))
    return now


async def _now(agent: PipeAgent) -> Clock:
    """The quickest of many answers."""
    return min([await _reading(agent) for _ in range(ASKED)], key=lambda clock: clock.error_ns)


async def _reading(agent: PipeAgent) -> Clock:
    asked_ns = time.monotonic_ns()
    theirs_ns = await agent.monotonic_ns()
    answered_ns = time.monotonic_ns()
    return Clock(theirs_ns - (asked_ns + answered_ns) // 2, (answered_ns - asked_ns) // 2 + 1)
