"""The progress log of a suite, which lets an interrupted suite resume.

`runs/suites/NAME-KEY.jsonl` exists while a suite is under way. It has a line for the beginning of
each run and one for its end; each is synced to disk before anything else happens. The key is a hash
of the trials, plans and expectations, the options, and the code: if one of them differs, it is
another suite. The same command resumes where it stopped. The file is removed at the end.

A run with a beginning and no end was interrupted by the death of the command. If only its verdict
is missing, it is judged; else what it left on its hosts is removed, with its folder, and it is run
again.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Any, Self

from harness.cli.healing import heal
from harness.cli.prog_name import seatrial
from harness.errors import EXIT_VALID, BedFailed, SeatrialError
from harness.history.rundir import RunDir
from harness.history.runs import is_running
from harness.suite.store import FOLDER, SuiteRow, objects_in
from harness.text.code_hash import code_hash
from harness.text.parsing import read_text
from harness.trial import Trial

ENDING_WITHIN_S = 15.0  # a runner whose command was killed
LOOK_EVERY_S = 0.1
KEY = "[0-9a-f]" * 16  # in the name of a file
FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


@dataclass(frozen=True)
class RunStart:
    """The beginning of a run that has no end: when, and by which command."""

    when: str
    command: tuple[str, ...] = ()


class SuiteLog:
    """`with SuiteLog(...) as log`: locks the file; `rows` are the results of finished runs."""

    def __init__(self, suite: Path, keys: Sequence[str], runs: Path) -> None:
        content = "\0".join((*keys, code_hash()))
        key = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
        self.file = runs / FOLDER / f"{suite.stem}-{key}.jsonl"
        self.id = ""  # of this execution
        self.rows: dict[str, SuiteRow] = {}
        self.begun: dict[str, RunStart] = {}  # key of an unfinished run -> its beginning
        self._suite, self._log = suite, -1

    def __enter__(self) -> Self:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._log = os.open(self.file, FLAGS, 0o666)
        except OSError as e:
            raise BedFailed(f"the suite's state cannot be stored in {self.file}: {e}") from e
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(self._log)
            raise BedFailed(
                f"{self._suite} is being run by another process, which holds {self.file}"
            ) from e
        self._read()
        if not self.id:
            self.id = uuid.uuid4().hex
            self._append({"suite": str(self._suite), "id": self.id, "code": code_hash()})
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._log)

    def begin(self, key: str) -> str:
        """Log the beginning of a run, and return its time."""
        begun = RunStart(datetime.now(UTC).isoformat(timespec="seconds"), tuple(sys.argv[1:]))
        self._append({"begin": key, "when": begun.when, "command": begun.command})
        self.begun[key] = begun
        return begun.when

    def done(self, key: str, row: SuiteRow) -> None:
        """Log the result of a run."""
        self._append({"done": key, "row": row.plain()})
        self.rows[key] = row
        self.begun.pop(key, None)

    def broken_off(self, key: str) -> None:
        """Log that a run was interrupted by request; it counts as not begun."""
        self._append({"broken_off": key})
        self.begun.pop(key, None)

    def finish(self) -> None:
        """Remove the log: the suite is complete, and its summary is written."""
        self.file.unlink(missing_ok=True)

    def set_aside(self) -> int:
        """Remove logs of this suite with other code, and return the number of their results."""
        stale = [path for path in self._others() if _is_free(path) and _code(path) != code_hash()]
        done = sum(len(_rows(objects_in(path.read_bytes()))) for path in stale)
        for path in stale:
            path.unlink(missing_ok=True)
        return done

    def _others(self) -> Iterator[Path]:
        pattern = f"{escape(self._suite.stem)}-{KEY}.jsonl"
        for path in sorted(self.file.parent.glob(pattern)):
            if path != self.file:
                yield path

    def _read(self) -> None:
        size = os.fstat(self._log).st_size
        lines = list(objects_in(os.pread(self._log, size, 0)))
        self.rows = _rows(lines)
        for line in lines:
            self.id = str(line.get("id", self.id))
            if "begin" in line:
                command = map(str, line.get("command") or ())
                self.begun[str(line["begin"])] = RunStart(str(line.get("when", "")), tuple(command))
            for word in ("done", "broken_off"):
                self.begun.pop(str(line.get(word, "")), None)

    def _append(self, line: Mapping[str, Any]) -> None:
        """Append a line in one write and sync it, after a newline if the last line has none."""
        size = os.fstat(self._log).st_size
        torn = size > 0 and os.pread(self._log, 1, size - 1) != b"\n"
        text = b"\n" * torn + json.dumps(line).encode() + b"\n"
        try:
            if os.write(self._log, text) < len(text):
                raise OSError("the write was incomplete: the disk is full")
            os.fsync(self._log)
        except OSError as e:
            raise BedFailed(f"the suite's state cannot be stored in {self.file}: {e}") from e


def _rows(lines: Iterable[Mapping[str, Any]]) -> dict[str, SuiteRow]:
    rows = {}
    for line in lines:
        with suppress(KeyError, TypeError, AttributeError):  # incomplete, or of another version
            rows[str(line["done"])] = SuiteRow.read(line["row"])
    return rows


def _code(path: Path) -> str:
    """Return the hash of the code that a log belongs to."""
    return next((str(line["code"]) for line in objects_in(path.read_bytes()) if "code" in line), "")


def _is_free(path: Path) -> bool:
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# -------------------------------------------------------------------------- interrupted runs


def interrupted_run(
    runs: Path, trial: Trial, begun: RunStart, others: Iterable[str]
) -> RunDir | None:
    """Return the unfinished run of this trial that the same command began since then."""
    names, wanted = set(others), trial.to_toml()
    for folder in sorted(runs.glob("*/"), reverse=True):
        if folder.is_symlink() or folder.name in names or not (folder / "trial.toml").is_file():
            continue
        run = RunDir(folder.resolve())
        with suppress(SeatrialError, OSError):
            state = run.state()
            if (
                tuple(state.get("command", ())) == begun.command
                and str(state.get("started", "")) >= begun.when
                and read_text(run.trial_file, "the trial") == wanted
            ):
                return run
    return None


def is_recorded(run: RunDir) -> bool:
    """Return whether everything was recorded, so that at most the verdict is missing."""
    _await_end(run)
    state = run.state()
    return bool(state.get("ended")) and not state.get("interrupted")


def ran_s(run: RunDir, since: str) -> float:
    """Return how long a run took, until the last write to its state."""
    last_s = (run.path / "run.json").stat().st_mtime
    return max(0.0, last_s - datetime.fromisoformat(since).timestamp())


def remove_run(run: RunDir) -> None:
    """Remove a run with everything it left on its hosts. Raises BedFailed if that is not possible;
    its folder is kept then, for `seatrial heal`."""
    _await_end(run)
    with redirect_stdout(sys.stderr):
        code = heal(run.path, run.path.parent)
    if code != EXIT_VALID:
        raise BedFailed(
            f"what {run.path} left on its hosts could not be removed, so no other run is started; "
            f"run {seatrial()} heal {shlex.quote(str(run.path))}, then the suite again"
        )
    shutil.rmtree(run.path, ignore_errors=True)


def _await_end(run: RunDir) -> None:
    """Wait until the runner has ended, as it does after its command. Raises BedFailed if not."""
    deadline_s = time.monotonic() + ENDING_WITHIN_S
    while is_running(run.path):
        if time.monotonic() > deadline_s:
            raise BedFailed(f"{run.path} is still running; stop it, and run the suite again")
        time.sleep(LOOK_EVERY_S)
