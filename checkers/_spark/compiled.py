"""Where compiled kernels come from: the only module that knows of numba.

A kernel is a plain function over arrays. Compiling one costs seconds, so the result is kept in the
user's cache folder, next to the other things that are made once for each machine; `NUMBA_CACHE_DIR`
names another place. With `NUMBA_DISABLE_JIT=1` the same functions run as plain Python: slowly, but
with tracebacks and without a compiler. A compiled kernel gives up the interpreter's lock, so a
timer in another thread can stop it.
"""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from harness.user_folders import cache_folder

Function = TypeVar("Function", bound=Callable[..., Any])

ENOUGH = 1 << 16  # rows that take plain Python longer than numba takes to be imported


def kernel(function: Function) -> Function:
    """The function, compiled when it is first called."""
    compiled: Function = _njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


def rowwise(function: Function) -> Function:
    """A loop over the rows of its first argument: few of them as plain Python, many compiled, so
    that a short history never pays for a compiler."""
    compiled: list[Function] = []

    @wraps(function)
    def run(rows: Any, *others: Any) -> Any:
        if not compiled:
            if len(rows) < ENOUGH:
                return function(rows, *others)
            compiled.append(kernel(function))
        return compiled[0](rows, *others)

    return run  # type: ignore[return-value]


def ready() -> None:
    """Load the compiler and what every kernel needs of it, so that whoever is forked from this
    process has it already."""
    kernel(_greatest)(np.zeros(1, np.int64))


def _greatest(numbers: Any) -> Any:
    return np.sort(numbers)[-1]


def part(function: Function) -> Function:
    """The same for what only kernels call: a part of them, which neither makes nor returns arrays.

    It is put in its caller's place, so it has no door for Python, and counts no references.
    """
    compiled: Function = _njit(
        nogil=True,
        error_model="numpy",
        forceinline=True,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        _nrt=False,
    )(function)
    return compiled


def _njit(**options: Any) -> Any:
    """Numba's, which is told where to keep things before it is imported, as it reads it once."""
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "kernels"))
    import numba
    from numba.core import config

    reading: Any = config
    reading._config_fname = os.devnull  # not .numba_config.yaml of the working directory
    reading.reload_config()
    compiler: Any = numba.njit  # some of its options are not in its types
    return compiler(**options)
