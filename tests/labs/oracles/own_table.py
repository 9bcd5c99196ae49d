"""Many small histories of messages as one run of Seatrial: with a final reader, a consumer group
and the replicas' logs at the end, which imported histories lack. Each has its own queue, and its
findings by definition are computed in plain loops."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import kafka_table
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ops_run import ops_run

from checkers import loss, offsets
from checkers import phantom as phantoms
from harness.history.reader import History
from harness.history.schema import NOTES, REPLICAS
from harness.operation import F, Type, value_of
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READER, CONSUMER, PRODUCERS = 9, 8, 40
MOST = 6  # sends of one history; with a poll and a read at most eight operations
SEEN_BY_ALL = {"LOST_ACKED", "UNREAD_ACKED", "PHANTOM_REFUSED", "PHANTOM_NEVER_SENT", "CORRUPTED"}
WITH_REPLICAS = SEEN_BY_ALL | {"PHANTOM_VANISHED", "OFFSET_GAP", "READ_SKIPPED"}
WITHOUT_REPLICAS = SEEN_BY_ALL | {"OFFSET_HOLE"}

Found = dict[str, set[Any]]


@dataclass
class Small:
    """One queue: the outcome of each send; deliveries and replicas' logs, by offset."""

    key: int
    sent: dict[int, Type | None] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    read: list[int] = field(default_factory=list)
    polled: list[int] = field(default_factory=list)
    held: list[list[int]] = field(default_factory=lambda: [[], []])
    drained: set[str] = field(default_factory=set)
    spoiled: dict[int, str] = field(default_factory=dict)  # value -> who was given another body


@dataclass(frozen=True)
class Table:
    """`expected`: findings by definition; `histories`: the number of histories with each."""

    history: History
    expected: Found
    histories: Counter[str]


def table(folder: Path, seed: int, count: int, replicas: bool) -> Table:
    """Return this many histories as one run, and their findings by definition."""
    dice = Random(seed)
    drawn = [_drawn(dice, key) for key in range(count)]
    expected: Found = {}
    histories: Counter[str] = Counter()
    for small in drawn:
        wrong = set(_wrong(small, replicas))
        for name, what in wrong:
            expected.setdefault(name, set()).add(what)
        histories.update({name for name, _ in wrong})
    rows = [row for small in drawn for row in _rows(small)]
    processes = {str(READER): "reader 0", str(CONSUMER): "consumer 0 of group-0"}
    roles = {"broker-1": "broker", "broker-2": "broker"}
    run = ops_run(folder, rows, 4, processes=processes, nodes=list(roles), roles=roles).run
    _write(run.history / "notes-client-1-000.parquet", NOTES, _notes(drawn))
    if replicas:
        held = [
            {"node": node, "key": s.key, "offset": s.at[v], "value": v, "epoch": 1, "crc": 0}
            for s in drawn
            for node, values in enumerate(s.held)
            for v in sorted(values, key=s.at.__getitem__)
        ]
        _write(run.history / "replicas-runner-000.parquet", REPLICAS, held)
    return Table(History.open(run), expected, histories)


