"""Give processes a wrong wall clock: ahead or behind by a skew, faster or slower by a rate.

The clock of the machine is never touched, and neither is that of any other process: each victim is
given its own (`wall_clock`), and loses it when it is healed or ends. Timers and the monotonic
clock go on as the kernel has them, so what breaks is what trusts the time of day: leases that end
at an hour, timestamps that decide who wrote last, messages kept for so long. Healing sets the clock
right at one blow, forward or back, as a time server does it. A process that ends takes its wrong
clock with it.
"""

from collections.abc import Mapping, Sequence
from random import Random
from signal import SIGCONT
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
from harness.errors import BadRequest, BedFailed
from nemesis._plan.targets import possible
from nemesis._process import victims as _processes
from nemesis._process.remote_program import there
from nemesis._process.victims import TARGETS, Hold, among
from nemesis._runner.waiting import NS, each

ALIVE = ("running", "stopped")
SLACK_S, SLACK_RATE = 0.05, 0.02
SKEWS = (0.3, 2.0, 30.0, 3600.0)
RATES = (0.5, 0.9, 1.1, 2.0)

SHOWN = (("one broker", {"skew_s": -30.0}), ("one broker", {"skew_s": 0.0, "rate": 1.5}))

Readings = Mapping[str, Mapping[str, float]]  # by process: ahead_s, rate


def check(planned: PlannedFault) -> None:
    """BadRequest when nobody is named, or nobody could tell the clock from one that is right."""
    _processes.check(planned)
    if is_right({"ahead_s": planned.params["skew_s"], "rate": planned.params["rate"]}):
        raise BadRequest(
            f"clock needs a skew_s of more than {SLACK_S:g} s either way, or a rate more than"
            f" {SLACK_RATE:g} off 1: less cannot be distinguished from a correct clock"
        )


def check_nodes(planned: PlannedFault, nodes: Sequence[Node]) -> None:
    """BadRequest when it may hit a node whose clock dates the history."""
    if hit := sorted({node.name for node in nodes if node.dates} & possible(planned.target, nodes)):
        raise BadRequest(
            f"clock cannot hit {hit[0]}, whose own clock dates its events in the history; aim"
            " at others, such as 'one broker'",
            "target",
        )


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target, and a skew or a rate by lot; `targets` restrict whom it may hit."""
    skew_s, rate = random.choice((-1, 1)) * random.choice(SKEWS), 1.0
    if random.random() < 0.3:
        skew_s, rate = 0.0, random.choice(RATES)
    return random.choice(targets or TARGETS), {"skew_s": skew_s, "rate": rate}


def fault(planned: PlannedFault, scene: Scene) -> "Clock":
    victims = scene.aim(planned.target, spare=scene.held)
    return Clock(scene, victims, planned.params["skew_s"], planned.params["rate"])


PLUGIN = FaultPlugin(
    fault=fault,
    # records may outlive or lose their time, leases overlap, and the later write lose
    effects=Effects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"signal", "clock"}),
    params={
        "skew_s": Param(60.0, "ahead of the true time, or behind", unit="s", low=-1e8, high=1e8),
        "rate": Param(1.0, "seconds that it counts in one", unit="s", low=0.01, high=100.0),
    },
    shown=(("one broker", {"skew_s": -30.0}), ("one broker", {"skew_s": 0.0, "rate": 1.5})),
    drawn=drawn,
    check=check,
    check_nodes=check_nodes,
)


def is_right(shown: Mapping[str, float]) -> bool:
    """As far as one can tell."""
    return abs(shown["ahead_s"]) <= SLACK_S and abs(shown["rate"] - 1) <= SLACK_RATE + 1e-9


class Clock:
    """Processes whose wall clock is wrong, until it is left."""

    def __init__(self, scene: Scene, victims: Sequence[Node], skew_s: float, rate: float) -> None:
        self.targets = scene.parts(victims)
        self._bed = scene.bed
        self._victims = [node.name for node in victims]
        self._hold = Hold(scene.held, self._victims)
        self._skew_s, self._rate = skew_s, rate
        self._since_ns = 0
        self._wrong: Sequence[str] = ()  # whose clock is, or is to be

    async def __aenter__(self) -> "Clock":
        self._wrong = await self._hold.take_who_runs(self._bed)
        self.targets = among(self.targets, self._wrong)
        self._since_ns = self._bed.now_ns()
        ahead_ns = round(self._skew_s * NS)
        await each(*(self._do(node, "set", ahead_ns, self._rate) for node in self._wrong))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await each(*map(self._give_back, self._wrong))

    async def _give_back(self, node: str) -> None:
        """Also when the change was broken off, with the process standing still."""
        await self._bed.agents[node].signal(self._bed.system.process(node), SIGCONT)
        await self._do(node, "clear")

    async def observe(self) -> Observation:
        passed_s = (self._bed.now_ns() - self._since_ns) / NS
        seen = {node: await self._do(node, "read") for node in self._victims}
        passed_s = max(passed_s, (self._bed.now_ns() - self._since_ns) / NS)
        drifted_s = (self._rate - 1) * passed_s
        low = self._skew_s + min(0.0, drifted_s) - SLACK_S
        high = self._skew_s + max(0.0, drifted_s) + SLACK_S
        slack = SLACK_RATE * max(1.0, self._rate)

        def wrong(shown: Mapping[str, float]) -> bool:
            as_set = low <= shown["ahead_s"] <= high and abs(shown["rate"] - self._rate) <= slack
            return as_set and not is_right(shown)

        return _observation(seen, wrong)

    async def observe_healed(self) -> Observation:
        try:
            return _observation(
                {node: shown for node in self._wrong if (shown := await self._do(node, "read"))},
                is_right,
            )
        finally:
            self._hold.let_go()

    async def _do(self, node: str, verb: str, *words: object) -> Readings:
        """What the clocks of the node's processes show; nothing when there are none."""
        process = self._bed.system.process(node)
        state = await self._bed.agents[node].state(process)
        if state.state not in ALIVE:
            return {}
        try:
            shown: Readings = await there(self._bed, node, "wall_clock", verb, state.pid, *words)
        except BedFailed:
            if (await self._bed.agents[node].state(process)).state in ALIVE:
                raise
            return {}  # it ended meanwhile
        return shown


def _observation(seen: Mapping[str, Readings], holds: Any) -> Observation:
    """Installed when it holds for every process of every victim, failed when for none."""
    good = sum(bool(shown) and all(map(holds, shown.values())) for shown in seen.values())
    first = next((each for shown in seen.values() for each in shown.values()), None)
    words = f"{first['ahead_s']:+.2f} s, {first['rate']:.2f} s a second" if first else "no process"
    state: Any = "installed" if good == len(seen) else "partial" if good else "failed"
    return Observation(state, {"clocks": seen}, words)
