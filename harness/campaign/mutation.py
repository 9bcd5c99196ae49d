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

Besides, plans of *acts* are drawn: a fault, and others that strike when it has changed something.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from harness import registry
from harness.campaign.features import CHANGES
from harness.contracts import PlannedFault
from harness.contracts.faults import ProcessEnd
from harness.run.broker_sets import BROKER
from harness.trial import Trial

Plan = tuple[PlannedFault, ...]

MIN_FOR_S = 0.02
LAST_S = 1.0  # of the load, which stays without faults
FACTOR = 0.7  # deviation of a logarithm: half or double is common
STRIKE_WITHIN_S = 10.0
STRIKE_AFTER_S = (0.0, 0.0, 0.001, 0.01, 0.1, 0.5)
AROUND_S = (-0.2, 0.0, 0.0, 0.005, 0.05, 0.3)  # of a weak moment
FIRST_S = 0.5  # of the load without faults, in a plan of acts
ACT_S = (1.5, 3.0, 6.0)  # length of an act
ACT_FIRST, ACT_STRIKE = (0.05, 0.9), (0.1, 0.7)  # for how much of it the faults last
MAX_FAULTS = 600  # a plan that grows costs more than it shows
# who holds the latest writes, and who decides who leads: to strike in one moment or in turn
SUPPORT = ("in-set", "master", "one slave", "majority {role}", "controller-leader", "all")
AIMED_AGAIN = ("fault-{n}", "{role} but fault-{n}")  # at those that an earlier fault hit, or others
AT_SUPPORT = 0.5  # share of struck faults that end a node or cut it off, and aim at these
AT_CHANGE = 0.7  # share of strikes that wait for a change of a role, set or epoch
SHAPE, ALONE = "shape", "isolate"  # a parameter of faults on links, and its value
RARE = ("start", "exit", "stop")  # events that say less than others


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
    the kinds of faults that may be drawn. `aimed`: the trial names its targets."""

    drawn: Scenario
    other: Scenario
    kinds: frozenset[str]
    aimed: bool = False
    role: str = BROKER  # of the nodes that hold the data


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
    struck = _struck(random, parent.events, material, at_s, within_s, earlier)
    return replace(parent, plan=(*parent.plan, *struck))


def _struck(
    random: Random,
    events: Sequence[str],
    material: Material,
    at_s: float,
    within_s: float,
    earlier: int,
) -> Plan:
    """Draw a fault that waits for an event: of those who hold the data or decide who leads, of the
    nodes that one of `earlier` faults hit or of the others, or as drawn. None if nothing fits."""
    known = [kind for kind in events if kind not in RARE] or list(events)
    changes = [kind for kind in known if kind in CHANGES]
    plain = [fault for fault in material.drawn.plan if not fault.after]
    if not known or not plain:
        return ()
    kind = random.choice(changes if changes and random.random() < AT_CHANGE else known)
    more_s = random.choice(STRIKE_AFTER_S)
    delay = f" + {more_s:g} s" if more_s else ""
    after = f"event {kind}{delay} within {within_s:g} s"
    if not material.aimed and random.random() < AT_SUPPORT:
        again = AIMED_AGAIN if earlier else ()
        target = random.choice((*SUPPORT, "teller", *again))
        if target in again:
            latest = earlier - 1 - min(earlier - 1, int(random.expovariate(1)))
            target = target.replace("{n}", str(latest))
        if faults := _stopping(random, material, at_s, target):
            return (replace(faults[0], after=after),)
    fault = random.choice(plain)
    to_teller = not material.aimed and fault.target and random.random() < 0.4
    target = "teller" if to_teller else fault.target
    return (replace(fault, at_s=at_s, target=target, after=after),)


def _stopping(random: Random, material: Material, at_s: float, target: str) -> Plan:
    """Draw a fault that ends nodes, makes them silent or cuts them off; none if no kind does."""
    kinds = sorted(filter(_stops, material.kinds))
    if not kinds:
        return ()
    kind = random.choice(kinds)
    params = {name: param.default for name, param in registry.fault(kind).params.items()}
    if SHAPE in params:
        params[SHAPE] = ALONE
    target = target.replace("{role}", material.role)
    return (PlannedFault(kind, at_s, random.lognormvariate(0, 1), target, params),)


def acts(random: Random, material: Material, events: Sequence[str]) -> Plan:
    """Draw a plan of acts from a drawn plan, its faults in order of time. `events`: kinds."""
    trial, drawn = material.drawn.trial, material.drawn.plan
    length_s, at_s, plan = random.choice(ACT_S), FIRST_S, []
    while drawn and at_s + length_s <= trial.duration_s - LAST_S:
        first = random.choice(drawn)
        if not material.aimed and random.random() < AT_SUPPORT:
            first = (*_stopping(random, material, at_s, random.choice(SUPPORT)), first)[0]
        for_s = length_s * random.uniform(*ACT_FIRST)
        plan.append(replace(first, at_s=at_s, for_s=for_s))
        for _ in range(random.choice((1, 1, 2))):
            for_s = length_s * random.uniform(*ACT_STRIKE)
            within_s = round(length_s - for_s, 1)
            struck = _struck(random, events, material, at_s + 0.01, within_s, len(plan))
            plan += [replace(fault, for_s=for_s) for fault in struck]
        at_s += length_s * random.uniform(1.0, 1.5)
    return tuple(replace(f, at_s=round(f.at_s, 3), for_s=round(f.for_s, 3)) for f in plan)


def _undermine(random: Random, parent: Scenario, material: Material) -> Scenario:
    """The smallest sets of faults that take away the support of a write: all who hold it die, or
    one of them dies while the others are cut off or stand still."""
    if not parent.weak_s or material.aimed:
        return parent
    at_s = random.choice(parent.weak_s) + random.choice(AROUND_S)
    more: list[PlannedFault] = []
    for target in random.sample(SUPPORT, random.choice((1, 1, 2))):
        for fault in _stopping(random, material, at_s, target):
            more.append(fault)
            at_s += random.choice((0.0, fault.for_s, random.lognormvariate(-1, 1)))
    return replace(parent, plan=(*parent.plan, *more))


def _stops(kind: str) -> bool:
    """Return whether a fault of this kind ends a node, makes it silent, or cuts it off."""
    plugin = registry.fault(kind)
    shapes = plugin.params[SHAPE].among if SHAPE in plugin.params else ()
    return plugin.effects.ends is not ProcessEnd.NONE or plugin.effects.silences or ALONE in shapes


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
