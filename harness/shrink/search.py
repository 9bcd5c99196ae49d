"""Shrinking a failing trial to what matters: fewer faults, less time, fewer nodes, less
load, plain options, round numbers. Pure: it asks, and is told which of its candidates fails.

Leaving a fault out changes the luck of everything after it: other packets are lost, other nodes
win. So each candidate has several chances, each with another seed of its world while the plan
stays; only the beginning of a plan, whose past stays the same, needs but one. Everything is done
with little luck first, and once more with all of it when nothing gets smaller that way.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

from harness import registry
from harness.contracts import PlannedFault, System
from harness.plans import first, kept, shifted
from harness.shrink import ddmin
from harness.trial import Trial

LEAD_S = 0.5  # of load alone, before the first fault
TAIL_S = 2.0  # of load after the last
TAILS_S = (0.2, 0.5, 1.0)
SHORTEST_S = 0.02
WITHIN_S = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the time when it went wrong
FEW = 2  # chances, while there is much to leave out
GONE = None  # an option that falls back to its default

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
KEPT_SETTINGS = ("timeScale", "mutant")  # others are another cluster, not a plainer one

Faults = tuple[PlannedFault, ...]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Case:
    """A trial and its plan, which are carried out together."""

    trial: Trial
    plan: Faults

    @property
    def plan_toml(self) -> str:
        text: str = registry.nemesis().dump(self.plan)
        return text

    @property
    def tail_s(self) -> float:
        """Load after the last fault."""
        return self.trial.duration_s - _end_s(self.plan)

    def lucky(self, seed: int) -> "Case":
        return replace(self, trial=replace(self.trial, seed=seed))

    def with_plan(self, plan: Faults, tail_s: float | None = None) -> "Case":
        """This trial with another plan, and as much load after it."""
        tail_s = self.tail_s if tail_s is None else tail_s
        kinds = tuple(sorted({fault.kind for fault in plan}))
        duration_s = round(_end_s(plan) + max(tail_s, SHORTEST_S), 3)
        return Case(replace(self.trial, faults=kinds, duration_s=duration_s), plan)


@dataclass(frozen=True)
class Question:
    """Which of these is the first that fails, given so many chances each?"""

    cases: Sequence[Case]
    chances: int = FEW


@dataclass(frozen=True)
class Found:
    """The one that fails: its place among those asked for, and itself, with its luck."""

    at: int
    case: Case


Asking = Generator[Sequence[Case], Found | None, Case]
Step = Callable[[Case], Asking]
Dialogue = Generator[Question, Found | None, Case]


def shrunk(case: Case, most: int, about_s: float | None = None, certain: bool = True) -> Dialogue:
    """The least that fails as the case does, with at most so many chances for each candidate.

    `about_s`: when it went wrong, as far as is known, in seconds after the load began. `certain`:
    what has failed once fails again, so that the beginning of a plan needs one chance.
    """
    few, before = min(FEW, most), None
    once = 1 if certain else few
    if about_s is not None:
        case = yield from _with_chances(_around(case, about_s), few)
    case = yield from _with_chances(_soonest(case), once)
    case = yield from _with_chances(_slower(case), once)  # which makes all others cheaper
    case = yield from _with_chances(_latest(case), few)
    while before != case:
        before = case
        for step in STEPS:
            case = yield from _with_chances(step(case), few)
        if before == case:
            case = yield from _with_chances(_fewer_faults(case), most)
    if not certain:  # a try is dear, and what is rounder is no smaller
        return case
    return (yield from _with_chances(_rounder(case), few))  # last, for it makes times longer too


def chances(case: Case, origin: int, count: int) -> Iterator[Case]:
    """The case with its own luck, and then with others."""
    random = Random(f"{origin}/luck")
    own = case.trial.seed
    seeds = [origin, *(random.getrandbits(31) for _ in range(count))]
    for seed in [own, *(seed for seed in seeds if seed != own)][:count]:
        yield case.lucky(seed)


def size(case: Case) -> str:
    """How large it is, in words."""
    roles = Counter(node.role for node in _system(case).nodes())
    faults = len(case.plan)
    return (
        f"{faults:,} fault{'s' if faults != 1 else ''} in {case.trial.duration_s:g} s of load on "
        f"{roles.total()} nodes"
    )


def _with_chances(asking: Asking, count: int) -> Dialogue:
    try:
        cases = next(asking)
        while True:
            cases = asking.send((yield Question(cases, count)))
    except StopIteration as end:
        case: Case = end.value
        return case


# ------------------------------------------------------------------------------------ the faults


def _around(case: Case, about_s: float) -> Asking:
    """The faults in force near the time when it went wrong: the least guess that fails, if any."""
    near = (
        [n for n, f in enumerate(case.plan) if _near(f, about_s, within_s)] for within_s in WITHIN_S
    )
    guesses = [some for some in dict.fromkeys(map(tuple, near)) if len(some) < len(case.plan)]
    plans = (shifted(kept(case.plan, some), LEAD_S) for some in guesses)
    found = yield [case.with_plan(plan, min(case.tail_s, TAIL_S)) for plan in plans]
    return found.case if found else case


def _near(fault: PlannedFault, about_s: float, within_s: float) -> bool:
    return about_s - within_s < fault.at_s + fault.for_s and fault.at_s < about_s + within_s


def _soonest(case: Case) -> Asking:
    """The shortest beginning of the plan that fails: what comes later is not to blame."""
    found = yield [case.with_plan(case.plan, TAIL_S)] if case.tail_s > TAIL_S else []
    case = found.case if found else case
    low, high, whole = -1, len(case.plan), case.plan
    while high - low > 1:
        lengths = sorted({low + max(1, (high - low) * part // 4) for part in (1, 2, 3)} - {high})
        found = yield [case.with_plan(first(whole, length)) for length in lengths]
        if found is None:
            low = lengths[-1]
            continue
        case, high = found.case, lengths[found.at]
        low = lengths[found.at - 1] if found.at else low
    return case


def _latest(case: Case) -> Asking:
    """The end of the plan may fail alone: a few faults of it, then twice as many, and so on."""
    count = len(case.plan)
    sizes = [1 << n for n in range(count.bit_length()) if 1 << n < count]
    ends = [kept(case.plan, range(count - size, count)) for size in sizes]
    whole = shifted(case.plan, LEAD_S)
    found = yield [case.with_plan(shifted(plan, LEAD_S)) for plan in ends]
    if found is None:
        found = yield [case.with_plan(whole)]
    return found.case if found else case


def _fewer_faults(case: Case) -> Asking:
    return (yield from _fewest(case, range(len(case.plan)), _only))


def _only(case: Case, faults: Sequence[int]) -> Case:
    return case.with_plan(kept(case.plan, faults))


def _fewest(
    case: Case, items: Sequence[Value], rebuilt: Callable[[Case, Sequence[Value]], Case]
) -> Asking:
    """Delta debugging, of anything of which a case can be rebuilt with less."""
    search, whole = ddmin.dialogue(items), case
    try:
        question = next(search)
        while True:
            lucky = whole.lucky(case.trial.seed)
            found = yield [rebuilt(lucky, some) for some in question]
            case = found.case if found else case
            question = search.send(found.at if found else None)
    except StopIteration:
        return case


# ------------------------------------------------------------------- the cluster and its load

Option = tuple[str, str, Any]  # a table of the trial, a key of it, and what would be plain


def _plainer(case: Case) -> Asking:
    """Options of hosts, load and system fall back to what is plain, as far as they may."""

    def rebuilt(case: Case, special: Sequence[Option]) -> Case:
        return _made_plain(case, [option for option in options if option not in special])

    options = _special(case.trial)
    return (yield from _fewest(case, options, rebuilt))


def _special(trial: Trial) -> list[Option]:
    """What is not plain."""
    load = [("load", key, plain) for key, plain in PLAIN_LOAD.items()]
    load += [("load", key, GONE) for key in trial.load if key not in (*PLAIN_LOAD, "rate")]
    bed = [("bed", key, GONE) for key in trial.bed]
    settings = [("settings", key, GONE) for key in trial.settings if key not in KEPT_SETTINGS]
    return [
        (table, key, plain)
        for table, key, plain in (*load, *bed, *settings)
        if getattr(trial, table).get(key, GONE) != plain or plain is GONE
    ]


def _made_plain(case: Case, options: Sequence[Option]) -> Case:
    trial = case.trial
    for table, key, plain in options:
        rest = {k: v for k, v in getattr(trial, table).items() if k != key}
        trial = trial.with_({table: rest if plain is GONE else {**rest, key: plain}})
    return replace(case, trial=trial)


def _fewer_nodes(case: Case) -> Asking:
    """Role by role, as few as may be."""
    for role, count in Counter(node.role for node in _system(case).nodes()).items():
        found = yield [_sized(case, role, fewer) for fewer in range(1, count)]
        case = found.case if found else case
    return case


def _sized(case: Case, role: str, count: int) -> Case:
    return replace(case, trial=replace(case.trial, nodes={**case.trial.nodes, role: count}))


def _slower(case: Case) -> Asking:
    """Fewer operations a second."""
    now = float(case.trial.load.get("rate", 0)) or float("inf")
    found = yield [_paced(case, rate) for rate in RATES if rate < now]
    return found.case if found else case


def _paced(case: Case, rate: float) -> Case:
    load = {**case.trial.load, "rate": float(rate)}
    return replace(case, trial=replace(case.trial, load=load))


def _system(case: Case) -> System:
    system: System = registry.load("system", case.trial.system)(case.trial)
    return system


# ---------------------------------------------------------------------------------- the times


def _shorter(case: Case) -> Asking:
    """All faults shorter, then each."""
    everyone = range(len(case.plan))
    for whom in (everyone, *([number] for number in everyone)):
        plans = (_lasting(case.plan, whom, factor) for factor in FACTORS)
        found = yield [case.with_plan(plan) for plan in plans if plan != case.plan]
        case = found.case if found else case
    return case


def _lasting(plan: Faults, whom: Sequence[int], factor: float) -> Faults:
    return tuple(
        replace(fault, for_s=max(SHORTEST_S, round(fault.for_s * factor, 3)))
        if number in whom and fault.for_s > SHORTEST_S
        else fault
        for number, fault in enumerate(plan)
    )


def _closer(case: Case) -> Asking:
    """The first fault as early as may be, and each other nearer to the one before it."""
    for number in range(len(case.plan)):
        plans = (_nearer(case.plan, number, factor) for factor in FACTORS)
        found = yield [case.with_plan(plan) for plan in plans if plan != case.plan]
        case = found.case if found else case
    return case


def _nearer(plan: Faults, number: int, factor: float) -> Faults:
    """The fault that is `number`th in time, and all after it, earlier."""
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
    """Less load after the last fault."""
    tails = [tail_s for tail_s in TAILS_S if tail_s < case.tail_s - 1e-6]
    found = yield [case.with_plan(case.plan, tail_s) for tail_s in tails]
    return found.case if found else case


def _rounder(case: Case) -> Asking:
    """Times in round numbers: all of them, or those of each fault."""
    everyone = range(len(case.plan))
    for whom in (everyone, *([number] for number in everyone)):
        plans = (_on_grid(case.plan, whom, grid_s) for grid_s in GRIDS_S)
        found = yield [case.with_plan(plan) for plan in plans if plan != case.plan]
        case = found.case if found else case
    return case


def _on_grid(plan: Faults, whom: Sequence[int], grid_s: float) -> Faults:
    """Faults at multiples of it; times that are round enough already stay as they are."""
    return tuple(
        replace(fault, at_s=_rounded(fault.at_s, grid_s), for_s=_rounded(fault.for_s, grid_s))
        if number in whom
        else fault
        for number, fault in enumerate(plan)
    )


def _rounded(seconds: float, grid_s: float) -> float:
    if any(abs(seconds / grid - round(seconds / grid)) < 1e-6 for grid in GRIDS_S if grid > grid_s):
        return seconds
    return round(max(1, round(seconds / grid_s)) * grid_s, 3)


# ------------------------------------------------------------------------------ the single fault


def _simpler(case: Case) -> Asking:
    """Each fault without conditions, and with its kind's own parameters."""
    for number in range(len(case.plan)):
        plans = _simpler_ones(case.plan, number)
        found = yield [case.with_plan(plan) for plan in plans if plan != case.plan]
        case = found.case if found else case
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
