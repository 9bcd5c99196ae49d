"""Reads suite files: lists of trials with their expected verdicts.

    [[trial]]
    run = "suites/trials/demo.toml"        # a trial file, relative to the suite's folder or to here
    with = { profile = "unsafe-default" }  # fields laid over it, as flags are
    seeds = "1..3"                         # one run for each; default: the trial's seed
    expect = "invalid"                     # valid, invalid, unknown or excused
    findings = ["LOST_ACKED"]              # must be among the codes that convict
    at_most = { to_ack_s_p50 = 2.0 }       # figures of the run (harness.suite.figures) and their
    at_least = { acknowledged = 1000 }     # bounds
    name = "unsafe"                        # default: after its trial and profile

    [trial.matrix.controller]              # one run for each row of each table, combined: `with`
    dledger = {}                           # for the cells of this axis
    jraft = { settings = { controllerType = "jraft" } }

    [scale]                                # multiplies the times of all trials
    by = 0.1                               # (harness.shrink.scaling), as --scale does
    setting = "timeScale"
    share = 0.5

Other tables that a suite may have (OTHER_TABLES) say what its results mean: harness.suite.claims.

A suite passes (exit 0) if every run ended as expected, fails (1) if one did not, and is undecided
(2) if the only deviations are runs that proved nothing: unknown, a failed test bed, or not run.

A wrong value is refused with the file, the line of the entry, the key, and the value. Nothing is
converted: a string in place of a list of findings would become a list of letters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from itertools import count, product
from os.path import isfile as is_file
from pathlib import Path
from shlex import quote
from typing import Any

import click

from harness import registry
from harness.cli.options import Request, Seeds, merge_tables, request
from harness.cli.prog_name import seatrial
from harness.errors import BadRequest, UnknownName, near_names
from harness.judge.verdict import Judgement
from harness.shrink.scaling import Scale, scale_request
from harness.suite.bundled import locate
from harness.suite.expected import EXCUSED_RUN, ExpectedRun, FigureBound
from harness.suite.figures import NAMES
from harness.text.parsing import is_number, parse_toml, read_text
from harness.text.toml_lines import line_suffix
from harness.trial import Trial

OTHER_TABLES = (
    "claim",
    "command",
    "table",
    "mode",
    "shares",
    "also",
    "article",
)  # of suites/claims.toml and suites/mode-tables.toml; they start no trial
SCALE_KEYS = {"by": float, "setting": str, "share": float}
IN_NAMES = ("profile", "hosts")  # fields that the name of a run includes
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


def select_runs(cells: Sequence[ExpectedRun], only: Sequence[str]) -> tuple[ExpectedRun, ...]:
    """Return the runs whose name contains one of the words, or all without words. Raises BadRequest
    if no name contains a word."""
    if not only:
        return tuple(cells)
    for word in only:
        if not any(word in cell.title for cell in cells):
            names = {cell.title for cell in cells}
            raise BadRequest(f"no run of the suite is called {word!r}{near_names(word, names)}")
    return tuple(cell for cell in cells if any(word in cell.title for word in only))


@dataclass(frozen=True)
class HostsOverride:
    """Hosts for all runs of a suite, instead of their own."""

    hosts: str
    bed: Mapping[str, Any]

    def moved(self, cell: ExpectedRun) -> ExpectedRun:
        """Return the run on these hosts, named accordingly."""
        trial = replace(cell.request.trial, hosts=self.hosts, bed=self.bed)
        title = f"{cell.title} on {self.hosts}"
        return replace(cell, request=replace(cell.request, trial=trial), name=title)


def read_suite(
    path: Path,
    by: float | None = None,
    share: float | None = None,
    place: HostsOverride | None = None,
) -> tuple[ExpectedRun, ...]:
    """Return the runs of a suite file. `by`, `share` and `place` override its scale, its share of
    rounds and its hosts. Raises BadRequest with the entry that is wrong."""
    text = read_text(path, "the suite file")
    table = parse_toml(text, str(path))
    _refuse_other_files(table, path)
    entries, scale = table.pop("trial", []), table.pop("scale", {})
    table = {key: value for key, value in table.items() if key not in OTHER_TABLES}
    if table or not isinstance(entries, list) or not entries:
        raise BadRequest(f"{path} must have [[trial]] tables, optionally [scale], and nothing else")
    pace = _scale(scale, f"{path}: scale", by, share)
    suffix = "" if by is None else f" at {by:g}"
    suffix += "" if share is None else f" for {share:g}"
    named: dict[tuple[str, int], str] = {}  # explicit name and seed -> entry
    cells = []
    for entry, where in zip(entries, places(path, text, len(entries)), strict=True):
        for cell in _runs(check_entry(entry, where), path, where):
            if "name" in entry:
                _refuse_same(named, cell, where)
            scaled = _about(where, scale_request, cell.request, pace)
            made = replace(cell, request=scaled, name=f"{cell.title}{suffix}")
            cells.append(place.moved(made) if place else made)
    return tuple(_with_unique_names(cells))


def _refuse_other_files(table: Mapping[str, Any], path: Path) -> None:
    """Raise BadRequest with the right command if the file is a trial or a plan."""
    what = "" if isinstance(table.get("trial"), list) else "a trial"
    what, flag = ("a plan", "--plan ") if "fault" in table else (what, "")
    if what and (flag or table.keys() & {f.name for f in fields_of(Trial)}):
        command = f"{seatrial()} run {flag}{quote(str(path))}"
        raise BadRequest(f"{path} is {what}, not a suite; run it with: {command}")


def _refuse_same(named: dict[tuple[str, int], str], cell: ExpectedRun, where: str) -> None:
    """Raise BadRequest if another entry has the same name and seed."""
    other = named.setdefault((cell.title, cell.request.trial.seed), where)
    if other != where:
        raise BadRequest(f"{where}: {cell.title!r} is the name of {other}, too; choose another")


def _about(where: str, do: Callable[..., Request], *given: Any) -> Request:
    """Call a function, and add the place in the suite to its BadRequest."""
    try:
        return do(*given)
    except BadRequest as e:
        e.args = (f"{where}: {e}",)
        raise


def _scale(table: Any, where: str, by: float | None, share: float | None) -> Scale:
    """Read [scale]. With --scale a repeated fault keeps all its rounds, unless --share is given."""
    if not isinstance(table, dict):
        raise BadRequest(f"{where} must be a table")
    for key, value in table.items():
        if key not in SCALE_KEYS:
            raise BadRequest(f"{where}: unknown key {key!r}; known: {', '.join(SCALE_KEYS)}")
        positive = is_number(value) and value > 0
        if not (isinstance(value, str) if SCALE_KEYS[key] is str else positive):
            raise BadRequest(f"{where}: {key} must be a positive number, and setting a name")
    if float(table.get("share", 1.0)) > 1:
        raise BadRequest(f"{where}: share must be at most 1")
    other = {} if by is None else {"by": by, "share": 1.0}
    return Scale(**{**table, **other, **({} if share is None else {"share": share})})


def _runs(entry: Mapping[str, Any], path: Path, where: str) -> Iterator[ExpectedRun]:
    try:
        seeds = Seeds()(str(entry["seeds"])) if "seeds" in entry else ()
    except click.BadParameter as e:
        raise BadRequest(f"{where}: seeds: {e.message}") from e
    what = entry.get("run", "messages")
    beside = path.parent / what
    what = str(beside) if is_file(locate(beside)) else what
    for cell, fields in _cells(entry):
        place = f"{where}, {cell}" if cell else where
        if seeds and "seed" in fields:
            raise BadRequest(f"{place}: seeds and the trial's own seed exclude each other")
        for seed in seeds or (None,):
            flags = fields | ({} if seed is None else {"seed": seed})
            run_request = _about(place, request, what, flags, "with")
            name = cell or entry.get("name") or _name(run_request, fields)
            findings = tuple(entry.get("findings", ()))
            excused = entry["expect"] == EXCUSED_RUN
            verdict = Judgement.UNKNOWN if excused else Judgement(entry["expect"])
            yield ExpectedRun(run_request, verdict, findings, name, bounds(entry), excused)


def _cells(entry: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each cell of the matrix, and the fields that override its trial's; without
    a matrix, one cell without a name."""
    over, axes = dict(entry.get("with", {})), entry.get("matrix", {})
    if not axes:
        yield "", over
        return
    first = entry.get("name", "")
    for picks in product(*(rows.items() for rows in axes.values())):
        words = [word for word, _ in picks]
        fields = merge_tables([{"name": "-".join(words)}, over, *(fields for _, fields in picks)])
        yield "/".join(filter(None, (first, *words))), fields


