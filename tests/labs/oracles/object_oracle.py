"""Small histories of queues, sets, counters, logs and locks, and their naive judgement.

An order of all certain operations, and of some of unknown outcome, has to respect real time and to
be possible in a model of three lines. All orders are tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from checkers._linear.batch import ABSENT
from checkers._linear.objects import COLUMNS
from checkers._messages.message_rows import Ints
from harness.operation import F, Type


@dataclass(frozen=True)
class Act:
    """One operation. `end` is None if its outcome is unknown; `told`: the history has it as INFO.
    `seen`: the elements of a list. `outcome`: OK, or FAIL with `refused` if it has a reason."""

    f: F
    process: int
    call: int
    end: int | None = None
    value: int | None = None
    offset: int | None = None
    seen: tuple[int, ...] = ()
    failed: bool = False
    refused: bool = False
    told: bool = False

    @property
    def known(self) -> bool:
        return self.end is not None


def _queue(state: tuple[int, ...], act: Act) -> tuple[int, ...] | None:
    if act.f is F.ENQUEUE:
        return (*state, act.value or 0)
    if not act.known:
        return state[1:]
    if act.value is None:
        return None if state else state
    return state[1:] if state[:1] == (act.value,) else None


def _set(state: tuple[int, ...], act: Act) -> tuple[int, ...] | None:
    if act.f is F.ADD:
        return tuple(sorted({*state, act.value or 0}))
    return state if tuple(sorted(act.seen)) == state else None


def _counter(state: int, act: Act) -> int | None:
    if act.f is F.ADD:
        return state + (act.value or 0)
    return state if act.value == state else None


def _log(state: tuple[int, ...], act: Act) -> tuple[int, ...] | None:
    if act.f is F.LIST:
        return state if act.seen == state else None
    told = act.offset is None or act.offset == len(state)
    return (*state, act.value or 0) if told else None


def _lock(state: tuple[int | None, int], act: Act) -> tuple[int | None, int] | None:
    holder, token = state
    if act.f is F.ACQUIRE:
        fresh = act.offset is None or act.offset > token
        return (act.process, act.offset or token) if holder is None and fresh else None
    if act.refused:
        return state if holder != act.process else None
    return (None, token) if holder == act.process else None


STARTS: dict[str, tuple[Any, Callable[[Any, Act], Any]]] = {
    "queue": ((), _queue),
    "set": ((), _set),
    "counter": (0, _counter),
    "log": ((), _log),
    "lock": ((None, 0), _lock),
}


def possible(kind: str, acts: tuple[Act, ...]) -> bool:
    """Does any order explain this?"""
    start, step = STARTS[kind]
    acts = tuple(a for a in acts if not a.failed or a.refused)
    certain = sum(1 << i for i, act in enumerate(acts) if act.known)

    @cache
    def goes_on(taken: int, state: Any) -> bool:
        if taken & certain == certain:
            return True
        left = [(i, a) for i, a in enumerate(acts) if not taken >> i & 1]
        limit = min(a.end for _, a in left if a.end is not None)
        for i, act in left:
            after = step(state, act) if act.call <= limit else None
            if after is not None and goes_on(taken | 1 << i, after):
                return True
        return False

    return goes_on(0, start)


@dataclass
class Table:
    """Many histories as the rows of one table, each on a key of its own."""

    rows: list[tuple[int, ...]] = field(default_factory=list)
    ops: int = 0

    @classmethod
    def of(cls, histories: Sequence[tuple[Act, ...]]) -> "Table":
        table = cls()
        for key, acts in enumerate(histories):
            table.add(key, acts)
        return table

    def columns(self) -> dict[str, Ints]:
        """The rows as kernels take them: arrays by name, with numbers for what is absent."""
        columns = {}
        for number, name in enumerate(COLUMNS):
            absent = ABSENT if name in ("value", "offset") else -1
            column = [absent if row[number] is None else int(row[number]) for row in self.rows]
            columns[name] = np.array(column, np.int64)
        return columns

    def add(self, key: int, acts: tuple[Act, ...]) -> None:
        for act in acts:
            op = self.ops
            self.ops += 1
            head = (act.process + 100 * key, op)
            reads = act.f in (F.DEQUEUE, F.COUNT)
            asked = None if reads else act.value
            self._row(act.call, *head, Type.INVOKE, act.f, key, asked)
            if act.end is None:
                if act.told:
                    self._row(act.call + 1, *head, Type.INFO, act.f, key, None, act.offset)
                continue
            for pos, value in enumerate(act.seen):
                self._row(act.end, *head, Type.OK, act.f, key, value, None, pos)
            kind = Type.FAIL if act.failed else Type.OK
            pos_of = 0 if act.refused else None
            self._row(act.end, *head, kind, act.f, key, act.value, act.offset, pos_of)

    def _row(
        self,
        t: int,
        process: int,
        op: int,
        kind: Type,
        f: F,
        key: int,
        value: int | None = None,
        offset: int | None = None,
        pos: int | None = None,
    ) -> None:
        self.rows.append((t, process, op, kind, f, key, value, offset, pos, None))  # type: ignore[arg-type]
