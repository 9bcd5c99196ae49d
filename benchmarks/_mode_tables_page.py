"""The page docs/mode-tables.md: tables of articles, printed again with measured values. Pure.

Beside claims (harness.suite.claims), suites/mode-tables.toml has the articles' tables:

    [[article]]
    name = "implementations"       # its claims are implementations/ROW/COLUMN, or ROW/COLUMN-2
    title = "Implementations"
    source = "New design"
    about = "what the rows are"
    columns = ["advantage", "disadvantage"]

    [[article.row]]
    key = "raft"
    name = "Raft"                  # as the article calls it
    instance = "what was measured for it"
    mode = "raft-log"              # of the suite's modes: times, loss and availability
    figures = { copies = ["copies", "raft_log"] }  # of a column of MEASURED
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _claims_page import WORDS, number, records, unexpected
from _figures import table

from harness.errors import BadRequest
from harness.suite.claims import (
    NOT_MEASURED,
    ClaimMode,
    ClaimsFile,
    ClaimVerdict,
    Measurement,
    Measurements,
    PublishedClaim,
    judge_claim,
    valid_measurements,
)
from harness.text.parsing import parse_toml, read_text

HEAD = """<!-- generated: python benchmarks/modes.py --page -->
# Tables of the articles, measured

The comparison tables of the articles about RocketMQ's high availability, printed again: first with
a verdict in each cell, then with what was measured, then each statement with its quantity.
Statements and bounds are in `suites/mode-tables.toml`. `python benchmarks/modes.py` runs the
experiments that have no record, and writes this page from that file, `docs/mode-tables.json` and
the measurements of [the claims](claims.md), which are not made twice. Verdicts are computed. Where
Flotilla has no mode of a row, a small instance stands for it: the row has what it is. Beside a
figure stands what its run found besides what its trial expects.
"""
MEASURED = {
    "RTO": "RTO, s: kill, pause, cut",
    "RPO": "RPO: acknowledged and lost",
    "latency": "latency p50 (p99), ms",
    "throughput": "throughput, of its baseline (least, most)",
    "nines": "availability, nines",
    "copies": "cost in copies",
}
NOTES = """
RTO: the median from a fault of a master to the next acknowledgement of its set, timeScale 1; a
fault lasts 40 s, or as long as the instance says, so such an RTO means that the set did not recover
by itself. RPO: acknowledged messages that were gone after one master was killed, paused or cut off;
and after *power*, when all brokers lost it at one instant. Latency in worlds is that of a simulated
network and disk. Throughput: sends a second of real brokers over those of the asynchronous profile,
which ran before and after each, on a machine with other load; three rounds differ as much as the
least and the most. Nines: of a year with four faults of a master, of its set; where no part
replaces a master, a repair by hand in 20 minutes. Times of PostgreSQL are real ones; its throughput
is that over one server without the second phase, or between the copies. A dash: the quantity does
not apply to the instance, or was not measured.
"""
FAULTS = ("kill", "pause", "cut")


@dataclass(frozen=True)
class ArticleRow:
    """`figures`: column of MEASURED -> names of an experiment and its figure, in pairs."""

    key: str
    name: str
    instance: str
    mode: str = ""
    figures: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ArticleTable:
    name: str
    title: str
    source: str
    about: str
    columns: Sequence[str]
    rows: Sequence[ArticleRow]


def read_tables(path: Path, claims: Sequence[PublishedClaim]) -> list[ArticleTable]:
    """Return the tables of a suite file. Raises BadRequest if a claim belongs to no cell, or a cell
    has no claim."""
    found = []
    suite = parse_toml(read_text(path, "the suite file"), str(path))
    for place, entry in enumerate(suite.get("article", []), 1):
        where = f"{path}: article {place}"
        try:
            rows = [_row(row, where) for row in entry.pop("row")]
            found.append(ArticleTable(**entry, rows=rows))
        except (AttributeError, KeyError, TypeError) as e:
            raise BadRequest(f"{where}: a key is missing or unknown: {e}") from e
    cells = {
        f"{t.name}/{row.key}/{column}" for t in found for row in t.rows for column in t.columns
    }
    named = {cell_of(claim) for claim in claims}
    if strange := sorted(named - cells):
        raise BadRequest(f"{path}: no table has the cell {strange[0]}")
    if empty := sorted(cells - named):
        raise BadRequest(f"{path}: no claim is about the cell {empty[0]}")
    return found


def _row(entry: Mapping[str, Any], where: str) -> ArticleRow:
    row = ArticleRow(**entry)
    if strange := sorted(row.figures.keys() - MEASURED):
        raise BadRequest(f"{where}: row {row.key}: no measured column is called {strange[0]}")
    if odd := [column for column, names in row.figures.items() if not names or len(names) % 2]:
        raise BadRequest(f"{where}: row {row.key}: {odd[0]} needs pairs of experiment and figure")
    return row


def cell_of(claim: PublishedClaim) -> str:
    """Return the cell that a claim is about: its id without the number."""
    name, _, last = claim.id.rpartition("-")
    return name if name and last.isdigit() else claim.id


def measurements(
    file: ClaimsFile, rows: Iterable[Measurement], others: Iterable[Measurement], root: Path
) -> Measurements:
    """Return the valid ones of this suite, and of the one that it refers to."""
    own = valid_measurements(file, rows, root)
    also = valid_measurements(file.also, others, root) if file.also else Measurements()
    return Measurements({**also.of, **own.of}, {**also.unexpected, **own.unexpected})


def page(file: ClaimsFile, tables: Sequence[ArticleTable], known: Measurements) -> str:
    """Return the page's text."""
    verdicts = {claim.id: judge_claim(claim, known) for claim in file.claims}
    own = {name for name, _ in file.keys}
    counts = Counter(verdict.word for verdict in verdicts.values())
    said = ", ".join(f"{counts[word]} {text}" for word, text in WORDS.items() if counts[word])
    parts = [HEAD, f"{len(verdicts)} statements: {said}.", NOTES]
    for each in tables:
        claims = [claim for claim in file.claims if claim.id.startswith(f"{each.name}/")]
        parts += _table(each, claims, verdicts, file, known)
    parts += ["## Measurements\n", "Those of the claims' own page are not repeated.\n"]
    parts.append(records(Measurements({k: v for k, v in known.of.items() if k in own})))
    return "\n".join(parts).rstrip() + "\n"


