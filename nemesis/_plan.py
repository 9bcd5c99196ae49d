"""Plans: what breaks when, as explicit data that is fixed before the run.

A plan is drawn from the trial's seed: load alone at first, then fault and recovery in turn, by the
trial's rhythm. Every kind asked for has a window of its own, as far as there are windows; those
left over get mixes of one or two kinds at once. Or it is read from a TOML file:

    [trial]                       # optional: what this plan needs of its trial
    settings = { timeScale = 1.0 }

    [[fault]]
    kind = "partition"
    at_s = 5.0                    # after the load began
    for_s = 8.0
    target = "master"
    params = { shape = "isolate", from = "slave" }
    after = ""                    # _conditions
    until = ""

Parameters that are left out get their defaults, so a saved plan says all of what it means. A fault
must last at least three times as long as the system may need to notice it, or the plan is refused:
a shorter one never triggers what it is meant to test.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import tomli_w

from harness import registry
from harness.contracts import Node, PlannedFault
from harness.errors import BadRequest, UnknownName, Unsupported
from harness.scene import Param
from harness.trial import Trial, parsed
from nemesis import _conditions, _targets
from nemesis._aliases import ALIASES, Alias
from nemesis._conditions import Event

Plan = tuple[PlannedFault, ...]
Where = Callable[[], str]  # a fault's place, for who has to complain of it

MAX_WINDOWS = 10_000
DETECTIONS = 3  # how many detection times a fault must last
EMPTY = PlannedFault(kind="", at_s=0.0, for_s=0.0)


class Loaded(NamedTuple):
    """A plan file: fields of the trial that it sets unless told otherwise, and the faults."""

    overrides: Mapping[str, Any]
    faults: Plan


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
    kinds = [_alias(name) for name in dict.fromkeys(trial.faults)]
    starts = _windows(trial)
    plan = tuple(
        _drawn(alias, at_s, trial, random)
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
            " make duration_s longer or the rhythm shorter"
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


def _drawn(alias: Alias, at_s: float, trial: Trial, random: Random) -> PlannedFault:
    module = registry.module("fault", alias.kind)
    if alias.settled:
        own = random.choice(trial.targets) if trial.targets else ""
        target, params = alias.target or own, alias.params
    else:
        target, params = module.drawn(random, trial.targets)
    fault = PlannedFault(alias.kind, at_s, trial.rhythm.fault_s, target, params)
    return _completed(fault, module)


def check_kinds(names: Iterable[str]) -> None:
    """UnknownName for the first that is neither a kind of fault nor an alias of one."""
    for name in names:
        _alias(name)


def _alias(name: str) -> Alias:
    """A kind by its own name or by OpenChaos's. UnknownName lists both."""
    kinds = registry.names("fault")
    if name not in kinds and name not in ALIASES:
        raise UnknownName("fault", name, (*kinds, *ALIASES))
    return ALIASES.get(name, Alias(name, settled=False))


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
    earlier: list[str] = []
    for number, fault in enumerate(plan):
        where = partial(_where, fault, number, trial, text)
        try:
            _check_targets(fault, earlier, nodes)
        except BadRequest as e:
            raise BadRequest(f"{where()}: {e}") from e
        _check_times(fault, trial, detection_s, where)
        if can is not None:
            _check_possible(fault, can, trial, where)
        earlier.append(f"{_targets.FAULT}{number}")


def _where(fault: PlannedFault, number: int, trial: Trial, text: str) -> str:
    line = _line(text, number, "kind")
    place = f"{trial.plan or 'the plan'}{line}: " if line else ""
    return f"{place}fault {number} ({fault.kind} at {fault.at_s:g} s)"


def _check_targets(fault: PlannedFault, earlier: list[str], nodes: Sequence[Node]) -> None:
    """`earlier`: names of the faults before this one."""
    module = registry.module("fault", fault.kind)
    module.check(fault)
    words = earlier
    for event in filter(None, _events(fault)):
        if event.by:
            _targets.check_lasting(event.by, nodes, words)
    if _conditions.event_of(fault.after):
        words = [*earlier, _targets.TELLER]
    params: Mapping[str, Param] = module.PARAMS
    named = [fault.params[name] for name, param in params.items() if param.unit == "selector"]
    for selector in filter(None, (fault.target, *named)):
        _targets.check(selector, nodes, words)
    if "signal" in module.NEEDS and _targets.reaches_clients(fault.target, nodes):
        raise BadRequest(f"clients can be cut off but not hit by {fault.kind}; target servers")


def _events(fault: PlannedFault) -> tuple[Event | None, Event | None]:
    """What it waits for, and what its end waits for."""
    return _conditions.event_of(fault.after), _conditions.until(fault.until).event


def _check_times(fault: PlannedFault, trial: Trial, detection_s: float, where: Where) -> None:
    least_s = DETECTIONS * detection_s
    if fault.for_s < least_s - 1e-9 and not trial.short_faults:
        raise BadRequest(
            f"{where()} lasts {fault.for_s:g} s, but {trial.system} may need {detection_s:g} s to"
            f" notice a silent node; make it at least {least_s:g} s, or set short_faults = true"
        )
    if fault.at_s + fault.for_s > trial.duration_s + 1e-9:
        raise BadRequest(
            f"{where()} may end at {fault.at_s + fault.for_s:g} s, after the load, which lasts"
            f" {trial.duration_s:g} s; make duration_s longer"
        )


def _check_possible(fault: PlannedFault, can: frozenset[str], trial: Trial, where: Where) -> None:
    missing = registry.module("fault", fault.kind).NEEDS - can
    if missing:
        raise Unsupported(
            f"{where()} cannot be done on {trial.hosts} hosts, which lack:"
            f" {', '.join(sorted(missing))}; choose other faults or other hosts"
        )
    if _conditions.listens(fault) and "events" not in can:
        raise Unsupported(
            f"{where()} waits for an event, but {trial.hosts} hosts cannot tell of events as they"
            " happen; use simulated hosts"
        )


