"""Many small histories of Jepsen's kafka workload as one file, imported and judged as a whole: the
expected findings by definition, and those of the checkers, by message, offset or step."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from kafka_dice import drawn
from kafka_oracle import Found, Naive

from checkers import duplicates, linearizable, loss, offsets, order
from checkers import phantom as phantoms
from checkers._messages import message_census, messages, queue_log, witness
from checkers._messages.poll_steps import StepKind
from checkers._run import evidence
from harness.history.reader import History
from harness.importers import _run_folder as _folder
from harness.importers import jepsen_kafka
from harness.importers._jepsen import recording
from harness.judge.verdict import Result
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLED = (
    *(evidence, message_census, messages, witness),
    *(linearizable, loss, offsets, order, phantoms),
)
CHECKERS = (loss, phantoms, duplicates, offsets, order, linearizable)
CLASSES = {
    *("LOST_ACKED", "UNSEEN_ACKED", "TXN_TORN", "OFFSET_CONFLICT", "OFFSET_MOVED", "DUPLICATED"),
    *("DUPLICATED_BY_RETRY", "PHANTOM_REFUSED", "PHANTOM_NEVER_SENT", "PRECOMMITTED_READ"),
    *("CONSUMER_MOVED", "CONSUMER_SKIPPED", "CONSUMER_WENT_BACK", "POLL_SKIPPED", "REORDERED"),
    *("NONMONOTONIC_POLL", "NONMONOTONIC_SEND", "NOT_LINEARIZABLE"),
}


@dataclass(frozen=True)
class Table:
    """`expected`: findings by definition; `histories`: the number of histories with each."""

    history: History
    expected: Found = field(default_factory=dict)
    histories: Counter[str] = field(default_factory=Counter)


def table(folder: Path, seed: int, count: int, small: bool) -> Table:
    """Return this many histories, and their findings by definition."""
    dice = random.Random(seed)
    expected: Found = {}
    histories: Counter[str] = Counter()
    line = 1
    folder.mkdir(exist_ok=True)
    with (folder / "history.edn").open("w") as file:
        for number in range(count):
            events = drawn(dice, number, line, small)
            line += len(events)
            file.writelines(event.text() for event in events)
            for name, some in Naive(events).found().items():
                expected.setdefault(name, set()).update(some)
                histories[name] += bool(some)
    path = folder / "history.edn"
    run = _folder.write(recording(path, jepsen_kafka.FORMAT), path, "jepsen-kafka", folder / "run")
    return Table(History.open(run), expected, histories)


@contextmanager
def all_shown() -> Iterator[None]:
    """Findings show all that they count."""
    with pytest.MonkeyPatch.context() as patch:
        for module in SAMPLED:
            patch.setattr(module, "SAMPLE", 1 << 30)
        yield


def judged(history: History, spark: "SparkSession | None" = None) -> Found:
    """What the checkers show, by the file's own names. Every count is of all that is shown."""
    with all_shown():
        results = [checker.check(history, Trial(), spark) for checker in CHECKERS]
        late = message_census.message_census(history, spark).late[0].tolist()
        steps = queue_log.queue_log(history, spark).steps[StepKind.SENT_BEFORE].rows
    names = originals(history.run.path)
    keys = [int(key) for key in history.names["keys"]]
    found = shown(results, names)
    found["sent_before"] = {(keys[s.key], s.before, s.offset, s.op) for s in steps}
    found["recovered"] = {names[value] for value in late}
    assert results[0].stats["recovered"] == len(found["recovered"])
    return found


def shown(results: list[Result], names: dict[int, tuple[int, int]]) -> Found:
    found: Found = {}
    for finding in (f for result in results for f in result.findings):
        rows = finding.evidence
        if finding.code == "REORDERED":  # it shows its own steps where that is all there is
            rows = tuple(row for row in rows if "lower_offset" in row)
            assert finding.count >= len(rows)
        else:
            assert finding.count == len(rows), finding.code
        found[finding.code] = {identity(row, names) for row in rows}
        assert len(found[finding.code]) == len(rows), finding.code
    over = [row for finding in results[0].findings for row in finding.evidence]
    over = [row for row in over if "stepped_over" in row]
    return found | {"stepped_over": {(*names[row["value"]], row["stepped_over"]) for row in over}}


def originals(folder: Path) -> dict[int, tuple[int, int]]:
    keys = json.loads((folder / "names.json").read_text())["keys"]
    rows = pq.read_table(folder / "origin" / "messages.parquet").to_pylist()
    return {row["value"]: (int(keys[row["key"]]), int(row["original"])) for row in rows}


def identity(row: Any, names: dict[int, tuple[int, int]]) -> tuple[int, ...]:
    if "after" in row:
        return int(row["queue"]), row["after"], row["offset"], row["op"]
    if "other_value" in row or "lower_offset" in row:
        return int(row["queue"]), row["offset"]
    return (*names[row["value"]], *([row["op"]] if "op" in row else []))


def differences(found: Found, expected: Found) -> dict[str, tuple[Any, ...]]:
    """By class, what was found and is not so, and what was not found; a few of each."""
    classes = sorted(found.keys() | expected.keys())
    pairs = {name: (found.get(name, set()), expected.get(name, set())) for name in classes}
    return {
        name: (sorted(some - others)[:5], sorted(others - some)[:5])
        for name, (some, others) in pairs.items()
        if some != others
    }
