"""The process that Spark forks its Python workers from, with everything heavy imported already.

Spark's own daemon imports nothing, so that each worker spends its first half second on numpy and
Arrow. Workers forked from this one start at once. `SEATRIAL_PRELOAD` names further modules, the
checkers' kernels among them; a module that fails to import fails again, with its message, in the
worker that needs it.
"""

import os
from contextlib import suppress
from importlib import import_module

from pyspark.daemon import manager

ALWAYS = ("numpy", "pandas", "pyarrow.parquet", "pyspark.worker", "harness.history")


def preload() -> None:
    for name in (*ALWAYS, *os.environ.get("SEATRIAL_PRELOAD", "").split()):
        with suppress(ImportError):
            import_module(name)


if __name__ == "__main__":
    preload()
    manager()
