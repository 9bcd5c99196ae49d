"""Restart processes: stop them with SIGTERM, and start them again.

Unlike a killed one, a process that is asked may say goodbye, write what it has, and hand over. With
`order = "rolling"` the victims are restarted one after the other, as an operator does it who
changes a setting: the next one only when the cluster is whole again. Such a round is over when the
last has come back, and when its time is over nobody else is begun with.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from random import Random
from signal import SIGTERM
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    Effects,
    Ends,
    FaultPlugin,
    Node,
    Observation,
    Param,
    PlannedFault,
    Scene,
)
from nemesis._plan import targets as _targets
from nemesis._process.victims import TARGETS, among, check
from nemesis._runner.waiting import NS, reached
from nemesis.kill import BACK_WITHIN_S, Kill

CLEAN_WITHIN_S = 10.0
LOOK_EVERY_S = 0.05
ROLLING = "rolling"
ROUNDS = ("all broker", "all controller", "slave", "server")


def takes_s(planned: PlannedFault, nodes: Sequence[Node]) -> float:
    """As many as are surely hit are down for their time, one after the other."""
    if planned.params["order"] != ROLLING:
        return 0.0
    return float(planned.params["down_s"]) * _targets.least(planned.target, nodes)


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Victims and their order by lot; `targets` restrict whom it may hit."""
    if random.random() < 0.5:
        return random.choice(targets or TARGETS), {"order": "together"}
    return random.choice(targets or ROUNDS), {"order": ROLLING}


def fault(planned: PlannedFault, scene: Scene) -> "Restart":
    victims = scene.aim(planned.target, spare=scene.held)
    if planned.params["order"] == ROLLING:
        return Round(scene, victims, planned.for_s, planned.params["down_s"])
    return Restart(scene, victims)


PLUGIN = FaultPlugin(
    fault=fault,
    # another node may be elected that lacks what this one acknowledged
    effects=Effects(may_break=ANY_BUT_INTEGRITY, ends=Ends.ASKED, silences=True),
    needs=frozenset({"signal", "restart"}),
    params={
        "order": Param(
            "together",
            "down as long as the fault lasts; or one after the other, each as soon as the cluster"
            " is whole again",
            among=("together", ROLLING),
        ),
        "down_s": Param(0.0, "how long each is down when it is their turn", unit="s", high=3600.0),
    },
    shown=(("one broker", {}), ("all broker", {"order": ROLLING}, 30.0)),
    drawn=drawn,
    check=check,
    takes_s=takes_s,
)


class Restart(Kill):
    """Processes that ended in order, until it is left."""

    gone_within_s = CLEAN_WITHIN_S

    async def _end(self, node: str) -> None:
        await self._bed.agents[node].signal(self._bed.system.process(node), SIGTERM)


class Round(Restart):
    """Restarts one after the other."""

    def __init__(self, scene: Scene, victims: Sequence[Node], for_s: float, down_s: float) -> None:
        super().__init__(scene, victims)
        self._for_s, self._down_s = for_s, down_s
        self._until_ns = 0.0
        self._turns: Sequence[str] = ()  # who ran when the round began
        self._through: dict[str, Mapping[str, int]] = {}
        self._round: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Round":
        self._turns = await self._hold.take_who_runs(self._bed)
        self.targets = among(self.targets, self._turns)
        self._until_ns = self._bed.now_ns() + self._for_s * NS
        # in a context of its own: what it calls later is not what entering took
        self._round = asyncio.create_task(self._go_round(), context=Context())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._round:
            self._round.cancel()
            with suppress(asyncio.CancelledError, Exception):  # who observed it was told
                await self._round
        await super().__aexit__(*exc)

    async def _go_round(self) -> None:
        for node in self._turns:
            if not await reached(self._bed, self._whole, self._until_ns, LOOK_EVERY_S):
                return
            await self._one(node)
        await reached(self._bed, self._whole, self._until_ns, LOOK_EVERY_S)

    async def _one(self, node: str) -> None:
        await self._kill(node)
        if node not in self._killed:
            return
        await self._wait(self._gone, node, CLEAN_WITHIN_S)
        ended = await self._state(node)
        await self._bed.sleep(self._down_s)
        await self._start(node)
        await self._wait(self._back, node, BACK_WITHIN_S)
        if node in self._killed and await self._back(node):
            pid = (await self._state(node)).pid
            self._through[node] = {"was": self._killed[node], "pid": pid, "code": ended.code}

    async def _whole(self) -> bool:
        """As the nodes themselves say, which is more than can be seen of them."""
        return (await self._bed.system.standing(self._bed)).redundant

    async def observe(self) -> Observation:
        """When the round is over, or its time."""
        work = self._round
        assert work
        await reached(self._bed, _over(work), self._until_ns, LOOK_EVERY_S)
        if work.done():
            work.result()
        count, of = len(self._through), len(self._victims)
        state = "installed" if count == of else "partial" if count else "failed"
        words = f"{count} of {of} restarted in turn, the next when the cluster was whole"
        return Observation(state, {"processes": self._through}, words)  # type: ignore[arg-type]


def _over(work: "asyncio.Task[None]") -> Any:
    async def over() -> bool:
        return work.done()

    return over
