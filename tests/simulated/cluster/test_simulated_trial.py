"""Whole trials in the simulated world, by the real command: the same clients, workload, nemesis,
checkers and report as on real hosts, from one seed.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import run_command

from harness.history.rundir import RunDir
from harness.history.seal import seal

ROOT = Path(__file__).resolve().parents[3]
SAIL = ROOT / "tests" / "harness" / "sail.py"
SMOKE = ROOT / "suites" / "trials" / "smoke.toml"
ON = ("--hosts", "simulated")
SHORT = """\
hosts = "simulated"
profile = "allack-min2"
faults = ["kill", "pause", "partition", "loss"]
duration_s = 14.0
short_faults = true
seed = {seed}
[load]
rate = 100
[rhythm]
quiet_s = 1.0
fault_s = 2.0
recovery_s = 1.0
"""


def history(run: RunDir) -> Mapping[str, bytes]:
    """The sealed files of a run."""
    seal(run)
    return {path.name: path.read_bytes() for path in sorted(run.history.glob("*.parquet"))}


def sailed(folder: Path, seed: int = 1, hashes: str = "0") -> RunDir:
    """A short run with faults of every kind, without a verdict."""
    folder.mkdir(parents=True)
    (folder / "trial.toml").write_text(SHORT.format(seed=seed))
    done = subprocess.run(
        [sys.executable, SAIL, folder / "trial.toml", folder / "runs"],
        env={**os.environ, "PYTHONHASHSEED": hashes},
        capture_output=True,
        text=True,
        timeout=run_command.LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return RunDir(Path(json.loads(done.stdout.splitlines()[-1])["run"]))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return sailed(tmp_path_factory.mktemp("first") / "ended", hashes="1")


# ------------------------------------------------------------------------- the same run, again


@pytest.mark.bed
def test_the_same_seed_is_the_same_history(first: RunDir, tmp_path: Path) -> None:
    """Byte for byte, at another path and under other hashes."""
    again = sailed(tmp_path / "somewhere" / "else" / "altogether", hashes="2")
    assert again.state()["digest"] == first.state()["digest"]
    assert history(again) == history(first)


@pytest.mark.bed
def test_another_seed_is_another_run(first: RunDir, tmp_path: Path) -> None:
    other = sailed(tmp_path / "other", seed=2)
    assert other.state()["digest"] != first.state()["digest"]


@pytest.mark.bed
def test_faults_are_seen_and_files_come_home(first: RunDir) -> None:
    """Observations of probes and /proc as on real hosts; the nodes' files are kept."""
    faults = run_command.faults(first.path)
    assert {row["kind"] for row in faults} == {"kill", "pause", "partition", "loss"}
    assert {row["state"] for row in faults} == {"installed"}
    assert all(row["healed"] for row in faults)
    for node in ("broker-1", "controller-1", "nameserver-1"):
        kinds = [json.loads(line)["kind"] for line in _lines(first.node(node) / "events.jsonl")]
        assert kinds[0] == "start"
    assert any((first.node("broker-1") / "store" / "commitlog").iterdir())


@pytest.mark.bed
def test_nothing_is_left_when_the_command_is_killed(tmp_path: Path) -> None:
    """The runner ends with its standard input, in the middle of its hours."""
    asked = ("run", *ON, "--duration", "10h", "--load", "rate=10")
    with closing(run_command.RunningCommand(*asked, runs=tmp_path)) as command:
        command.until("phase: load")
        assert _runners(tmp_path)
        command.signal(signal.SIGKILL)
    run_command.wait(lambda: not _runners(tmp_path), 30, "the runner's end")


@pytest.mark.bed
def test_another_edition_of_the_code_replays_nothing(first: RunDir, tmp_path: Path) -> None:
    """Its seed means another run now: refused, with both editions."""
    stored = tmp_path / "stored"
    stored.mkdir()
    for name in ("trial.toml", "plan.toml", "run.json"):
        (stored / name).write_text((first.path / name).read_text())
    RunDir(stored).update_state(edition="0ld")
    ended = run_command.seatrial("replay", stored, runs=tmp_path / "runs")
    assert ended.code == 254, ended.words
    assert "another version of the code (edition 0ld" in ended.err


# ----------------------------------------------------------------------------- whole trials


