"""Histories in other tools' formats are imported whole, and what was planted in them is found."""

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import histories as acceptance
import pyarrow.parquet as pq
import pytest

from harness import registry
from harness.errors import EXIT_BAD_REQUEST
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement, Verdict
from harness.operation import F, Type


def _imported(path: Path, name: str, out: Path) -> RunDir:
    recording = registry.load("importer", name)(path)
    assert not recording.slips, recording.slips.first
    return _folder.write(recording, path, name, out)


def _counts(run: RunDir) -> Counter[tuple[F, Type]]:
    """Events by kind and type, messages and elements left aside."""
    table = pq.read_table(run.history / "ops-import-000.parquet").to_pylist()
    own = [row for row in table if row["pos"] is None and row["mop"] is None]
    return Counter((F(row["f"]), Type(row["type"])) for row in own)


@pytest.mark.parametrize("name", ["kafka_fixed_10k_ok", "kafka_fixed_10k_bad"])
def test_kafka_histories(histories_folder: Path, tmp_path: Path, name: str) -> None:
    """A sound one is valid; of a bad one just what was injected is found, class by class, and
    named as the file names it: no class has more, and no other class has anything."""
    run = _imported(
        histories_folder / "jepsen" / f"{name}.edn.gz", "jepsen-kafka", tmp_path / "run"
    )
    truth = json.loads((histories_folder / "jepsen" / f"{name}.edn.truth.json").read_text())
    assert _counts(run)[F.SEND, Type.INVOKE] == truth["messages"]
    verdict = judge_small(History.open(run))
    if not truth["lost"]:
        assert verdict.verdict is Judgement.VALID, verdict.sentence
        return
    assert verdict.verdict is Judgement.INVALID
    found = [finding for result in verdict.checkers for finding in result.findings]
    shown = {f.code: {_named(f.code, row) for row in f.evidence} for f in found}
    injected = {
        code: {tuple(what) for what in truth[name]}
        for name, code in INJECTED.items()
        if truth[name]
    }
    assert shown == injected
    assert {f.code: f.count for f in found} == {code: len(some) for code, some in injected.items()}


INJECTED = {
    "lost": "LOST_ACKED",
    "duplicate": "DUPLICATED",
    "inconsistent": "OFFSET_CONFLICT",
    "aborted": "PHANTOM_REFUSED",
    "skip": "CONSUMER_SKIPPED",
    "nonmono": "CONSUMER_WENT_BACK",
}


def _named(code: str, row: Mapping[str, Any]) -> tuple[int, ...]:
    """What the generator of these histories writes down of an injected anomaly."""
    queue = int(row["queue"])
    if code == "OFFSET_CONFLICT":
        return queue, row["offset"], row["original"]
    if "after" in row:  # the consumer, and where it would have gone on
        return row["process"], queue, row["after"] + 1
    return queue, row["original"]


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("append_10k_ok", "jepsen-append"),
        ("append_10k_bad", "jepsen-append"),
        ("queue_10k_bad", "jepsen-queue"),
        ("set_10k_bad", "jepsen-set"),
    ],
)
def test_other_histories_are_whole(
    histories_folder: Path, tmp_path: Path, name: str, format_: str
) -> None:
    """Every line of the file is an event of the history; a dequeue that failed because nothing was
    there is an answer."""
    path = histories_folder / "jepsen" / f"{name}.edn.gz"
    lines = Counter(
        (
            part.split(":f :")[1].split(",")[0],
            "ok" if ":error :empty" in part else part.split(":type :")[1].split(",")[0],
        )
        for part in gzip.decompress(path.read_bytes()).decode().splitlines()
    )
    run = _imported(path, format_, tmp_path / "run")
    events = Counter(
        (FS[f], kind.name.lower()) for (f, kind), n in _counts(run).items() for _ in range(n)
    )
    assert events == lines


FS = {
    F.ENQUEUE: "enqueue",
    F.DEQUEUE: "dequeue",
    F.ADD: "add",
    F.LIST: "read",
    F.APPEND: "txn",
}


def test_porcupine_histories(histories_folder: Path, tmp_path: Path) -> None:
    """All of them come in without a slip, with as many operations as were published."""
    folder = histories_folder / "porcupine"
    expected = {
        name: int(operations)
        for name, operations, _ in (
            line.split("\t") for line in (folder / "expected.tsv").read_text().splitlines()
        )
    }
    assert len(expected) > 50
    found: dict[str, Any] = {}
    for name in expected:
        format_ = "porcupine" if name.startswith("etcd") else "porcupine-kv"
        run = _imported(folder / name, format_, tmp_path / name)
        found[name] = sum(n for (_, kind), n in _counts(run).items() if kind is Type.INVOKE)
    assert found == expected


def test_a_folder_without_histories_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was judged, so nothing is as published."""
    for argument in (["nowhere"], [str(tmp_path)], []):
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("SEATRIAL_HISTORIES", raising=False)
        monkeypatch.setattr("sys.argv", ["histories.py", *argument, "--here"])
        assert acceptance.main() == EXIT_BAD_REQUEST
        said = capsys.readouterr()
        assert "has no recorded histories" in said.err
        assert not said.out


def test_what_is_not_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a class that nobody has told the finding of, a verdict as expected is not all."""
    line = "{{:type :{}, :f :{}, :value {}, :process 0}}\n"
    told = (("write", 1, 1), ("read", "nil", 2))
    text = "".join(
        line.format(kind, f, value)
        for f, *values in told
        for kind, value in zip(("invoke", "ok"), values, strict=True)
    )
    folder = tmp_path / "all" / "jepsen"
    folder.mkdir(parents=True)
    (folder / "register_bad.edn.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "register_bad.edn.truth.json").write_text('{"invented": [[0, 2]], "events": 4}')

    def here(run: RunDir) -> Verdict:
        return judge_small(History.open(run))

    assert acceptance.table(tmp_path / "all", tmp_path / "runs", here) == 0
    said = capsys.readouterr().out
    assert "only the verdict is compared: invented" in said
    assert "1 histories, 0 deviate, of 1 only the verdict is compared" in said
