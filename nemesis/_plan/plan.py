"""Plans: what breaks when, as explicit data that is fixed before the run.

A plan is drawn from the trial's seed: load alone at first, then fault and recovery in turn, by the
trial's rhythm. Every kind asked for has a window of its own, as far as there are windows; those
left over get mixes of one or two kinds at once. Or it is read from a TOML file (`toml`).

A fault must last at least three times as long as the system may need to notice it, and as long as
it takes to do what it is set to do, or the plan is refused: a shorter one never triggers what it is
meant to test. Refused as well is what would break the same thing on the same nodes a second time
while the first lasts, what waits for a fault that there is not, and what no node can mean.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random

from harness import plans, registry
from harness.contracts import Node, PlannedFault
from harness.errors import BadRequest, UnknownName, Unsupported
from harness.trial import Trial
from nemesis._plan import targets as _targets
from nemesis._plan.aliases import Alias
from nemesis._plan.kinds import (
    alias_of,
    completed,
    ends,
    fitting,
    hits_clients,
    of_clients,
    of_link,
)
from nemesis._plan.kinds import check_kinds as check_kinds
from nemesis._plan.overlaps import overlapped
from nemesis._plan.toml import Loaded as Loaded
from nemesis._plan.toml import Plan as Plan
from nemesis._plan.toml import dump as dump
from nemesis._plan.toml import lines
from nemesis._plan.toml import load as load
from nemesis._runner import conditions as _conditions
from nemesis._runner.conditions import Event, State

Where = Callable[[str], str]  # a fault's place by one of its keys, for who has to complain of it

MAX_WINDOWS = 10_000
AT_CLIENTS, ONE_CLIENT = 0.25, "one client"  # the share of such faults, and their target
DETECTIONS = 3  # how many detection times a fault must last


def planned(
    trial: Trial,
    text: str | None,
    detection_s: float,
    nodes: Sequence[Node],
    can: frozenset[str],
) -> Plan:
    """The plan of a trial, from a plan file's text or from its seed; checked in every way."""
    source = trial.plan or "the plan"
    plan = draw(trial, detection_s, nodes) if text is None else load(text, source).faults
    check(plan, trial, detection_s, nodes, can, text or "")
    return plan


# ----------------------------------------------------------------------------------------- draw


def draw(trial: Trial, detection_s: float, nodes: Sequence[Node]) -> Plan:
    """The plan of a trial's seed. BadRequest when its faults, targets or rhythm make no sense."""
    if not trial.faults:
        return ()
    random = Random(f"{trial.seed}/plan")
    kinds = [alias_of(name) for name in dict.fromkeys(trial.faults)]
    kinds = [alias for alias in kinds if alias.kind]  # OpenChaos has a name for none at all
    if not kinds:
        return ()
    starts = _windows(trial)
    plan = tuple(
        _drawn(alias, at_s, trial, random, nodes)
        for at_s, aliases in zip(starts, _dealt(kinds, len(starts), random), strict=True)
        for alias in aliases
    )
    check(plan, trial, detection_s, nodes)
    return plan