@pytest.mark.bed
@pytest.mark.spark
def test_the_smoke_trial_is_valid_here(tmp_path: Path) -> None:
    """With the whole report; only the kind of hosts is different."""
    ended = run_command.seatrial("run", SMOKE, *ON, "--duration", "30s", runs=tmp_path)
    assert ended.code == 0, ended.words
    assert ended.verdict["verdict"] == "valid"
    assert (ended.run / "report.html").is_file()


@pytest.mark.bed
@pytest.mark.spark
def test_a_power_cut_takes_what_no_disk_had(tmp_path: Path) -> None:
    """All brokers at once: a profile that waits for the disks loses nothing, one that does not is
    invalid."""
    blackout = ("--plan", run_command.PLANS / "blackout.toml", "--duration", "16s")
    safe = run_command.seatrial("run", *blackout, "--profile", "sync-flush", runs=tmp_path / "safe")
    assert safe.code == 0, safe.words
    asked = ("--profile", "allack-min2", "--seeds", "1..5")  # a disk may have had it all, by luck
    lossy = run_command.seatrial("run", *blackout, *asked, runs=tmp_path / "lossy")
    assert lossy.code == 1, lossy.words
    assert "LOST_ACKED" in lossy.out


@pytest.mark.bed
@pytest.mark.spark
def test_a_stopped_run_is_judged(tmp_path: Path) -> None:
    """Ctrl-C reaches the simulated driver, which heals, reads and ends."""
    asked = ("run", *ON, "--duration", "60m", "--load", "rate=10")
    with closing(run_command.RunningCommand(*asked, runs=tmp_path)) as command:
        command.until("phase: load")
        command.signal(signal.SIGINT)
        ended = command.end()
    state = RunDir(ended.run).state()
    assert (state["interrupted"], state["ended"]) == (True, True), ended.words
    assert state["simulated"]["seconds"] < 3600


# ---------------------------------------------------------------------------------- refusals

OUTSIDE = '''
"""What cannot be simulated."""
from harness.contracts import Effects, FaultPlugin, SystemPlugin

class _Driver:
    detection_s = 1.0

    def nodes(self):
        return ()

    def __getattr__(self, name):
        return None  # the rest of the contract, which is not used

def _driver(*args):
    return _Driver()

def _drawn(random, targets):
    return "master", {}

PLUGIN = {
    "dinghy": lambda: SystemPlugin(system=_driver),
    "tide": lambda: FaultPlugin(
        fault=_driver,
        effects=Effects(may_break=frozenset()),
        draw=_drawn,
        needs=frozenset({"tides"}),
    ),
}[__name__]()
'''


@pytest.fixture
def outside(tmp_path: Path) -> Mapping[str, str]:
    """An environment with an installed system and fault that no host can simulate."""
    info = tmp_path / "site" / "outside-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    groups = {"system": "dinghy", "fault": "tide"}
    for name in groups.values():
        (info.parent / f"{name}.py").write_text(OUTSIDE)
    text = "".join(f"[seatrial.{kind}]\n{name} = {name}\n" for kind, name in groups.items())
    (info / "entry_points.txt").write_text(text)
    return {**os.environ, "PYTHONPATH": str(info.parent)}


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (("messages", "--system", "dinghy"), "the system 'dinghy' cannot be simulated"),
        (("messages", "--faults", "tide"), "which lack: tides"),
        (("messages", "--bed", "memory=1g"), "bed.memory"),
    ],
)
def test_what_can_not_be_simulated_is_refused_by_name(
    asked: tuple[Any, ...], named: str, outside: Mapping[str, str], tmp_path: Path
) -> None:
    """Before anything begins."""
    ended = run_command.seatrial("run", *asked, *ON, runs=tmp_path / "runs", env=outside)
    assert ended.code == 254, ended.words
    assert named in ended.err
    assert not (tmp_path / "runs" / "latest").exists()


def test_no_cluster_is_kept_here(tmp_path: Path) -> None:
    """Virtual time passes only in a trial."""
    ended = run_command.seatrial("cluster", "up", *ON, "--runs", tmp_path, runs=tmp_path)
    assert ended.code == 254, ended.words
    assert "no cluster can be kept on simulated hosts" in ended.err


def _runners(runs: Path) -> list[bytes]:
    """Command lines of processes that run below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(runs).encode() in (line := path.read_bytes()) and b"harness.run.runner" in line:
                found.append(line)
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
