"""Run the real command and read the run folders that it writes, for tests and scripts with whole
trials.

Results are read from JSON, TOML and Arrow files without the product's code, so that an error in its
reader cannot hide itself. `naive_loss` counts lost messages on its own.
"""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(sys.executable).with_name("seatrial")
PLANS = ROOT / "suites" / "plans"
LONGEST_S = 600.0
TABLES = ("ops", "notes", "faults", "events", "replicas")


@dataclass(frozen=True)
class FinishedCommand:
    """How a command ended, and the newest run below its folder."""

    code: int
    out: str
    err: str
    runs: Path

    @property
    def words(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"

    @property
    def run(self) -> Path:
        return (self.runs / "latest").resolve()

    @cached_property
    def verdict(self) -> Mapping[str, Any]:
        return verdict(self.run)

    @property
    def findings(self) -> Counter[str]:
        return findings(self.verdict)


def seatrial(
    *arguments: object,
    runs: Path,
    wrapper: Sequence[object] = (),
    env: Mapping[str, str] | None = None,
) -> FinishedCommand:
    """One command to its end. Those that make runs write below `runs`, which `doctor` judges."""
    runs = runs.absolute()  # the command has another working folder
    argv = [str(a) for a in (*wrapper, SCRIPT, *arguments)]
    if arguments[0] in ("run", "replay", "list", "doctor", "differ"):
        argv += ["--runs", str(runs)]
    done = subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    return FinishedCommand(done.returncode, done.stdout, done.stderr, runs)


def _heed_hangups() -> None:
    """Restore the default of SIGHUP, which children of `nohup make test` would ignore."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class RunningCommand:
    """A command under way: wait for what it says, signal it, look at its end."""

    def __init__(
        self, *arguments: object, runs: Path, wrapper: Sequence[object] = (), **more: str
    ) -> None:
        self.runs = runs.absolute()
        self._said = ""
        argv = [str(a) for a in (*wrapper, SCRIPT, *arguments, "--runs", self.runs)]
        self.process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**os.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_hangups,
        )

    def until(self, words: str) -> str:
        """Read on until a line holds a match for these words."""
        for line in self.process.stderr or ():
            self._said += line
            if re.search(words, line):
                return line
        raise AssertionError(f"it never said {words!r}, but {self._said}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> FinishedCommand:
        out, err = self.process.communicate(timeout=LONGEST_S)
        return FinishedCommand(self.process.returncode, out, self._said + err, self.runs)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def wait(condition: Callable[[], object], within_s: float, what: str = "it") -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {within_s:g} s")
        time.sleep(0.02)


# ------------------------------------------------------------------------ what a run has recorded


def verdict(run: Path) -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads((run / "verdict.json").read_text())
    return read


def findings(verdict: Mapping[str, Any]) -> Counter[str]:
    """Code -> count, of every finding that a demand speaks against."""
    found = [f for row in verdict["checkers"] for f in row["findings"] if f["demand"]]
    return Counter({f["code"]: f["count"] for f in found})


def reasons(verdict: Mapping[str, Any]) -> set[str]:
    return {reason["code"] for reason in verdict["reasons"]}


def state(run: Path) -> Mapping[str, Any]:
    try:
        read: Mapping[str, Any] = json.loads((run / "run.json").read_text())
    except OSError:
        return {}
    return read


def table(run: Path, name: str) -> list[dict[str, Any]]:
    """All rows of a table, sealed or not."""
    rows: list[dict[str, Any]] = []
    for path in sorted(run.glob(f"history/{name}-*.parquet")):
        rows += pyarrow.parquet.ParquetFile(path).read().to_pylist()
    for path in sorted(run.glob(f"journal/{name}-*.arrows")):
        if not path.stat().st_size:
            continue  # its writer was killed as it began
        rows += pa.ipc.open_stream(path).read_all().to_pylist()
    return rows


def faults(run: Path) -> list[dict[str, Any]]:
    """The executed faults: the last row of each, by number."""
    return list({row["id"]: row for row in table(run, "faults")}.values())


def load_began_ns(run: Path) -> int:
    began: int = state(run)["load_began_ns"]
    return began


def written(run: Path) -> Counter[str]:
    """Rows by table, as they are read. AssertionError if the writers counted more; a writer may be
    killed after it wrote a batch and before it counted it."""
    rows = Counter({name: len(table(run, name)) for name in TABLES})
    assert rows >= counted(run), f"{counted(run)} counted, {rows} written"
    return rows


def counted(run: Path) -> Counter[str]:
    """Rows by table, as the writers counted them beside their journals."""
    counts: Counter[str] = Counter()
    for path in run.glob("journal/*.count"):
        (rows,) = struct.unpack("<q", path.read_bytes())
        counts[path.name.split("-", 1)[0]] += rows
    return counts
