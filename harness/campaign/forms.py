"""Forms of drawn plans that reach what a dense mixture of short faults hides.

    few       one to eight of the faults that a campaign draws, some of them longer, or one of them
              again and again
    acts      a fault, and others that strike when it has changed something; then the next act
    standing  faults that outlast the time to recover: the cluster has to overcome them

Half of the faults of acts, and of those that stand, aim at nodes that matter (`SUPPORT`): who holds
the latest writes, and who decides who leads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from harness import registry
from harness.campaign.features import CHANGES
from harness.campaign.swarm import draw_faults, with_kinds
from harness.contracts import PlannedFault
from harness.contracts.faults import ProcessEnd
from harness.run.broker_sets import BROKER, data_role
from harness.run.launch import PlanLimits
from harness.trial import Trial

Plan = tuple[PlannedFault, ...]

LAST_S = 1.0  # of the load, which stays without faults
# of draw_few: how many, and how many times as long; share that repeats one, and how often
FEW_FAULTS, STRETCH = (1, 2, 3, 5, 8), (1.0, 2.0, 5.0, 20.0)
REPEATED, REPEATS = 0.25, (4, 8, 12)
# of draw_standing: times to recover that a fault lasts, and then none; share with a short one
FIRST_S, OUTLASTS, APART, WITH_SHORT, SHORT_S = 1.0, (1.1, 1.6), (0.1, 0.5), 0.6, (0.2, 4.0)
LEADERS = ("master", "controller-leader")  # whom others must replace
REPLACING = ("majority controller", "one slave")  # who decides on that, and who may take over
AT_USUAL = 0.6  # share of faults at nodes that matter that aim at these
# of draw_acts: an act, and for how much of it its faults last
ACTS_FIRST_S, ACT_S, ACT_FIRST, ACT_STRIKE = 0.5, (1.5, 3.0, 6.0), (0.05, 0.9), (0.1, 0.7)
STRIKE_AFTER_S = (0.0, 0.0, 0.001, 0.01, 0.1, 0.5)
# who holds the latest writes, and who decides who leads: to strike in one moment or in turn
SUPPORT = ("in-set", "master", "one slave", "controller-leader", "majority controller", "all")
EARLIER = ("fault-{n}", "{role} but fault-{n}")  # those that an earlier fault hit, or the others
AT_SUPPORT = 0.5  # share of faults that end a node or cut it off, and aim at these
AT_CHANGE = 0.7  # share of strikes that wait for a change of a role, set or epoch
AT_TELLER = 0.4  # share of the other ones that hit the node with the event
SHAPE, ALONE = "shape", "isolate"  # a parameter of faults on links, and its value
UNINFORMATIVE = ("start", "exit", "stop")  # events that say less than others


@dataclass(frozen=True)
class Aims:
    """What faults may be drawn besides those of a plan that was drawn as usual.

    kinds    of faults
    events   kinds of them that runs had, to wait for
    support  selectors of the nodes that matter; none if the trial names its targets
    role     of the nodes that hold the data
    """

    kinds: frozenset[str]
    events: tuple[str, ...] = ()
    support: tuple[str, ...] = ()
    role: str = BROKER

    @classmethod
    def of(cls, trial: Trial) -> "Aims":
        """Return the targets of a trial; kinds and events are known when some were seen."""
        nodes = PlanLimits.of(trial).nodes
        role = data_role({node.name: node.role for node in nodes})
        there = [name for name in SUPPORT if registry.nemesis().has_target(name, nodes)]
        return cls(frozenset(), (), () if trial.targets else (*there, f"majority {role}"), role)


def draw_few(seed: int, base: Trial) -> tuple[Trial, Plan]:
    """Draw a trial and a plan with a few faults of those that `draw_faults` draws: real systems
    need seconds to overcome one, and others may hide what one does."""
    trial, drawn = draw_faults(seed, base, hosts=base.hosts)
    random = Random(f"{seed}/few")
    few = random.sample(drawn, min(len(drawn), random.choice(FEW_FAULTS)))
    if few and random.random() < REPEATED:
        times = random.choice(REPEATS)
        every_s = trial.duration_s / (times + 1)
        few = [replace(few[0], at_s=every_s * (n + 0.5)) for n in range(times)]
    factor, end_s = random.choice(STRETCH), trial.duration_s - LAST_S
    return _finished(
        trial,
        [
            replace(fault, for_s=max(0.1, min(fault.for_s * factor, end_s - fault.at_s)))
            for fault in sorted(few, key=lambda fault: fault.at_s)
        ],
    )


def draw_standing(seed: int, base: Trial, aims: Aims) -> tuple[Trial, Plan]:
    """Draw a trial and faults that outlast the time to recover, one after another, some of them
    with a short one around their beginning. If the load is too short for one, as `draw_few`."""
    trial, drawn = draw_faults(seed, base, hosts=base.hosts)
    random, at_s = Random(f"{seed}/standing"), FIRST_S
    faults: list[PlannedFault] = []
    while drawn:
        begin_s, for_s = at_s, trial.recover_within_s * random.uniform(*OUTLASTS)
        more = []
        if random.random() < WITH_SHORT:
            begin_s += random.uniform(0, 1)
            short_s = begin_s - at_s + random.uniform(*SHORT_S)
            more = [_drawn(random, drawn, aims, at_s, short_s, REPLACING)]
            for_s += short_s
        if begin_s + for_s > trial.duration_s - LAST_S:
            break
        faults += [*more, _drawn(random, drawn, aims, begin_s, for_s, LEADERS)]
        at_s = begin_s + for_s + trial.recover_within_s * random.uniform(*APART)
    return _finished(trial, faults) if faults else draw_few(seed, base)


def fits_standing(trial: Trial) -> bool:
    """Return whether the load is long enough for any fault that outlasts the time to recover."""
    return FIRST_S + OUTLASTS[1] * trial.recover_within_s + LAST_S <= trial.duration_s


def draw_acts(seed: int, base: Trial, aims: Aims) -> tuple[Trial, Plan]:
    """Draw a trial and a plan of acts. If the load is too short for one, as `draw_few`."""
    trial, drawn = draw_faults(seed, base, hosts=base.hosts)
    random, at_s = Random(f"{seed}/acts"), ACTS_FIRST_S
    length_s = random.choice(ACT_S)
    plan: list[PlannedFault] = []
    while drawn and at_s + length_s <= trial.duration_s - LAST_S:
        plan.append(_drawn(random, drawn, aims, at_s, length_s * random.uniform(*ACT_FIRST)))
        for _ in range(random.choice((1, 1, 2))):
            for_s = length_s * random.uniform(*ACT_STRIKE)
            within_s = round(length_s - for_s, 1)
            struck = draw_strike(random, drawn, aims, at_s + 0.01, within_s, len(plan))
            plan += [replace(fault, for_s=for_s) for fault in struck]
        at_s += length_s * random.uniform(1.0, 1.5)
    return _finished(trial, plan) if plan else draw_few(seed, base)


def _finished(trial: Trial, faults: Sequence[PlannedFault]) -> tuple[Trial, Plan]:
    """Return the trial with the kinds of these faults, whose times are rounded."""
    plan = tuple(replace(f, at_s=round(f.at_s, 3), for_s=round(f.for_s, 3)) for f in faults)
    return with_kinds(trial, plan), plan


def _drawn(
    random: Random,
    drawn: Plan,
    aims: Aims,
    at_s: float,
    for_s: float,
    usual: Sequence[str] = (),
) -> PlannedFault:
    """Draw a fault: one of a drawn plan, or one that aims at nodes that matter, most of these at
    the usual ones."""
    faults: Plan = ()
    if aims.support and random.random() < AT_SUPPORT:
        some = [target for target in usual if target in aims.support]
        some = some if some and random.random() < AT_USUAL else [*aims.support]
        faults = draw_stopping(random, aims, at_s, random.choice(some))
    return replace(faults[0] if faults else random.choice(drawn), at_s=at_s, for_s=for_s)


def draw_strike(
    random: Random, drawn: Plan, aims: Aims, at_s: float, within_s: float, earlier: int
) -> Plan:
    """Draw a fault that waits for an event from a time on, for at most `within_s`: on nodes that
    matter, on those that one of `earlier` faults of its plan hit or on the others, or one of a
    drawn plan. None if there are no events."""
    known = [kind for kind in aims.events if kind not in UNINFORMATIVE] or list(aims.events)
    changes = [kind for kind in known if kind in CHANGES]
    plain = [fault for fault in drawn if not fault.after]
    if not known or not plain:
        return ()
    kind = random.choice(changes if changes and random.random() < AT_CHANGE else known)
    more_s = random.choice(STRIKE_AFTER_S)
    delay = f" + {more_s:g} s" if more_s else ""
    after = f"event {kind}{delay} within {within_s:g} s"
    if aims.support and random.random() < AT_SUPPORT:
        target = random.choice((*aims.support, "teller", *(EARLIER if earlier else ())))
        if earlier:  # usually one of the latest
            latest = max(0, earlier - 1 - int(random.expovariate(1)))
            target = target.format(n=latest, role=aims.role)
        if faults := draw_stopping(random, aims, at_s, target):
            return (replace(faults[0], after=after),)
    fault = random.choice(plain)
    to_teller = aims.support and fault.target and random.random() < AT_TELLER
    return (replace(fault, at_s=at_s, target="teller" if to_teller else fault.target, after=after),)


def draw_stopping(random: Random, aims: Aims, at_s: float, target: str) -> Plan:
    """Draw a fault that ends nodes, makes them silent or cuts them off; none if no kind does."""
    kinds = sorted(filter(_stops, aims.kinds))
    if not kinds:
        return ()
    kind = random.choice(kinds)
    params = {name: param.default for name, param in registry.fault(kind).params.items()}
    if SHAPE in params:
        params[SHAPE] = ALONE
    return (PlannedFault(kind, at_s, random.lognormvariate(0, 1), target, params),)


def _stops(kind: str) -> bool:
    """Return whether a fault of this kind ends a node, makes it silent, or cuts it off."""
    plugin = registry.fault(kind)
    shapes = plugin.params[SHAPE].among if SHAPE in plugin.params else ()
    return plugin.effects.ends is not ProcessEnd.NONE or plugin.effects.silences or ALONE in shapes
