"""Guided searches through the real console script: in worlds, where each comes to the same corpus,
and on real clusters, where what was found is repeated."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import run_command

from harness.judge.campaign_evidence import LOG

SEATRIAL = Path(sys.executable).with_name("seatrial")
LAST = 21  # a few more candidates than are drawn first
SEARCH = (
    *("simulate", "--guided", "messages", "--seeds", f"1..{LAST}", "--duration", "3s"),
    *("--nodes", "controller=3,broker=2,nameserver=1,client=1", "--load", "rate=5"),
)
HUNT = (
    *("hunt", "flotilla", "messages", "--duration", "4s", "--load", "rate=20"),
    *("--faults", "pause", "--spark", "none"),
)

Script = Callable[..., "CompletedProcess[str]"]


def done(runs: Path) -> dict[int, dict[str, Any]]:
    """The rows of the campaigns in a folder, without what is measured."""
    lines = [json.loads(line) for line in (runs / LOG).read_text().splitlines()]
    rows = (row for line in lines for row in line["rows"])
    return {row["seed"]: {k: v for k, v in row.items() if k != "cpu_s"} for row in rows}


@pytest.mark.bed
def test_an_interrupted_search_comes_to_the_same(seatrial: Script, tmp_path: Path) -> None:
    """With other workers, after kill -9 and after Ctrl-C: the same worlds, the same corpus, and no
    candidate twice."""
    whole = seatrial(*SEARCH, "--jobs", "1", "--runs", "whole", "--json")
    assert whole.returncode == 0, whole.stderr
    broken = tmp_path / "broken"
    for number in (signal.SIGKILL, signal.SIGINT):
        _break_off(number, broken, finished(broken) + 2)
    rest = seatrial(*SEARCH, "--runs", str(broken), "--json")
    assert rest.returncode == 0, rest.stderr
    one, other = json.loads(whole.stdout), json.loads(rest.stdout)
    assert other["seeds_resumed"] >= 4
    assert one["search"]["corpus"] == other["search"]["corpus"]
    assert one["search"]["kept"] > 0
    assert done(tmp_path / "whole") == done(broken)
    assert len(done(broken)) == LAST
    assert not list(broken.glob("*.part"))


def finished(runs: Path) -> int:
    """The number of stored results."""
    return sum(len(part.read_bytes().splitlines()) for part in runs.glob("*.part"))


def _break_off(number: signal.Signals, runs: Path, after: int) -> None:
    """Begin the search, and send it a signal once so many results are stored."""
    with subprocess.Popen(
        [SEATRIAL, *SEARCH, "--runs", runs], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            run_command.wait(
                lambda: finished(runs) >= after, run_command.LONGEST_S, "finished candidates"
            )
        finally:
            running.send_signal(number)
            running.wait(timeout=run_command.LONGEST_S)


@pytest.mark.bed
def test_a_hunt_goes_on_and_leaves_nothing(seatrial: Script, tmp_path: Path) -> None:
    """On a sound cluster; its trials are noted, and their runs are removed."""
    first = seatrial(*HUNT, "--trials", "1", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["trials"] == 1
    second = seatrial(*HUNT, "--trials", "2")
    assert second.returncode == 0, second.stderr
    assert "2 trials of flotilla" in second.stdout
    assert "1 trial was finished by an earlier hunt of this kind" in second.stdout
    assert "the hunt ended because it has done its trials" in second.stdout
    assert not [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]


@pytest.mark.bed
def test_what_a_hunt_finds_is_repeated_and_kept(seatrial: Script, tmp_path: Path) -> None:
    """With how many runs of its plan show it."""
    bad = ("--set", "mutant=key-damaged", "--first", "--repeat", "1", "--json")
    ran = seatrial(*HUNT, *bad)
    assert ran.returncode == 1, ran.stderr
    summary = json.loads(ran.stdout)
    assert summary["failures"] == {"CORRUPTED": [1]}
    (found,) = summary["findings"]
    assert (found["shown"], found["tries"]) == (2, 2)
    for run in found["runs"]:
        assert json.loads((tmp_path / run / "verdict.json").read_text())["verdict"] == "invalid"
    assert (tmp_path / found["runs"][0] / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["etdc"], "unknown system 'etdc' (did you mean etcd?)"),
        (["flotilla", "massages"], "unknown workload or trial 'massages'"),
        (["flotilla", "--hosts", "simulated"], "searched by seatrial simulate"),
        (["flotilla", "--faults", "pauze"], "(did you mean pause?)"),
        (["flotilla", "--hours", "0"], "--hours"),
        (["flotilla", "queue"], "workloads that fit"),
        (["flotilla", "--duration", "1s"], "no room for a fault"),
        (["flotilla", "--seed", "x"], "--seed"),
        (["flotilla", "mine.toml"], "makes its own trials, so it cannot take mine.toml"),
        (["etcd", "--version", "nope"], "version must read like"),
        ([], "SYSTEM"),
    ],
)
def test_a_hunt_that_makes_no_sense_is_refused(
    seatrial: Script, tmp_path: Path, arguments: list[str], says: str
) -> None:
    """In one sentence, and before anything has run or been written."""
    (tmp_path / "mine.toml").write_text('workload = "messages"\n')
    ran = seatrial("hunt", *arguments)
    assert ran.returncode == 254, ran.stderr
    (line,) = ran.stderr.splitlines()
    assert says in line
    assert not (tmp_path / "runs").exists()
