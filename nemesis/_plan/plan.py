"""Plans: which faults happen when, as explicit data that is fixed before the run.

A plan is drawn from the trial's seed: load without faults at first, then fault and recovery in
turn, by the trial's rhythm. Every requested kind gets a window of its own, as far as there are
windows; the windows left over get one or two kinds at once. Or a plan is read from a TOML file
(`toml`).

A fault must last at least three times as long as the system may need to notice it, and long enough
for its parameters to take effect; a shorter one never triggers what it is meant to test, so the
plan is refused. Also refused are a fault that repeats another on the same nodes while that lasts, a
condition on a fault that does not exist, and a selector that can match no node.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from harness import plans, registry
from harness.contracts import Node, PlannedFault
from harness.contracts.membership import (
    CONSENSUS,
    CONTAINERS,
    CONVERSION,
    HOLDS,
    REJOIN,
    VERSIONS,
    ZONES,
)
from harness.errors import BadRequest, UnknownName, Unsupported
from harness.run.disk_needs import OWN_DISK, why_no_own_disks
from harness.trial import Rhythm, Trial
from nemesis._plan import targets as _targets
from nemesis._plan.aliases import Alias
from nemesis._plan.conditions import Conditions, StateCondition
from nemesis._plan.kinds import (
    aims_at_clients,
    alias_of,
    expand_link,
    hits_clients,
    link_ends,
    suitable_targets,
    with_defaults,
)
from nemesis._plan.kinds import check_kinds as check_kinds
from nemesis._plan.overlaps import change_versions, first_overlap
from nemesis._plan.toml import Plan as Plan
from nemesis._plan.toml import PlanFile as PlanFile
from nemesis._plan.toml import dump as dump
from nemesis._plan.toml import lines
from nemesis._plan.toml import load as load

Where = Callable[[str], str]  # from a key of a fault to its location, for error messages

MAX_WINDOWS = 10_000
AT_CLIENTS, ONE_CLIENT = 0.25, "one client"  # share of drawn faults aimed at clients, and target
ABILITIES_IN_WORDS = {  # of systems; all others are of hosts
    "handover": "a command that hands a master's role to another node",
    "members": "nodes that can join and leave while it serves",
    CONSENSUS: "controllers with several kinds of consensus",
    CONTAINERS: "containers with several brokers",
    CONVERSION: "broker sets that can be converted to another way of choosing masters",
    HOLDS: "masters that hold sends until a slave has caught up",
    REJOIN: "nodes that can lose their disk and start again",
    VERSIONS: "several versions of its program",
    ZONES: "a command by which all masters leave a zone",
}
SYSTEM_ABILITIES = frozenset(ABILITIES_IN_WORDS)
MAX_DRAWS = 200
GENERAL = ("master", "one slave", "one server", "minority server")  # targets of any system
VERSION = "version"  # the unit of a parameter that names a version of the system's program
DETECTIONS = 3  # how many detection times a fault must last


def plan_for_trial(
    trial: Trial,
    text: str | None,
    detection_s: float,
    nodes: Sequence[Node],
    can: frozenset[str],
) -> Plan:
    """Return the plan of a trial, from a plan file's text or from its seed, fully checked."""
    source = trial.plan or "the plan"
    plan = draw(trial, detection_s, nodes) if text is None else load(text, source).faults
    check(plan, trial, detection_s, nodes, can, text or "")
    return plan


# ----------------------------------------------------------------------------------------- draw