def _windows(trial: Trial) -> list[float]:
    """When each fault window begins, in seconds after the load began."""
    rhythm = trial.rhythm
    period_s = rhythm.fault_s + rhythm.recovery_s
    count = int((trial.duration_s - rhythm.quiet_s + 1e-9) // period_s)
    if count < 1:
        raise BadRequest(
            f"a load of {trial.duration_s:g} s has no room for a fault: it needs {rhythm.quiet_s:g}"
            f" s of quiet, {rhythm.fault_s:g} s of fault and {rhythm.recovery_s:g} s of recovery;"
            f" use --duration {math.ceil(rhythm.quiet_s + rhythm.fault_s + rhythm.recovery_s)}s or"
            " longer (duration_s in a trial file), or a shorter --rhythm"
        )
    if count > MAX_WINDOWS:
        raise BadRequest(
            f"a load of {trial.duration_s:g} s has room for more than {MAX_WINDOWS:,} windows of"
            " faults, which is more than a plan can hold; make duration_s shorter or the rhythm"
            " longer"
        )
    return [round(rhythm.quiet_s + i * period_s, 3) for i in range(count)]


def _dealt(kinds: Sequence[Alias], windows: int, random: Random) -> list[list[Alias]]:
    """Kinds for each window: each kind at least once, then mixes."""
    order = random.sample(kinds, len(kinds))
    dealt: list[list[Alias]] = [order[i::windows] for i in range(min(windows, len(order)))]
    while len(dealt) < windows:
        dealt.append(random.sample(kinds, random.randint(1, min(2, len(kinds)))))
    return dealt


def _drawn(
    alias: Alias, at_s: float, trial: Trial, random: Random, nodes: Sequence[Node]
) -> PlannedFault:
    plugin = registry.fault(alias.kind)
    targets = fitting(alias.kind, trial.targets, nodes)
    if alias.settled:
        own = random.choice(targets) if targets else ""
        target, params = alias.target or own, alias.params
    else:
        target, params = plugin.drawn(random, targets)
        if of_clients(alias.kind, trial) and random.random() < AT_CLIENTS:
            target, params = ONE_CLIENT, {}
    target, given = of_link(target, params, plugin, by_lot=True)
    fault = PlannedFault(alias.kind, at_s, trial.rhythm.fault_s, target, given)
    return completed(fault, plugin)


# ---------------------------------------------------------------------------------------- check


def check(
    plan: Plan,
    trial: Trial,
    detection_s: float,
    nodes: Sequence[Node],
    can: frozenset[str] | None = None,
    text: str = "",
) -> None:
    """Whether the plan makes sense for the trial and, given what its hosts `can`, is possible.

    BadRequest or Unsupported otherwise, before anything has started. `text`: the file it is from.
    """
    _check_aims(trial.targets, nodes)
    earlier: list[str] = []
    for number, fault in enumerate(plan):
        where = partial(_where, fault, number, trial, text)
        _check_targets(fault, earlier, nodes, where)
        _check_order(fault, number, len(plan), where)
        _check_times(fault, trial, detection_s, nodes, where)
        if can is not None:
            _check_possible(fault, can, trial, where)
        earlier.append(f"{_targets.FAULT}{number}")
        if trial.plan:
            _check_hits(fault, nodes, where)
        if trial.plan and (other := overlapped(plan, number, nodes)) is not None:
            first = plan[other]
            what = (
                f"breaks again what fault {other} has broken"
                if first.kind == fault.kind
                else f"needs a process that fault {other} ({first.kind}) has hold of"
            )
            raise BadRequest(
                f"{where('at_s')} {what} until {first.at_s + first.for_s:g} s; let one end before"
                " the other begins, or name other nodes"
            )


def longest_s(plan: Plan) -> float:
    """How long after the load began all of it is over, whatever conditions it waits for."""
    begun_s = over_s = 0.0
    for fault in plan:
        _, waits_s = _conditions.waits_s(fault)
        begun_s = max(fault.at_s, begun_s if fault.after.strip() else 0.0) + waits_s
        over_s = max(over_s, begun_s + fault.for_s)
    return over_s


def _where(fault: PlannedFault, number: int, trial: Trial, text: str, key: str) -> str:
    """`mine.toml line 7: target: fault 2 (kill at 5 s)`; only the fault when no file is meant."""
    several = "," in trial.plan  # files, whose lines are those of none
    line = lines(text, key)[number] if text and not several else ""
    place = f"{trial.plan}{line}: {key}: " if trial.plan else ""
    return f"{place}fault {number} ({fault.kind} at {fault.at_s:g} s)"


def _check_aims(targets: Sequence[str], nodes: Sequence[Node]) -> None:
    """What drawn faults may hit, whether one was drawn for it or not."""
    for end in (end for target in targets for end in ends(target)):
        try:
            _targets.check(end, nodes)
        except UnknownName:
            raise
        except BadRequest as e:
            raise BadRequest(str(e), "targets") from e


def _check_targets(
    fault: PlannedFault, earlier: list[str], nodes: Sequence[Node], where: Where
) -> None:
    """`earlier`: names of the faults before this one."""
    plugin = registry.fault(fault.kind)
    with _placed(where, "params"):
        plugin.check(fault)
    for key, event in zip(("after", "until"), _events(fault), strict=True):
        if event and event.by:
            with _placed(where, key):
                _targets.check_lasting(event.by, nodes, earlier)
    words = [*earlier, _targets.TELLER] if _conditions.event_of(fault.after) else earlier
    named = [name for name, param in plugin.params.items() if param.unit == "selector"]
    selectors = ((f"params.{name}", fault.params[name]) for name in named)
    for key, selector in (("target", fault.target), *selectors):
        if selector:
            with _placed(where, key):
                _targets.check(selector, nodes, words)
    with _placed(where, "params"):
        plugin.check_nodes(fault, nodes)
    if not hits_clients(plugin) and _targets.reaches_clients(fault.target, nodes):
        raise BadRequest(
            f"{where('target')}: clients can be cut off but not hit by {fault.kind}; target servers"
        )


def _check_hits(fault: PlannedFault, nodes: Sequence[Node], where: Where) -> None:
    """A fault by hand has something that it could touch. Drawn ones fit themselves."""
    if why := registry.fault(fault.kind).hopeless(fault, nodes):
        raise BadRequest(f"{where('target' if fault.target else 'params')} {why}")


@contextmanager
def _placed(where: Where, key: str) -> Iterator[None]:
    """What is refused meanwhile is so because of this key, unless it names another."""
    try:
        yield
    except BadRequest as e:
        raise BadRequest(f"{where(e.key or key)}: {e}") from e


def _check_order(fault: PlannedFault, number: int, of: int, where: Where) -> None:
    """It waits for others that there are."""
    if number == of - 1 and _conditions.until(fault.until).word == plans.NEXT:
        raise BadRequest(
            f"{where('until')} lasts until the next fault of the plan, and there is none; leave"
            " `until` out"
        )
    after = _conditions.after(fault.after)
    if number == 0 and isinstance(after, State) and after.word == plans.PREVIOUS:
        raise BadRequest(
            f"{where('after')} waits for the fault before it, and there is none; leave `after` out"
        )


def _events(fault: PlannedFault) -> tuple[Event | None, Event | None]:
    """What it waits for, and what its end waits for."""
    return _conditions.event_of(fault.after), _conditions.until(fault.until).event


def _check_times(
    fault: PlannedFault, trial: Trial, detection_s: float, nodes: Sequence[Node], where: Where
) -> None:
    least_s = DETECTIONS * detection_s
    if fault.for_s < least_s - 1e-9 and not trial.short_faults:
        raise BadRequest(
            f"{where('for_s')} lasts {fault.for_s:g} s, but {trial.system} may need {detection_s:g}"
            f" s to notice a silent node; make it at least {least_s:g} s, or set short_faults ="
            " true"
        )
    takes_s = registry.fault(fault.kind).takes_s(fault, nodes)
    if fault.for_s < takes_s - 1e-9 and not trial.short_faults:
        raise BadRequest(
            f"{where('for_s')} lasts {fault.for_s:g} s, but what it is set to do takes"
            f" {takes_s:g} s; make it longer, or set short_faults = true"
        )
    waits_s, _ = _conditions.waits_s(fault)
    end_s = fault.at_s + waits_s + fault.for_s
    if end_s > trial.duration_s + 1e-9:
        raise BadRequest(
            f"{where('after' if waits_s else 'for_s')} may end at {end_s:g} s, after the load,"
            f" which lasts {trial.duration_s:g} s; make duration_s longer"
        )


def _check_possible(fault: PlannedFault, can: frozenset[str], trial: Trial, where: Where) -> None:
    missing = registry.fault(fault.kind).needs - can
    if missing:
        raise Unsupported(
            f"{where('kind')} cannot be done on {trial.hosts} hosts, which lack:"
            f" {', '.join(sorted(missing))}; choose other faults or other hosts"
        )
    if _conditions.listens(fault) and "events" not in can:
        key = "after" if _conditions.event_of(fault.after) else "until"
        raise Unsupported(
            f"{where(key)} waits for an event, but {trial.hosts} hosts cannot tell of events as"
            " they happen; use simulated hosts"
        )
