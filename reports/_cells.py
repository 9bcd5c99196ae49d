"""All operations of a run in one small table: counts by time, outcome and latency.

One pass over the files of operations reduces each to *cells*: the number of operations of one kind
and outcome that completed in one bin of time and one bucket of latency. Cells merge by addition, so
files are read in parallel. The page draws throughput, quantiles and the density of all operations
from the same cells at any zoom; no data of the history's size reaches it. Bins are as narrow as
`MAX_BINS` allows, and wider if there were more than `MAX_CELLS` cells.

The lag of a consumer group is computed from offsets: for each queue the highest offset acknowledged
less the highest offset that the group received, summed over queues.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.reader import History, batches, looked_up
from harness.operation import DELIVERIES, F, Type

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

OCTAVE_BUCKETS = 8  # so a quantile is within five per cent of the truth
MIN_NS = 1_000
BUCKETS = 256  # up to an hour, and beyond
MAX_BINS = 2400
MAX_CELLS = 150_000
CHUNK_ROWS = 1 << 20
MAX_PLACES = 20_000_000  # queues times bins: more do not fit into memory
MAX_GROUPS = 6
READERS = 2  # files at a time
COLUMNS = ("t", "process", "op", "type", "f", "key", "offset", "pos", "mop")
READING = (*DELIVERIES, F.READ)
GROUP = re.compile(r" of (\S+)")
PROCESS = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True)
class CellLayer:
    """The operations of one kind and outcome: `at` is bin * BUCKETS + bucket, in order."""

    f: str
    outcome: str
    at: Ints
    n: Ints

    def plain(self) -> dict[str, Any]:
        """Return the page's data: each place as its distance from the one before."""
        steps = np.diff(self.at, prepend=0).tolist()
        return {"f": self.f, "outcome": self.outcome, "steps": steps, "n": self.n.tolist()}


@dataclass(frozen=True)
class Cells:
    """The page's data on operations. Times in ns since the run's start."""

    begin: int = 0
    bin_ns: int = 1_000_000
    count: int = 0
    layers: tuple[CellLayer, ...] = ()
    delivered: Mapping[str, Ints] = field(default_factory=dict)  # messages by bin
    lag: Mapping[str, Ints] = field(default_factory=dict)  # by group, at the end of each bin
    open: int = 0  # operations that never completed

    @property
    def end(self) -> int:
        return self.begin + self.bin_ns * self.count

    @property
    def cells(self) -> int:
        return sum(len(layer.at) for layer in self.layers)

    def plain(self) -> dict[str, Any]:
        return {
            "from": self.begin / 1e6,
            "bin": self.bin_ns / 1e6,
            "count": self.count,
            "buckets": BUCKETS,
            "octave": OCTAVE_BUCKETS,
            "least": MIN_NS / 1e6,
            "layers": [layer.plain() for layer in self.layers],
            "delivered": {f: n.tolist() for f, n in self.delivered.items()},
            "lag": {group: n.tolist() for group, n in self.lag.items()},
        }

    def coarser(self) -> "Cells":
        """Return the same with bins of twice the width."""
        half = (self.count + 1) // 2
        return Cells(
            self.begin,
            self.bin_ns * 2,
            half,
            tuple(_halved(layer) for layer in self.layers),
            {f: np.add.reduceat(n, np.arange(0, self.count, 2)) for f, n in self.delivered.items()},
            {
                g: n[np.minimum(np.arange(half) * 2 + 1, self.count - 1)]
                for g, n in self.lag.items()
            },
            self.open,
        )


def count_cells(history: History, names: Mapping[str, Any]) -> Cells:
    """Return the cells of all operations, in one pass."""
    writers = history.writers
    span = _span(path for paths in writers.values() for path in paths)
    if span is None:
        return Cells()
    frame = _CellFrame.of(*span, names, again="imported" not in history.state)
    with ThreadPoolExecutor(READERS) as readers:
        spreads = map(history.spread_ns, writers)
        parts = list(readers.map(lambda p, s: _reduced(p, frame, s), writers.values(), spreads))
    whole = _merged(parts, frame)
    while whole.cells > MAX_CELLS:
        whole = whole.coarser()
    return whole


# --------------------------------------------------------------------------------------- a frame


