"""Limit the CPU time of processes to a share.

Many times a second each victim is stopped with SIGSTOP and continued with SIGCONT, such that it
runs for its share of the time. This resembles a machine whose CPU is taken by other processes, or
by a hypervisor: everything works, but late. It needs only the permission to send signals. Waiting
threads are stopped too, so it is worse than a CPU quota.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context
from random import Random
from signal import SIGCONT, SIGSTOP
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    Param,
    PlannedFault,
)
from harness.errors import error_text
from nemesis._process.victims import TARGETS, ProcessFault, check
from nemesis._runner.waiting import NS, gather_all, wait_until

SAMPLES = 60  # of each victim, to measure its share
HEALED_SAMPLES = 20  # without a stopped process, after healing
WITHIN_S = 5.0


def takes_s(planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """Return the time of two periods."""
    return 2 * float(planned.params["period_s"])


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and a share."""
    return random.choice(targets or TARGETS), {"share": random.choice((0.1, 0.2, 0.5))}


def fault(planned: PlannedFault, scene: FaultContext) -> "CpuStarvation":
    victims = scene.resolve(planned.target, spare=scene.claimed)
    return CpuStarvation(scene, victims, planned.params["share"], planned.params["period_s"])


PLUGIN = FaultPlugin(
    fault=fault,
    # a slow node may be replaced by one that lacks what it acknowledged
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"signal"}),
    params={
        "share": Param(0.2, "share of the time in which it runs", unit="of 1", low=0.01, high=0.9),
        "period_s": Param(
            0.1, "length of a period: it runs, then stands still", unit="s", low=0.02, high=10.0
        ),
    },
    draw=draw,
    check=check,
    takes_s=takes_s,
)


class CpuStarvation(ProcessFault):
    """Processes that run for a share of the time."""

    def __init__(
        self, scene: FaultContext, victims: Sequence[Node], share: float, period_s: float
    ) -> None:
        super().__init__(scene, victims)
        self._random = scene.random
        self._share, self._period_s = share, period_s
        self._starved: Sequence[str] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self.broke_off = ""

    async def __aenter__(self) -> "CpuStarvation":
        self._starved = await self._take_running()
        # in a context of their own, so that their calls do not count as the time of applying
        self._tasks = [
            asyncio.create_task(self._alternate(node), context=Context()) for node in self._starved
        ]
        return self

    async def _alternate(self, node: str) -> None:
        while True:
            await self._signal(node, SIGSTOP)
            await self._bed.sleep(self._period_s * (1 - self._share))
            await self._signal(node, SIGCONT)
            await self._bed.sleep(self._period_s * self._share)

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                self.broke_off = error_text(ended)
        await gather_all(*(self._signal(node, SIGCONT) for node in self._starved))

    async def observe(self) -> Observation:
        """Observe that every victim runs, and is stopped at least half as often as intended."""
        running = dict(
            zip(
                self._starved,
                await asyncio.gather(*map(self._share_of, self._starved)),
                strict=True,
            )
        )
        max_share = (1 + self._share) / 2
        good = sum(0 < share <= max_share for share in running.values())
        words = f"runs {max(running.values(), default=0):.0%} of the time"
        return Observation.graded(good == len(self._victims), good, {"runs": running}, words)

    async def _share_of(self, node: str) -> float:
        """Return the share of samples, taken at random moments, in which a victim runs."""
        seen = 0
        for _ in range(SAMPLES):
            await self._bed.sleep(self._period_s * self._random.uniform(0.05, 0.2))
            seen += (await self._state(node)).state == "running"
        return round(seen / SAMPLES, 3)

    async def observe_healed(self) -> Observation:
        """Observe that no victim is stopped in any sample."""

        async def all_run() -> bool:
            for _ in range(HEALED_SAMPLES):
                for node in self._starved:
                    if (await self._state(node)).state == "stopped":
                        return False
                await self._bed.sleep(self._period_s / HEALED_SAMPLES)
            return True

        try:
            deadline_ns = self._bed.now_ns() + WITHIN_S * NS
            healed = await wait_until(self._bed, all_run, deadline_ns, every_s=0.02)
            return Observation("installed" if healed else "failed", {"looks": HEALED_SAMPLES})
        finally:
            self._hold.release()