def _name(request: Request, fields: Mapping[str, Any]) -> str:
    """Return the default name of a run."""
    return " ".join([request.trial.name, *(str(fields[key]) for key in IN_NAMES if key in fields)])


def _with_unique_names(cells: Sequence[ExpectedRun]) -> Iterator[ExpectedRun]:
    """Make names unique for each seed, by a number."""
    seen = set[tuple[str, int]]()
    given = {(cell.title, cell.request.trial.seed) for cell in cells}
    for cell in cells:
        seed, numbers = cell.request.trial.seed, count(2)
        name = cell.title, seed
        while name in seen or (name in given and name[0] != cell.title):
            name = f"{cell.title} #{next(numbers)}", seed
        seen.add(name)
        yield replace(cell, name=name[0])


# -------------------------------------------------------------------------- types of an entry


def places(path: object, text: str, entries: int) -> list[str]:
    """Return a name with file and line for each entry of a suite file."""
    return [f"{path}{line_suffix(text, 'trial', n)}: trial {n + 1}" for n in range(entries)]


def check_entry(entry: Any, where: str) -> Mapping[str, Any]:
    """Return the entry. Raises BadRequest if a key or a value is wrong."""
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
            f'{where}: findings need an invalid verdict, so expect must be "invalid", '
            f'not "{entry["expect"]}"'
        )


def bounds(entry: Mapping[str, Any]) -> tuple[FigureBound, ...]:
    """Return the bounds of an entry."""
    most = (FigureBound(name, float(value)) for name, value in entry.get("at_most", {}).items())
    least = (
        FigureBound(name, float(value), False) for name, value in entry.get("at_least", {}).items()
    )
    return (*most, *least)


def _check_bounds(entry: Mapping[str, Any], where: str) -> None:
    for key in ("at_most", "at_least"):
        for name, value in entry.get(key, {}).items():
            if name not in NAMES:
                raise BadRequest(f"{where}: {key}: {UnknownName('figure', name, NAMES)}")
            if not is_number(value):
                raise BadRequest(f"{where}: {key}.{name} must be a number, not {value!r}")


def _check_room(entry: Mapping[str, Any], where: str) -> None:
    """Raise BadRequest if no value satisfies the bounds of a figure."""
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
