"""The folder of all runs: a name for each, `latest`, and a cap on their total size.

A run in progress holds a lock on its folder, from before the folder is a run's, so that making room
never removes it. It also has a ballast file, which is deleted when the disk is full, so that the
run's end can still be recorded. A process that tests the lock takes it shared for an instant, which
other such processes do not take for a run; a process that begins a run waits that long.
"""

import fcntl
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness import registry
from harness.errors import BadRequest, BedFailed
from harness.history.rundir import RunDir
from harness.judge.verdict import SCHEMA_VERSION
from harness.suite.store import failing
from harness.text.own_words import IN_STATE
from harness.trial import Trial

CAP_VARIABLE = "SEATRIAL_RUNS_CAP_GB"
CAP_GB = 5.0
LOCK = ".lock"
LATEST = "latest"
BALLAST = ".ballast"
BALLAST_BYTES = 2_000_000
PROBE_LASTS_S = 1.0  # at most
TRY_EVERY_S = 0.005


@contextmanager
def start_run(trial: Trial, plan: str, runs: Path) -> Iterator[RunDir]:
    """Create a new run's folder, locked during the block."""
    with ExitStack() as lock:
        with _writing(runs):
            run = RunDir(_folder_with_room(trial, runs))
            lock.enter_context(locked(run))
            _populate(trial, plan, run, runs)
        try:
            yield run
        finally:
            drop_ballast(run)


def new_run(trial: Trial, plan: str, runs: Path) -> RunDir:
    """Create a new run's folder, with what is known of the run before it begins. Another process
    will lock it."""
    with _writing(runs):
        run = RunDir(_folder_with_room(trial, runs))
        _populate(trial, plan, run, runs)
    return run


@contextmanager
def _writing(runs: Path) -> Iterator[None]:
    """Raise BedFailed if the folder cannot be written."""
    try:
        yield
    except OSError as e:
        raise _write_error(runs, e) from e


def _folder_with_room(trial: Trial, runs: Path) -> Path:
    """Return a new folder for a run, after making room for it."""
    runs.mkdir(parents=True, exist_ok=True)
    make_room(runs, cap_bytes())
    return _new_folder(runs.resolve(), _stem(trial.name))


def _populate(trial: Trial, plan: str, run: RunDir, runs: Path) -> None:
    write_run(trial, plan, run.path)
    (run.path / BALLAST).write_bytes(os.urandom(BALLAST_BYTES))
    update_latest(run, runs)


def write_run(trial: Trial, plan: str, folder: Path) -> RunDir:
    """Make an existing folder a run's, with what is known of the run before it begins."""
    run = RunDir(folder)
    run.trial_file.write_text(trial.to_toml())
    run.plan_file.write_text(plan)
    words = registry.system(trial.system).words if trial.system in registry.names("system") else {}
    own = {IN_STATE: dict(words)} if words else {}
    from harness.judge.claims import claims_in_force  # its reader of histories is slow to import

    run.update_state(claims=claims_in_force(trial), **own, **_initial_state())
    return run


