"""A table of measured cells that is kept with the code: `seatrial suite FILE --record TABLE.tsv`.

A row for each run, with the hash of what it was made of: the cluster, the faults and the workload
as they stood, its trial and its plan. A cell whose hash is still the same is not run again, so a
change of the cluster costs what depends on it, and a long matrix is filled over many evenings. The
table is written anew after every run, so whatever ends the suite, what it has measured is there.
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
from harness.suite.alone import alone
from harness.suite.course import Turn
from harness.suite.expected import AS_EXPECTED, NOT_AS_EXPECTED, WORDS
from harness.suite.figures import NEVER
from harness.suite.row import Row
from harness.text.code_hash import BROKEN, contents
from harness.text.parsing import shown, text_of

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
    """Rows of a table by cell, seed and turn; numbers as they are written there."""

    rows: Mapping[tuple[str, str, str], Mapping[str, str]]

    @classmethod
    def open(cls, path: Path) -> "Record":
        """BadRequest when the file is not such a table; one that is not there is empty."""
        if not os.path.exists(path):
            return cls({})
        rows = _rows(text_of(path, "the record"), path)
        return cls({(row["cell"], row["seed"], row["turn"]): row for row in rows})

    def known(self, turns: Iterable[Turn]) -> dict[str, Row]:
        """Turns whose cell was measured with what is there now, and proved something, by key."""
        found = {}
        for turn in turns:
            line = self.rows.get(_place(turn))
            if line and line["hash"] == made_of(turn) and line["outcome"] in DECIDED:
                found[turn.key] = _row(turn, line)
        return found

    def with_(self, turn: Turn, row: Row) -> "Record":
        """A measured row in its place. A run that failed on our side has none."""
        if row.error or row.known:
            return self
        figures = {name: f"{row.figures[name]:.10g}" for name in FIGURES if name in row.figures}
        head = (row.name, str(row.seed), str(row.turn), made_of(turn), row.when)
        words = (row.wanted, row.verdict, WORDS[row.outcome])
        line = dict(zip(COLUMNS, (*head, *words), strict=False)) | figures
        return Record({**self.rows, _place(turn): line})

    def text(self, order: Sequence[Turn]) -> str:
        """Those of the suite in its order, then what else was there."""
        places = {_place(turn): at for at, turn in enumerate(order)}
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, delimiter="\t", lineterminator="\n", restval="")
        writer.writeheader()
        for place in sorted(self.rows, key=lambda place: (places.get(place, len(places)), place)):
            writer.writerow(self.rows[place])
        return out.getvalue()

    @staticmethod
    def refuse_unwritable(path: Path) -> None:
        """BadRequest when no record can be written there; nothing of it is left."""
        try:
            temporary = _beside(path)
            temporary.touch()
            temporary.unlink()
        except OSError as e:
            raise BadRequest(
                f"no record can be written to {path}: {e.strerror or e}; name another file in a "
                "folder that is there"
            ) from e

    @classmethod
    def add(cls, path: Path, rows: Iterable[tuple[Turn, Row]], order: Sequence[Turn]) -> None:
        """Put these rows into the table as it is now, whoever else writes there."""
        with alone(path.parent):
            record = cls.open(path)
            for turn, row in rows:
                record = record.with_(turn, row)
            record.write(path, order)

    def write(self, path: Path, order: Sequence[Turn]) -> None:
        """All of it, or nothing."""
        temporary = _beside(path)
        try:
            temporary.write_text(self.text(order))
            os.replace(temporary, path)
        except OSError as e:
            raise BedFailed(f"the record {path} cannot be written: {e.strerror or e}") from e


def made_of(turn: Turn) -> str:
    """The hash of what a cell is made of: not of who judges, for a run can be judged again."""
    told = f"{contents(BROKEN)}\0{turn.cell.key}"
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}-{os.getpid()}")


def _rows(text: str, path: Path) -> Iterator[Mapping[str, str]]:
    """Of a table's text. BadRequest names the line that no suite has written."""
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
    """What is wrong with a row, if anything."""
    if len(cells) != len(COLUMNS):
        return f"there are {len(cells)} columns, and {len(COLUMNS)} belong there"
    if row["outcome"] not in WORDS.values():
        return f"outcome must be {', '.join(WORDS.values())}, not {shown(row['outcome'])!r}"
    for name in FIGURES:
        if row[name] and not _is_figure(row[name]):
            return f"{name} must be a number, not {shown(row[name])!r}"
    return ""


def _is_figure(text: str) -> bool:
    try:
        return text == NEVER or math.isfinite(float(text))
    except ValueError:
        return False


def _place(turn: Turn) -> tuple[str, str, str]:
    return turn.cell.title, str(turn.cell.asked.trial.seed), str(turn.number)


def _row(turn: Turn, line: Mapping[str, str]) -> Row:
    """As it was recorded."""
    word, *codes = line["came"].split(", ")
    return Row(
        name=turn.cell.title,
        seed=turn.cell.asked.trial.seed,
        turn=turn.number,
        wanted=turn.cell.wanted,
        outcome=DECIDED[line["outcome"]],
        word=word,
        codes=tuple(codes),
        when=line["when"],
        figures={name: float(line[name]) for name in FIGURES if line.get(name)},
        known=True,
    )