@dataclass(frozen=True)
class _CellFrame:
    """The common frame of all files."""

    begin: int
    bin_ns: int
    count: int
    keys: int
    groups: tuple[str, ...]
    group_of: Ints  # by process; -1: of none
    again: bool  # higher numbers are the same clients after a restart of their process

    @classmethod
    def of(cls, first: int, last: int, names: Mapping[str, Any], *, again: bool) -> "_CellFrame":
        width = bin_ns(last - first + 1)
        begin = first // width * width
        count = (last - begin) // width + 1
        keys = names.get("keys")
        groups, group_of = _groups(names.get("processes"))
        places = len(keys) * count * (len(groups) + 1) if isinstance(keys, list) else 0
        places_known = len(keys) if isinstance(keys, list) and places <= MAX_PLACES else 0
        return cls(begin, width, count, places_known, groups, group_of, again)

    def bins(self, t: Ints) -> Ints:
        return (t - self.begin) // self.bin_ns

    def groups_of(self, process: Ints) -> Ints:
        """Return the number of each process's group; -1: of none."""
        every = len(self.group_of)
        if not every:
            return np.full(len(process), -1, np.int64)
        valid = (process >= 0) & (self.again | (process < every))
        return np.where(valid, self.group_of[process % every], -1)


def bin_ns(length: int) -> int:
    """Return the narrowest of 1, 2, 5 times a power of ten that needs at most MAX_BINS bins."""
    power = 1_000
    while True:
        for step in (1, 2, 5):
            if length <= power * step * MAX_BINS:
                return power * step
        power *= 10


def _groups(processes: Any) -> tuple[tuple[str, ...], Ints]:
    """Return the consumer groups, from process names in names.json: `consumer 0 of billing on
    client-1`."""
    named = processes if isinstance(processes, Mapping) else {}
    names = {int(p): str(name) for p, name in named.items() if PROCESS.fullmatch(str(p))}
    found: dict[int, str] = {}
    for number, name in names.items():
        match = GROUP.search(name)
        if match and name.startswith("consumer"):
            found[number] = match[1]
    groups = tuple(sorted(set(found.values())))[:MAX_GROUPS]
    group_of = np.full(max(names, default=-1) + 1, -1, np.int64)
    for number, group in found.items():
        group_of[number] = groups.index(group) if group in groups else -1
    return groups, group_of


def _span(paths: Iterable[Path]) -> tuple[int, int] | None:
    """Return the first and the last time of all operations."""
    ends = [pc.min_max(batch["t"]).as_py() for path in paths for batch in batches(path, ("t",))]
    finite = [end for end in ends if end["min"] is not None]
    if not finite:
        return None
    return min(end["min"] for end in finite), max(end["max"] for end in finite)


# --------------------------------------------------------------------------------------- a file


@dataclass
class _WriterCells:
    """The cells of one writer's files."""

    keys: Ints  # ((f * 4 + outcome) * bins + bin) * BUCKETS + bucket
    n: Ints
    delivered: dict[int, Ints]
    sent: Ints | None  # by queue and bin: highest offset acknowledged, plus one
    given: Ints | None  # by group, queue and bin: highest offset received, plus one
    open: int = 0


def _reduced(paths: Sequence[Path], frame: _CellFrame, spread_ns: int) -> _WriterCells:
    """Count one writer's operations, in order; each latency is `spread_ns` shorter than its times
    show."""
    shape = (frame.keys, frame.count)
    part = _WriterCells(
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        {int(f): np.zeros(frame.count, np.int64) for f in READING},
        np.zeros(shape, np.int64) if frame.keys else None,
        np.zeros((len(frame.groups), *shape), np.int64) if frame.keys and frame.groups else None,
    )
    waiting = (np.empty(0, np.int64), np.empty(0, np.int64))
    for columns in _chunks(paths):
        waiting = _count(columns, frame, part, waiting, spread_ns)
    part.open = len(waiting[0])
    return part


def _chunks(paths: Sequence[Path]) -> Iterator[Mapping[str, Ints]]:
    pending: list[pa.RecordBatch] = []
    rows = 0
    for path in paths:
        for batch in batches(path, COLUMNS):
            pending.append(batch)
            rows += batch.num_rows
            if rows >= CHUNK_ROWS:
                yield _columns(pending)
                pending, rows = [], 0
    if rows:
        yield _columns(pending)


def _columns(parts: Sequence[pa.RecordBatch]) -> Mapping[str, Ints]:
    """Return columns as integers, absent as -1."""
    table = pa.Table.from_batches(parts)
    return {name: table.column(name).cast(pa.int64()).fill_null(-1).to_numpy() for name in COLUMNS}