def draw(trial: Trial, detection_s: float, nodes: Sequence[Node]) -> Plan:
    """Draw the plan of a trial's seed. Faults last as the trial's rhythm has it, by default long
    enough for the system to notice them.

    Raises BadRequest if faults, targets or rhythm are invalid.
    """
    if not trial.faults:
        return ()
    random = Random(f"{trial.seed}/plan")
    kinds = [alias_of(name) for name in dict.fromkeys(trial.faults)]
    kinds = [alias for alias in kinds if alias.kind]  # `noop` of OpenChaos is no fault
    if not kinds:
        return ()
    rhythm = trial.rhythm
    if rhythm.fault_s == Rhythm.fault_s and not trial.short_faults:
        rhythm = replace(rhythm, fault_s=max(rhythm.fault_s, DETECTIONS * detection_s))
        trial = replace(trial, rhythm=rhythm)
    starts = _windows(trial)
    plan = tuple(
        _draw_fault(alias, at_s, trial, random, nodes)
        for at_s, aliases in zip(starts, _kinds_by_window(kinds, len(starts), random), strict=True)
        for alias in aliases
    )
    check(plan, trial, detection_s, nodes)
    return plan


def _windows(trial: Trial) -> list[float]:
    """Return when each fault window begins, in seconds after the load began."""
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


def _kinds_by_window(kinds: Sequence[Alias], windows: int, random: Random) -> list[list[Alias]]:
    """Return the kinds for each window: each kind at least once, then mixes."""
    order = random.sample(kinds, len(kinds))
    by_window = [order[i::windows] for i in range(min(windows, len(order)))]
    while len(by_window) < windows:
        by_window.append(random.sample(kinds, random.randint(1, min(2, len(kinds)))))
    return by_window


def _draw_fault(
    alias: Alias, at_s: float, trial: Trial, random: Random, nodes: Sequence[Node]
) -> PlannedFault:
    """Draw a fault again, as long as it can hit nothing here; at last with targets that every
    system has, and on the links to clients, too: a single server has no others."""
    targets = suitable_targets(alias.kind, trial.targets, nodes)
    for tries in range(MAX_DRAWS):
        general = tries >= MAX_DRAWS // 2 and not alias.settled
        few = targets or (GENERAL if general else ())
        fault = _draw_once(alias, at_s, trial, few, random)
        if general and "clients" in fault.params:
            fault = replace(fault, params={**fault.params, "clients": True})
        if can_hit(fault, nodes):
            return fault
    if why := registry.fault(fault.kind).impossible_reason(fault, nodes):
        raise BadRequest(f"the fault {fault.kind} {why}")
    return fault


def can_hit(fault: PlannedFault, nodes: Sequence[Node]) -> bool:
    """Return whether a fault's selectors match nodes, and it may do something to them."""
    plugin = registry.fault(fault.kind)
    named = [name for name, param in plugin.params.items() if param.unit == "selector"]
    try:
        plugin.check(fault)
        for selector in filter(None, (fault.target, *(fault.params[name] for name in named))):
            _targets.check(selector, nodes)
        plugin.check_nodes(fault, nodes)
    except BadRequest:
        return False
    return not plugin.impossible_reason(fault, nodes)


def _draw_once(
    alias: Alias, at_s: float, trial: Trial, targets: Sequence[str], random: Random
) -> PlannedFault:
    plugin = registry.fault(alias.kind)
    if alias.settled:
        own = random.choice(targets) if targets else ""
        target, params = alias.target or own, alias.params
    else:
        target, params = plugin.draw(random, targets)
        if aims_at_clients(alias.kind, trial) and random.random() < AT_CLIENTS:
            target, params = ONE_CLIENT, {}
    target, given = expand_link(target, params, plugin, drawn=True)
    fault = PlannedFault(alias.kind, at_s, trial.rhythm.fault_s, target, given)
    return with_defaults(fault, plugin)


# ---------------------------------------------------------------------------------------- check


