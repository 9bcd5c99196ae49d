"""A table of results that is kept with the code: `seatrial suite FILE --record TABLE.tsv`.

A row for each run, with a hash of what determines its result: the code of the cluster, the faults
and the workload, its trial and its plan. A cell whose hash has not changed is not run again, so a
change of the cluster costs only what depends on it, and a long matrix can be filled over many
evenings. The table is written after every run, so an interrupted suite loses no result.
"""

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequest, BedFailed
from harness.suite.execution import SuiteRun
from harness.suite.store import (
    AS_EXPECTED,
    NEVER,
    NOT_AS_EXPECTED,
    WORDS,
    SuiteRow,
    locked,
    replace_file,
    temporary_beside,
)
from harness.text.code_hash import RUN_CODE, code_hash
from harness.text.parsing import abbreviate, read_text

FIGURES = (
    *("injections", "elections", "acknowledged", "lost", "duplicated"),
    *("to_ack_s_p50", "to_ack_s_p99", "failure_to_success_s_p50", "failure_to_success_s_p99"),
    *("sends_in_faults", "not_acknowledged_in_faults", "success_in_faults", "success_quiet"),
    *("compared", "per_s"),
)
COLUMNS = ("cell", "seed", "turn", "hash", "when", "expected", "came", "outcome", *FIGURES)
DECIDED = {WORDS[code]: code for code in (AS_EXPECTED, NOT_AS_EXPECTED)}


@dataclass(frozen=True)
class Record:
    """The rows of a table by cell, seed and turn; numbers as text."""

    rows: Mapping[tuple[str, str, str], Mapping[str, str]]

    @classmethod
    def open(cls, path: Path) -> "Record":
        """Read a table; a missing one is empty. Raises BadRequest if it is no such table."""
        if not os.path.exists(path):
            return cls({})
        rows = _rows(read_text(path, "the record"), path)
        return cls({(row["cell"], row["seed"], row["turn"]): row for row in rows})

    def known(self, turns: Iterable[SuiteRun]) -> dict[str, SuiteRow]:
        """Return the rows whose hash has not changed and that decided something, by key."""
        rows = {}
        for turn in turns:
            line = self.rows.get(_place(turn))
            if line and line["hash"] == cell_hash(turn) and line["outcome"] in DECIDED:
                rows[turn.key] = _row(turn, line)
        return rows

    def with_(self, turn: SuiteRun, row: SuiteRow) -> "Record":
        """Return the table with this row; unchanged for a run whose test bed failed."""
        if row.error or row.known:
            return self
        figures = {name: f"{row.figures[name]:.10g}" for name in FIGURES if name in row.figures}
        head = (row.name, str(row.seed), str(row.turn), cell_hash(turn), row.when)
        words = (row.wanted, row.verdict, WORDS[row.outcome])
        line = dict(zip(COLUMNS, (*head, *words), strict=False)) | figures
        return Record({**self.rows, _place(turn): line})

    def text(self, order: Sequence[SuiteRun]) -> str:
        """Return the table as text: rows of the suite in its order, then all others."""
        places = {_place(turn): at for at, turn in enumerate(order)}
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, delimiter="\t", lineterminator="\n", restval="")
        writer.writeheader()
        for place in sorted(self.rows, key=lambda place: (places.get(place, len(places)), place)):
            writer.writerow(self.rows[place])
        return out.getvalue()

    @staticmethod
    def refuse_unwritable(path: Path) -> None:
        """Raise BadRequest if no table can be written there. Leaves no file."""
        try:
            temporary = temporary_beside(path)
            temporary.touch()
            temporary.unlink()
        except OSError as e:
            raise BadRequest(
                f"no record can be written to {path}: {e.strerror or e}; name a file in a folder "
                "that exists"
            ) from e

    @classmethod
    def add(
        cls, path: Path, rows: Iterable[tuple[SuiteRun, SuiteRow]], order: Sequence[SuiteRun]
    ) -> None:
        """Add rows to a table that several processes may write."""
        with locked(path.parent):
            record = cls.open(path)
            for turn, row in rows:
                record = record.with_(turn, row)
            record.write(path, order)

    def write(self, path: Path, order: Sequence[SuiteRun]) -> None:
        try:
            replace_file(path, self.text(order))
        except OSError as e:
            raise BedFailed(f"the record {path} cannot be written: {e.strerror or e}") from e


def cell_hash(turn: SuiteRun) -> str:
    """Return the hash of what determines a result, without the checkers: a run can be judged
    again."""
    return content_hash(code_hash(RUN_CODE), turn.cell.key)


def content_hash(*texts: str) -> str:
    """Return a hash of texts, of 16 digits."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=8).hexdigest()


def _rows(text: str, path: Path) -> Iterator[Mapping[str, str]]:
    """Yield the rows of a table's text. Raises BadRequest with the number of a malformed line."""
    reader = csv.reader(io.StringIO(text), delimiter="\t", strict=True)
    try:
        if tuple(next(reader, ())) != COLUMNS:
            raise BadRequest(
                f"{path} is not a record of this edition, whose columns are: {', '.join(COLUMNS)};"
                " name another file, or remove it"
            )
        for cells in filter(None, reader):
            row = dict(zip(COLUMNS, cells, strict=False))
            if why := _damage(cells, row):
                raise BadRequest(
                    f"{path} line {reader.line_num}: {why}; correct the line, or remove it"
                )
            yield row
    except csv.Error as e:
        raise BadRequest(f"{path} line {reader.line_num}: {e}; correct it, or remove it") from e


def _damage(cells: Sequence[str], row: Mapping[str, str]) -> str:
    """Return what is wrong with a row, or nothing."""
    if len(cells) != len(COLUMNS):
        return f"it has {len(cells)} columns instead of {len(COLUMNS)}"
    if row["outcome"] not in WORDS.values():
        return f"outcome must be {', '.join(WORDS.values())}, not {abbreviate(row['outcome'])!r}"
    for name in FIGURES:
        if row[name] and not _is_figure(row[name]):
            return f"{name} must be a number, not {abbreviate(row[name])!r}"
    return ""


def _is_figure(text: str) -> bool:
    try:
        return text == NEVER or math.isfinite(float(text))
    except ValueError:
        return False


def _place(turn: SuiteRun) -> tuple[str, str, str]:
    return turn.cell.title, str(turn.cell.request.trial.seed), str(turn.number)


def _row(turn: SuiteRun, line: Mapping[str, str]) -> SuiteRow:
    word, *codes = line["came"].split(", ")
    return SuiteRow(
        name=turn.cell.title,
        seed=turn.cell.request.trial.seed,
        turn=turn.number,
        wanted=turn.cell.wanted,
        outcome=DECIDED[line["outcome"]],
        word=word,
        codes=tuple(codes),
        when=line["when"],
        figures={name: float(line[name]) for name in FIGURES if line.get(name)},
        known=True,
    )
