"""What has been done of a suite, written down as it is done, so that nothing is done twice.

`runs/suites/NAME-KEY.jsonl` is there while a suite is under way: a line when a run begins and one
when it is over, each on the disk before anything else happens. The key is that of the trials, plans
and expectations, of what was asked for, and of the code: whatever is different is another suite.
Whoever asks for the same again goes on where it stopped. When all is done the file goes.

A run that had begun and has no end was cut off by the death of the command. If all of it is there
but the verdict, it is judged; else what it left in the world is undone, its folder goes, and it is
run again.
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
from types import TracebackType
from typing import Any, Self

from harness.cli.healing import heal
from harness.cli.prog_name import seatrial
from harness.errors import EXIT_VALID, BedFailed, SeatrialError
from harness.history.rundir import RunDir
from harness.history.runs import is_running
from harness.suite.names import FOLDER
from harness.suite.row import Row
from harness.text.code_hash import contents
from harness.text.parsing import json_of, text_of
from harness.trial import Trial

ENDING_WITHIN_S = 15.0  # a runner whose command was killed
LOOK_EVERY_S = 0.1
KEY = "[0-9a-f]" * 16  # in the name of a file
FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


@dataclass(frozen=True)
class Begun:
    """A run that is under way, or was when the command died: since when, by which command."""

    when: str
    command: tuple[str, ...] = ()


class SuiteLog:
    """`with SuiteLog(...) as log`: the file is held; `rows` are those of runs that are over."""

    def __init__(self, suite: Path, keys: Sequence[str], runs: Path) -> None:
        told = "\0".join((*keys, contents()))
        key = hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
        self.file = runs / FOLDER / f"{suite.stem}-{key}.jsonl"
        self.id = ""  # of this carrying out
        self.rows: dict[str, Row] = {}
        self.begun: dict[str, Begun] = {}  # key of a run that is not over -> how it began
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
            self._append({"suite": str(self._suite), "id": self.id, "code": contents()})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._log)

    def begin(self, key: str) -> str:
        """A run begins now; when."""
        begun = Begun(datetime.now(UTC).isoformat(timespec="seconds"), tuple(sys.argv[1:]))
        self._append({"begin": key, "when": begun.when, "command": begun.command})
        self.begun[key] = begun
        return begun.when

    def done(self, key: str, row: Row) -> None:
        """A run is over, and this is what it came to."""
        self._append({"done": key, "row": row.plain()})
        self.rows[key] = row
        self.begun.pop(key, None)

    def broken_off(self, key: str) -> None:
        """A run was ended by request; its folder stays, and it counts as never begun."""
        self._append({"broken_off": key})
        self.begun.pop(key, None)

    def finish(self) -> None:
        """All is done and told: the next time is another one."""
        self.file.unlink(missing_ok=True)

    def set_aside(self) -> int:
        """Remove what is left of this suite with other code; how many runs were done of it."""
        stale = [path for path in self._others() if _is_free(path) and _code(path) != contents()]
        done = sum(len(_rows(_lines(path.read_bytes()))) for path in stale)
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
        lines = list(_lines(os.pread(self._log, size, 0)))
        self.rows = _rows(lines)
        for line in lines:
            self.id = str(line.get("id", self.id))
            if "begin" in line:
                command = map(str, line.get("command") or ())
                self.begun[str(line["begin"])] = Begun(str(line.get("when", "")), tuple(command))
            for word in ("done", "broken_off"):
                self.begun.pop(str(line.get(word, "")), None)

    def _append(self, line: Mapping[str, Any]) -> None:
        """In one piece, on a line of its own whatever the last one came to, and on the disk."""
        size = os.fstat(self._log).st_size
        torn = size > 0 and os.pread(self._log, 1, size - 1) != b"\n"
        text = b"\n" * torn + json.dumps(line).encode() + b"\n"
        try:
            if os.write(self._log, text) < len(text):
                raise OSError("it was cut short, for the disk is full")
            os.fsync(self._log)
        except OSError as e:
            raise BedFailed(f"the suite's state cannot be stored in {self.file}: {e}") from e


def _rows(lines: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    found = {}
    for line in lines:
        with suppress(KeyError, TypeError, AttributeError):  # cut short, or of another edition
            found[str(line["done"])] = Row.read(line["row"])
    return found


def _lines(text: bytes) -> Iterator[Mapping[str, Any]]:
    """Of a file; not one that was cut short while it was written."""
    for line in text.decode(errors="replace").splitlines():
        with suppress(ValueError):
            read = json_of(line)
            if isinstance(read, dict):
                yield read


def _code(path: Path) -> str:
    """What a suite was begun with."""
    return next((str(line["code"]) for line in _lines(path.read_bytes()) if "code" in line), "")


def _is_free(path: Path) -> bool:
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# --------------------------------------------------------------------------- what was cut off


def cut_off(runs: Path, trial: Trial, begun: Begun, others: Iterable[str]) -> RunDir | None:
    """The run of this trial that this very command began since then and that nobody finished."""
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
                and text_of(run.trial_file, "the trial") == wanted
            ):
                return run
    return None


def all_there(run: RunDir) -> bool:
    """Everything was recorded, and only the verdict is missing, if that."""
    _await_end(run)
    state = run.state()
    return bool(state.get("ended")) and not state.get("interrupted")


def ran_s(run: RunDir, since: str) -> float:
    """How long it took, from when it was begun to the last word that was written of it."""
    return max(0.0, _last_word_s(run) - datetime.fromisoformat(since).timestamp())


def _last_word_s(run: RunDir) -> float:
    return (run.path / "run.json").stat().st_mtime


def cleared(run: RunDir) -> None:
    """Nothing is left of it, in the world or here. BedFailed when something of it is, in the world:
    then its folder stays, which knows what."""
    _await_end(run)
    with redirect_stdout(sys.stderr):
        code = heal(run.path, run.path.parent)
    if code != EXIT_VALID:
        raise BedFailed(
            f"what {run.path} left behind could not be undone, and no other run is begun on that; "
            f"see to it, say {seatrial()} heal {shlex.quote(str(run.path))}, and start the suite "
            "again"
        )
    shutil.rmtree(run.path, ignore_errors=True)


def _await_end(run: RunDir) -> None:
    """A runner ends by itself soon after its command. BedFailed when it does not."""
    deadline_s = time.monotonic() + ENDING_WITHIN_S
    while is_running(run.path):
        if time.monotonic() > deadline_s:
            raise BedFailed(f"{run.path} still goes on; end it, and start the suite again")
        time.sleep(LOOK_EVERY_S)
