"""The checker of objects: from rows in files to findings with witnesses."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from object_dice import MAKERS, drawn
from object_oracle import Act, Table
from ops_run import ops_run

from checkers import objects
from checkers._linear.objects import COLUMNS
from harness import registry
from harness.history.reader import History
from harness.importers import _run_folder as _folder
from harness.judge.verdict import Judgement, Result
from harness.operation import F
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def history(
    folder: Path, acts: list[tuple[Act, ...]], writers: int = 1, gaps: bool = False
) -> History:
    """Sketches of histories, each on a key of its own, as files of a run."""
    table = Table()
    for key, some in enumerate(acts):
        table.add(key, some)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in sorted(table.rows, key=_by_time)]
    return ops_run(folder, rows, writers, gaps, keys=[f"object {n}" for n in range(len(acts))])


def _by_time(row: tuple[int | None, ...]) -> tuple[int, int]:
    return _number(row[0]), _number(row[3])


def _number(cell: int | None) -> int:
    assert cell is not None
    return cell


def judged(folder: Path, *acts: Act, gaps: bool = False) -> Result:
    return objects.check(history(folder, [acts], gaps=gaps), Trial(), None)


def test_a_queue_that_changes_the_order_shows_its_witness(tmp_path: Path) -> None:
    """Four operations that contradict each other, in words, with the name of the queue."""
    result = judged(
        tmp_path,
        *(Act(F.ENQUEUE, 1, 0, 10, value=7), Act(F.ENQUEUE, 1, 20, 30, value=8)),
        *(Act(F.DEQUEUE, 2, 40, 50, value=8), Act(F.DEQUEUE, 2, 60, 70, value=7)),
    )
    [finding] = result.findings
    assert (finding.code, finding.count, finding.demand) == ("QUEUE_ORDER", 1, "order-per-queue")
    [row] = finding.evidence
    assert (row["key"], row["kind"], row["value"]) == ("object 0", "queue", 7)
    assert row["explanation"].split("; ") == [
        "enqueue 7 (process 1, op 0, from 0.0 s to 0.0 s)",
        "dequeue 7 (process 2, op 3, from 0.0 s to 0.0 s)",
        "enqueue 8 (process 1, op 1, from 0.0 s to 0.0 s)",
        "dequeue 8 (process 2, op 2, from 0.0 s to 0.0 s)",
    ]


def test_times_in_words_count_from_the_load(tmp_path: Path) -> None:
    """As everywhere else; the spans of rows, which faults are compared with, stay as recorded."""
    sec = 1_000_000_000
    acts = [Act(F.ENQUEUE, 1, 5 * sec, 6 * sec, value=7)]
    acts += [Act(F.DEQUEUE, 2, n * sec, n * sec + 5, value=7) for n in (7, 8)]
    run = history(tmp_path, [acts]).run
    run.update_state(load_began_ns=4 * sec)
    [finding] = objects.check(History.open(run), Trial(), None).findings
    assert "from 4.0 s to 4.0 s" in finding.evidence[0]["explanation"]
    assert finding.spans[0][1] == 8 * sec + 5
    assert finding.first_moment_s == 8.0  # since the run's start: its diagram is about that time


def test_values_are_called_what_their_file_called_them(tmp_path: Path) -> None:
    """Texts show the names of values, not their numbers."""
    acts = [Act(F.ENQUEUE, 1, 0, 10, value=0), Act(F.DEQUEUE, 2, 20, 30, value=1)]
    one = history(tmp_path, [tuple(acts)])
    one.run.write_names({**one.names, "values": ["-534", "q"]})
    [finding] = objects.check(History.open(one.run), Trial(), None).findings
    assert finding.evidence[0]["explanation"].startswith("dequeue q (process 2, op 1")


def test_what_was_drained_in_one_go_was_taken(tmp_path: Path) -> None:
    """A drain gives many elements, in order, and then finds nothing."""
    puts = [Act(F.ENQUEUE, 1, 10 * n, 10 * n + 5, value=n) for n in range(1, 5)]
    drain = Act(F.DEQUEUE, 2, 100, 110, seen=(1, 2, 3, 4))
    assert not judged(tmp_path / "all", *puts, drain).findings
    short = judged(tmp_path / "short", *puts, replace(drain, seen=(1, 2, 3)))
    assert [f.code for f in short.findings] == ["ELEMENT_LOST"]
    late = judged(tmp_path / "late", *puts, replace(drain, call=1))
    assert not late.findings


def test_gaps_in_the_record_convict_nobody_of_what_is_missing(tmp_path: Path) -> None:
    """An element whose dequeue may be unrecorded is not lost for certain; a stale read is stale."""
    lost = (
        *(Act(F.ENQUEUE, 1, 0, 10, value=7), Act(F.ENQUEUE, 1, 20, 30, value=8)),
        Act(F.DEQUEUE, 2, 40, 50, value=8),
    )
    stale = (
        *(Act(F.ADD, 1, 0, 10, value=7), Act(F.LIST, 2, 20, 30), Act(F.LIST, 2, 40, 50, seen=(7,))),
    )
    assert judged(tmp_path / "whole", *lost).judgement is Judgement.INVALID
    result = judged(tmp_path / "gaps", *lost, gaps=True)
    assert result.judgement is Judgement.UNKNOWN
    assert [reason.code for reason in result.reasons] == ["OPERATIONS_UNRECORDED"]
    assert judged(tmp_path / "stale", *stale, gaps=True).judgement is Judgement.INVALID


def test_what_nobody_can_decide_is_unknown(tmp_path: Path) -> None:
    """Long queues of equal values are beyond the search; an empty history proves nothing."""
    acts = [Act(F.ENQUEUE, 1, 10 * n, 10 * n + 5, value=1) for n in range(100)]
    result = judged(tmp_path / "equal", *acts)
    assert [reason.code for reason in result.reasons] == ["OBJECTS_NOT_DECIDED"]
    assert "queue object 0" in result.reasons[0].message
    assert [reason.code for reason in judged(tmp_path / "none").reasons] == ["NO_OBJECTS"]


@pytest.mark.parametrize(
    ("name", "importer", "expected"),
    [
        (
            *("queue_10k_bad", "jepsen-queue"),
            {"ELEMENT_LOST": 5, "DUPLICATE_ELEMENT": 5, "PHANTOM_ELEMENT": 5},
        ),
        ("set_10k_bad", "jepsen-set", {"ELEMENT_LOST": 5, "STALE_READ": 5}),
    ],
)
def test_recorded_histories(
    histories_folder: Path, tmp_path: Path, name: str, importer: str, expected: dict[str, int]
) -> None:
    """What was injected into histories of 10,000 operations is found, exactly."""
    source = histories_folder / "jepsen" / f"{name}.edn.gz"
    recording = registry.load("importer", importer)(source)
    run = _folder.write(recording, source, importer, tmp_path / "run")
    result = objects.check(History.open(run), run.trial(), None)
    assert {finding.code: finding.count for finding in result.findings} == expected


@pytest.mark.spark
@pytest.mark.usefixtures("one_task_or_many")
def test_objects_on_spark(tmp_path: Path, spark: "SparkSession") -> None:
    """Spark and the kernels alone find the same in objects of all kinds from three writers."""
    dice = Random(3)
    acts = [drawn(dice, kind) for kind in MAKERS for _ in range(60)]
    here = history(tmp_path, acts, writers=3)
    alone = objects.check(here, Trial(), None)
    assert len(alone.findings) > 10
    assert objects.check(History.open(here.run), Trial(), spark) == alone
