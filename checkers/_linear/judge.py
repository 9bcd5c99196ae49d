"""Choose the method for each key, in rounds of growing budgets, until all is decided.

Registers whose writes all differ go to `zones`, the others to `search`, strings to `strings`. A
value that was never written is found before any search. A search gets few failures at first, then
eight times as many, and so on: a key that is easily refuted ends the judging before a hard one uses
up the machine, because one illegal key outweighs any number of unknown ones. Only with `exhaustive`
are the other keys decided as well.

An illegal verdict that depends on a hash (the table of failures, or the hash of a string) is
confirmed with other random numbers.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from checkers._linear import search, strings, zones
from checkers._linear.batch import ILLEGAL, LEGAL, UNKNOWN, Array, OperationBatch
from checkers._linear.search import NO_ROOM
from checkers._linear.search_state import allocate, extent

FIRST_ROUND = 2_000
GROWTH = 8
MAX_CHOICES = 1 << 26  # kept at a time, 4 bytes each: a key that needs more is unknown
SEEDS = (1, 2)
REGISTER, STRING = "register", "string"


@dataclass(frozen=True)
class SearchBudget:
    """`failures`: of one key's search. `seconds`: in total; None: no limit."""

    failures: int = 1 << 20
    seconds: float | None = None
    exhaustive: bool = False


@dataclass(frozen=True)
class KeyVerdicts:
    """A verdict for each key of the batch. `passed`: the number of returns that some order
    explains."""

    verdicts: Array
    passed: Array
    stats: Mapping[str, int] = field(default_factory=dict)
    witnesses: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def worst(self) -> int:
        return int(self.verdicts.max(initial=LEGAL))


def judge(
    batch: OperationBatch,
    kind: str = REGISTER,
    budget: SearchBudget | None = None,
    texts: Sequence[str] = (),
) -> KeyVerdicts:
    """Judge each key. `texts`: the strings of which values of string keys are the numbers."""
    budget = budget or SearchBudget()
    count = len(batch.starts) - 1
    verdicts, passed = np.full(count, UNKNOWN, np.int8), np.zeros(count, np.int64)
    left = np.arange(count)
    witnesses: dict[int, tuple[int, ...]] = {}
    if kind == REGISTER:
        found = np.empty((count, 6), np.int64)
        _, values, ranks = extent(batch, left)
        zones.sweep(batch, values, ranks, verdicts, found)
        for k in np.flatnonzero(verdicts == ILLEGAL).tolist():
            witnesses[k] = tuple(sorted({i for i in found[k].tolist() if i >= 0}))
        left = np.flatnonzero(verdicts == UNKNOWN)
    else:
        for k in range(count):
            if (place := strings.never_written(batch, texts, k)) >= 0:
                verdicts[k], witnesses[k] = ILLEGAL, (place,)
        left = np.flatnonzero(verdicts == UNKNOWN)
    stats = {"keys": count, "zones": count - len(left), "searched": len(left), "steps": 0}
    if budget.seconds is not None and len(left):
        _search(
            batch, kind, left[:1], 1, np.ones(1, np.int8), texts
        )  # compiled before the deadline starts
    with _deadline(budget.seconds) as stop:
        for failures in _rounds(budget.failures):
            decided = budget.exhaustive or not (verdicts == ILLEGAL).any()
            if not len(left) or stop[0] or not decided:
                break
            out = _search(batch, kind, left, failures, stop, texts)
            verdicts[left], passed[left] = out[:, 0], out[:, 2]
            stats["steps"] += int(out[:, 1].sum())
            left = left[out[:, 0] == UNKNOWN]
    return KeyVerdicts(verdicts, passed, stats, witnesses)


def _rounds(most: int) -> Iterator[int]:
    failures = FIRST_ROUND
    while failures < most:
        yield failures
        failures *= GROWTH
    yield most


def _search(
    batch: OperationBatch, kind: str, which: Array, failures: int, stop: Array, texts: Sequence[str]
) -> Array:
    """Search some keys; return rows of verdict, steps, returns passed, hits."""
    out = _round(batch, kind, which, failures, stop, texts, SEEDS[0])
    doubtful = (out[:, 0] == ILLEGAL) & ((out[:, 3] > 0) | (kind == STRING))
    if doubtful.any():
        at = np.flatnonzero(doubtful)
        again = _round(batch, kind, which[at], 2 * failures, stop, texts, SEEDS[1])
        out[at, 0] = again[:, 0]
    return out


def _round(
    batch: OperationBatch,
    kind: str,
    which: Array,
    failures: int,
    stop: Array,
    texts: Sequence[str],
    seed: int,
) -> Array:
    n, values, ranks = extent(batch, which)
    out, choices = np.zeros((len(which), 4), np.int64), 4 * n + 2 * values + 1024
    rolled = strings.texts_of(batch, texts, seed) if kind == STRING else None
    left = np.arange(len(which))
    while len(left):
        state = allocate(n, values, ranks, failures, choices, seed)
        part = np.zeros((len(left), 4), np.int64)
        if rolled is None:
            search.search(state, batch, which[left], failures, stop, part)
        else:
            strings.search(state, batch, which[left], rolled, failures, stop, part)
        out[left] = part
        left = left[part[:, 0] == NO_ROOM]
        if choices >= MAX_CHOICES:
            out[left, 0] = UNKNOWN
            break
        choices *= 4
    return out


@contextmanager
def _deadline(seconds: float | None) -> Iterator[Array]:
    """Yield an array whose first element becomes 1 when the time is over."""
    stop = np.zeros(1, np.int8)
    if seconds is None:
        yield stop
        return
    timer = threading.Timer(seconds, stop.fill, (1,))
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()