def check(
    plan: Plan,
    trial: Trial,
    detection_s: float,
    nodes: Sequence[Node],
    can: frozenset[str] | None = None,
    text: str = "",
) -> None:
    """Check that the plan makes sense for the trial and, given what its hosts `can`, is possible.

    Raises BadRequest or Unsupported otherwise. `text` is the file from which the plan was read.
    """
    _check_aims(trial.targets, nodes)
    earlier: list[str] = []
    checked = set[tuple[str, str, str]]()  # in a drawn plan, many faults hit the same
    for number, fault in enumerate(plan):
        where = partial(_where, fault, number, trial, text)
        conditions = Conditions.of(fault)
        aim = (fault.kind, fault.target, str(fault.params))
        if can is not None:
            _check_possible(fault, conditions, can, trial, where)
        if conditions.need_events or aim not in checked:
            _check_targets(fault, conditions, earlier, nodes, where)
        if not conditions.need_events:
            checked.add(aim)
        _check_order(conditions, number, len(plan), where)
        _check_times(fault, conditions, trial, detection_s, nodes, where)
        earlier.append(f"{_targets.FAULT}{number}")
        if trial.plan:
            _check_written(plan, number, nodes, where)


def _check_written(plan: Plan, number: int, nodes: Sequence[Node], where: Where) -> None:
    """Check that a fault written by hand has something to hit and repeats no other fault.

    Drawn faults choose targets that they can hit, and may overlap.
    """
    fault = plan[number]
    if why := registry.fault(fault.kind).impossible_reason(fault, nodes):
        raise BadRequest(f"{where('target' if fault.target else 'params')} {why}")
    other = first_overlap(plan, number, nodes)
    if other is None:
        return
    first = plan[other]
    if change_versions(first, fault):
        what = f"changes the version of nodes that fault {other} ({first.kind}) may change"
    elif first.kind == fault.kind:
        what = f"breaks again what fault {other} has broken"
    else:
        what = f"needs a process that fault {other} ({first.kind}) has hold of"
    raise BadRequest(
        f"{where('at_s')} {what} until {first.at_s + first.for_s:g} s; let one end before"
        " the other begins, or name other nodes"
    )


def planned_versions(plan: Plan) -> tuple[str, ...]:
    """Return the versions of the system's program that a plan brings nodes to, each once."""
    found = (
        str(fault.params[name])
        for fault in plan
        for name, param in registry.fault(fault.kind).params.items()
        if param.unit == VERSION
    )
    return tuple(dict.fromkeys(filter(None, found)))


def longest_s(plan: Plan) -> float:
    """Return the maximum time, after the load began, at which the whole plan is over."""
    begun_s = over_s = 0.0
    for fault in plan:
        _, waits_s = Conditions.of(fault).waits_s
        begun_s = max(fault.at_s, begun_s if fault.after.strip() else 0.0) + waits_s
        over_s = max(over_s, begun_s + fault.for_s)
    return over_s


def _where(fault: PlannedFault, number: int, trial: Trial, text: str, key: str) -> str:
    """Return `mine.toml line 7: target: fault 2 (kill at 5 s)`; without a file, only the fault."""
    several = "," in trial.plan  # several files were joined, so line numbers have no meaning
    line = lines(text, key)[number] if text and not several else ""
    place = f"{trial.plan}{line}: {key}: " if trial.plan else ""
    return f"{place}fault {number} ({fault.kind} at {fault.at_s:g} s)"


def _check_aims(targets: Sequence[str], nodes: Sequence[Node]) -> None:
    """Check the trial's targets, whether a fault was drawn for each of them or not."""
    for end in (end for target in targets for end in link_ends(target)):
        try:
            _targets.check(end, nodes)
        except UnknownName:
            raise
        except BadRequest as e:
            raise BadRequest(str(e), "targets") from e


def _check_targets(
    fault: PlannedFault,
    conditions: Conditions,
    earlier: list[str],
    nodes: Sequence[Node],
    where: Where,
) -> None:
    """Check every selector. `earlier` are the names of the faults before this one."""
    plugin = registry.fault(fault.kind)
    with _placed(where, "params"):
        plugin.check(fault)
    for key, event in (("after", conditions.event), ("until", conditions.until.event)):
        if event and event.by:
            with _placed(where, key):
                _targets.check_fixed(event.by, nodes, earlier)
    words = [*earlier, _targets.TELLER] if conditions.event else earlier
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


