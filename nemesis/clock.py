"""Give processes a wrong wall clock: ahead or behind by a skew, faster or slower by a rate.

The machine's clock and those of other processes are not touched: each victim gets a clock of its
own (`wall_clock`) until it is healed or exits. Timers and the monotonic clock are unchanged, so the
fault affects what depends on the time of day: leases that expire at a wall-clock time, timestamps
that decide which write is last, retention of messages. Healing steps the clock back at once, as a
time server does.
"""

from collections.abc import Mapping, Sequence
from random import Random
from signal import SIGCONT
from typing import Any, cast

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    CLIENT,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    Param,
    PlannedFault,
)
from harness.errors import BadRequest, BedFailed
from nemesis._plan.targets import possible_names
from nemesis._process import victims as _processes
from nemesis._process.remote_program import run_program
from nemesis._process.victims import TARGETS, ProcessFault
from nemesis._runner.waiting import NS, gather_all

ALIVE = ("running", "stopped")
TOLERANCE_S, TOLERANCE_RATE = 0.05, 0.02
SKEWS = (0.3, 2.0, 30.0, 3600.0)
RATES = (0.5, 0.9, 1.1, 2.0)

Readings = Mapping[str, Mapping[str, float]]  # by process: ahead_s, rate


def check(planned: PlannedFault) -> None:
    """Raise BadRequest if target is empty, or the clock equals a correct one."""
    _processes.check(planned)
    if is_right({"ahead_s": planned.params["skew_s"], "rate": planned.params["rate"]}):
        raise BadRequest(
            f"clock needs a skew_s of more than {TOLERANCE_S:g} s either way, or a rate more than"
            f" {TOLERANCE_RATE:g} off 1: less cannot be distinguished from a correct clock"
        )


def check_nodes(planned: PlannedFault, nodes: Sequence[Node]) -> None:
    """Raise BadRequest if it may hit a node whose clock dates the history."""
    dating = {node.name for node in nodes if node.own_wall_clock}
    if hit := sorted(dating & possible_names(planned.target, nodes)):
        roles = [node.role for node in nodes if node.name not in dating and node.role != CLIENT]
        aim = f"aim at others, such as 'one {roles[0]}'" if roles else "leave clock out"
        raise BadRequest(
            f"clock cannot hit {hit[0]}, whose own clock dates its events in the history; {aim}",
            "target",
        )


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and a skew or a rate."""
    skew_s, rate = random.choice((-1, 1)) * random.choice(SKEWS), 1.0
    if random.random() < 0.3:
        skew_s, rate = 0.0, random.choice(RATES)
    return random.choice(targets or TARGETS), {"skew_s": skew_s, "rate": rate}


def fault(planned: PlannedFault, scene: FaultContext) -> "ClockSkew":
    victims = scene.resolve(planned.target, spare=scene.claimed)
    return ClockSkew(scene, victims, planned.params["skew_s"], planned.params["rate"])


PLUGIN = FaultPlugin(
    fault=fault,
    # records may be kept too long or too short, leases overlap, and the later write lose
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"signal", "clock"}),
    params={
        "skew_s": Param(60.0, "ahead of the true time, or behind", unit="s", low=-1e8, high=1e8),
        "rate": Param(1.0, "seconds that it counts in a second", unit="s", low=0.01, high=100.0),
    },
    verify_examples=(
        ("one broker", {"skew_s": -30.0}),
        ("one broker", {"skew_s": 0.0, "rate": 1.5}),
    ),
    draw=draw,
    check=check,
    check_nodes=check_nodes,
)


def is_right(clock: Mapping[str, float]) -> bool:
    """Return whether a clock is correct within the tolerance of the measurement."""
    return abs(clock["ahead_s"]) <= TOLERANCE_S and abs(clock["rate"] - 1) <= TOLERANCE_RATE + 1e-9


class ClockSkew(ProcessFault):
    """Processes with a wrong wall clock."""

    def __init__(
        self, scene: FaultContext, victims: Sequence[Node], skew_s: float, rate: float
    ) -> None:
        super().__init__(scene, victims)
        self._skew_s, self._rate = skew_s, rate
        self._since_ns = 0
        self._wrong: Sequence[str] = ()  # nodes whose clock is, or is to be, wrong

    async def __aenter__(self) -> "ClockSkew":
        self._wrong = await self._take_running()
        self._since_ns = self._bed.now_ns()
        ahead_ns = round(self._skew_s * NS)
        await gather_all(*(self._do(node, "set", ahead_ns, self._rate) for node in self._wrong))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await gather_all(*map(self._restore, self._wrong))

    async def _restore(self, node: str) -> None:
        """Restore the clock, and resume the process if setting the clock was interrupted."""
        await self._signal(node, SIGCONT)
        await self._do(node, "clear")

    async def observe(self) -> Observation:
        passed_s = (self._bed.now_ns() - self._since_ns) / NS
        seen = {node: await self._do(node, "read") for node in self._victims}
        passed_s = max(passed_s, (self._bed.now_ns() - self._since_ns) / NS)
        drifted_s = (self._rate - 1) * passed_s
        low = self._skew_s + min(0.0, drifted_s) - TOLERANCE_S
        high = self._skew_s + max(0.0, drifted_s) + TOLERANCE_S
        slack = TOLERANCE_RATE * max(1.0, self._rate)

        def wrong(clock: Mapping[str, float]) -> bool:
            as_set = low <= clock["ahead_s"] <= high and abs(clock["rate"] - self._rate) <= slack
            return as_set and not is_right(clock)

        return _observation(seen, wrong)

    async def observe_healed(self) -> Observation:
        try:
            return _observation(
                {node: read for node in self._wrong if (read := await self._do(node, "read"))},
                is_right,
            )
        finally:
            self._hold.release()

    async def _do(self, node: str, verb: str, *words: object) -> Readings:
        """Run `wall_clock.py` for the node's processes; return their clocks, {} if none is left."""
        state = await self._state(node)
        if state.state not in ALIVE:
            return {}
        try:
            return cast(
                Readings,
                await run_program(self._bed, node, "wall_clock", verb, state.pid, *words),
            )
        except BedFailed:
            if (await self._state(node)).state in ALIVE:
                raise
            return {}  # it exited meanwhile


def _observation(seen: Mapping[str, Readings], holds: Any) -> Observation:
    """Return installed if the check holds for every process of every victim, failed if for none."""
    good = sum(bool(clocks) and all(map(holds, clocks.values())) for clocks in seen.values())
    first = next((clock for clocks in seen.values() for clock in clocks.values()), None)
    words = f"{first['ahead_s']:+.2f} s, {first['rate']:.2f} s a second" if first else "no process"
    return Observation.graded(good == len(seen), good, {"clocks": seen}, words)