def _table(
    each: ArticleTable,
    claims: Sequence[PublishedClaim],
    verdicts: Mapping[str, ClaimVerdict],
    file: ClaimsFile,
    known: Measurements,
) -> Iterator[str]:
    yield f"## {each.title}\n"
    yield f"From *{each.source}*. {each.about}\n"
    lines = []
    for row in each.rows:
        cells = [f"{each.name}/{row.key}/{column}" for column in each.columns]
        lines.append([row.name, *(_cell(cell, claims, verdicts) for cell in cells)])
    yield table(["", *each.columns], lines) + "\n"
    lines = [[row.name, row.instance, *_measured(row, file, known)] for row in each.rows]
    if any(row.mode or row.figures for row in each.rows):
        yield table(["", "instance", *MEASURED.values()], lines) + "\n"
    names = {f"{each.name}/{row.key}": row.name for row in each.rows}
    lines = [
        [names[claim.id.rsplit("/", 1)[0]], *_statement(claim, verdicts[claim.id], known)]
        for claim in claims
    ]
    yield table(["", "statement", "quantity", "measured", "verdict"], lines) + "\n"


def _cell(cell: str, claims: Sequence[PublishedClaim], verdicts: Mapping[str, ClaimVerdict]) -> str:
    said = (
        f"{claim.claim} (*{WORDS[verdicts[claim.id].word]}*)"
        for claim in claims
        if cell_of(claim) == cell
    )
    return "; ".join(said)


def _statement(claim: PublishedClaim, verdict: ClaimVerdict, known: Measurements) -> list[str]:
    measured = []
    for check, value in zip(claim.checks, verdict.values, strict=True):
        bound = f"{'≤' if check.bound.most else '≥'} {number(check.bound.value)}"
        where = f"{check.where}: " if check.where else ""
        measured.append(f"{where}{number(value)} ({bound}){unexpected(check, known)}")
    because = f" {claim.because}" if claim.because and verdict.word != NOT_MEASURED else ""
    return [claim.claim, claim.experiment, "; ".join(measured), f"**{verdict.text}**.{because}"]


def _measured(row: ArticleRow, file: ClaimsFile, known: Measurements) -> list[str]:
    modes = {mode.name: mode for each in (file.also, file) if each for mode in each.modes}
    found = _of_mode(modes[row.mode], known) if row.mode else {}
    for column, names in row.figures.items():
        pairs = zip(names[::2], names[1::2], strict=True)
        first, *rest = (number(known.value(of, figure)) for of, figure in pairs)
        found[column] = f"{first} ({', '.join(rest)})" if rest else first
    return [found.get(column, "-") for column in MEASURED]


def _of_mode(mode: ClaimMode, known: Measurements) -> dict[str, str]:
    def of(kind: str, figure: str, take: str = "median") -> str:
        return number(known.value(mode.trials.get(kind, ""), figure, take))

    lost = ", ".join(of(kind, "lost", "max") for kind in FAULTS)
    power = known.value(mode.outage, "lost", "max") if mode.outage else None
    return {
        "RTO": ", ".join(of(kind, "to_ack_s_p50") for kind in FAULTS),
        "RPO": lost if power is None else f"{lost}; power {number(power)}",
        "latency": f"{of('kill', 'ack_ms_p50')} ({of('kill', 'ack_ms_p99')})",
        "nines": number(known.value(f"availability/{mode.name}", "nines_4")),
    }
