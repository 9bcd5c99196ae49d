"""Limit the CPU time of processes to a share.

Many times a second each victim is stopped with SIGSTOP and let go on with SIGCONT, the share of the
time that it has. It is what a machine does to a process when others take the CPU, or a hypervisor
to a guest: everything works, and everything is late. No right is needed for it but to signal.
Threads that wait are held up too, so it is worse than a quota.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context
from random import Random
from signal import SIGCONT, SIGSTOP
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    Effects,
    FaultPlugin,
    Node,
    Observation,
    Param,
    PlannedFault,
    Scene,
)
from harness.errors import in_words
from nemesis._process.victims import TARGETS, Hold, among, check
from nemesis._runner.waiting import NS, each, reached

LOOKS = 60  # at each victim, to tell its share
ENOUGH_LOOKS = 20  # that see nobody stopped, after healing
WITHIN_S = 5.0


def takes_s(planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """Two turns."""
    return 2 * float(planned.params["period_s"])


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target and a share by lot; `targets` restrict whom it may hit."""
    return random.choice(targets or TARGETS), {"share": random.choice((0.1, 0.2, 0.5))}


def fault(planned: PlannedFault, scene: Scene) -> "Starved":
    victims = scene.aim(planned.target, spare=scene.held)
    return Starved(scene, victims, planned.params["share"], planned.params["period_s"])


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that is late is missed: another one may be elected that lacks what it acknowledged
    effects=Effects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"signal"}),
    params={
        "share": Param(0.2, "share of the time in which it runs", unit="of 1", low=0.01, high=0.9),
        "period_s": Param(
            0.1, "how long a turn is: it runs, then stands", unit="s", low=0.02, high=10.0
        ),
    },
    drawn=drawn,
    check=check,
    takes_s=takes_s,
)


class Starved:
    """Processes that seldom run, until it is left."""

    def __init__(
        self, scene: Scene, victims: Sequence[Node], share: float, period_s: float
    ) -> None:
        self.targets = scene.parts(victims)
        self._bed, self._random = scene.bed, scene.random
        self._victims = [node.name for node in victims]
        self._hold = Hold(scene.held, self._victims)
        self._share, self._period_s = share, period_s
        self._starved: Sequence[str] = ()
        self._turns: list[asyncio.Task[None]] = []
        self.broke_off = ""

    async def __aenter__(self) -> "Starved":
        self._starved = await self._hold.take_who_runs(self._bed)
        self.targets = among(self.targets, self._starved)
        # in a context of their own: what they call later is not what entering took
        self._turns = [
            asyncio.create_task(self._take_turns(node), context=Context()) for node in self._starved
        ]
        return self

    async def _take_turns(self, node: str) -> None:
        while True:
            await self._signal(node, SIGSTOP)
            await self._bed.sleep(self._period_s * (1 - self._share))
            await self._signal(node, SIGCONT)
            await self._bed.sleep(self._period_s * self._share)

    async def __aexit__(self, *exc: object) -> None:
        for turns in self._turns:
            turns.cancel()
        for ended in await asyncio.gather(*self._turns, return_exceptions=True):
            if isinstance(ended, Exception):
                self.broke_off = in_words(ended)
        await each(*(self._signal(node, SIGCONT) for node in self._starved))

    async def _signal(self, node: str, number: int) -> None:
        await self._bed.agents[node].signal(self._bed.system.process(node), number)

    async def observe(self) -> Observation:
        """A victim is starved when it was seen running, and stopped at least half as often as it
        should be: how often is told."""
        running = dict(
            zip(
                self._starved,
                await asyncio.gather(*map(self._share_of, self._starved)),
                strict=True,
            )
        )
        most = (1 + self._share) / 2
        good = sum(0 < share <= most for share in running.values())
        words = f"runs {max(running.values(), default=0):.0%} of the time"
        evidence = {"runs": running}
        if good == len(self._victims):
            return Observation("installed", evidence, words)
        return Observation("partial" if good else "failed", evidence, words)

    async def _share_of(self, node: str) -> float:
        """In which a victim was seen running, of looks at odd moments."""
        seen = 0
        for _ in range(LOOKS):
            await self._bed.sleep(self._period_s * self._random.uniform(0.05, 0.2))
            seen += await self._state(node) == "running"
        return round(seen / LOOKS, 3)

    async def observe_healed(self) -> Observation:
        """Nobody is stopped, as often as one looks."""

        async def all_run() -> bool:
            for _ in range(ENOUGH_LOOKS):
                for node in self._starved:
                    if await self._state(node) == "stopped":
                        return False
                await self._bed.sleep(self._period_s / ENOUGH_LOOKS)
            return True

        try:
            deadline_ns = self._bed.now_ns() + WITHIN_S * NS
            healed = await reached(self._bed, all_run, deadline_ns, every_s=0.02)
            return Observation("installed" if healed else "failed", {"looks": ENOUGH_LOOKS})
        finally:
            self._hold.let_go()

    async def _state(self, node: str) -> str:
        return (await self._bed.agents[node].state(self._bed.system.process(node))).state
