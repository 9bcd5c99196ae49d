"""Whether a cluster can judge: a small job before the checkers', within a deadline.

A cluster may have no free worker, lack a library, or not see the run's folder. Spark waits for ever
in the first case, and tells each checker of the others in a page of Java; one sentence does.
"""

import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import BedFailed, SeatrialError
from harness.spark.master import LOCAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIT_WITHIN_S = 90.0
LEAVE_WITHIN_S = 10.0
MOST_WORDS = 400
OF_A_WORKER, OF_THE_JVM = "Error from python worker", "Driver stacktrace:"
TELLING = re.compile(r"(Caused by: )?([\w.$]*(Error|Exception)|\[[A-Z_.]+\]|<_\w+)\b.*\w")
NEEDED = (
    *("numpy", "pandas", "pyarrow.parquet", "numba", "scipy"),
    *("harness.history.reader", "checkers.loss"),
)


def give_up(session: Any) -> None:
    """Cancel what runs. A Connect session has no context, and a word of its own for it."""
    if hasattr(session, "sparkContext"):
        session.sparkContext.cancelAllJobs()
    else:
        session.interruptAll()


def refuse_unfit(session: "SparkSession", witness: Path) -> None:
    """BedFailed when executors elsewhere can not do the work: they do not come, they lack what
    checkers import, or they do not see the run's folder, or storage."""
    if not elsewhere(session):
        return
    told: list[str] = []
    failures: list[Exception] = []

    def ask() -> None:
        try:
            asked = session.range(1, numPartitions=1).mapInArrow(_fit(witness), "lack string")
            told.extend(asked.toArrow()["lack"].to_pylist())
        except Exception as e:
            failures.append(e)

    if not within(FIT_WITHIN_S, ask):
        within(LEAVE_WITHIN_S, lambda: give_up(session))
        raise BedFailed(
            f"no executor of the Spark master answered within {FIT_WITHIN_S:.0f} s; make sure that "
            "it has workers with free cores and memory, and see in their logs whether executors "
            "start"
        )
    trouble = told[0] if told else reason(failures[0])
    if trouble:
        raise BedFailed(f"the executors of the Spark master cannot check this run: {trouble}")


def elsewhere(session: "SparkSession") -> bool:
    """Executors are not in a JVM that we started."""
    connect = type(session).__module__.startswith("pyspark.sql.connect")
    return connect or not (session.conf.get("spark.master") or "").startswith(LOCAL)


def _fit(witness: Path) -> Callable[[Any], Any]:
    """A job that says what an executor lacks, or nothing."""

    def look(batches: Any) -> Any:
        import pyarrow

        try:
            for name in NEEDED:
                import_module(name)
            there = os.path.exists(witness)
            lack = "" if there else f"{witness} is not there; put the run where all of them see it"
        except SeatrialError as e:
            lack = f"{e}; they have credentials of their own"
        except ImportError as e:
            lack = f"{e} in {sys.executable}; PYSPARK_PYTHON names an interpreter that has it"
        yield from (pyarrow.record_batch([[lack] * b.num_rows], ["lack"]) for b in batches)

    return look


def reason(failure: Exception) -> str:
    """The line that says what went wrong, of an exception of several languages."""
    lines = [line.strip() for line in f"{failure}".splitlines() if line.strip()]
    for at, line in enumerate(lines[:-1]):
        if line.startswith(OF_A_WORKER):
            return lines[at + 1][:MOST_WORDS]
    from_java = lines.index(OF_THE_JVM) if OF_THE_JVM in lines else 0
    telling = [line for line in lines[from_java:] if TELLING.match(line)]
    said = telling[0] if telling and from_java else (telling or lines or [repr(failure)])[-1]
    return said.removeprefix("Caused by: ")[:MOST_WORDS]


def within(seconds: float, do: Callable[[], object]) -> bool:
    """Whether it was done in time; if not, nobody waits for it any longer."""
    thread = threading.Thread(target=_quietly, args=(do,), daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _quietly(do: Callable[[], object]) -> None:
    with suppress(Exception):
        do()
