"""Suites: a list of trials, each with the verdict expected of it. The nightly job runs one.

    [[trial]]
    run = "suites/trials/demo.toml"        # a trial file, relative to the suite's folder or to here
    with = { profile = "unsafe-default" }  # fields laid over it, as flags are
    seeds = "1..3"                         # one run for each; else the trial's own seed
    expect = "invalid"                     # valid, invalid, unknown or excused
    findings = ["LOST_ACKED"]              # must be among the codes that convict
    at_most = { to_ack_s_p50 = 2.0 }       # figures of the run (harness.suite.figures) and their
    at_least = { acknowledged = 1000 }     # bounds
    name = "unsafe"                        # what it is called; else after its trial and profile

    [trial.matrix.controller]              # one run for each row of each table, combined: `with`
    dledger = {}                           # for the cells of this axis
    jraft = { settings = { controllerType = "jraft" } }

    [scale]                                # of all trials, if they are to go at another pace than
    by = 0.1                               # written (harness.shrink.scaling); or by --scale
    setting = "timeScale"
    share = 0.5

A suite passes (exit 0) when every run ended as expected, fails (1) when one ended otherwise, and is
undecided (2) when the only deviations are runs that proved nothing: unknown, a failed test bed, or
not run at all.
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

from harness.cli.options import Request, Seeds, merged, request
from harness.cli.prog_name import seatrial
from harness.errors import BadRequest, near_names
from harness.judge.verdict import Judgement
from harness.shrink.scaling import Scale, scaled
from harness.suite.bundled import located
from harness.suite.entry import bounds, checked, places
from harness.suite.expected import EXCUSED_RUN, Expected
from harness.text.parsing import is_number, parsed, text_of
from harness.trial import Trial

SCALE_KEYS = {"by": float, "setting": str, "share": float}
TOLD = ("profile", "hosts")  # what the name of a run says besides its trial's


def chosen(cells: Sequence[Expected], only: Sequence[str]) -> tuple[Expected, ...]:
    """Those whose name holds one of these words; all when none is said. BadRequest: nobody's."""
    if not only:
        return tuple(cells)
    for word in only:
        if not any(word in cell.title for cell in cells):
            names = {cell.title for cell in cells}
            raise BadRequest(f"no run of the suite is called {word!r}{near_names(word, names)}")
    return tuple(cell for cell in cells if any(word in cell.title for word in only))


@dataclass(frozen=True)
class Place:
    """Hosts that all runs of a suite go to instead of their own."""

    hosts: str
    bed: Mapping[str, Any]

    def moved(self, cell: Expected) -> Expected:
        """The run on these hosts, and with that in its name."""
        trial = replace(cell.asked.trial, hosts=self.hosts, bed=self.bed)
        title = f"{cell.title} on {self.hosts}"
        return replace(cell, asked=replace(cell.asked, trial=trial), name=title)


def read_suite(
    path: Path, by: float | None = None, share: float | None = None, place: Place | None = None
) -> tuple[Expected, ...]:
    """The runs of a suite file, at its own pace or at this one, with its share of the rounds or
    this one, on their own hosts or in this place. BadRequest says which entry is wrong and how."""
    text = text_of(path, "the suite file")
    table = parsed(text, str(path))
    _refuse_other_files(table, path)
    entries, scale = table.pop("trial", []), table.pop("scale", {})
    if table or not isinstance(entries, list) or not entries:
        raise BadRequest(f"{path} must hold [[trial]] tables, [scale] if it has one, nothing else")
    pace = _scale(scale, f"{path}: scale", by, share)
    told = "" if by is None else f" at {by:g}"
    told += "" if share is None else f" for {share:g}"
    named: dict[tuple[str, int], str] = {}  # what the file says a run is called -> which entry
    cells = []
    for entry, where in zip(entries, places(path, text, len(entries)), strict=True):
        for cell in _runs(checked(entry, where), path, where):
            if "name" in entry:
                _refuse_same(named, cell, where)
            asked = _about(where, scaled, cell.asked, pace)
            made = replace(cell, asked=asked, name=f"{cell.title}{told}")
            cells.append(place.moved(made) if place else made)
    return tuple(_told_apart(cells))


