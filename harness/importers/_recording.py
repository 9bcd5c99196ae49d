"""What an importer reads from a file, as columns: events, their parts, and the file's slips.

    Events   one row for each line that invokes or completes an operation, in the file's order
    PARTS    what an event says about objects: key, value, offset ...; an event has several rows
    Slip     a line that breaks a rule; `gap`: without it, part of the history may be missing

Keys and values are whole numbers, or all of them texts if one of them is not. Absent is null.
`PartsBuilder` collects parts row by row; formats of large histories make columns with numpy.

`KINDS` lists what a history can be about: the checkers that judge it, and the operations of which
at least one must have succeeded. A history without such a success proves nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.operation import F, Type
from harness.trial import ISOLATION

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_SHOWN = 20  # slips of one rule whose messages are kept
MAX_NUMBER = 1 << 62
SAME = -1  # type of a part: the type of its event
UNTIMED = -1  # time of an event in a file without times
NO_ERROR, FAILED, EMPTY = range(3)  # a completion's error; EMPTY: the object held nothing

# the parts of one event are adjacent and in order; `event` is the event's index
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
NO_LOSS = "no-loss"
QUEUE = ("at-least-once", "order-per-queue")


@dataclass(frozen=True)
class HistoryKind:
    """What a history is about.

    needs     of each group of operations at least one must have completed ok
    quantity  the column, `value` or `arg`, that holds numbers to calculate with; others hold names
    unused    which of `value` and `arg` no operation of this kind has; it is ignored
    parted    additional checkers where operations have several parts
    contract  demands that --contract can name; linearizability of objects is always demanded
    """

    checkers: tuple[str, ...]
    needs: tuple[tuple[F, ...], ...]
    quantity: str = ""
    unused: tuple[str, ...] = ("arg",)
    parted: tuple[str, ...] = ()
    contract: tuple[str, ...] = ()


KINDS = {
    "messages": HistoryKind(
        ("loss", "phantom", "duplicates", "order", "offsets", "linearizable"),
        ((F.SEND,), (F.POLL, F.READ)),
        parted=("interleaving",),
        contract=(NO_LOSS, *QUEUE, *ISOLATION),
    ),
    "registers": HistoryKind(("registers",), ((F.PUT, F.CAS, F.APPEND), (F.GET,)), unused=()),
    "mutex": HistoryKind(("registers",), ((F.CAS,),), unused=()),
    "transactions": HistoryKind(
        ("transactions",), ((F.APPEND, F.PUT), (F.LIST, F.GET)), unused=(), contract=ISOLATION
    ),
    "queue": HistoryKind(("objects",), ((F.ENQUEUE,), (F.DEQUEUE,)), contract=(NO_LOSS, *QUEUE)),
    "set": HistoryKind(("objects",), ((F.ADD,), (F.LIST,)), contract=(NO_LOSS,)),
    "counter": HistoryKind(("objects",), ((F.ADD,), (F.COUNT,)), "value"),
    "lock": HistoryKind(("objects",), ((F.ACQUIRE,), (F.RELEASE,)), "arg", ("value",)),
}


@dataclass(frozen=True)
class Slip:
    """A line that breaks a rule. `line` 0: the file as a whole; `column` from 1, 0: unknown."""

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
    """All slips of a file: exact counts by rule, and the messages of the first few of each rule."""

    counts: Counter[str] = field(default_factory=Counter)
    first: list[Slip] = field(default_factory=list)
    gaps: bool = False
    _shown: Counter[str] = field(default_factory=Counter)

    def add(self, slip: Slip, count: int = 1) -> None:
        """Add `count` slips of one rule, of which `slip` is the first."""
        self._show(slip)
        self.counts[slip.rule] += count
        self.gaps |= slip.gap

    def add_all(self, others: "Slips") -> None:
        for slip in others.first:
            self._show(slip)
        self.counts.update(others.counts)
        self.gaps |= others.gaps

    def _show(self, slip: Slip) -> None:
        if self._shown[slip.rule] < MAX_SHOWN:
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
    f: Ints  # the kind of operation, numbered by the importer
    error: Ints  # NO_ERROR, FAILED or EMPTY

    def __len__(self) -> int:
        return len(self.line)

    def take(self, at: Ints) -> "Events":
        return Events(*(getattr(self, name)[at] for name in self.__dataclass_fields__))

    @classmethod
    def concatenated(cls, pieces: Sequence["Events"]) -> "Events":
        names = cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(one, name) for one in pieces]) for name in names))


@dataclass(frozen=True)
class HistoryNote:
    """A note for the history, with an event's process and time. `keys`: texts of keys, which the
    note refers to by number. `alone`: the note has that time, but no process."""

    event: int
    text: str
    keys: tuple[str, ...] | None = None
    alone: bool = False


@dataclass
class Recording:
    """A history file as it was read.

    kind            what its operations are about, a key of `KINDS`
    strict          the order of lines is the order of events, whatever their times are
    completed_only  no line invokes an operation
    initial         what each object held at first, as the file would write it
    caveats         sentences to show with the verdict
    """

    kind: str
    events: Events
    parts: pa.Table
    slips: Slips
    notes: Sequence[HistoryNote] = ()
    strict: bool = False
    completed_only: bool = False
    initial: str | None = None
    caveats: Sequence[str] = ()


class PartsBuilder:
    """Collects parts row by row."""

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

    def truncate(self, length: int) -> None:
        """Remove all rows but the first `length`."""
        for column in self._columns.values():
            del column[length:]

    def add_read(
        self, event: int, f: F, key: Any, values: Sequence[Any], mop: int | None = None
    ) -> None:
        """Add what a read of a whole object returned: a row for each element, and a last one."""
        n = len(values)
        same = {"event": event, "f": f, "type": Type.OK, "key": key, "mop": mop}
        cells = {"value": values, "pos": range(n)}
        for name, column in self._columns.items():
            column.extend(cells.get(name, [same.get(name)] * n))
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


def use_system_memory() -> None:
    """Let Arrow take its memory from the C library, which keeps what is freed for the next array:
    new pages of large arrays cost as much as what is done with them."""
    pa.set_memory_pool(pa.system_memory_pool())


def concatenated(tables: Sequence[pa.Table], starts: Sequence[int]) -> pa.Table:
    """Concatenate the parts of consecutive pieces; `starts`: the first event of each piece."""
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


def is_one_of(kinds: npt.NDArray[Any], wanted: Iterable[int]) -> Bools:
    """Return where an array has one of a few numbers: numpy's own search sorts the array."""
    found = np.zeros(len(kinds), np.bool_)
    for one in wanted:
        found |= kinds == one
    return found


def _numbers_or_texts(cells: list[Any]) -> pa.Array:
    try:
        return pa.array(cells, pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())
