"""What was done of a suite is on the disk before anything else happens, and counts once."""

import json
import os
import sys
from pathlib import Path

import pytest
from suite_rows import VALID, row

from harness.errors import BedFailed
from harness.history.rundir import RunDir
from harness.history.runs import write_run
from harness.suite import log as suite_log
from harness.suite.log import RunStart, SuiteLog, interrupted_run, ran_s, remove_run
from harness.trial import Trial

SUITE = Path("suites/night.toml")
KEYS = ["a-1", "b-1"]


def test_who_asks_again_goes_on(tmp_path: Path) -> None:
    """Rows are read back as they were, and what had begun is known."""
    with SuiteLog(SUITE, KEYS, tmp_path) as log:
        log.begin("a-1")
        log.done("a-1", row(codes=("LOST_ACKED",), figures={"per_s": 10.5}))
        when = log.begin("b-1")
        name = log.id
    with SuiteLog(SUITE, KEYS, tmp_path) as again:
        assert again.rows == {"a-1": row(codes=("LOST_ACKED",), figures={"per_s": 10.5})}
        assert again.begun == {"b-1": RunStart(when, tuple(sys.argv[1:]))}
        assert again.id == name
        again.broken_off("b-1")
    with SuiteLog(SUITE, KEYS, tmp_path) as third:
        assert third.begun == {}
        third.finish()
    assert not list((tmp_path / "suites").iterdir())


def test_a_line_that_was_cut_short_is_no_row(tmp_path: Path) -> None:
    """Whatever byte the power went at: what stands before is whole, what comes after is too."""
    with SuiteLog(SUITE, KEYS, tmp_path) as log:
        log.done("a-1", VALID)
        file = log.file
    whole = file.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last):
        file.write_bytes(whole[:-cut])
        with SuiteLog(SUITE, KEYS, tmp_path) as log:
            assert log.rows == ({"a-1": VALID} if cut == 1 else {})
            log.done("b-1", VALID)
        with SuiteLog(SUITE, KEYS, tmp_path) as log:
            assert "b-1" in log.rows


@pytest.mark.parametrize("spoil", [{"figures": None}, {"figures": {"per_s": "x"}}, {"outcome": 9}])
def test_a_row_that_no_run_came_to_is_none(tmp_path: Path, spoil: dict[str, object]) -> None:
    """Its run is made again."""
    with SuiteLog(SUITE, KEYS, tmp_path) as log:
        file = log.file
    foreign = {"done": "a-1", "row": VALID.plain() | spoil}
    for line in (foreign, {"done": "b-1", "row": [1]}, {"begin": ["a-1"]}, {"broken_off": {}}):
        file.write_text(f"{file.read_text()}{json.dumps(line)}\n")
    with SuiteLog(SUITE, KEYS, tmp_path) as log:
        assert not log.rows


def test_two_do_not_carry_out_the_same(tmp_path: Path) -> None:
    """The second is told who holds it."""
    with SuiteLog(SUITE, KEYS, tmp_path) as log:
        with pytest.raises(BedFailed, match=log.file.name), SuiteLog(SUITE, KEYS, tmp_path):
            pass
        with SuiteLog(SUITE, ["c-1"], tmp_path):
            pass


def test_other_code_is_another_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done with it is counted, said and set aside; what was asked otherwise stays."""
    with SuiteLog(SUITE, KEYS, tmp_path) as log:
        log.done("a-1", VALID)
    with SuiteLog(SUITE, ["c-1"], tmp_path) as other:
        assert other.set_aside() == 0
    monkeypatch.setattr(suite_log, "code_hash", lambda: "other code")
    with SuiteLog(SUITE, KEYS, tmp_path) as now:
        assert now.rows == {}
        assert now.set_aside() == 1
        assert [path.name for path in (tmp_path / "suites").iterdir()] == [now.file.name]


def _run(runs: Path, name: str, trial: Trial, **state: object) -> RunDir:
    folder = runs / name
    folder.mkdir(parents=True)
    run = write_run(trial, "", folder)
    run.update_state(**{"command": ["suite", "x"], "started": "2026-01-02", **state})
    return run


def test_what_was_cut_off_is_found(tmp_path: Path) -> None:
    """This command's run of this very trial, since it began; not one that is done, nor that of
    another suite, or of some runs of the same."""
    trial, command = Trial(name="calm"), ("suite", "x")
    mine = _run(tmp_path, "mine", trial)
    _run(tmp_path, "older", trial, started="2026-01-01")
    _run(tmp_path, "by-hand", trial, command=["run", "x"])
    _run(tmp_path, "some-of-it", trial, command=["suite", "x", "--only", "calm"])
    _run(tmp_path, "another", Trial(name="calm", seed=2))
    _run(tmp_path, "done", trial)
    _run(tmp_path, "torn", trial).trial_file.write_bytes(b"\xff\xfe")
    (tmp_path / "latest").symlink_to("by-hand")
    found = interrupted_run(tmp_path, trial, RunStart("2026-01-02", command), ["done"])
    assert found
    assert found.path == mine.path.resolve()
    assert interrupted_run(tmp_path, trial, RunStart("2026-01-03", command), []) is None


def test_what_can_not_be_undone_keeps_its_folder(tmp_path: Path) -> None:
    """The ledger says what is still in the world; no other run is begun on that."""
    run = _run(tmp_path, "mine", Trial(hosts="ssh"))
    ledger = run.path / "ledger.jsonl"
    ledger.write_text("what was it\n{}\n")
    with pytest.raises(BedFailed, match=f"could not be removed.* heal {run.path}"):
        remove_run(run)
    assert ledger.is_file()
    ledger.unlink()
    remove_run(_run(tmp_path, "another", Trial()))
    assert not (tmp_path / "another").exists()


def test_a_run_that_was_cut_off_took_its_time(tmp_path: Path) -> None:
    """From when the suite began it to its last word, however long nobody looked at it since."""
    run = _run(tmp_path, "mine", Trial())
    os.utime(run.path / "run.json", (0, 1_767_312_090))
    assert ran_s(run, "2026-01-02T00:00:00+00:00") == 90.0
    assert ran_s(run, "2026-01-02T01:00:00+00:00") == 0.0


def test_the_file_is_for_people_too(tmp_path: Path) -> None:
    """One JSON object a line, which says which suite it is."""
    with SuiteLog(SUITE, KEYS, tmp_path) as log:
        first, *rest = map(json.loads, log.file.read_text().splitlines())
    assert first["suite"] == "suites/night.toml"
    assert rest == []