def _refuse_other_files(table: Mapping[str, Any], path: Path) -> None:
    """BadRequest names the right command if the file is a trial or a plan."""
    what = "" if isinstance(table.get("trial"), list) else "a trial"
    what, flag = ("a plan", "--plan ") if "fault" in table else (what, "")
    if what and (flag or table.keys() & {f.name for f in fields_of(Trial)}):
        command = f"{seatrial()} run {flag}{quote(str(path))}"
        raise BadRequest(f"{path} is {what}, not a suite; run it with: {command}")


def _refuse_same(named: dict[tuple[str, int], str], cell: Expected, where: str) -> None:
    """BadRequest when another entry gives this name, with this seed."""
    other = named.setdefault((cell.title, cell.asked.trial.seed), where)
    if other != where:
        raise BadRequest(f"{where}: {cell.title!r} is the name of {other} too; give it another")


def _about(where: str, do: Callable[..., Request], *given: Any) -> Request:
    """What is wrong with a trial, told with its place in the suite."""
    try:
        return do(*given)
    except BadRequest as e:
        e.args = (f"{where}: {e}",)
        raise


def _scale(table: Any, where: str, by: float | None, share: float | None) -> Scale:
    """At another pace a repeated fault has all its rounds, if nothing else is said."""
    if not isinstance(table, dict):
        raise BadRequest(f"{where} must be a table")
    for key, value in table.items():
        if key not in SCALE_KEYS:
            raise BadRequest(f"{where}: unknown key {key!r}; known: {', '.join(SCALE_KEYS)}")
        positive = is_number(value) and value > 0
        if not (isinstance(value, str) if SCALE_KEYS[key] is str else positive):
            raise BadRequest(f"{where}: {key} must be a positive number, and setting a name")
    if float(table.get("share", 1.0)) > 1:
        raise BadRequest(f"{where}: share must be at most 1, for no round can be added")
    other = {} if by is None else {"by": by, "share": 1.0}
    return Scale(**{**table, **other, **({} if share is None else {"share": share})})


def _runs(entry: Mapping[str, Any], path: Path, where: str) -> Iterator[Expected]:
    try:
        seeds = Seeds()(str(entry["seeds"])) if "seeds" in entry else ()
    except click.BadParameter as e:
        raise BadRequest(f"{where}: seeds: {e.message}") from e
    what = entry.get("run", "messages")
    beside = path.parent / what
    what = str(beside) if is_file(located(beside)) else what
    for cell, fields in _cells(entry):
        place = f"{where}, {cell}" if cell else where
        if seeds and "seed" in fields:
            raise BadRequest(f"{place}: seeds and the trial's own seed both name seeds; keep one")
        for seed in seeds or (None,):
            flags = fields | ({} if seed is None else {"seed": seed})
            asked = _about(place, request, what, flags, "with")
            name = cell or entry.get("name") or _name(asked, fields)
            findings = tuple(entry.get("findings", ()))
            excused = entry["expect"] == EXCUSED_RUN
            verdict = Judgement.UNKNOWN if excused else Judgement(entry["expect"])
            yield Expected(asked, verdict, findings, name, bounds(entry), excused)


def _cells(entry: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each cell of the matrix, and the fields laid over its trial; without a matrix
    one that has no name."""
    over, axes = dict(entry.get("with", {})), entry.get("matrix", {})
    if not axes:
        yield "", over
        return
    first = entry.get("name", "")
    for picks in product(*(rows.items() for rows in axes.values())):
        words = [word for word, _ in picks]
        fields = merged([{"name": "-".join(words)}, over, *(fields for _, fields in picks)])
        yield "/".join(filter(None, (first, *words))), fields


def _name(asked: Request, fields: Mapping[str, Any]) -> str:
    """After its trial, and what the suite says of it."""
    return " ".join([asked.trial.name, *(str(fields[key]) for key in TOLD if key in fields)])


def _told_apart(cells: Sequence[Expected]) -> Iterator[Expected]:
    """No two have the same name and seed: the second is called so."""
    seen = set[tuple[str, int]]()
    said = {(cell.title, cell.asked.trial.seed) for cell in cells}
    for cell in cells:
        seed, numbers = cell.asked.trial.seed, count(2)
        who = cell.title, seed
        while who in seen or (who in said and who[0] != cell.title):
            who = f"{cell.title} #{next(numbers)}", seed
        seen.add(who)
        yield replace(cell, name=who[0])
