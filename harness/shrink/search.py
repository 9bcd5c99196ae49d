"""Shrinks a failing trial: fewer faults, less time, fewer nodes, less load, default options, round
numbers. Pure: generators that yield candidates and receive which of them fails.

Without one fault everything after it changes: other packets are lost, other nodes win elections. So
each candidate has several tries, each with another seed of its world and the same plan. Only the
beginning of a plan, in which nothing changes, needs one try. All steps are made with few tries
first, and once more with all of them when nothing gets smaller.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

from harness import registry
from harness.contracts import PlannedFault, System
from harness.plans import first_faults, keep_faults, shift_plan
from harness.shrink import ddmin
from harness.text.plurals import quantity
from harness.trial import Trial

LEAD_S = 0.5  # of load before the first fault
TAIL_S = 2.0  # of load after the last
TAILS_S = (0.2, 0.5, 1.0)
SHORTEST_S = 0.02
WITHIN_S = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the time of the failure
FEW = 2  # tries, while there is much to remove
GONE = None  # an option that gets its default

FACTORS = (0.0, 0.125, 0.25, 0.5)
GRIDS_S = (1.0, 0.5, 0.1, 0.01)
RATES = (1, 2, 5, 10, 20, 50, 100, 200)
PLAIN_LOAD: Mapping[str, Any] = {
    "topics": 1,
    "queues": 1,
    "producers": 1,
    "groups": 1,
    "consumers": 1,
    "concurrency": 1,
    "body_bytes": 16,
}
KEPT_SETTINGS = ("timeScale", "mutant")  # without these it is another cluster, not a simpler one

Faults = tuple[PlannedFault, ...]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Case:
    """A trial and its plan."""

    trial: Trial
    plan: Faults

    @property
    def plan_toml(self) -> str:
        text: str = registry.nemesis().dump(self.plan)
        return text

    @property
    def tail_s(self) -> float:
        """Seconds of load after the last fault."""
        return self.trial.duration_s - _end_s(self.plan)

    def lucky(self, seed: int) -> "Case":
        return replace(self, trial=replace(self.trial, seed=seed))

    def with_plan(self, plan: Faults, tail_s: float | None = None) -> "Case":
        """Return this trial with another plan, and the same load after it."""
        tail_s = self.tail_s if tail_s is None else tail_s
        kinds = tuple(sorted({fault.kind for fault in plan}))
        duration_s = round(_end_s(plan) + max(tail_s, SHORTEST_S), 3)
        return Case(replace(self.trial, faults=kinds, duration_s=duration_s), plan)


@dataclass(frozen=True)
class Question:
    """Which of these candidates is the first that fails, with so many tries each?"""

    cases: Sequence[Case]
    tries: int = FEW


@dataclass(frozen=True)
class FailingCandidate:
    """The candidate that fails: its index in the question, and the case, with its seed."""

    at: int
    case: Case


Asking = Generator[Sequence[Case], FailingCandidate | None, Case]
Step = Callable[[Case], Asking]
Dialogue = Generator[Question, FailingCandidate | None, Case]


def shrink_case(
    case: Case, most: int, about_s: float | None = None, certain: bool = True
) -> Dialogue:
    """Search the smallest case that fails like this one, with at most so many tries for each
    candidate.

    `about_s`: when it failed, in seconds since the load began, if known. `certain`: what has failed
    once fails again, so that the beginning of a plan needs one try.
    """
    few, before = min(FEW, most), None
    once = 1 if certain else few
    if about_s is not None:
        case = yield from _with_tries(_around(case, about_s), few)
    case = yield from _with_tries(_soonest(case), once)
    case = yield from _with_tries(_slower(case), once)  # makes all other steps cheaper
    case = yield from _with_tries(_latest(case), few)
    while before != case:
        before = case
        for step in STEPS:
            case = yield from _with_tries(step(case), few)
        if before == case:
            case = yield from _with_tries(_fewer_faults(case), most)
    if not certain:  # a try is expensive, and round numbers are no smaller case
        return case
    return (yield from _with_tries(_rounder(case), few))  # last, since it may make times longer


def with_seeds(case: Case, origin: int, count: int) -> Iterator[Case]:
    """Yield the case with its own seed, then with others."""
    random = Random(f"{origin}/luck")
    own = case.trial.seed
    seeds = [origin, *(random.getrandbits(31) for _ in range(count))]
    for seed in [own, *(seed for seed in seeds if seed != own)][:count]:
        yield case.lucky(seed)


def size(case: Case) -> str:
    """Return the size of a case in words."""
    roles = Counter(node.role for node in _system(case).nodes())
    faults = len(case.plan)
    return (
        f"{quantity(faults, 'fault')} in {case.trial.duration_s:g} s of load on "
        f"{roles.total()} nodes"
    )


def _with_tries(asking: Asking, count: int) -> Dialogue:
    try:
        cases = next(asking)
        while True:
            cases = asking.send((yield Question(cases, count)))
    except StopIteration as end:
        case: Case = end.value
        return case


# ------------------------------------------------------------------------------------ the faults


def _around(case: Case, about_s: float) -> Asking:
    """Keep only the faults in force near the time of the failure, as few as fail."""
    near = (
        [n for n, f in enumerate(case.plan) if _near(f, about_s, within_s)] for within_s in WITHIN_S
    )
    guesses = [some for some in dict.fromkeys(map(tuple, near)) if len(some) < len(case.plan)]
    plans = (shift_plan(keep_faults(case.plan, some), LEAD_S) for some in guesses)
    failing = yield [case.with_plan(plan, min(case.tail_s, TAIL_S)) for plan in plans]
    return failing.case if failing else case


def _near(fault: PlannedFault, about_s: float, within_s: float) -> bool:
    return about_s - within_s < fault.at_s + fault.for_s and fault.at_s < about_s + within_s


def _soonest(case: Case) -> Asking:
    """Find the shortest beginning of the plan that fails: what follows is not the cause."""
    failing = yield [case.with_plan(case.plan, TAIL_S)] if case.tail_s > TAIL_S else []
    case = failing.case if failing else case
    low, high, whole = -1, len(case.plan), case.plan
    while high - low > 1:
        lengths = sorted({low + max(1, (high - low) * part // 4) for part in (1, 2, 3)} - {high})
        failing = yield [case.with_plan(first_faults(whole, length)) for length in lengths]
        if failing is None:
            low = lengths[-1]
            continue
        case, high = failing.case, lengths[failing.at]
        low = lengths[failing.at - 1] if failing.at else low
    return case


def _latest(case: Case) -> Asking:
    """Try the end of the plan alone: a few faults, then twice as many, and so on."""
    count = len(case.plan)
    sizes = [1 << n for n in range(count.bit_length()) if 1 << n < count]
    ends = [keep_faults(case.plan, range(count - size, count)) for size in sizes]
    whole = shift_plan(case.plan, LEAD_S)
    failing = yield [case.with_plan(shift_plan(plan, LEAD_S)) for plan in ends]
    if failing is None:
        failing = yield [case.with_plan(whole)]
    return failing.case if failing else case


def _fewer_faults(case: Case) -> Asking:
    return (yield from _fewest(case, range(len(case.plan)), _only))


def _only(case: Case, faults: Sequence[int]) -> Case:
    return case.with_plan(keep_faults(case.plan, faults))


def _fewest(
    case: Case, items: Sequence[Value], rebuilt: Callable[[Case, Sequence[Value]], Case]
) -> Asking:
    """Apply delta debugging to items from which a case can be rebuilt."""
    search, whole = ddmin.dialogue(items), case
    try:
        question = next(search)
        while True:
            lucky = whole.lucky(case.trial.seed)
            failing = yield [rebuilt(lucky, some) for some in question]
            case = failing.case if failing else case
            question = search.send(failing.at if failing else None)
    except StopIteration:
        return case


# ------------------------------------------------------------------- the cluster and its load

Option = tuple[str, str, Any]  # a table of the trial, a key of it, and its simplest value


def _plainer(case: Case) -> Asking:
    """Set options of hosts, load and system to their simplest values where possible."""

    def rebuilt(case: Case, special: Sequence[Option]) -> Case:
        return _set_simplest(case, [option for option in options if option not in special])

    options = _special(case.trial)
    return (yield from _fewest(case, options, rebuilt))


def _special(trial: Trial) -> list[Option]:
    """Return the options that do not have their simplest values."""
    load = [("load", key, plain) for key, plain in PLAIN_LOAD.items()]
    load += [("load", key, GONE) for key in trial.load if key not in (*PLAIN_LOAD, "rate")]
    bed = [("bed", key, GONE) for key in trial.bed]
    settings = [("settings", key, GONE) for key in trial.settings if key not in KEPT_SETTINGS]
    return [
        (table, key, plain)
        for table, key, plain in (*load, *bed, *settings)
        if getattr(trial, table).get(key, GONE) != plain or plain is GONE
    ]


def _set_simplest(case: Case, options: Sequence[Option]) -> Case:
    trial = case.trial
    for table, key, plain in options:
        rest = {k: v for k, v in getattr(trial, table).items() if k != key}
        trial = trial.with_({table: rest if plain is GONE else {**rest, key: plain}})
    return replace(case, trial=trial)


def _fewer_nodes(case: Case) -> Asking:
    """Reduce the nodes of each role."""
    for role, count in Counter(node.role for node in _system(case).nodes()).items():
        failing = yield [_with_nodes(case, role, fewer) for fewer in range(1, count)]
        case = failing.case if failing else case
    return case


def _with_nodes(case: Case, role: str, count: int) -> Case:
    return replace(case, trial=replace(case.trial, nodes={**case.trial.nodes, role: count}))


def _slower(case: Case) -> Asking:
    """Reduce the rate of operations."""
    now = float(case.trial.load.get("rate", 0)) or float("inf")
    failing = yield [_with_rate(case, rate) for rate in RATES if rate < now]
    return failing.case if failing else case


def _with_rate(case: Case, rate: float) -> Case:
    load = {**case.trial.load, "rate": float(rate)}
    return replace(case, trial=replace(case.trial, load=load))


def _system(case: Case) -> System:
    system: System = registry.load("system", case.trial.system)(case.trial)
    return system


# ---------------------------------------------------------------------------------- the times


def _shorter(case: Case) -> Asking:
    """Shorten all faults, then each."""
    everyone = range(len(case.plan))
    for whom in (everyone, *([number] for number in everyone)):
        plans = (_lasting(case.plan, whom, factor) for factor in FACTORS)
        failing = yield [case.with_plan(plan) for plan in plans if plan != case.plan]
        case = failing.case if failing else case
    return case


def _lasting(plan: Faults, whom: Sequence[int], factor: float) -> Faults:
    return tuple(
        replace(fault, for_s=max(SHORTEST_S, round(fault.for_s * factor, 3)))
        if number in whom and fault.for_s > SHORTEST_S
        else fault
        for number, fault in enumerate(plan)
    )


def _closer(case: Case) -> Asking:
    """Move the first fault forward, and each other one closer to the one before it."""
    for number in range(len(case.plan)):
        plans = (_nearer(case.plan, number, factor) for factor in FACTORS)
        failing = yield [case.with_plan(plan) for plan in plans if plan != case.plan]
        case = failing.case if failing else case
    return case


def _nearer(plan: Faults, number: int, factor: float) -> Faults:
    """Move the fault that is `number`th in time, and all after it, forward."""
    times = [LEAD_S, *sorted(fault.at_s for fault in plan)]
    before, now = list(pairwise(times))[number]
    by_s = (now - before) * (1 - factor)
    if by_s <= 0:
        return plan
    return tuple(
        replace(fault, at_s=round(fault.at_s - by_s, 3)) if fault.at_s >= now else fault
        for fault in plan
    )


def _sooner_over(case: Case) -> Asking:
    """Shorten the load after the last fault."""
    tails = [tail_s for tail_s in TAILS_S if tail_s < case.tail_s - 1e-6]
    failing = yield [case.with_plan(case.plan, tail_s) for tail_s in tails]
    return failing.case if failing else case


def _rounder(case: Case) -> Asking:
    """Round times: all of them, or those of each fault."""
    everyone = range(len(case.plan))
    for whom in (everyone, *([number] for number in everyone)):
        plans = (_on_grid(case.plan, whom, grid_s) for grid_s in GRIDS_S)
        failing = yield [case.with_plan(plan) for plan in plans if plan != case.plan]
        case = failing.case if failing else case
    return case


def _on_grid(plan: Faults, whom: Sequence[int], grid_s: float) -> Faults:
    """Round the times of faults to a grid; times on a coarser grid stay."""
    return tuple(
        replace(fault, at_s=_round(fault.at_s, grid_s), for_s=_round(fault.for_s, grid_s))
        if number in whom
        else fault
        for number, fault in enumerate(plan)
    )


def _round(seconds: float, grid_s: float) -> float:
    if any(abs(seconds / grid - round(seconds / grid)) < 1e-6 for grid in GRIDS_S if grid > grid_s):
        return seconds
    return round(max(1, round(seconds / grid_s)) * grid_s, 3)


# ------------------------------------------------------------------------------ the single fault


def _simpler(case: Case) -> Asking:
    """Remove the conditions of each fault, and set its parameters to their defaults."""
    for number in range(len(case.plan)):
        plans = _simpler_ones(case.plan, number)
        failing = yield [case.with_plan(plan) for plan in plans if plan != case.plan]
        case = failing.case if failing else case
    return case


def _simpler_ones(plan: Faults, number: int) -> list[Faults]:
    fault = plan[number]
    defaults = {k: p.default for k, p in registry.fault(fault.kind).params.items()}
    ones = [replace(fault, params=defaults, after="", until=""), replace(fault, params=defaults)]
    ones += [replace(fault, after=""), replace(fault, until="")]
    ones += [replace(fault, params={**fault.params, key: value}) for key, value in defaults.items()]
    return [(*plan[:number], one, *plan[number + 1 :]) for one in ones]


STEPS: tuple[Step, ...] = (
    _slower,
    _fewer_faults,
    _plainer,
    _fewer_nodes,
    _shorter,
    _closer,
    _sooner_over,
    _simpler,
)


def _end_s(plan: Faults) -> float:
    return max((fault.at_s + fault.for_s for fault in plan), default=LEAD_S)
