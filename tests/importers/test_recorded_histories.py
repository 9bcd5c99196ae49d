"""Histories that others published or generated come in whole, and say what is known of them.

They are no part of the repository: SEATRIAL_HISTORIES names their folder, else it is looked for
beside the repository.
"""

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness import registry
from harness.history import History
from harness.importers import _folder
from harness.judge import judge_here
from harness.operation import F, Type
from harness.rundir import RunDir
from harness.verdict import Judgement


@pytest.fixture(scope="session")
def histories(root: Path) -> Path:
    folder = Path(os.environ.get("SEATRIAL_HISTORIES") or root.parent / "shared" / "histories")
    if not folder.is_dir():
        pytest.skip(f"no recorded histories in {folder}; set SEATRIAL_HISTORIES")
    return folder


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
def test_kafka_histories(histories: Path, tmp_path: Path, name: str) -> None:
    """A sound one is valid; of a bad one, what was lost and what came out although it had been
    refused is found, and each message is named as the file names it."""
    run = _imported(histories / "jepsen" / f"{name}.edn.gz", "jepsen-kafka", tmp_path / "run")
    truth = json.loads((histories / "jepsen" / f"{name}.edn.truth.json").read_text())
    assert _counts(run)[F.SEND, Type.INVOKE] == truth["messages"]
    verdict = judge_here(History.open(run))
    if not truth["lost"]:
        assert verdict.verdict is Judgement.VALID, verdict.sentence
        return
    assert verdict.verdict is Judgement.INVALID
    shown = {
        finding.code: {(int(row["queue"]), row["original"]) for row in finding.evidence}
        for result in verdict.checkers
        for finding in result.findings
        if finding.code in ("LOST_ACKED", "PHANTOM_REFUSED")
    }
    assert shown["LOST_ACKED"] >= {(key, value) for key, value in truth["lost"]}
    assert shown["PHANTOM_REFUSED"] == {(key, value) for key, value in truth["aborted"]}


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
    histories: Path, tmp_path: Path, name: str, format_: str
) -> None:
    """Every line of the file is an event of the history."""
    path = histories / "jepsen" / f"{name}.edn.gz"
    lines = Counter(
        (part.split(":f :")[1].split(",")[0], part.split(":type :")[1].split(",")[0])
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


def test_porcupine_histories(histories: Path, tmp_path: Path) -> None:
    """All of them come in without a slip, with as many operations as were published."""
    folder = histories / "porcupine"
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
