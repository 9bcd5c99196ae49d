"""Plans as people write them, in TOML, and as they are saved.

    [trial]                       # optional: what this plan needs of its trial
    settings = { timeScale = 1.0 }

    [[fault]]
    kind = "partition"
    at_s = 5.0                    # after the load began
    for_s = 8.0
    target = "master"             # or a link, "master -> slave"
    params = { shape = "isolate", from = "slave" }
    after = ""                    # conditions.py
    until = ""
    repeat = { times = 3, every_s = 20.0 }

A plan is expanded when it is read: every parameter gets its value, and a repeated fault is written
out as often as it happens. So a saved plan is complete.

`repeat` gives the total number (`times`), or the latest end (`until_s`), and the interval between
two beginnings (`every_s`; by default none, for faults that wait for a condition). Neighbours with
the same `repeat` are repeated in turn. In the file `fault-0` is the first [[fault]]; if that is
repeated, it means the one of the same round, or else the last.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import groupby
from typing import Any, NamedTuple

import tomli_w

from harness import registry
from harness.contracts import PlannedFault
from harness.errors import BadRequest
from harness.plans import renumber
from harness.text.parsing import parse_toml
from harness.text.toml_lines import line_suffix
from harness.trial import Trial
from nemesis._plan.conditions import parse_after, parse_until
from nemesis._plan.kinds import alias_of, expand_link, param_problem, type_problem, with_defaults

Plan = tuple[PlannedFault, ...]
Row = Mapping[str, Any]
Refuse = Callable[[str, str], BadRequest]  # from a key and a problem of its value

MAX_TIMES = 1_000
MIN_EVERY_S = 0.01
MAX_COUNTED = 1e9  # more faults than this are not distinguished
EMPTY = PlannedFault(kind="", at_s=0.0, for_s=0.0)
REPEAT = "repeat"
KEYS = (*(field.name for field in fields(PlannedFault)), REPEAT)


class PlanFile(NamedTuple):
    """A plan file: the fields of the trial that it overrides, and the faults."""

    overrides: Mapping[str, Any]
    faults: Plan


class RepeatPosition(NamedTuple):
    """A [[fault]] of the file, and the number of its repetition."""

    row: int
    group: int  # first row of the neighbours that are repeated in turn
    turn: int = 0


def load(text: str, source: str = "the plan") -> PlanFile:
    """Read a plan from TOML. Raises BadRequest with the line and the key of an error."""
    tables = parse_toml(text, source)
    unknown = tables.keys() - {"trial", "fault"}
    if unknown:
        key = min(unknown)
        raise BadRequest(
            f"{source}{line_suffix(text, key)}: unknown key {key!r}; a plan has [[fault]] and,"
            " optionally, [trial]"
        )
    overrides, rows = tables.get("trial", {}), tables.get("fault", [])
    are_tables = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    if not isinstance(overrides, dict) or not are_tables:
        raise BadRequest(f"{source}: write [trial] once, in single brackets, and [[fault]] in two")
    Trial().with_(overrides, text, source)
    if "plan" in overrides:
        raise BadRequest(
            f"{source}{line_suffix(text, 'trial', 'plan')}: plan: a plan cannot name another"
            " plan; name it in the trial file, or with --plan"
        )
    once = [_fault(row, number, text, source) for number, row in enumerate(rows)]
    return PlanFile(overrides, _expanded(once, rows))


def dump(plan: Plan) -> str:
    """Format a plan as TOML, from which `load` reads the same plan. Empty values are left out."""
    rows = [{f.name: getattr(fault, f.name) for f in fields(fault)} for fault in plan]
    return tomli_w.dumps(
        {
            "fault": [
                _without_empty({**row, "params": _without_empty(row["params"])}) for row in rows
            ]
        }
    )


def lines(text: str, key: str = "kind") -> tuple[str, ...]:
    """Return the location of this key for each fault of an expanded plan file, as ' line 3'."""
    rows = parse_toml(text, "the plan").get("fault", [])
    return tuple(_line(text, place.row, key) for place in _order(rows))


def _without_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value not in ("", {})}


# ------------------------------------------------------------------------------------- repetition


def _expanded(once: Sequence[PlannedFault], rows: Sequence[Row]) -> Plan:
    """Return every fault as often as it happens."""
    order = _order(rows)
    last = {place.row: at for at, place in enumerate(order)}
    turns: dict[tuple[int, int], dict[int, int]] = {}
    for at, place in enumerate(order):
        turns.setdefault(place[1:], {})[place.row] = at
    plan = []
    for place in order:
        every_s = rows[place.row].get(REPEAT, {}).get("every_s", 0.0)
        fault = once[place.row]
        at_s = round(fault.at_s + place.turn * every_s, 3)
        again = replace(fault, at_s=at_s) if every_s else fault
        plan.append(
            renumber(again, {**last, **turns[place[1:]]}) if len(order) > len(rows) else again
        )
    return tuple(plan)


def _order(rows: Sequence[Row]) -> list[RepeatPosition]:
    """Return the faults of the file in order, as often as they happen."""
    order = []
    for repeat, group in groupby(enumerate(rows), lambda numbered: numbered[1].get(REPEAT)):
        members = list(group)
        times = min(_times(row) for _, row in members) if repeat else 1
        first = members[0][0]
        order += [
            RepeatPosition(number, first, turn) for turn in range(times) for number, _ in members
        ]
    return order


def _times(row: Row) -> int:
    """Return how often a fault happens in total."""
    repeat = row[REPEAT]
    if "times" in repeat:
        return int(repeat["times"])
    time_s = repeat["until_s"] - row["at_s"] - row["for_s"] + 1e-9
    return int(min(time_s / repeat["every_s"], MAX_COUNTED)) + 1 if time_s >= 0 else 0


def _check_repeat(row: Row, refuse: Refuse) -> None:
    repeat = row[REPEAT]
    if not isinstance(repeat, dict) or not repeat.keys() <= {"times", "every_s", "until_s"}:
        raise refuse(REPEAT, "must read like { times = 3, every_s = 20.0 }")
    for key, value in repeat.items():
        if type_problem(0.0, value) or not 0 < value < math.inf:
            raise refuse(REPEAT, f"{key} must be a positive number, not {value!r}")
    if ("times" in repeat) == ("until_s" in repeat):
        raise refuse(REPEAT, "needs times, or until_s, and not both")
    if "every_s" not in repeat and ("until_s" in repeat or not row.get("after")):
        raise refuse(REPEAT, "needs every_s: how long after each other they begin")
    if not isinstance(repeat.get("times", 1), int):
        raise refuse(REPEAT, f"times must be a whole number, not {repeat['times']!r}")
    if repeat.get("every_s", MIN_EVERY_S) < MIN_EVERY_S:
        raise refuse(REPEAT, f"every_s must be at least {MIN_EVERY_S:g}")
    if not 1 <= _times(row) <= MAX_TIMES:
        raise refuse(
            REPEAT,
            f"makes {max(0, _times(row)):,} faults, not 1 to {MAX_TIMES:,}; let there be more time"
            " between them, or less in all",
        )


# -------------------------------------------------------------------------------------- one fault


def _fault(row: Row, number: int, text: str, source: str) -> PlannedFault:
    def refuse(key: str, why: str) -> BadRequest:
        return BadRequest(f"{source}{_line(text, number, key)}: {key}: {why}")

    for key in row:
        if key not in KEYS:
            raise refuse(key, f"unknown key; a fault has {', '.join(KEYS)}")
    for key in ("kind", "at_s", "for_s"):
        if key not in row:
            raise refuse(key, "is missing")
    for key, value in row.items():
        if key != REPEAT and (problem := type_problem(getattr(EMPTY, key), value)):
            raise refuse(key, problem)
    fault = _read({key: value for key, value in row.items() if key != REPEAT}, refuse)
    if REPEAT in row:
        _check_repeat(row, refuse)
    return fault


def _read(row: Row, refuse: Refuse) -> PlannedFault:
    """Make a fault from values of the right types. Raises BadRequest with the key of an error."""
    for key, checked in (
        ("kind", lambda: alias_of(row["kind"])),
        ("after", lambda: parse_after(row.get("after", ""))),
        ("until", lambda: parse_until(row.get("until", ""))),
    ):
        try:
            checked()
        except BadRequest as e:
            raise refuse(key, str(e).removeprefix(f"{key} ")) from e
    if not 0 <= row["at_s"] < math.inf:
        raise refuse("at_s", f"must be a number from 0, not {row['at_s']:g}")
    if row["for_s"] == math.inf:
        raise refuse("for_s", "is without end, and a plan must heal what it breaks")
    if not row["for_s"] > 0:
        raise refuse("for_s", f"must be a positive number, not {row['for_s']:g}")
    alias = alias_of(row["kind"])
    if not alias.kind:
        raise refuse("kind", f"{row['kind']} is not a fault; leave the whole [[fault]] out")
    plugin = registry.fault(alias.kind)
    try:
        own = {**alias.params, **row.get("params", {})}
        target, given = expand_link(row.get("target") or alias.target, own, plugin)
    except BadRequest as e:
        raise refuse("target", str(e)) from e
    for name, value in given.items():
        if problem := param_problem(plugin.params, name, value):
            raise refuse(f"params.{name}", problem)
    fault = PlannedFault(**{**row, "kind": alias.kind, "params": given, "target": target})
    fault = with_defaults(replace(fault, at_s=float(fault.at_s), for_s=float(fault.for_s)), plugin)
    try:
        plugin.check(fault)
    except BadRequest as e:
        raise refuse(e.key or "params", str(e)) from e
    return fault


def _line(text: str, number: int, key: str) -> str:
    """Return the location of a key, `params.shape`, in a [[fault]], as ' line 3'.

    If the key is not there, it is the location of the table that should hold it.
    """
    return line_suffix(text, "fault", number, *key.split("."))
