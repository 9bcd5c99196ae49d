"""The shape of one `[[trial]]` of a suite file, before anything is made of it.

Whatever stands where something else belongs is refused in a sentence that names the file, the line
of the entry, the key, and what stands there. Nothing is guessed: a list of findings that is a
string would be a list of letters.
"""

from collections.abc import Mapping
from typing import Any

from harness import registry
from harness.errors import BadRequest, UnknownName
from harness.judge.verdict import Judgement
from harness.suite.expected import EXCUSED_RUN, Bound
from harness.suite.figures import NAMES
from harness.text.parsing import is_number
from harness.text.toml_lines import line

SHAPES: Mapping[str, tuple[type, str]] = {
    "run": (str, "a trial file or the name of a workload"),
    "with": (dict, "a table of the trial's fields"),
    "seeds": (object, "a list of seeds"),
    "expect": (object, "valid, invalid, unknown or excused"),
    "findings": (list, "a list of codes such as LOST_ACKED"),
    "at_most": (dict, "a table that reads like { lost = 0 }"),
    "at_least": (dict, "a table that reads like { acknowledged = 1000 }"),
    "name": (str, "a string"),
    "matrix": (dict, "tables that read like [trial.matrix.AXIS]"),
}


def places(path: object, text: str, entries: int) -> list[str]:
    """How each entry of a suite file is called, with its line."""
    return [f"{path}{line(text, 'trial', n)}: trial {n + 1}" for n in range(entries)]


def checked(entry: Any, where: str) -> Mapping[str, Any]:
    """The entry, when every key has the shape that it must have. BadRequest otherwise."""
    if not isinstance(entry, dict):
        raise BadRequest(f"{where} must be a table, as [[trial]] begins one, not {entry!r}")
    for key, value in entry.items():
        if key not in SHAPES:
            raise BadRequest(f"{where}: unknown key {key!r}; known: {', '.join(sorted(SHAPES))}")
        kind, words = SHAPES[key]
        if not isinstance(value, kind):
            raise BadRequest(f"{where}: {key} must be {words}, not {value!r}")
    if entry.get("expect") not in (*Judgement, EXCUSED_RUN):
        raise BadRequest(f"{where}: expect must be {SHAPES['expect'][1]}")
    _check_findings(entry, where)
    _check_bounds(entry, where)
    _check_room(entry, where)
    _check_matrix(entry.get("matrix"), where)
    return entry


def _check_findings(entry: Mapping[str, Any], where: str) -> None:
    codes = entry.get("findings", [])
    if not all(isinstance(code, str) and code for code in codes):
        raise BadRequest(f"{where}: findings must be {SHAPES['findings'][1]}, not {codes!r}")
    try:
        for code in codes:
            if code not in (known := registry.finding_codes()):
                raise UnknownName("finding", code, known)
    except UnknownName as e:
        raise BadRequest(f"{where}: findings: {e}") from e
    if codes and entry["expect"] != Judgement.INVALID:
        raise BadRequest(
            f'{where}: findings convict, so with them expect must be "invalid", '
            f'not "{entry["expect"]}"'
        )


def bounds(entry: Mapping[str, Any]) -> tuple[Bound, ...]:
    """What an entry says of its runs' figures."""
    most = (Bound(name, float(value)) for name, value in entry.get("at_most", {}).items())
    least = (Bound(name, float(value), False) for name, value in entry.get("at_least", {}).items())
    return (*most, *least)


def _check_bounds(entry: Mapping[str, Any], where: str) -> None:
    for key in ("at_most", "at_least"):
        for name, value in entry.get(key, {}).items():
            if name not in NAMES:
                raise BadRequest(f"{where}: {key}: {UnknownName('figure', name, NAMES)}")
            if not is_number(value):
                raise BadRequest(f"{where}: {key}.{name} must be a number, not {value!r}")


def _check_room(entry: Mapping[str, Any], where: str) -> None:
    """BadRequest when no figure is within its bounds."""
    most, least = entry.get("at_most", {}), entry.get("at_least", {})
    for name in most.keys() & least.keys():
        if most[name] < least[name]:
            raise BadRequest(
                f"{where}: no {name} is at_most {most[name]} and at_least {least[name]}; correct "
                "one of them"
            )


def _check_matrix(axes: Mapping[str, Any] | None, where: str) -> None:
    if axes is None:
        return
    if not axes:
        raise BadRequest(f"{where}: matrix must read like [trial.matrix.AXIS], with rows")
    for axis, rows in axes.items():
        if not isinstance(rows, dict) or not rows:
            raise BadRequest(f"{where}: matrix must read like [trial.matrix.AXIS], with rows")
        for row, fields in rows.items():
            if not isinstance(fields, dict):
                raise BadRequest(
                    f"{where}: matrix.{axis}.{row} must be a table of fields, not {fields!r}"
                )