# ------------------------------------------------------------------------------- load and dump


def load(text: str, source: str = "the plan") -> Loaded:
    """A plan from TOML. BadRequest names the line and the key."""
    tables = parsed(text, source)
    unknown = tables.keys() - {"trial", "fault"}
    if unknown:
        key = min(unknown)
        raise BadRequest(
            f"{source}{_line(text, None, key)}: unknown key {key!r}; a plan has [[fault]] and,"
            " optionally, [trial]"
        )
    overrides, faults = tables.get("trial", {}), tables.get("fault", [])
    if not isinstance(overrides, dict) or not isinstance(faults, list):
        raise BadRequest(f"{source}: write [trial] once, in single brackets, and [[fault]] in two")
    Trial().with_(overrides, text, source)
    if "plan" in overrides:
        raise BadRequest(
            f"{source}{_line(text, None, 'plan')}: plan: a plan cannot name another plan; name it"
            " in the trial file, or with --plan"
        )
    return Loaded(overrides, tuple(_fault(row, n, text, source) for n, row in enumerate(faults)))


def dump(plan: Plan) -> str:
    """The plan as TOML, which `load` reads back as the same plan. What is empty is left out."""
    rows = [{f.name: getattr(fault, f.name) for f in fields(fault)} for fault in plan]
    return tomli_w.dumps(
        {"fault": [_told({**row, "params": _told(row["params"])}) for row in rows]}
    )


def _told(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value not in ("", {})}


def _fault(row: Mapping[str, Any], number: int, text: str, source: str) -> PlannedFault:
    def refuse(key: str, why: str) -> BadRequest:
        return BadRequest(f"{source}{_line(text, number, key)}: {key}: {why}")

    known = [field.name for field in fields(PlannedFault)]
    for key in row:
        if key not in known:
            raise refuse(key, f"unknown key; a fault has {', '.join(known)}")
    for key in ("kind", "at_s", "for_s"):
        if key not in row:
            raise refuse(key, "is missing")
    for key, value in row.items():
        if problem := _mistyped(getattr(EMPTY, key), value):
            raise refuse(key, problem)
    return _read(row, refuse)


def _read(row: Mapping[str, Any], refuse: Any) -> PlannedFault:
    """A fault from values of the right types; every refusal names its key."""
    for key, checked in (
        ("kind", lambda: _alias(row["kind"])),
        ("after", lambda: _conditions.after(row.get("after", ""))),
        ("until", lambda: _conditions.until(row.get("until", ""))),
    ):
        try:
            checked()
        except BadRequest as e:
            raise refuse(key, str(e).removeprefix(f"{key} ")) from e
    if not 0 <= row["at_s"] < math.inf:
        raise refuse("at_s", f"must be a number from 0, not {row['at_s']:g}")
    if not 0 < row["for_s"] < math.inf:
        raise refuse("for_s", f"must be a positive number, not {row['for_s']:g}")
    alias = _alias(row["kind"])
    module = registry.module("fault", alias.kind)
    given = {**alias.params, **row.get("params", {})}
    for name, value in given.items():
        if problem := _unfit(module.PARAMS, name, value):
            raise refuse("params", problem)
    fault = PlannedFault(**{**row, "kind": alias.kind, "params": given})
    fault = replace(fault, at_s=float(fault.at_s), for_s=float(fault.for_s))
    fault = _completed(replace(fault, target=fault.target or alias.target), module)
    try:
        module.check(fault)
    except BadRequest as e:
        raise refuse("params" if fault.target else "target", str(e)) from e
    return fault


def _completed(fault: PlannedFault, module: ModuleType) -> PlannedFault:
    defaults = {name: param.default for name, param in module.PARAMS.items()}
    return replace(fault, params={**defaults, **fault.params})


def _unfit(params: Mapping[str, Param], name: str, value: Any) -> str:
    """What is wrong with a parameter, if anything."""
    if name not in params:
        known = ", ".join(params) or "none"
        return f"unknown parameter {name!r}; this fault's are: {known}"
    param = params[name]
    if problem := _mistyped(param.default, value):
        return f"{name} {problem}"
    if param.among and value not in param.among:
        return f"{name} must be one of {', '.join(param.among)}, not {value!r}"
    if isinstance(param.default, float) and not param.low <= value <= param.high:
        return f"{name} must be between {param.low:g} and {param.high:g}, not {value:g}"
    return ""


def _mistyped(default: Any, value: Any) -> str:
    """What is wrong with a value's type, by the default's."""
    kinds: Iterable[tuple[type | tuple[type, ...], str, Any]] = (
        (bool, "true or false", bool),
        ((int, float), "a number", (int, float)),
        (str, "a string", str),
        (Mapping, "a table", Mapping),
    )
    for of, words, wanted in kinds:
        if isinstance(default, of):
            fits = isinstance(value, wanted) and isinstance(value, bool) == isinstance(
                default, bool
            )
            return "" if fits else f"must be {words}, not {value!r}"
    return ""


def _line(text: str, number: int | None, key: str) -> str:
    """Where a key stands in the `number`th [[fault]], as ' line 3', or where that fault begins."""
    fault, begins = None, ""
    for line_number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#")[0].strip()
        if words.replace(" ", "") == "[[fault]]":
            fault = 0 if fault is None else fault + 1
            begins = f" line {line_number}" if fault == number else begins
        elif fault == number and words.strip("[]").split("=")[0].strip() in (key, f"fault.{key}"):
            return f" line {line_number}"
    return begins
