"""What an importer reads from a file, as columns: events, what they say, and the file's slips.

    Events   one row per line that invokes or completes an operation, in the file's order
    PARTS    what the events say of objects: a key, a value, an offset ...; several rows an event
    Slip     a line that breaks a rule; `gap`: something that happened may be missing without it

Keys and values are whole numbers, or all of them texts when one of them is not. Absent is null.
`Sheet` gathers parts row by row; a format that is worth it makes its columns with numpy instead.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.operation import F, Type

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_SHOWN = 20  # slips of one rule that are kept in words
LARGEST = 1 << 62
SAME = -1  # the type of a part: its event's
UNTIMED = -1  # the time of an event in a file without times
NO_ERROR, FAILED, EMPTY = range(3)  # what a completion's error says: EMPTY: there was nothing

# one event's parts stand together, in their order; `event` is its index
PARTS = {
    "event": pa.int64(),
    "f": pa.int8(),
    "type": pa.int8(),
    "key": pa.int64(),  # or string
    "value": pa.int64(),  # or string
    "arg": pa.int64(),  # as value
    "offset": pa.int64(),
    "pos": pa.int32(),
    "mop": pa.int32(),
}
NAMED = ("key", "value", "arg")


@dataclass(frozen=True)
class Slip:
    """One line that breaks a rule. `line` 0: the file as a whole; `column` from 1, 0: unknown."""

    rule: str
    line: int
    message: str
    column: int = 0
    gap: bool = False

    def __str__(self) -> str:
        column = f", column {self.column}" if self.column else ""
        where = f"line {self.line}{column}: " if self.line else ""
        return f"{where}{self.message}"


@dataclass
class Slips:
    """All slips of a file: exact counts by rule, and the first few of each in words."""

    counts: Counter[str] = field(default_factory=Counter)
    first: list[Slip] = field(default_factory=list)
    gaps: bool = False
    _shown: Counter[str] = field(default_factory=Counter)

    def add(self, slip: Slip, count: int = 1) -> None:
        """A slip, or so many of its kind of which it is the first."""
        self._show(slip)
        self.counts[slip.rule] += count
        self.gaps |= slip.gap

    def add_all(self, others: "Slips") -> None:
        for slip in others.first:
            self._show(slip)
        self.counts.update(others.counts)
        self.gaps |= others.gaps

    def _show(self, slip: Slip) -> None:
        if self._shown[slip.rule] < MOST_SHOWN:
            self._shown[slip.rule] += 1
            self.first.append(slip)

    def __bool__(self) -> bool:
        return bool(self.counts)


@dataclass(frozen=True)
class Events:
    """Invocations and completions in the file's order."""

    line: Ints
    t: Ints  # ns, or UNTIMED
    type: Ints  # operation.Type
    process: Ints
    f: Ints  # what was asked, as a number of the importer's own
    error: Ints  # NO_ERROR, FAILED or EMPTY

    def __len__(self) -> int:
        return len(self.line)

    def take(self, at: Ints) -> "Events":
        return Events(*(getattr(self, name)[at] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Remark:
    """A note for the history, of an event's process and time; `keys`: texts of keys, which the
    note names by their numbers. `alone`: it is nobody's, at that time."""

    event: int
    text: str
    keys: tuple[str, ...] | None = None
    alone: bool = False


@dataclass
class Recording:
    """A file that was read; `kind`: what its operations are about (`kinds`). `strict`: its lines
    stand in the order of what happened, whatever their times are. `completed_only`: no line of it
    invokes anything. `initial`: what each object held at first, as the file would write it.
    `caveats`: what a reader of the verdict should know, in sentences."""

    kind: str
    events: Events
    parts: pa.Table
    slips: Slips
    remarks: Sequence[Remark] = ()
    strict: bool = False
    completed_only: bool = False
    initial: str | None = None
    caveats: Sequence[str] = ()


def joined(parts: Sequence[Events]) -> Events:
    names = Events.__dataclass_fields__
    return Events(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Sheet:
    """Parts, gathered row by row."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in PARTS}

    def __len__(self) -> int:
        return len(self._columns["event"])

    def add(
        self,
        event: int,
        f: F,
        key: Any = None,
        value: Any = None,
        arg: Any = None,
        *,
        offset: int | None = None,
        pos: int | None = None,
        mop: int | None = None,
        type: Type | int = SAME,  # noqa: A002 - the column's name
    ) -> None:
        row = (event, f, type, key, value, arg, offset, pos, mop)
        for column, cell in zip(self._columns.values(), row, strict=True):
            column.append(cell)

    def cut(self, length: int) -> None:
        """Take back all rows but the first so many."""
        for column in self._columns.values():
            del column[length:]

    def elements(
        self, event: int, f: F, key: Any, values: Sequence[Any], mop: int | None = None
    ) -> None:
        """What a read of a whole object returned: a row an element, and the row that ends it."""
        n = len(values)
        ones: dict[str, Iterable[Any]] = {
            "event": [event] * n,
            "f": [f] * n,
            "type": [Type.OK] * n,
            "key": [key] * n,
            "value": values,
            "arg": [None] * n,
            "offset": [None] * n,
            "pos": range(n),
            "mop": [mop] * n,
        }
        for name, column in self._columns.items():
            column.extend(ones[name])
        self.add(event, f, key, mop=mop)

    def table(self) -> pa.Table:
        return pa.table(
            {
                name: _numbers_or_texts(self._columns[name])
                if name in NAMED
                else pa.array(self._columns[name], kind)
                for name, kind in PARTS.items()
            }
        )


def together(tables: Sequence[pa.Table], starts: Sequence[int]) -> pa.Table:
    """Parts of consecutive pieces as one; `starts`: each piece's first event."""
    texts = {name for name in NAMED if any(pa.types.is_string(t.column(name).type) for t in tables)}
    if texts & {"value", "arg"}:
        texts |= {"value", "arg"}
    kinds = {name: pa.string() if name in texts else kind for name, kind in PARTS.items()}
    moved = []
    for table, start in zip(tables, starts, strict=True):
        columns = {name: table.column(name).cast(kind) for name, kind in kinds.items()}
        event = columns["event"].to_numpy() + start
        moved.append(pa.table({**columns, "event": pa.array(event, pa.int64())}))
    return pa.concat_tables(moved).combine_chunks()


def _numbers_or_texts(cells: list[Any]) -> pa.Array:
    try:
        return pa.array(cells, pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())