@contextmanager
def _placed(where: Where, key: str) -> Iterator[None]:
    """Add the location of the key to a BadRequest of this block, unless it names another key."""
    try:
        yield
    except BadRequest as e:
        raise BadRequest(f"{where(e.key or key)}: {e}") from e


def _check_order(conditions: Conditions, number: int, count: int, where: Where) -> None:
    """Check that the faults before and after this one exist if it waits for them."""
    if number == count - 1 and conditions.until.word == plans.NEXT:
        raise BadRequest(
            f"{where('until')} lasts until the next fault of the plan, and there is none; leave"
            " `until` out"
        )
    after = conditions.after
    if number == 0 and isinstance(after, StateCondition) and after.word == plans.PREVIOUS:
        raise BadRequest(
            f"{where('after')} waits for the fault before it, and there is none; leave `after` out"
        )


def _check_times(
    fault: PlannedFault,
    conditions: Conditions,
    trial: Trial,
    detection_s: float,
    nodes: Sequence[Node],
    where: Where,
) -> None:
    min_s = DETECTIONS * detection_s
    if fault.for_s < min_s - 1e-9 and not trial.short_faults:
        raise BadRequest(
            f"{where('for_s')} lasts {fault.for_s:g} s, but {trial.system} may need {detection_s:g}"
            f" s to notice a silent node; make it at least {min_s:g} s, or set short_faults ="
            " true"
        )
    takes_s = registry.fault(fault.kind).takes_s(fault, nodes)
    if fault.for_s < takes_s - 1e-9 and not trial.short_faults:
        raise BadRequest(
            f"{where('for_s')} lasts {fault.for_s:g} s, but its parameters need"
            f" {takes_s:g} s; make it longer, or set short_faults = true"
        )
    waits_s, _ = conditions.waits_s
    end_s = fault.at_s + waits_s + fault.for_s
    if end_s > trial.duration_s + 1e-9:
        raise BadRequest(
            f"{where('after' if waits_s else 'for_s')} may end at {end_s:g} s, after the load,"
            f" which lasts {trial.duration_s:g} s; make duration_s longer"
        )


def in_words(abilities: Collection[str]) -> str:
    """Return those of the abilities that are a system's, in words."""
    return ", ".join(ABILITIES_IN_WORDS[name] for name in sorted(SYSTEM_ABILITIES & {*abilities}))


def _check_possible(
    fault: PlannedFault, conditions: Conditions, can: frozenset[str], trial: Trial, where: Where
) -> None:
    missing = registry.fault(fault.kind).needs_for(fault, can) - can
    of = f"{trial.system}, profile {trial.profile}" if trial.profile else trial.system
    if missing & SYSTEM_ABILITIES:
        raise Unsupported(
            f"{where('kind')} cannot be done with {of}, which lacks {in_words(missing)}; choose "
            "other faults or another profile"
        )
    if conditions.waits_for_held_sends and HOLDS not in can:
        raise Unsupported(
            f"{where('after')} waits until sends are held, which never happens with {of}: it lacks "
            f"{in_words([HOLDS])}; choose another condition or another profile"
        )
    if OWN_DISK in missing:
        hosts = registry.load("hosts", trial.hosts)(trial, Path())
        raise Unsupported(
            f"{where('params')} needs a disk for each node whose power can be cut, but "
            f"{why_no_own_disks(hosts, trial.hosts)}; or leave `by` out"
        )
    if missing:
        raise Unsupported(
            f"{where('kind')} cannot be done on {trial.hosts} hosts, which lack:"
            f" {', '.join(sorted(missing))}; choose other faults or other hosts"
        )
    if conditions.need_events and "events" not in can:
        key = "after" if conditions.event else "until"
        raise Unsupported(
            f"{where(key)} waits for an event, but {trial.hosts} hosts cannot report events as"
            " they happen; use simulated hosts"
        )