def _count(
    rows: Mapping[str, Ints],
    frame: _CellFrame,
    part: _WriterCells,
    waiting: tuple[Ints, Ints],
    spread_ns: int,
) -> tuple[Ints, Ints]:
    """Add a chunk; return the operations that are still open, and the times of their
    invocations."""
    alone = ((rows["pos"] < 0) | (rows["f"] == F.CAS)) & (rows["mop"] < 0)
    starts = alone & (rows["type"] == Type.INVOKE)
    ends = np.flatnonzero(alone & ~starts)
    op = np.concatenate([waiting[0], rows["op"][starts]])
    at = np.concatenate([waiting[1], rows["t"][starts]])
    order = np.argsort(op, kind="stable")
    op, at = op[order], at[order]
    begun = looked_up(rows["op"][ends], op, at)
    bins = frame.bins(rows["t"][ends])
    kind = rows["f"][ends] * 4 + rows["type"][ends]
    took = np.where(begun >= 0, rows["t"][ends] - begun - spread_ns, MIN_NS)
    keys, n = np.unique((kind * frame.count + bins) * BUCKETS + bucket_of(took), return_counts=True)
    part.keys, part.n = _added(
        np.concatenate([part.keys, keys]), np.concatenate([part.n, n.astype(np.int64)])
    )
    _messages(rows, frame, part)
    closed = np.sort(rows["op"][ends])
    still = looked_up(op, closed, closed) < 0
    return op[still], at[still]


def _messages(rows: Mapping[str, Ints], frame: _CellFrame, part: _WriterCells) -> None:
    """Count deliveries, and update the highest offsets sent and received."""
    ok, single = rows["type"] == Type.OK, rows["pos"] < 0
    for f, counts in part.delivered.items():
        given = np.flatnonzero((rows["f"] == f) & ok & ~single)
        np.add.at(counts, frame.bins(rows["t"][given]), 1)
        if f in DELIVERIES and part.given is not None:
            group = frame.groups_of(rows["process"][given])
            _furthest(part.given, rows, frame, given[group >= 0], group[group >= 0])
    if part.sent is not None:
        _furthest(part.sent, rows, frame, np.flatnonzero((rows["f"] == F.SEND) & ok & single))


def _furthest(
    most: Ints, rows: Mapping[str, Ints], frame: _CellFrame, at: Ints, group: Ints | None = None
) -> None:
    """Update the highest offset of each queue in each bin, plus one."""
    valid = (rows["key"][at] >= 0) & (rows["key"][at] < frame.keys) & (rows["offset"][at] >= 0)
    at = at[valid]
    place: tuple[Ints, ...] = (rows["key"][at], frame.bins(rows["t"][at]))
    place = place if group is None else (group[valid], *place)
    np.maximum.at(most, place, rows["offset"][at] + 1)


def bucket_of(latency_ns: Ints) -> Ints:
    """Return the bucket of each latency: eight an octave, from one microsecond."""
    ratio = np.maximum(latency_ns, MIN_NS) / MIN_NS
    bucket: Ints = np.floor(np.log2(ratio) * OCTAVE_BUCKETS).astype(np.int64)
    return np.minimum(bucket, BUCKETS - 1)


# --------------------------------------------------------------------------------------- together


def _added(keys: Ints, n: Ints) -> tuple[Ints, Ints]:
    """Return distinct keys in order, with the sums of their counts."""
    distinct, at = np.unique(keys, return_inverse=True)
    return distinct, np.bincount(at, n, len(distinct)).astype(np.int64)


def _merged(parts: Sequence[_WriterCells], frame: _CellFrame) -> Cells:
    keys, n = _added(
        np.concatenate([part.keys for part in parts]), np.concatenate([part.n for part in parts])
    )
    size = frame.count * BUCKETS
    kinds = keys // size
    layers = [
        _layer(int(kind), keys[kinds == kind] % size, n[kinds == kind]) for kind in np.unique(kinds)
    ]
    delivered = {F(f): sum(part.delivered[int(f)] for part in parts) for f in READING}
    return Cells(
        frame.begin,
        frame.bin_ns,
        frame.count,
        tuple(layer for layer in layers if layer),
        {f.name.lower(): np.asarray(n) for f, n in delivered.items() if np.any(n)},
        _lag(parts, frame),
        sum(part.open for part in parts),
    )


def _layer(kind: int, at: Ints, n: Ints) -> CellLayer | None:
    """Return a layer; None for a kind or an outcome of a newer version."""
    try:
        return CellLayer(F(kind // 4).name.lower(), Type(kind % 4).name.lower(), at, n)
    except ValueError:
        return None


def _lag(parts: Sequence[_WriterCells], frame: _CellFrame) -> dict[str, Ints]:
    sent = [part.sent for part in parts if part.sent is not None]
    given = [part.given for part in parts if part.given is not None]
    if not sent or not given:
        return {}
    acked = np.maximum.accumulate(np.maximum.reduce(sent), axis=1)
    read = np.maximum.accumulate(np.maximum.reduce(given), axis=2)
    return {
        group: np.maximum(acked - read[number], 0).sum(axis=0)
        for number, group in enumerate(frame.groups)
        if read[number].any()
    }


def _halved(layer: CellLayer) -> CellLayer:
    bins, bucket = np.divmod(layer.at, BUCKETS)
    at, n = _added(bins // 2 * BUCKETS + bucket, layer.n)
    return CellLayer(layer.f, layer.outcome, at, n)
