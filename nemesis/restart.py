"""Restart processes: stop them with SIGTERM, and start them again.

Unlike a killed process, it can close connections, write its data, and hand over. With `order =
"rolling"` the victims are restarted one after the other, as an operator does to change a setting:
the next one only when the cluster is whole again. A rolling restart ends when the last node is
back; when its time is over, no further node is restarted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from random import Random
from signal import SIGTERM
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
    ProcessEnd,
)
from nemesis._plan import targets as _targets
from nemesis._process.victims import TARGETS, check
from nemesis._runner.waiting import NS, wait_until
from nemesis.kill import BACK_WITHIN_S, Kill

CLEAN_WITHIN_S = 10.0
POLL_S = 0.05
ROLLING = "rolling"
ROUNDS = ("all broker", "all controller", "slave", "server")


def takes_s(planned: PlannedFault, nodes: Sequence[Node]) -> float:
    """Return the total downtime of the nodes that are certainly restarted in turn."""
    if planned.params["order"] != ROLLING:
        return 0.0
    return float(planned.params["down_s"]) * _targets.min_count(planned.target, nodes)


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and an order."""
    if random.random() < 0.5:
        return random.choice(targets or TARGETS), {"order": "together"}
    return random.choice(targets or ROUNDS), {"order": ROLLING}


def fault(planned: PlannedFault, scene: FaultContext) -> "Restart":
    victims = scene.resolve(planned.target, spare=scene.claimed)
    if planned.params["order"] == ROLLING:
        return RollingRestart(scene, victims, planned.for_s, planned.params["down_s"])
    return Restart(scene, victims)


PLUGIN = FaultPlugin(
    fault=fault,
    # a node may be elected that lacks what this one acknowledged
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY, ends=ProcessEnd.TERMINATED, silences=True),
    needs=frozenset({"signal", "restart"}),
    params={
        "order": Param(
            "together",
            "together: down as long as the fault lasts; rolling: one after the other, each as soon"
            " as the cluster is whole again",
            among=("together", ROLLING),
        ),
        "down_s": Param(0.0, "rolling: how long each node is down", unit="s", high=3600.0),
    },
    verify_examples=(("one broker", {}), ("all broker", {"order": ROLLING}, 30.0)),
    draw=draw,
    check=check,
    takes_s=takes_s,
)


class Restart(Kill):
    """Processes stopped with SIGTERM."""

    gone_within_s = CLEAN_WITHIN_S

    async def _end(self, node: str) -> None:
        await self._signal(node, SIGTERM)


class GradualRestart(Restart):
    """Restarts that go on in the background until they are done, or the fault's time is over."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node], for_s: float) -> None:
        super().__init__(scene, victims)
        self._for_s, self._until_ns = for_s, 0.0
        self._work: asyncio.Task[None] | None = None

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._until_ns = self._bed.now_ns() + self._for_s * NS
        # in a context of its own, so that its calls do not count as the time of applying (`timing`)
        self._work = asyncio.create_task(work, context=Context())

    async def _stop_work(self) -> None:
        if self._work:
            self._work.cancel()
            with suppress(asyncio.CancelledError, Exception):  # `observe` raised it
                await self._work

    async def _until(self, holds: Callable[[], Awaitable[bool]]) -> bool:
        return await wait_until(self._bed, holds, self._until_ns, POLL_S)

    async def _whole(self) -> bool:
        """Ask the nodes themselves, which know more than an observer."""
        return (await self._bed.system.cluster_state(self._bed)).redundant

    async def _work_is_over(self) -> None:
        """Wait until all is done, or the time is over. Raises what the work raised."""
        work = self._work
        assert work

        async def is_over() -> bool:
            return work.done()

        await self._until(is_over)
        if work.done():
            work.result()


class RollingRestart(GradualRestart):
    """Nodes restarted one after the other."""

    def __init__(
        self, scene: FaultContext, victims: Sequence[Node], for_s: float, down_s: float
    ) -> None:
        super().__init__(scene, victims, for_s)
        self._down_s = down_s
        self._order: Sequence[str] = ()  # nodes that ran at the beginning
        self._done: dict[str, Mapping[str, int]] = {}

    async def __aenter__(self) -> "RollingRestart":
        self._order = await self._take_running()
        self._begin(self._restart_all())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stop_work()
        await super().__aexit__(*exc)

    async def _restart_all(self) -> None:
        for node in self._order:
            if not await self._until(self._whole):
                return
            await self._restart(node)
        await self._until(self._whole)

    async def _restart(self, node: str) -> None:
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
            self._done[node] = {"was": self._killed[node], "pid": pid, "code": ended.code}

    async def observe(self) -> Observation:
        """Wait until all nodes were restarted, or the time is over."""
        await self._work_is_over()
        count, of = len(self._done), len(self._victims)
        words = f"{count} of {of} restarted in turn, the next when the cluster was whole"
        return Observation.graded(count == of, count, {"processes": self._done}, words)
