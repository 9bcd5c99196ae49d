"""Compilation of kernels: the only module that imports numba.

A kernel is a plain function over arrays. Its compilation takes seconds, so the result is stored in
the user's cache folder; `NUMBA_CACHE_DIR` names another place. With `NUMBA_DISABLE_JIT=1` the same
functions run as plain Python: slowly, but with tracebacks and without a compiler. A compiled kernel
releases the interpreter's lock, so that a timer in another thread can stop it.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from harness.user_folders import cache_folder

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Decorator: the function is compiled when it is first called."""
    compiled: Function = _njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


def ready() -> None:
    """Load the compiler and all that kernels need of it, so that processes that are forked from
    this one have it."""
    kernel(_greatest)(np.zeros(1, np.int64))


def _greatest(numbers: Any) -> Any:
    return np.sort(numbers)[-1]


def part(function: Function) -> Function:
    """Decorator of a function that only kernels call, and that neither creates nor returns arrays.

    It is inlined, so it has no wrapper for Python, and counts no references.
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
    """Return numba's decorator. The cache folder is set before numba is imported, which reads it
    once."""
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "kernels"))
    import numba
    from numba.core import config

    reading: Any = config
    reading._config_fname = os.devnull  # not .numba_config.yaml of the working directory
    reading.reload_config()
    compiler: Any = numba.njit  # some of its options are not in its types
    return compiler(**options)
