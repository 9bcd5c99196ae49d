"""Check whether a cluster can judge: a small job before the checkers', within a deadline, and a
watch of its executors while they run.

A cluster may have no free worker, lack a library, or not see the run's folder. Spark waits forever
in the first case, and reports the others to each checker in a page of Java; one sentence is enough.
It also waits forever when all workers are lost while a checker runs.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import BedFailed, SeatrialError
from harness.spark.master import LOCAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROBE_WITHIN_S = 90.0
REPLACED_WITHIN_S = 90.0  # executors that were lost
LEAVE_WITHIN_S = 10.0
LOOK_EVERY_S = 1.0
WAITING = "waiting for executors of the Spark master"
MAKE_SURE = "make sure that it has workers with free cores and memory, and see in their logs"
JVM_ENDED = (
    "Spark's Java process ended before the check did; the kernel's log says whether it was killed"
    " because memory ran out"
)
MAX_REASON_LETTERS = 400
WORKER_ERROR, JVM_ERROR = "Error from python worker", "Driver stacktrace:"
ERROR_LINE = re.compile(r"(Caused by: )?([\w.$]*(Error|Exception)|\[[A-Z_.]+\]|<_\w+)\b.*\w")
NEEDED_MODULES = (
    *("numpy", "pandas", "pyarrow.parquet", "numba", "scipy"),
    *("harness.history.reader", "checkers.loss"),
)


def cancel_jobs(session: Any) -> None:
    """Cancel the running jobs. A Connect session has no context, and another method for it."""
    if hasattr(session, "sparkContext"):
        session.sparkContext.cancelAllJobs()
    else:
        session.interruptAll()


def check_executors(
    session: "SparkSession", witness: Path, on_progress: Callable[[str], None] = lambda step: None
) -> None:
    """Raise BedFailed if remote executors cannot do the work: none starts, they lack what checkers
    import, or they do not see the run's folder, or storage."""
    if not is_remote(session):
        return
    on_progress(WAITING)
    problems: list[str] = []
    failures: list[Exception] = []

    def ask() -> None:
        try:
            asked = session.range(1, numPartitions=1).mapInArrow(_probe_job(witness), "lack string")
            problems.extend(asked.toArrow()["lack"].to_pylist())
        except Exception as e:
            failures.append(e)

    if not finishes_within(PROBE_WITHIN_S, ask):
        finishes_within(LEAVE_WITHIN_S, lambda: cancel_jobs(session))
        raise BedFailed(
            f"no executor of the Spark master answered within {PROBE_WITHIN_S:.0f} s; {MAKE_SURE} "
            "whether executors start"
        )
    trouble = problems[0] if problems else error_line(failures[0])
    if trouble:
        raise BedFailed(f"the executors of the Spark master cannot check this run: {trouble}")


class ExecutorWatch:
    """Watches the executors of a cluster while a checker runs. A Connect session cannot tell."""

    def __init__(self, session: Any, on_progress: Callable[[str], None], step: str) -> None:
        here = session is None or not is_remote(session)
        self._context = None if here else getattr(session, "sparkContext", None)
        self._on_progress, self._step = on_progress, step
        self._waiting_since_s: float | None = None

    def look(self) -> None:
        """Raise BedFailed if jobs have waited too long, because there is no executor."""
        if not self._is_waiting():
            if self._waiting_since_s is not None:
                self._on_progress(self._step)
            self._waiting_since_s = None
        elif self._waiting_since_s is None:
            self._waiting_since_s = time.monotonic()
            self._on_progress(WAITING)
        elif time.monotonic() - self._waiting_since_s > REPLACED_WITHIN_S:
            raise BedFailed(
                "all executors of the Spark master were lost, and none was started within "
                f"{REPLACED_WITHIN_S:.0f} s; {MAKE_SURE} why they ended"
            )

    def _is_waiting(self) -> bool:
        if self._context is None:
            return False
        try:
            jobs = self._context.statusTracker().getActiveJobsIds()
            with_driver: int = self._context._jsc.sc().getExecutorMemoryStatus().size()
        except Exception:  # the JVM has exited: the checker fails, too
            return False
        return bool(jobs) and with_driver <= 1


def is_remote(session: "SparkSession") -> bool:
    """Whether executors are not in a JVM that we started. Raises BedFailed if that has exited."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return True
    from py4j.protocol import Py4JError

    try:
        return not (session.conf.get("spark.master") or "").startswith(LOCAL)
    except (OSError, Py4JError) as e:
        raise BedFailed(JVM_ENDED) from e


def _probe_job(witness: Path) -> Callable[[Any], Any]:
    """Return a job that says what an executor lacks, or nothing."""

    def look(batches: Any) -> Any:
        import pyarrow

        try:
            for name in NEEDED_MODULES:
                import_module(name)
            there = os.path.exists(witness)
            lack = "" if there else f"{witness} is not there; put the run where all of them see it"
        except SeatrialError as e:
            lack = f"{e}; they have credentials of their own"
        except ImportError as e:
            lack = f"{e} in {sys.executable}; PYSPARK_PYTHON names an interpreter that has it"
        yield from (pyarrow.record_batch([[lack] * b.num_rows], ["lack"]) for b in batches)

    return look


def error_line(failure: Exception) -> str:
    """Return the line with the cause, of an exception with tracebacks of several languages."""
    lines = [line.strip() for line in f"{failure}".splitlines() if line.strip()]
    for at, line in enumerate(lines[:-1]):
        if line.startswith(WORKER_ERROR):
            return lines[at + 1][:MAX_REASON_LETTERS]
    from_java = lines.index(JVM_ERROR) if JVM_ERROR in lines else 0
    telling = [line for line in lines[from_java:] if ERROR_LINE.match(line)]
    cause = telling[0] if telling and from_java else (telling or lines or [repr(failure)])[-1]
    return cause.removeprefix("Caused by: ")[:MAX_REASON_LETTERS]


def finishes_within(
    seconds: float, do: Callable[[], object], look: Callable[[], None] = lambda: None
) -> bool:
    """Call `do` in a thread; return whether it finished in time. If not, it is abandoned, as it is
    if `look`, which is called again and again meanwhile, raises an exception."""
    thread = threading.Thread(target=_quietly, args=(do,), daemon=True)
    thread.start()
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        thread.join(min(left_s, LOOK_EVERY_S))
        if not thread.is_alive():
            break
        look()
    return not thread.is_alive()


def _quietly(do: Callable[[], object]) -> None:
    with suppress(Exception):
        do()