def judged(history: History, spark: "SparkSession | None" = None) -> Found:
    """What the checkers show, by message, or by queue and how many; every count is of that."""
    found: Found = {}
    with kafka_table.all_shown(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(offsets, "MAX_GAPS", 1 << 30)
        results = [checker.check(history, Trial(), spark) for checker in (loss, phantoms, offsets)]
    for finding in (finding for result in results for finding in result.findings):
        if finding.code == "OFFSET_GAP":
            told = {(int(row["queue"][1:]), row["missing"]) for row in finding.evidence}
            assert finding.count == sum(missing for _, missing in told)
        elif finding.code == "CORRUPTED":
            told = {(int(row["queue"][1:]), row["offset"]) for row in finding.evidence}
            assert finding.count == len(told)
        elif finding.code == "OFFSET_HOLE":
            told = {finding.count}
        else:
            told = {row["value"] for row in finding.evidence}
            assert finding.count == len(told) == len(finding.evidence), finding.code
        found[finding.code] = told
    return found


def _write(path: Path, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


# ----------------------------------------------------------------------------------------- drawn


def _drawn(dice: Random, key: int) -> Small:
    small = Small(key)
    offset, first = dice.randrange(3), 10 * (key // PRODUCERS)
    for number in range(dice.randint(1, MOST)):
        value = value_of(100 + key % PRODUCERS, first + number)
        outcome = dice.choices((Type.OK, Type.INFO, Type.FAIL, None), (12, 2, 1, 1))[0]
        small.sent[value] = outcome
        offset += dice.choices((1, 2, 3), (12, 1, 1))[0]
        if outcome is Type.OK or dice.random() < 0.4:
            small.at[value] = offset
    if dice.random() < 0.1:
        small.at[value_of(100 + key % PRODUCERS, first + MOST + 1)] = offset + 1  # nobody sent it
    gone = {value for value in small.at if dice.random() < 0.05}
    there = [value for value in small.at if value not in gone]
    small.read = [value for value in there if dice.random() < 0.97]
    small.polled = [value for value in small.at if dice.random() < (0.3 if value in gone else 0.93)]
    for held in small.held:
        held += [value for value in there if dice.random() < 0.95]
    small.drained = {who for who in ("reader", "group") if dice.random() < 0.93}
    for who, values in (("reader", small.read), ("group", small.polled)):
        small.spoiled |= {v: who for v in values if v not in small.spoiled and dice.random() < 0.01}
    return small


def _rows(small: Small) -> Iterator[dict[str, Any]]:
    """A run's rows: first all sends, then the poll, then the fresh reader's read."""
    t = 1_000 * small.key
    for number, (value, outcome) in enumerate(small.sent.items()):
        row = {"process": value >> 32, "op": 10 * small.key + number, "f": F.SEND}
        row |= {"key": small.key, "value": value}
        yield row | {"t": t + number, "type": Type.INVOKE}
        if outcome is not None:
            told = {"offset": small.at[value]} if outcome is Type.OK else {}
            yield row | told | {"t": t + 50 + number, "type": outcome, "attempts": 1}
    for who, f, values, late in (
        (CONSUMER, F.POLL, small.polled, 100),
        (READER, F.READ, small.read, 200),
    ):
        row = {"process": who, "op": 10 * small.key + late // 100 + 7, "f": f, "key": small.key}
        yield row | {"t": t + late, "type": Type.INVOKE}
        for pos, value in enumerate(sorted(values, key=small.at.__getitem__)):
            spoilt = small.spoiled.get(value) == ("reader" if f is F.READ else "group")
            given = {"value": None if spoilt else value, "offset": small.at[value], "pos": pos}
            yield row | given | {"t": t + late + 50, "type": Type.OK}
        yield row | {"t": t + late + 50, "type": Type.OK}


def _notes(drawn: list[Small]) -> list[dict[str, Any]]:
    notes = []
    for small in drawn:
        for who, process in (("reader", READER), ("group", CONSUMER)):
            word = "DRAINED" if who in small.drained else "NOT_DRAINED"
            said = {"key": small.key, "from": 0, "to": 100}
            said |= {"group": "group-0"} if who == "group" else {}
            t = 1_000 * small.key + 300
            notes.append({"t": t, "process": process, "text": f"{word} {dumps(said)}"})
        for value, who in small.spoiled.items():
            said = {"key": small.key, "offset": small.at[value], "claimed": value}
            process = READER if who == "reader" else CONSUMER
            t = 1_000 * small.key + 150
            notes.append({"t": t, "process": process, "text": f"CORRUPTED {dumps(said)}"})
    return notes


# ------------------------------------------------------------------------------------ definitions


def _wrong(small: Small, replicas: bool) -> Iterator[tuple[str, Any]]:
    acked = {value for value, outcome in small.sent.items() if outcome is Type.OK}
    given = {
        who: {value for value in values if small.spoiled.get(value) != who}
        for who, values in (("reader", small.read), ("group", small.polled))
    }
    missing = acked - given["reader"] - set(small.spoiled) if "reader" in small.drained else set()
    skipped = {v for v in missing if replicas and all(v in held for held in small.held)}
    lost, seen = missing - skipped, given["reader"] | given["group"]
    yield from (("LOST_ACKED", value) for value in lost)
    yield from (("READ_SKIPPED", value) for value in skipped)
    yield from (("CORRUPTED", (small.key, small.at[value])) for value in small.spoiled)
    for value in acked & given["reader"] - given["group"] - set(small.spoiled):
        if "group" in small.drained:
            yield "UNREAD_ACKED", value
    for value in seen:
        if value not in small.sent:
            yield "PHANTOM_NEVER_SENT", value
        elif small.sent[value] is Type.FAIL:
            yield "PHANTOM_REFUSED", value
        stored = value in small.spoiled or any(value in held for held in small.held)
        if replicas and value in small.sent and value not in lost and not stored:
            yield "PHANTOM_VANISHED", value
    gaps = [_missing([small.at[value] for value in held]) for held in small.held]
    if replicas and max(gaps):
        yield "OFFSET_GAP", (small.key, max(gaps))
    if not replicas and (holes := _missing([small.at[value] for value in given["reader"]])):
        yield "OFFSET_HOLE", (small.key, holes)


def _missing(offsets: list[int]) -> int:
    """How many offsets are missing in between."""
    return max(offsets) - min(offsets) + 1 - len(offsets) if offsets else 0