def check_writable(runs: Path) -> None:
    """Create the folder of runs. Raises BedFailed if it cannot be written."""
    cap_bytes()
    probe = runs / f".probe-{os.getpid()}"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(os.urandom(BALLAST_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as e:
        raise _write_error(runs, e) from e


def adopt_run(folder: Path, name: str, runs: Path) -> RunDir:
    """Move a run that was carried out elsewhere to the others, atomically."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        make_room(runs, cap_bytes())
        path = _copy_run(folder, _stem(name), runs.resolve())
    except OSError as e:
        raise BedFailed(f"the run {name} cannot be kept under {runs}: {_reason(e)}") from e
    shutil.rmtree(folder, ignore_errors=True)
    return RunDir(path)


def _copy_run(folder: Path, stem: str, runs: Path) -> Path:
    """Copy it; it has its name when it is complete."""
    copy = _new_folder(runs, f".{stem}")
    try:
        with locked(RunDir(copy)):
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            return copy.rename(_new_folder(runs, stem))
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise


def _write_error(runs: Path, error: OSError) -> BedFailed:
    return BedFailed(
        f"no run can be written under {runs}: {_reason(error)}; free space or choose another "
        "folder with --runs"
    )


def _reason(error: OSError) -> str:
    """Return the text of the first of the errors."""
    if isinstance(error, shutil.Error) and error.args[0]:
        return str(error.args[0][0][-1])
    return error.strerror or str(error)


def drop_ballast(run: RunDir) -> None:
    """Free space for the last records. Only when nothing of the run writes any more."""
    (run.path / BALLAST).unlink(missing_ok=True)


def cap_bytes() -> float:
    """Return the limit of the total size of all runs."""
    text = os.environ.get(CAP_VARIABLE, "")
    with suppress(ValueError):
        cap = float(text or CAP_GB)
        if cap >= 0:  # nan is neither more than the runs take, nor less
            return cap * 1e9
    raise BadRequest(f"{CAP_VARIABLE} must be a number of gigabytes, not {text!r}")


def make_room(runs: Path, cap: float) -> None:
    """Remove the oldest runs until the rest fit; never one that is running, nor one that a suite
    lists as unexpected. If these are too many, print that."""
    folders = sorted(path for path in runs.iterdir() if _is_run(path))
    sizes = {folder: size_bytes(folder) for folder in folders}
    total = sum(sizes.values())
    if total <= cap:
        return
    wanted = failing(runs)
    for folder in folders:
        if folder.name not in wanted and not is_running(folder):
            shutil.rmtree(folder, ignore_errors=True)
            total -= sizes[folder]
        if total <= cap:
            return
    if kept := [folder for folder in folders if folder.name in wanted]:
        print(
            f"seatrial: the runs take {total / 1e9:.2f} GB, more than {CAP_VARIABLE} allows; "
            f"{len(kept)} runs with an unexpected verdict in a suite are kept",
            file=sys.stderr,
        )


def _stem(name: str) -> str:
    """Return the run's name: the time, and the trial's name in portable letters."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".-")
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{plain[:60] or 'trial'}"


def _new_folder(runs: Path, stem: str) -> Path:
    """Create a folder with an unused name, even if two runs begin in the same second."""
    number = 1
    while True:
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def update_latest(run: RunDir, runs: Path) -> None:
    """Point `latest` at the newest run. A file of that name that is not a link is left alone."""
    link = runs / LATEST
    if link.exists() and not link.is_symlink():
        return
    temporary = link.with_name(f".{LATEST}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(run.path.name)
    os.replace(temporary, link)


def mend_latest(runs: Path) -> None:
    """Point `latest` at the newest run that is there, if the one that it names was removed."""
    link = runs / LATEST
    if not link.is_symlink() or link.exists():
        return
    left = sorted(path for path in runs.iterdir() if _is_run(path))
    if left:
        update_latest(RunDir(left[-1]), runs)
    else:
        link.unlink(missing_ok=True)


@contextmanager
def locked(run: RunDir) -> Iterator[None]:
    """Mark the run as running during the block, and in child processes made meanwhile."""
    with (run.path / LOCK).open("w") as lock:
        _take_lock(lock.fileno())
        yield


def _take_lock(lock: int) -> None:
    """Take the lock. Raises BlockingIOError if another process holds it for longer than a test."""
    deadline_s = time.monotonic() + PROBE_LASTS_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(TRY_EVERY_S)


def is_running(folder: Path) -> bool:
    """Whether a process holds the run's lock; nothing is written there. A lock that may not be
    opened counts as held; one that is not a plain file does not."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def is_over(run: Path) -> bool | None:
    """Whether no process of this machine drives a run any more; None if that is unknown, because
    another user's folder may not be read. `Path.is_dir()` does not tell: for such a folder it
    returns False on Python 3.14."""
    try:
        run.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return None
    return not is_running(run)


def _is_run(path: Path) -> bool:
    return not path.is_symlink() and (path / "trial.toml").is_file()


def size_bytes(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
    return total


def _initial_state() -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "phase": "starting",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "ended": False,
        "interrupted": False,
        "versions": {
            "python": platform.python_version(),
            "kernel": platform.release(),
            "seatrial": _own_version(),
        },
        "machine": {"cores": os.cpu_count(), "memory": _memory_bytes()},
        "command": sys.argv[1:],
    }


def _own_version() -> str:
    try:
        return version("seatrial")
    except PackageNotFoundError:
        return "not installed"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
