"""A crew process, spoken to as the runner speaks to it.

There is no cluster: the nameserver's address is one where nobody listens, so every send is a
definite failure. What matters here is the protocol, the journal and the ends.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.crew import Tally, sentence
from harness.errors import BedFailed
from harness.journal import read_stream
from harness.operation import F, Type
from harness.rundir import RunDir
from harness.trial import Trial

NODES = ("nameserver-1", "controller-1", "broker-1", "client-1", "client-2")
TRIAL = Trial(
    profile="unsafe-default",
    nodes={"controller": 1, "broker": 1},
    load={"rate": 200},
    recover_within_s=0.2,
)


def run_folder(path: Path) -> RunDir:
    run = RunDir(path)
    run.trial_file.write_text(TRIAL.to_toml())
    run.write_names(
        {
            "keys": [f"orders-{n}" for n in range(4)],
            "nodes": list(NODES),
            "roles": {name: name.rsplit("-", 1)[0] for name in NODES},
            "addresses": dict.fromkeys(NODES, "127.0.0.1"),
        }
    )
    return run


class Process:
    """A crew and the words it has said."""

    def __init__(self, run: RunDir, name: str, errors: Path) -> None:
        self.errors = errors
        with errors.open("w") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "harness.crew", str(run.path), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def order(self, do: str, **fields: Any) -> None:
        assert self._child.stdin
        self._child.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._child.stdin.flush()

    def hear(self, key: str, word: Any = None) -> Mapping[str, Any]:
        """The next message that has this key, and this word there if one is given."""
        assert self._child.stdout
        for line in self._child.stdout:
            message: Mapping[str, Any] = json.loads(line)
            if key in message and word in (None, message[key]):
                return message
            assert "is" not in message, f"it says {message} instead of {word}"
        raise AssertionError(f"it ended without {word}: {self.errors.read_text()}")

    def hang_up(self) -> None:
        assert self._child.stdin
        self._child.stdin.close()

    def end(self) -> int:
        return self._child.wait(timeout=20)

    def take_away(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe
            with suppress(BrokenPipeError):
                pipe.close()


@contextmanager
def crew(tmp_path: Path, name: str = "client-1") -> Iterator[Process]:
    process = Process(run_folder(tmp_path), name, tmp_path / "crew.log")
    try:
        yield process
    finally:
        process.take_away()


def rows(folder: Path, pattern: str) -> list[Mapping[str, Any]]:
    paths = sorted((folder / "journal").glob(pattern))
    return [row for path in paths for batch in read_stream(path) for row in batch.to_pylist()]


@pytest.mark.bed
def test_a_crew_does_as_it_is_told(tmp_path: Path) -> None:
    """ready, loading, stopped, drained, gone; and what it did is in its journal."""
    with crew(tmp_path, "client-2") as process:
        process.hear("is", "ready")
        epoch_ns = time.monotonic_ns()
        process.order("load", epoch_ns=epoch_ns)
        process.hear("is", "loading")
        while process.hear("stats")["stats"]["fail"] == 0:
            pass
        process.order("stop")
        process.hear("is", "stopped")
        process.order("drain")
        process.hear("is", "drained")
        process.order("quit")
        assert process.end() == 0
    ops = rows(tmp_path, "ops-client-2-*.arrows")
    sends = [row for row in ops if row["f"] == F.SEND]
    assert {row["process"] for row in sends} == {1, 3}, "every second process lives here"
    assert {row["type"] for row in sends} == {Type.INVOKE, Type.FAIL}
    assert {row["op"] >> 40 for row in ops} == {1}, "numbers of another crew are others"
    assert all(0 <= row["t"] < time.monotonic_ns() - epoch_ns for row in ops)
    begun = [row["op"] for row in ops if row["type"] == Type.INVOKE]
    assert sorted(begun) == sorted(row["op"] for row in ops if row["type"] != Type.INVOKE)
    notes = [row["text"] for row in rows(tmp_path, "notes-client-2-*.arrows")]
    assert any(note.startswith("NOT_DRAINED ") for note in notes)


@pytest.mark.bed
def test_a_crew_goes_when_the_runner_is_gone(tmp_path: Path) -> None:
    """The end of its input ends it, in the midst of the load; the journal is readable."""
    with crew(tmp_path) as process:
        process.hear("is", "ready")
        process.order("load", epoch_ns=time.monotonic_ns())
        process.hear("is", "loading")
        while process.hear("stats")["stats"]["fail"] == 0:
            pass
        process.hang_up()
        assert process.end() != 0
    assert rows(tmp_path, "ops-client-1-*.arrows")


@pytest.mark.bed
def test_a_journal_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    """The runner gets one sentence, and the crew ends by itself."""
    (tmp_path / "journal").write_text("a file where the folder should be")
    with crew(tmp_path) as process:
        assert "client-1" in process.hear("is", "failed")["why"]
        assert process.end() == 255


@pytest.mark.bed
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    """In the midst of the load: one sentence that names the journal, then the end."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    site = tmp_path / "limited"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import signal; {limit}\n")
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with crew(tmp_path) as process:
            process.hear("is", "ready")
            process.order("load", epoch_ns=time.monotonic_ns())
            process.hear("is", "loading")
            assert "journal" in process.hear("is", "failed")["why"]
            assert process.end() == 255


def test_a_failure_is_one_sentence() -> None:
    """Groups are opened, and errors of ours speak for themselves."""
    assert (
        sentence(BaseExceptionGroup("", [BedFailed("no disk; free some")])) == "no disk; free some"
    )
    assert sentence(KeyError("x")) == "KeyError: 'x'"


def test_quantiles_are_of_the_recent_past() -> None:
    """A quarter of a second without sends keeps the last quantiles."""
    tally = Tally()
    tally.latencies_ns = [n * 1_000_000 for n in range(100, 0, -1)]
    first = tally.stats()
    assert (first["p50_ms"], first["p99_ms"]) == (51.0, 100.0)
    assert tally.stats()["p50_ms"] == 51.0
