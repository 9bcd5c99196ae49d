"""Mutations: a trial and its plan, changed a little, as a guided search does it. Pure.

    move       faults earlier or later            drop      some faults left out
    stretch    faults longer or shorter           repeat    a stretch of the plan again, later
    retarget   another target, or another kind    splice    the beginning of one, the end of another
    add        faults of a newly drawn plan       condense  all of it in less time, or in more
    strike     a fault that waits for an event that the parent's run had
    undermine  faults on those who hold the latest writes, when these had the least support
    set        settings and sizes, the load, or the hosts' options, as newly drawn
    reseed     the same in another world

All but `set` and `reseed` keep the world's seed, so that what happens before the first changed
fault is what happened in the parent's run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from harness.campaign.forms import (
    LAST_S,
    STRIKE_AFTER_S,
    Aims,
    Plan,
    draw_stopping,
    draw_strike,
)
from harness.contracts import PlannedFault
from harness.trial import Trial

MIN_FOR_S = 0.02
FACTOR = 0.7  # deviation of a logarithm: half or double is common
STRIKE_WITHIN_S = 10.0
AROUND_S = (-0.2, 0.0, 0.0, 0.005, 0.05, 0.3)  # of a weak moment
MAX_FAULTS = 600  # a plan that grows costs more than it shows


@dataclass(frozen=True)
class Scenario:
    """A trial and its plan. `events`: kinds of events of its run; `weak_s`: weak moments of it."""

    trial: Trial
    plan: Plan
    events: tuple[str, ...] = ()
    weak_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Material:
    """What a mutation may take from: a newly drawn scenario of the same base, another parent, and
    what other faults may be drawn."""

    drawn: Scenario
    other: Scenario
    aims: Aims


Mutation = Callable[[Random, Scenario, Material], Scenario]


def mutate(name: str, random: Random, parent: Scenario, material: Material) -> Scenario:
    """Return the parent, changed; its faults in order of time. It may be the same, or invalid."""
    changed = MUTATIONS[name](random, parent, material)
    return replace(changed, plan=_fitted(changed.plan, changed.trial)[:MAX_FAULTS])


def _within_s(trial: Trial) -> float:
    """Return how long a fault waits for its event at most."""
    return round(min(STRIKE_WITHIN_S, trial.duration_s / 2), 1)


def _fitted(plan: Sequence[PlannedFault], trial: Trial) -> Plan:
    """Return the plan in order, with times rounded, and without what begins too late."""
    end_s, waits_s = trial.duration_s - LAST_S, _within_s(trial) + max(STRIKE_AFTER_S)
    fitted = []
    for fault in sorted(plan, key=lambda fault: fault.at_s):
        at_s = round(max(0.0, fault.at_s), 3)
        room_s = end_s - at_s - (waits_s if fault.after else 0.0)
        for_s = round(min(max(MIN_FOR_S, fault.for_s), room_s), 3)
        if for_s >= MIN_FOR_S:
            fitted.append(replace(fault, at_s=at_s, for_s=for_s))
    return tuple(fitted)


def _some(random: Random, plan: Plan) -> tuple[int, int]:
    """Draw a stretch of the plan: first and last, exclusively. Short ones are likely."""
    first = random.randrange(len(plan))
    return first, min(len(plan), first + 1 + int(random.expovariate(0.5)))


def _with(random: Random, parent: Scenario, how: Callable[[PlannedFault], PlannedFault]) -> Plan:
    """Return the plan with a stretch changed."""
    if not parent.plan:
        return ()
    first, last = _some(random, parent.plan)
    plan = parent.plan
    return (*plan[:first], *map(how, plan[first:last]), *plan[last:])


def _move(random: Random, parent: Scenario, material: Material) -> Scenario:
    by_s = random.choice((-1, 1)) * random.lognormvariate(-1.5, 1.5)
    plan = _with(random, parent, lambda fault: replace(fault, at_s=fault.at_s + by_s))
    return replace(parent, plan=plan)


def _stretch(random: Random, parent: Scenario, material: Material) -> Scenario:
    factor = random.lognormvariate(0, 2 * FACTOR)
    plan = _with(random, parent, lambda fault: replace(fault, for_s=fault.for_s * factor))
    return replace(parent, plan=plan)


def _retarget(random: Random, parent: Scenario, material: Material) -> Scenario:
    drawn = material.drawn.plan

    def other(fault: PlannedFault) -> PlannedFault:
        same = [one for one in drawn if one.kind == fault.kind]
        new = random.choice(same if same and random.random() < 0.7 else drawn)
        return replace(fault, kind=new.kind, target=new.target, params=new.params)

    return replace(parent, plan=_with(random, parent, other)) if drawn else parent


def _add(random: Random, parent: Scenario, material: Material) -> Scenario:
    drawn = material.drawn.plan
    if not drawn:
        return parent
    first, last = _some(random, drawn)
    by_s = random.uniform(-1, 1) * parent.trial.duration_s / 2
    more = (replace(fault, at_s=fault.at_s + by_s) for fault in drawn[first:last])
    return replace(parent, plan=(*parent.plan, *more))


def _drop(random: Random, parent: Scenario, material: Material) -> Scenario:
    plan = parent.plan
    if len(plan) < 2:
        return parent
    if random.random() < 0.5:
        share = random.random()
        return replace(parent, plan=tuple(f for f in plan if random.random() < share))
    first, last = sorted(random.sample(range(len(plan) + 1), 2))
    return replace(parent, plan=(*plan[:first], *plan[last:]))


def _repeat(random: Random, parent: Scenario, material: Material) -> Scenario:
    if not parent.plan:
        return parent
    first, last = _some(random, parent.plan)
    by_s = random.uniform(0.1, max(0.2, parent.trial.duration_s / 2))
    more = (replace(fault, at_s=fault.at_s + by_s) for fault in parent.plan[first:last])
    return replace(parent, plan=(*parent.plan, *more))


def _splice(random: Random, parent: Scenario, material: Material) -> Scenario:
    at_s = random.uniform(0, parent.trial.duration_s)
    shift_s = random.choice((0.0, random.uniform(-1, 1) * parent.trial.duration_s / 2))
    begin = (fault for fault in parent.plan if fault.at_s < at_s)
    shifted = (replace(fault, at_s=fault.at_s + shift_s) for fault in material.other.plan)
    return replace(parent, plan=(*begin, *(fault for fault in shifted if fault.at_s >= at_s)))


def _condense(random: Random, parent: Scenario, material: Material) -> Scenario:
    factor = random.lognormvariate(0, FACTOR)
    plan = (replace(f, at_s=f.at_s * factor, for_s=f.for_s * factor) for f in parent.plan)
    return replace(parent, plan=tuple(plan))


def _strike(random: Random, parent: Scenario, material: Material) -> Scenario:
    within_s = _within_s(parent.trial)
    at_s = random.uniform(0, max(0.0, parent.trial.duration_s - 1.2 * within_s - 2 * LAST_S))
    earlier = sum(fault.at_s <= at_s for fault in parent.plan)
    aims = replace(material.aims, events=parent.events)
    struck = draw_strike(random, material.drawn.plan, aims, at_s, within_s, earlier)
    return replace(parent, plan=(*parent.plan, *struck))


def _undermine(random: Random, parent: Scenario, material: Material) -> Scenario:
    """The smallest sets of faults that take away the support of a write: all who hold it die, or
    one of them dies while the others are cut off or stand still."""
    if not parent.weak_s or not material.aims.support:
        return parent
    at_s = random.choice(parent.weak_s) + random.choice(AROUND_S)
    more: list[PlannedFault] = []
    for target in random.sample(material.aims.support, random.choice((1, 1, 2))):
        for fault in draw_stopping(random, material.aims, at_s, target):
            more.append(fault)
            at_s += random.choice((0.0, fault.for_s, random.lognormvariate(-1, 1)))
    return replace(parent, plan=(*parent.plan, *more))


def _set(random: Random, parent: Scenario, material: Material) -> Scenario:
    """Take a whole table of the drawn trial: what a plug-in draws together may belong together."""
    names = random.choice((("nodes", "settings"), ("load",), ("bed",)))
    table = {name: getattr(material.drawn.trial, name) for name in names}
    return replace(parent, trial=replace(parent.trial, **table))


def _reseed(random: Random, parent: Scenario, material: Material) -> Scenario:
    return replace(parent, trial=replace(parent.trial, seed=material.drawn.trial.seed))


MUTATIONS: Mapping[str, Mutation] = {
    "move": _move,
    "stretch": _stretch,
    "retarget": _retarget,
    "add": _add,
    "drop": _drop,
    "repeat": _repeat,
    "splice": _splice,
    "condense": _condense,
    "strike": _strike,
    "undermine": _undermine,
    "set": _set,
    "reseed": _reseed,
}
