"""The runner, on a real bed with a real process: the story's order, early ends, failures, death.

The system is `buoy` (plugin/buoy.py), the smallest that a trial can be run on.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import leftovers
import pytest

from harness.history.journal import read_stream
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.seal import seal
from harness.judge.judge import conclude
from harness.operation import Type
from harness.trial import Trial
from nemesis import open_entries

pytestmark = pytest.mark.bed

HERE = Path(__file__).parent
GONE_WITHIN_S = 25.0
PATIENCE_S = 60.0
KILL = """
[[fault]]
kind = "kill"
at_s = 0.3
for_s = 0.4
target = "buoy-1"
"""
CUT = """
[[fault]]
kind = "partition"
at_s = 0.2
for_s = 30.0
target = "buoy-1"
params = { shape = "isolate", clients = true }
"""
CRASH = """
[[fault]]
kind = "crash"
at_s = 0.4
for_s = 0.3
target = "client-1"
"""
STORY = ["raised", "load", "healed", "drain", "collected", "ended"]


class RunningCommand:
    """A command under way, as a person sees it: its lines, its signals, its folder."""

    def __init__(
        self, folder: Path, root: Path, plan: str, wrapper: tuple[str, ...], **fields: Any
    ):
        self.runs = folder / "runs"
        fields = {"system": "buoy", "duration_s": 1.5, "short_faults": True, **fields}
        if plan:
            (folder / "plan.toml").write_text(plan)
            fields["plan"] = str(folder / "plan.toml")
        (folder / "trial.toml").write_text(Trial().with_(fields).to_toml())
        path = os.pathsep.join((str(root), str(HERE / "plugin")))
        argv = [sys.executable, str(HERE / "sail.py"), str(folder / "trial.toml"), str(self.runs)]
        self.process = subprocess.Popen(
            [*wrapper, *argv],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self.said: list[Mapping[str, Any]] = []

    def until(self, condition: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        """The first line of which it is true."""
        for line in self.process.stdout or ():
            self.said.append(json.loads(line))
            if condition(self.said[-1]):
                return self.said[-1]
        raise AssertionError(f"the command ended; it said {self.said[-3:]}")

    def phase(self, name: str) -> None:
        self.until(lambda status: status.get("phase") == name)

    def end(self) -> int:
        """Read to the end; the exit code."""
        for line in self.process.stdout or ():
            self.said.append(json.loads(line))
        return self.process.wait(PATIENCE_S)

    @property
    def run(self) -> RunDir:
        return RunDir.open(self.runs / "latest")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


Sail = Callable[..., RunningCommand]


@pytest.fixture
def sail(tmp_path: Path, root: Path) -> Iterator[Sail]:
    started: list[RunningCommand] = []

    def begin(plan: str = "", wrapper: tuple[str, ...] = (), **fields: Any) -> RunningCommand:
        started.append(RunningCommand(tmp_path, root, plan, wrapper, **fields))
        return started[-1]

    yield begin
    for run_command in started:
        run_command.close()


def rows(run: RunDir, table: str) -> list[dict[str, Any]]:
    paths = sorted(run.journal.glob(f"{table}-*.arrows"))
    return [row for path in paths for batch in read_stream(path) for row in batch.to_pylist()]


def phases(run: RunDir) -> list[str]:
    marks = (*STORY, "interrupted")
    notes = [row for row in rows(run, "notes") if row["process"] is None]
    return [row["text"] for row in notes if row["text"] in marks]


def test_a_trial_is_recorded_from_end_to_end(sail: Sail) -> None:
    """All phases in order; every operation completed; the kill, the exit and the recovery seen."""
    run_command = sail(KILL)
    assert run_command.end() == 0
    run = run_command.run
    state = run.state()
    assert phases(run) == STORY
    assert (state["ended"], state["interrupted"], state.get("error")) == (True, False, None)
    assert 0 < state["load_began_ns"] < state["load_ended_ns"]
    types = Counter(row["type"] for row in rows(run, "ops") if row["pos"] is None)
    assert types[Type.INVOKE] == types[Type.OK] + types[Type.FAIL] + types[Type.INFO] > 100
    fault = rows(run, "faults")[-1]
    assert fault["state"] == "installed"
    assert fault["begin"] <= fault["applied"] <= fault["observed"] <= fault["heal"]
    assert fault["heal"] <= fault["healed"]
    told = {row["kind"]: row for row in rows(run, "events")}
    assert told["exit"]["node"] == "buoy-1"
    assert json.loads(told["exit"]["fields"])["code"] == -signal.SIGKILL
    assert json.loads(told["recovery"]["fields"])["redundant"]
    acknowledged = {r["value"] for r in rows(run, "ops") if r["type"] == Type.OK and r["f"] == 1}
    assert acknowledged <= {row["value"] for row in rows(run, "replicas")}


def test_names_say_who_is_who(sail: Sail) -> None:
    """The dictionaries of the run: nodes in order, with role and address; processes in words."""
    run_command = sail(duration_s=0.2)
    assert run_command.end() == 0
    names = run_command.run.names()
    assert names["nodes"] == ["buoy-1", "client-1", "client-2"]
    assert names["roles"]["client-2"] == "client"
    assert names["addresses"]["buoy-1"] == "198.18.1.11"
    assert names["processes"]["0"] == "producer 0 on client-1"
    assert len(names["keys"]) == 4


def test_status_lines_tell_phases_counts_faults_and_who_is_master(sail: Sail) -> None:
    """What the live view is fed with."""
    run_command = sail(KILL)
    assert run_command.end() == 0
    assert [s["phase"] for s in run_command.said if "phase" in s] == STORY
    assert any(s["stats"]["ok"] > 0 for s in run_command.said if "stats" in s)
    stages = [s["fault"]["stage"] for s in run_command.said if "fault" in s]
    assert stages == ["begin", "applied", "observed", "heal", "healed"]
    standing = next(s["standing"] for s in run_command.said if "standing" in s)
    assert standing["masters"] == {"buoy": "buoy-1"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_heals_drains_and_keeps_what_was_recorded(sail: Sail, number: int) -> None:
    """One Ctrl-C in the middle of a cut: healed, drained, collected, marked as interrupted."""
    run_command = sail(CUT, duration_s=60.0)
    run_command.until(lambda s: s.get("fault", {}).get("stage") == "observed")
    run_command.process.send_signal(number)
    assert run_command.end() == 0
    run = run_command.run
    assert phases(run) == [*STORY[:2], "interrupted", *STORY[2:]]
    state = run.state()
    assert (state["interrupted"], state["ended"]) == (True, True)
    assert rows(run, "faults")[-1]["healed"] is not None
    assert not processes_of(run)


def test_a_stop_before_the_load_leaves_nothing_to_judge(sail: Sail) -> None:
    """Ctrl-C while the cluster comes up: taken down at once, and said so."""
    run_command = sail(settings={"never_ready": True})
    wait(lambda: run_command.runs.joinpath("latest/nodes/buoy-1/buoy.log").exists())
    run_command.process.send_signal(signal.SIGINT)
    assert run_command.end() == 130
    assert run_command.run.state()["interrupted"]
    assert not processes_of(run_command.run)


def test_a_second_stop_ends_at_once(sail: Sail) -> None:
    """The runner is killed; nothing is left."""
    run_command = sail(duration_s=60.0)
    run_command.phase("load")
    run_command.process.send_signal(signal.SIGINT)
    run_command.until(lambda s: s.get("phase") == "interrupted")
    run_command.process.send_signal(signal.SIGINT)
    assert run_command.end() in (0, 130)  # it may have been quicker
    wait(lambda: not processes_of(run_command.run))


def test_a_node_that_dies_by_itself_is_recorded_and_ends_nothing(sail: Sail) -> None:
    """The exit is an event with its code; the rest of the trial goes on to its verdict."""
    run_command = sail(settings={"exit_after": 20}, recover_within_s=0.5)
    assert run_command.end() == 0
    exit_event = next(row for row in rows(run_command.run, "events") if row["kind"] == "exit")
    assert (exit_event["node"], json.loads(exit_event["fields"])["code"]) == ("buoy-1", 3)
    recovery = next(row for row in rows(run_command.run, "events") if row["kind"] == "recovery")
    assert not json.loads(recovery["fields"])["redundant"]
    assert phases(run_command.run) == STORY


def test_a_client_that_is_crashed_goes_on_under_other_names(sail: Sail) -> None:
    """Its journal is whole up to its end, and that of its successor begins another file."""
    run_command = sail(CRASH, duration_s=3.0)
    assert run_command.end() == 0
    run = run_command.run
    assert phases(run) == STORY
    fault = rows(run, "faults")[-1]
    assert (fault["state"], fault["healed"] is not None) == ("installed", True)
    total = len(run.names()["processes"])
    lives = Counter(row["process"] // total for row in rows(run, "ops"))
    assert set(lives) == {0, 1}
    assert {path.name for path in run.journal.glob("ops-client-1-*.arrows")} == {
        "ops-client-1-000.arrows",
        "ops-client-1-001.arrows",
    }
    values = [r["value"] for r in rows(run, "ops") if r["type"] == Type.INVOKE and r["f"] == 1]
    assert len(values) == len(set(values))
    acknowledged = {r["value"] for r in rows(run, "ops") if r["type"] == Type.OK and r["f"] == 1}
    replicas = {row["value"] for row in rows(run, "replicas")}
    assert acknowledged <= replicas <= set(values), "no message that nobody wrote down"


def test_a_crew_that_dies_ends_the_run_with_a_sentence(sail: Sail) -> None:
    """No hang; run.json says what broke, the history stays."""
    run_command = sail(duration_s=60.0)
    run_command.until(lambda s: s.get("stats", {}).get("ok", 0) > 0)
    end_by_force(run_command, "harness.run.client_process")
    assert run_command.end() == 0
    state = run_command.run.state()
    assert not state["ended"]
    assert "exited by itself" in state["error"]
    assert any("failed" in s for s in run_command.said)
    assert rows(run_command.run, "ops")
    assert not processes_of(run_command.run)


def test_a_node_that_dies_for_good_ends_the_run_early(sail: Sail) -> None:
    """Its agent is gone in the middle of a cut: what is left is healed, drained, and judged."""
    run_command = sail(CUT, duration_s=60.0, recover_within_s=1.0)
    run_command.until(lambda s: s.get("fault", {}).get("stage") == "observed")
    end_by_force(run_command, "198.18.1.11")
    assert run_command.end() == 0
    run = run_command.run
    state = run.state()
    assert state["gone"] == {"buoy-1": "its agent ended"}
    assert (state["ended"], state["interrupted"], state.get("error")) == (True, False, None)
    assert phases(run) == [*STORY[:2], "interrupted", *STORY[2:]]
    assert "NODE_GONE buoy-1: its agent ended" in [row["text"] for row in rows(run, "notes")]
    assert [row["node"] for row in rows(run, "events") if row["kind"] == "gone"] == ["buoy-1"]
    fault = rows(run, "faults")[-1]
    assert fault["healed"] is None, "nobody can have seen it"
    assert "buoy-1 is gone" in fault["observation"]
    assert not open_entries(run.ledger), "it died with its rules"
    assert not processes_of(run)
    codes, history = reasons(run)
    assert codes == ["NODE_GONE"]
    assert history.complete, "every client told all it did"


@pytest.mark.parametrize("kind", ["local", "apart"])
def test_a_client_that_dies_for_good_ends_the_run_early(sail: Sail, kind: str) -> None:
    """What it had told is kept, what it had open stays open, and nobody says it was everything."""
    run_command = sail(duration_s=60.0, hosts=kind)
    run_command.until(lambda s: s.get("stats", {}).get("ok", 0) > 100)
    end_by_force(run_command, "198.18.1.12")
    assert run_command.end() == 0
    run = run_command.run
    assert run.state()["gone"] == {"client-1": "its agent ended"}
    assert run.state()["ended"]
    assert not processes_of(run)
    writers = {path.stem.split("-", 1)[1] for path in run.journal.glob("ops-*.arrows")}
    assert writers == {"client-1-000", "client-2-000"}
    assert any(row["process"] % 2 == 0 for row in rows(run, "ops"))
    codes, history = reasons(run)
    assert codes == ["NODE_GONE"]
    assert not history.complete


def test_a_take_down_that_fails_takes_nothing_from_the_verdict(sail: Sail) -> None:
    """All that there is to record was recorded before; that something is left is told."""
    run_command = sail(hosts="apart", bed={"stuck": True})
    assert run_command.end() == 0
    state = run_command.run.state()
    assert phases(run_command.run) == STORY
    assert (state["ended"], state.get("error")) == (True, None)
    assert state["left"] == "they stay as they are; clean up by hand"


def reasons(run: RunDir) -> tuple[list[str], History]:
    """Codes of why nothing can be proved, without asking any checker; and the sealed history."""
    seal(run)
    history = History.open(run)
    verdict = conclude([], history, run.trial())
    assert verdict.verdict == "unknown"
    return [reason.code for reason in verdict.reasons], history


def end_by_force(run_command: RunningCommand, words: str) -> None:
    """Kill the first process of the run whose command line has these words."""
    ours = descendants(run_command.process.pid)
    os.kill(next(pid for pid in ours if words in leftovers.command(pid)), signal.SIGKILL)


@pytest.mark.parametrize("error_ms", [0, 5])
def test_nodes_may_share_neither_files_nor_clocks(sail: Sail, error_ms: int) -> None:
    """Crews on bare nodes, ahead of us by minutes: the same story, the same journal, our clock."""
    run_command = sail(KILL, hosts="apart", bed={"error_ms": error_ms, "moved_ms": 9})
    assert run_command.end() == 0
    run = run_command.run
    state = run.state()
    assert phases(run) == STORY
    off = {"off_ns": 9_001_000} if error_ms else {}
    error = {"offset_ns": 200 * 10**9, "error_ns": error_ms * 10**6}
    assert state["clocks"]["client-1"] == error | off
    types = Counter(row["type"] for row in rows(run, "ops") if row["pos"] is None)
    assert types[Type.INVOKE] == types[Type.OK] + types[Type.FAIL] + types[Type.INFO] > 100
    for client in ("client-1", "client-2"):
        found = rows(run, f"ops-{client}")
        times = [row["t"] for row in found]
        assert times == sorted(times)
        began_ns = state["load_began_ns"] - error_ms * 10**6
        assert began_ns <= times[0] <= times[-1] < time.monotonic_ns() - state["epoch_ns"]
        assert (run.node(client) / "clients.log").is_file(), "what the node wrote came home"
    acknowledged = {r["value"] for r in rows(run, "ops") if r["type"] == Type.OK and r["f"] == 1}
    assert acknowledged
    assert acknowledged <= {row["value"] for row in rows(run, "replicas")}
    assert json.loads(rows(run, "faults")[-1]["observation"])["applied_ms"].keys() == {"buoy-1"}
    if error_ms:
        assert reasons(run)[0] == ["CLOCKS_DOUBTFUL"]


SMALL_DISK = """
mkdir "$0" && mount -t tmpfs -o size=2400k none "$0" || exit 99
"$@"; code=$?
cp -a "$0" "$0.kept"; exit $code
"""


def test_a_full_disk_ends_the_run_with_a_sentence(sail: Sail, tmp_path: Path) -> None:
    """The journal cannot grow: taken down, said why; what was written can be read. The nodes' disk
    has room, or so it is said, else they would be the reason."""
    alone = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK)
    df = tmp_path / "bin/df"
    df.parent.mkdir()
    df.write_text("#!/bin/sh\necho none 2000000 1000000 1000000 50% /roomy\n")
    df.chmod(0o755)
    path = f"PATH={df.parent}{os.pathsep}{os.environ['PATH']}"
    run_command = sail(
        wrapper=("env", path, *alone, str(tmp_path / "runs")),
        duration_s=60.0,
        load={"rate": 0},
        settings={"log": str(tmp_path / "log.jsonl")},
    )
    assert run_command.end() == 0
    failed = [s["failed"] for s in run_command.said if "failed" in s]
    assert failed
    assert "No space left on device" in failed[0]
    kept = RunDir.open(tmp_path / "runs.kept/latest")
    assert "No space left on device" in kept.state()["error"]
    assert rows(kept, "ops")
    assert "failed: " in rows(kept, "notes")[-1]["text"]


def test_a_node_that_ends_on_a_full_disk_is_the_beds_failure(sail: Sail, tmp_path: Path) -> None:
    """It had to stop, so there is no `exit` in the history that a checker could convict it of; the
    run ends early, with the reason."""
    alone = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK)
    run_command = sail(
        wrapper=(*alone, str(tmp_path / "runs")),
        duration_s=60.0,
        recover_within_s=1.0,
        settings={"exit_after": 20, "log": str(tmp_path / "log.jsonl")},
    )
    assert run_command.end() == 0
    kept = RunDir.open(tmp_path / "runs.kept/latest")
    assert "MB are free under" in kept.state()["full"]["buoy-1"]
    assert (kept.state()["ended"], kept.state().get("error")) == (True, None)
    assert reasons(kept)[0] == ["DISK_FULL"]
    assert "exit" not in {row["kind"] for row in rows(kept, "events")}


MOMENTS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "raised": lambda s: s.get("phase") == "raised",
    "load": lambda s: s.get("stats", {}).get("ok", 0) > 0,
    "fault": lambda s: s.get("fault", {}).get("stage") == "applied",
    "drain": lambda s: s.get("phase") == "drain",
}


@pytest.mark.parametrize("moment", ["beginning", *MOMENTS])
def test_a_killed_command_leaves_nothing_behind(sail: Sail, moment: str) -> None:
    """kill -9 of the command: soon no process of the run lives, hence no namespace either."""
    run_command = sail(CUT.replace("30.0", "0.5"), duration_s=1.0 if moment == "drain" else 60.0)
    if moment in MOMENTS:
        run_command.until(MOMENTS[moment])
    else:
        wait(lambda: bool(descendants(run_command.process.pid)))
    ours = descendants(run_command.process.pid)
    assert ours
    os.kill(run_command.process.pid, signal.SIGKILL)
    began = time.monotonic()
    wait(lambda: not [pid for pid in ours if leftovers.alive(pid)], GONE_WITHIN_S)
    wait(lambda: not processes_of(run_command.run), GONE_WITHIN_S - (time.monotonic() - began))
    state = run_command.run.state()
    assert not state["ended"]


def wait(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """All processes below this one, seen from outside."""
    parents = {at: parent for (at, _), parent in leftovers.processes()}
    below, found = {pid}, list[int]()
    while new := [p for p, parent in parents.items() if parent in below and p not in below]:
        below.update(new)
        found += new
    return found


def processes_of(run: RunDir) -> list[str]:
    """Live processes that name the run's folder."""
    commands = (leftovers.command(pid) for (pid, _), _ in leftovers.processes())
    return [command for command in commands if str(run.path) in command]
