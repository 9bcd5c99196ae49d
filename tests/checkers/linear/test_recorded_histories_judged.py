"""Recorded histories through importer and checkers: verdicts as published, nothing but what was
injected; and the command that prints the table of them all deviates when it should."""

import json
from pathlib import Path

import histories
import pytest

from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from harness.judge.verdict import Verdict

SOME = ("etcd_000.log", "etcd_002.log", "etcd_016.log", "c01-bad.txt", "c10-ok.txt")


def here(run: RunDir) -> Verdict:
    return judge_small(History.open(run))


@pytest.fixture
def some(recorded: Path, tmp_path: Path) -> Path:
    """A few of the recorded histories in a folder of their own, with what is known of them."""
    folder = tmp_path / "some"
    for kind in ("porcupine", "jepsen"):
        (folder / kind).mkdir(parents=True)
    for name in SOME:
        (folder / "porcupine" / name).symlink_to(recorded / name)
    lines = (recorded / "expected.tsv").read_text().splitlines(keepends=True)
    mine = [line for line in lines if line.split("\t")[0] in SOME]
    (folder / "porcupine" / "expected.tsv").write_text("".join(mine))
    jepsen = recorded.parent / "jepsen"
    for name in ("queue_10k_bad.edn.gz", "append_10k_bad.edn.gz"):
        (folder / "jepsen" / name).symlink_to(jepsen / name)
        truth = name.replace("gz", "truth.json")
        (folder / "jepsen" / truth).write_text((jepsen / truth).read_text())
    return folder


def test_the_table_of_recorded_histories(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All as expected: 0. An injected anomaly that is not listed, a listed one that was not
    injected, or another verdict than published: 1, and the line gives the reason."""
    truth = some / "jepsen" / "queue_10k_bad.edn.truth.json"
    whole = json.loads(truth.read_text())
    expected = some / "porcupine" / "expected.tsv"
    assert histories.table(some, tmp_path / "all", here) == 0
    assert "8 histories, 0 deviate" in capsys.readouterr().out
    (some / "jepsen" / "append_10k_bad.edn.gz").unlink()
    more, fewer = [*whole["lost"], 4], [*whole["lost"][1:], 4]
    for name, lost in (("more", more), ("others", fewer)):
        truth.write_text(json.dumps(whole | {"lost": lost}))
        assert histories.table(some, tmp_path / name, here) == 1
        assert "DEVIATES: lost: " in capsys.readouterr().out
    truth.write_text(json.dumps(whole))
    expected.write_text(expected.read_text().replace("not linearizable", "linearizable"))
    assert histories.table(some, tmp_path / "words", here) == 1
    out = capsys.readouterr().out
    assert "etcd_016.log                 valid     invalid" in out
    assert "4 deviate" in out
    assert histories.table(tmp_path / "nowhere", tmp_path / "none", here) == 1
