"""The folder of all runs: a name for each, `latest`, and a cap on what they take together.

A run in progress holds a lock on its folder, from before the folder is a run's, so that making
room never removes it, and carries some ballast: bytes that are dropped when the disk is full, so
that its end can still be written down. Whoever looks for the lock shares it for an instant, which
nobody else who looks takes for a run; who begins a run waits that long.
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

from harness.errors import BadRequest, BedFailed
from harness.history.rundir import RunDir
from harness.judge.claims import claims_in_force
from harness.judge.verdict import SCHEMA_VERSION
from harness.suite.store import failing
from harness.trial import Trial

CAP_VARIABLE = "SEATRIAL_RUNS_CAP_GB"
CAP_GB = 5.0
LOCK = ".lock"
LATEST = "latest"
BALLAST = ".ballast"
BALLAST_BYTES = 2_000_000
A_LOOK_S = 1.0  # is over by then
TRY_EVERY_S = 0.005


@contextmanager
def start_run(trial: Trial, plan: str, runs: Path) -> Iterator[RunDir]:
    """A new run's folder, held for the length of the block."""
    with ExitStack() as lock:
        with _writing(runs):
            run = RunDir(_roomy_folder(trial, runs))
            lock.enter_context(held(run))
            _laid_out(trial, plan, run, runs)
        try:
            yield run
        finally:
            drop_ballast(run)


def new_run(trial: Trial, plan: str, runs: Path) -> RunDir:
    """A new run's folder, with what is known of the run before it begins. Somebody else will hold
    it."""
    with _writing(runs):
        run = RunDir(_roomy_folder(trial, runs))
        _laid_out(trial, plan, run, runs)
    return run


@contextmanager
def _writing(runs: Path) -> Iterator[None]:
    """BedFailed when that can not be done."""
    try:
        yield
    except OSError as e:
        raise _unwritable(runs, e) from e


def _roomy_folder(trial: Trial, runs: Path) -> Path:
    """An empty folder for a run, when there is room for it."""
    runs.mkdir(parents=True, exist_ok=True)
    make_room(runs, cap_bytes())
    return _new_folder(runs.resolve(), _stem(trial.name))


def _laid_out(trial: Trial, plan: str, run: RunDir, runs: Path) -> None:
    begun(trial, plan, run.path)
    (run.path / BALLAST).write_bytes(os.urandom(BALLAST_BYTES))
    point_at(run, runs)


def begun(trial: Trial, plan: str, folder: Path) -> RunDir:
    """A folder that is there becomes a run's, with what is known of it before it begins."""
    run = RunDir(folder)
    run.trial_file.write_text(trial.to_toml())
    run.plan_file.write_text(plan)
    run.update_state(claims=claims_in_force(trial), **_beginning())
    return run


def writable(runs: Path) -> None:
    """Make the folder of runs. BedFailed when nothing can be written there."""
    cap_bytes()
    probe = runs / f".probe-{os.getpid()}"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(os.urandom(BALLAST_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as e:
        raise _unwritable(runs, e) from e


def kept(folder: Path, name: str, runs: Path) -> RunDir:
    """A run that was carried out elsewhere, moved to the others: all of it, or nothing."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        make_room(runs, cap_bytes())
        path = _copied(folder, _stem(name), runs.resolve())
    except OSError as e:
        raise BedFailed(f"the run {name} cannot be kept under {runs}: {_reason(e)}") from e
    shutil.rmtree(folder, ignore_errors=True)
    return RunDir(path)


def _copied(folder: Path, stem: str, runs: Path) -> Path:
    """It has its name when it is complete."""
    copy = _new_folder(runs, f".{stem}")
    try:
        with held(RunDir(copy)):
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            return copy.rename(_new_folder(runs, stem))
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise


def _unwritable(runs: Path, error: OSError) -> BedFailed:
    return BedFailed(
        f"no run can be written under {runs}: {_reason(error)}; free space or choose another "
        "folder with --runs"
    )


def _reason(error: OSError) -> str:
    """Of many errors the first."""
    if isinstance(error, shutil.Error) and error.args[0]:
        return str(error.args[0][0][-1])
    return error.strerror or str(error)


def drop_ballast(run: RunDir) -> None:
    """Room for the last words. Only when nothing of the run writes any more."""
    (run.path / BALLAST).unlink(missing_ok=True)


def cap_bytes() -> float:
    """How much all runs may take together."""
    text = os.environ.get(CAP_VARIABLE, "")
    with suppress(ValueError):
        cap = float(text or CAP_GB)
        if cap >= 0:  # nan is neither more than the runs take, nor less
            return cap * 1e9
    raise BadRequest(f"{CAP_VARIABLE} must be a number of gigabytes, not {text!r}")


def make_room(runs: Path, cap: float) -> None:
    """Remove the oldest runs until the rest fit; never one that is running, nor one of which a
    suite says that it came otherwise than expected. That these are too many is said."""
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
    """What the run is called: when, and the trial's name in letters that any tool can take."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".-")
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{plain[:60] or 'trial'}"


def _new_folder(runs: Path, stem: str) -> Path:
    """A folder nobody else has, even when two runs begin in the same second."""
    number = 1
    while True:
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def point_at(run: RunDir, runs: Path) -> None:
    """`latest` leads to the newest run. A file of that name that is no link is left alone."""
    link = runs / LATEST
    if link.exists() and not link.is_symlink():
        return
    temporary = link.with_name(f".{LATEST}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(run.path.name)
    os.replace(temporary, link)


@contextmanager
def held(run: RunDir) -> Iterator[None]:
    """The run is running for the length of the block, and in children made meanwhile."""
    with (run.path / LOCK).open("w") as lock:
        _taken(lock.fileno())
        yield


def _taken(lock: int) -> None:
    """BlockingIOError: somebody has it, and not only for a look."""
    deadline_s = time.monotonic() + A_LOOK_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(TRY_EVERY_S)


def is_running(folder: Path) -> bool:
    """Whether somebody holds it; nothing is written there. What may not be opened is taken for a
    run that goes on; a lock that is no plain file is nobody's."""
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
    """Whether no process of this machine drives a run any more; None if that is not ours to know,
    because another user's folder may not be looked at. `Path.is_dir()` does not tell: of such a
    folder Python 3.14 says that it is none."""
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


def _beginning() -> dict[str, Any]:
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
