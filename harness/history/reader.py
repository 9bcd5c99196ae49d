"""The history of one run, as checkers and reports read it.

What was recorded is in files, one writer each: Arrow streams in `journal/` until they are sealed,
Parquet in `history/` afterwards; a reader takes whichever there is. The tables and their
conventions are in `harness/history/schema.py`. Large tables (ops, replicas) are never collected:
checkers pass `files` to Spark. Small ones are read whole, once, and are attributes of `History`:
faults, events, notes, phases. The judge reads them before it runs the checkers; a report, which
shows what can be read, reads each of them when it needs it.

A torn or foreign file is read up to the damage, and one may be missing altogether; `damage` lists
these: what a checker finds "never sent" may be a record that was lost.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.contracts import CLIENT
from harness.errors import FetchFailed
from harness.history.faults_and_events import ClusterEvent, FaultInterval, fault_intervals
from harness.history.faults_and_events import events as cluster_events
from harness.history.journal import (
    UNREADABLE,
    Damage,
    announced_rows,
    damage_text,
    read_stream,
    table_of,
    writer_of,
)
from harness.history.notes import (
    CORRUPTED,
    DISK_FULL,
    DRAINED,
    FULL,
    GONE,
    NODE_GONE,
    NOT_DRAINED,
    PHASES,
)
from harness.history.object_store import StoredPath
from harness.history.rundir import RunDir
from harness.history.schema import (
    EVENTS,
    FAULTS,
    LARGE,
    NOTES,
    OPS,
    REPLICAS,
    SCHEMA_VERSION,
    TABLES,
)
from harness.judge.verdict import Reason

__all__ = [
    "CORRUPTED",
    "DRAINED",
    "EVENTS",
    "FAULTS",
    "NOTES",
    "NOT_DRAINED",
    "OPS",
    "PHASES",
    "REPLICAS",
    "SCHEMA_VERSION",
    "TABLES",
    "FileCount",
    "History",
    "Note",
    "batches",
    "pieces",
]

READ_AHEAD = ("files", "writers", "faults", "events", "notes", "phases", "complete", "damage")
READ_ROWS = 1 << 17
# how the note on a call that raised begins; of its text no more than that is shown
EXCEPTION = r"(?s)^(?P<name>[A-Z]\w*[a-z]\w*)(?:: (?P<text>.{0,300})|:|$)"
NAMED_ERRORS = 8  # names of exceptions whose first example is read
MAX_GROUP_ROWS, MAX_GROUP_BYTES = 1 << 20, 256 << 20  # of a sealed file's row groups
MAX_ROWS, MAX_TEXT_BYTES, MAX_BRACKETS = 2_000_000, 128 << 20, 4_000_000  # of a small table


@dataclass(frozen=True)
class FileCount:
    """Rows in one file, and the rows its writer counted; equal unless something was damaged."""

    file: str
    rows: int
    counted: int | None


@dataclass(frozen=True, slots=True)
class Note:
    """A note in the history; `process` and `op` say whose, if it has any."""

    t: int
    process: int | None
    op: int | None
    text: str


class ClientErrors(NamedTuple):
    """How many calls ended in exceptions of one name, and what the first of them was about; empty
    for names that are rare."""

    calls: int
    example: str = ""


@dataclass(frozen=True, eq=False)
class History:
    """One run's history. What is read from its files is an attribute, read once.

    shared  what one checker computed and others use too
    cut     files of small tables that were not read whole
    """

    run: RunDir
    names: Mapping[str, Any]
    state: Mapping[str, Any]
    shared: dict[str, Any] = field(default_factory=dict)
    cut: list[Damage] = field(default_factory=list)

    @classmethod
    def open(cls, run: RunDir) -> "History":
        return cls(run, run.names(), run.state())

    def read_ahead(self) -> None:
        """Read the small tables, and count the rows of all files."""
        for name in READ_AHEAD:
            getattr(self, name)

    @cached_property
    def files(self) -> Mapping[str, tuple[Path, ...]]:
        """Each table's files, in the order of their writers and numbers; sealed ones take
        precedence."""
        return {table: self._files(table) for table in TABLES}

    def _files(self, table: str) -> tuple[Path, ...]:
        by_stem = {path.stem: path for path in self.run.find("journal", f"{table}-*.arrows")}
        by_stem |= {path.stem: path for path in self.run.find("history", f"{table}-*.parquet")}
        return tuple(by_stem[stem] for stem in sorted(by_stem))

    @cached_property
    def writers(self) -> Mapping[str, tuple[Path, ...]]:
        """The files of the operations by writer: one process's rows, in time order."""
        by_writer: dict[str, tuple[Path, ...]] = {}
        for path in self.files["ops"]:
            name = writer_of(path)
            by_writer[name] = (*by_writer.get(name, ()), path)
        return by_writer

    def spread_ns(self, writer: str) -> int:
        """Return by how much this writer's operations look longer than they were: where its clock
        may be off, they are stamped early and late by the error (`harness.run.client_process`)."""
        clocks = self.state.get("clocks")
        clock = clocks.get(writer) if isinstance(clocks, dict) else None
        error_ns = clock.get("error_ns") if isinstance(clock, dict) else None
        return 2 * error_ns if isinstance(error_ns, int) and 0 < error_ns < 1 << 60 else 0

    def read(self, table: str) -> pa.Table:
        """Return a whole table; a small one up to its limits."""
        every = (batch for path in self.files[table] for batch in batches(path))
        parts = every if table in LARGE else self._small(table, self.cut)
        return pa.Table.from_batches(parts, TABLES[table])

    def _small(
        self, table: str, damage: list[Damage], remote: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a small table. What exceeds its limits is left out, and is `damage`.
        `remote`: files in storage are not kept."""
        size = np.zeros(3, np.int64)
        for path in self.files[table]:
            rows = 0
            try:
                for batch in batches(path, remote=remote, shared=True):
                    size += size_of(batch)
                    if (size > (MAX_ROWS, MAX_TEXT_BYTES, MAX_BRACKETS)).any():
                        damage.append(Damage(path, rows, _too_large(table)))
                        return
                    yield from pa.Table.from_batches([batch]).cast(TABLES[table]).to_batches()
                    rows += batch.num_rows
            except UNREADABLE as e:
                if remote and isinstance(path, StoredPath):  # an outage of storage is no damage
                    raise FetchFailed(f"{path.name} cannot be read in storage: {e}") from e
                damage.append(Damage(path, rows, damage_text(e)))

    @cached_property
    def faults(self) -> tuple[FaultInterval, ...]:
        """The last recorded state of each fault, in order of ids."""
        return fault_intervals(self.read("faults"))

    @cached_property
    def events(self) -> tuple[ClusterEvent, ...]:
        """The events that nodes and the runner logged, in order of time."""
        return cluster_events(self.read("events"))

    @cached_property
    def notes(self) -> Mapping[str, Sequence[Note]]:
        """The notes by their first word, each in order of time; no notes for other words."""
        rows = [
            Note(row["t"], row["process"], row["op"], row["text"] or "")
            for batch in self.read("notes").to_batches(READ_ROWS)
            for row in batch.to_pylist()
        ]
        by_kind: defaultdict[str, list[Note]] = defaultdict(list)
        for note in sorted(rows, key=lambda n: (n.t, n.text, str(n.process), str(n.op))):
            by_kind[note.text.split(" ", 1)[0]].append(note)
        return by_kind

    @cached_property
    def client_errors(self) -> Mapping[str, ClientErrors]:
        """The calls of clients that ended in an exception, by its name; the most frequent first."""
        notes = self.read("notes")
        texts = pc.filter(notes["text"], pc.is_valid(notes["op"]))
        found = pc.drop_null(pc.extract_regex(texts, EXCEPTION))
        counts = {
            row["values"]: int(row["counts"])
            for row in pc.struct_field(found, "name").value_counts().to_pylist()
        }
        names = sorted(counts, key=lambda name: (-counts[name], name))
        first = {name: self._first(found, name) for name in names[:NAMED_ERRORS]}
        return {name: ClientErrors(counts[name], first.get(name, "")) for name in names}

    @staticmethod
    def _first(found: Any, name: str) -> str:
        """Return what the first exception of this name said."""
        at = pc.index(pc.struct_field(found, "name"), name).as_py()
        return str(found[at]["text"].as_py() or "")

    @cached_property
    def phases(self) -> Mapping[str, int]:
        """When each phase began; a phase that was never reached is absent."""
        marks = (note for phase in PHASES for note in self.notes[phase] if note.text == phase)
        return {note.text: note.t for note in sorted(marks, key=lambda n: (n.t, n.text))}

    @property
    def ended(self) -> bool:
        """Whether the run came to its end, and every writer closed its journal."""
        return bool(self.state.get("ended", False))

    @cached_property
    def complete(self) -> bool:
        """Whether everything that was recorded is here, so that what is not here did not happen."""
        return not self.gaps

    @cached_property
    def gaps(self) -> frozenset[str]:
        """Tables of which something that was recorded may be missing.

        A client node that died for good may have lost the last rows of its client process; an
        imported file may have had lines that could not be read.
        """
        if not self.ended or self.state.get("gaps"):
            return frozenset(TABLES)
        roles = self.names.get("roles", {})
        clients_gone = any(roles.get(node) == CLIENT for node in self._lost(GONE))
        torn = {table_of(damage.path) for damage in self._inspected[1]}
        return frozenset(torn | ({"ops", "notes"} if clients_gone else set()))

    @property
    def interrupted(self) -> bool:
        """Whether it ended early: on request, because the test bed failed, or for an unknown
        reason."""
        stop_requested = bool(self.state.get("interrupted", False))
        return stop_requested or bool(self.cut_short) or not self.ended

    @property
    def cut_short(self) -> tuple[Reason, ...]:
        """Nodes that the test bed lost, for which the run was ended early."""
        gone = (
            Reason(
                NODE_GONE,
                f"{node} is gone for good ({why}), so the run was ended early and proves nothing; "
                "see that its host is up and can be reached, and run it again",
            )
            for node, why in sorted(self._lost(GONE).items())
        )
        full = (
            Reason(
                DISK_FULL,
                f"no space was left for {node} ({why}), so the run was ended early and proves "
                "nothing; free space there, or choose another folder, and run it again",
            )
            for node, why in sorted(self._lost(FULL).items())
        )
        return (*gone, *full)

    def _lost(self, how: str) -> Mapping[str, str]:
        lost = self.state.get(how)
        return lost if isinstance(lost, dict) else {}

    @property
    def counts(self) -> tuple[FileCount, ...]:
        """The rows of every file, and what the writers counted."""
        return tuple(self._inspected[0])

    @cached_property
    def row_counts(self) -> Mapping[str, int]:
        """How many rows each table holds."""
        rows = dict.fromkeys(TABLES, 0)
        for count in self.counts:
            rows[table_of(Path(count.file))] += count.rows
        return rows

    @cached_property
    def damage(self) -> tuple[Reason, ...]:
        """Why the history is not everything that was recorded."""
        return tuple(
            Reason("JOURNAL_DAMAGED", f"{d}; what comes after is missing from every check")
            for d in self._inspected[1]
        )

    @cached_property
    def _inspected(self) -> tuple[list[FileCount], list[Damage]]:
        counts: list[FileCount] = []
        damage: list[Damage] = []
        for table in TABLES:
            written = self._announced_by_stem(table)  # first: a new file gets its counter later
            files = self.files[table]
            damage += _missing(written, files)
            for path in files:
                announced = announced_rows(self.run.journal / f"{path.stem}.arrows")
                footer = _footer(path)
                rows = _rows(path, damage, footer)
                counts.append(FileCount(path.name, rows, announced))
                if path.suffix == ".parquet" and (why := _unreadable(path, footer)):
                    damage.append(Damage(path, rows, why))
                elif path.suffix == ".parquet" and announced is not None and rows < announced:
                    damage.append(Damage(path, rows, f"its writer counted {announced} rows"))
            if table not in LARGE:
                deque(self._small(table, damage, remote=True), maxlen=0)
        return counts, damage

    def _announced_by_stem(self, table: str) -> Mapping[str, int]:
        """Return how many rows the writers counted, by the stem of the file."""
        counters = self.run.journal.glob(f"{table}-*.count")
        return {path.stem: announced_rows(path) or 0 for path in counters}


def _missing(announced: Mapping[str, int], files: Sequence[Path]) -> Iterator[Damage]:
    """Yield files that were written and are gone: their counters, or later files of the writer, are
    there."""
    there = {path.stem for path in files}
    for stem, rows in sorted(announced.items()):
        if rows and stem not in there:
            yield _missing_file(stem, f"its writer counted {rows} rows")
    numbers: dict[str, set[int]] = {}
    for writer, _, number in (stem.rpartition("-") for stem in there | announced.keys()):
        if number.isdecimal():
            numbers.setdefault(writer, {-1}).add(int(number))
    for writer, numbers_of_writer in sorted(numbers.items()):
        for before, after in pairwise(sorted(numbers_of_writer)):
            if after > before + 1:
                yield _missing_file(
                    f"{writer}-{before + 1:03}", "a later one of its writer is there"
                )


def _missing_file(stem: str, why: str) -> Damage:
    return Damage(Path(f"{stem}.arrows"), 0, f"it is missing, and {why}")


class BatchSize(NamedTuple):
    """Rows, bytes of text, and brackets in the text: at most as many lists and objects, if it is
    JSON."""

    rows: int
    text: int
    brackets: int


def size_of(batch: pa.RecordBatch) -> BatchSize:
    """Return the size of a batch when each row has texts of its own."""
    text = brackets = 0
    for column in batch.columns:
        values, index = column, None
        if pa.types.is_dictionary(column.type):
            values, index = column.dictionary, column.indices
        if is_text(values.type):
            lengths = pc.binary_length(values)
            opened = pc.add(*(pc.count_substring(values, mark) for mark in "[{"))
            counts = (each if index is None else each.take(index) for each in (lengths, opened))
            more = [pc.sum(count.cast(pa.int64())).as_py() or 0 for count in counts]
            text, brackets = text + more[0], brackets + more[1]
    return BatchSize(batch.num_rows, text, brackets)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type has values of any length."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    plain = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(plain or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _too_large(table: str) -> str:
    return (
        f"{table} are read up to {MAX_ROWS:,} rows, {MAX_TEXT_BYTES >> 20} MB of text and "
        f"{MAX_BRACKETS:,} lists or objects"
    )


def looked_up(
    wanted: npt.NDArray[np.int64], keys: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the value of each wanted key, -1 if it is not in the sorted `keys`."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], -1)


def batches(
    path: Path,
    columns: Sequence[str] | None = None,
    remote: bool = False,
    shared: bool = False,
    trivial: Mapping[str, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in order, sealed or not; a torn one up to the damage.

    remote   columns of a sealed file in storage are read there, and it is not fetched
    shared   equal texts of a sealed file are dictionary-encoded, so that none is unpacked
    trivial  columns that batches of a sealed file may lack, as they have no number above these
    """
    if path.suffix == ".parquet":
        if not _unreadable(path, _footer(path) if remote else None):
            texts = [field.name for field in TABLES[table_of(path)] if is_text(field.type)]
            place = _parquet_source(path) if remote else path
            with pq.ParquetFile(place, read_dictionary=texts if shared else None) as file:
                if columns is None or not trivial:
                    yield from file.iter_batches(READ_ROWS, columns=columns, use_threads=False)
                else:
                    for group in range(file.num_row_groups):
                        needed = _not_trivial(file, group, columns, trivial)
                        yield from file.iter_batches(READ_ROWS, [group], needed, use_threads=False)
    else:
        for batch in _coalesced(read_stream(path)):
            yield batch.select(columns) if columns else batch


def _not_trivial(
    file: pq.ParquetFile,
    group: int,
    columns: Sequence[str],
    trivial: Mapping[str, int] | None = None,
) -> list[str]:
    """Return the columns of a row group that have to be read, by its statistics: those with any
    value, or of `trivial` ones those with a number above these."""
    contents, schema = file.metadata.row_group(group), file.schema_arrow
    needed = []
    for name in columns:
        at = schema.get_field_index(name) if trivial is None or name in trivial else -1
        known = contents.column(at).statistics if at >= 0 else None
        nothing = known and known.has_null_count and known.null_count == contents.num_rows
        low = trivial and known and known.has_min_max and known.max <= trivial[name]
        if not (nothing or low):
            needed.append(name)
    return needed


def pieces(path: Path) -> Iterator[Callable[[Sequence[str]], pa.RecordBatch]]:
    """Yield a file's rows in order, a piece at a time, each as a function that reads some of its
    columns; of a sealed file nothing else is read."""
    if path.suffix == ".parquet":
        if not _unreadable(path):
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    if file.metadata.row_group(group).num_rows:
                        yield partial(_read_group, file, group)
    else:
        for batch in _coalesced(read_stream(path)):
            yield batch.select


def _read_group(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> pa.RecordBatch:
    """Return columns of a row group; those without any value, by its statistics, are not read."""
    rows, stored = file.metadata.row_group(group).num_rows, file.schema_arrow
    needed = _not_trivial(file, group, columns)
    arrays = {n: pa.nulls(rows, stored.field(n).type) for n in columns if n not in needed}
    if needed:
        (read,) = file.iter_batches(rows, [group], needed, use_threads=False)
        arrays |= dict(zip(read.schema.names, read.columns, strict=True))
    return pa.RecordBatch.from_pydict(arrays)


def _coalesced(small: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of a useful size: journals of slow runs have a few rows in each."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in small:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= READ_ROWS:
            yield pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def _rows(path: Path, damage: list[Damage], footer: pa.Buffer | None) -> int:
    if path.suffix == ".parquet":
        if _unreadable(path, footer):
            return 0
        return int(pq.read_metadata(_source(footer, path)).num_rows)
    return sum(batch.num_rows for batch in read_stream(path, damage))


def _footer(path: Path) -> pa.Buffer | None:
    """Return the end of a sealed file in storage, which is not fetched for it."""
    if path.suffix == ".parquet" and isinstance(path, StoredPath) and not path.fetched:
        return pa.py_buffer(path.footer())
    return None


def _source(footer: pa.Buffer | None, path: Path) -> Any:
    return path if footer is None else pa.BufferReader(footer)


def _parquet_source(path: Path) -> Any:
    return path.open_remote() if isinstance(path, StoredPath) and not path.fetched else path


def _unreadable(path: Path, footer: pa.Buffer | None = None) -> str:
    """Return why a sealed file cannot be read at all; its list of contents is at its end."""
    try:
        metadata = pq.read_metadata(_source(footer, path))
        schema = metadata.schema.to_arrow_schema()
    except UNREADABLE as e:
        return damage_text(e)
    if not schema.equals(TABLES[table_of(path)]):
        return "its columns are not those of the table"
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        if group.num_rows > MAX_GROUP_ROWS or _unpacked_bytes(group) > MAX_GROUP_BYTES:
            return (
                f"a row group of {group.num_rows:,} rows and {_unpacked_bytes(group):,} bytes; at "
                f"most {MAX_GROUP_ROWS:,} rows and {MAX_GROUP_BYTES:,} bytes are read"
            )
    return ""


def _unpacked_bytes(group: pq.RowGroupMetaData) -> int:
    """Return the size of a row group without compression, by the file's list of contents."""
    columns = map(group.column, range(group.num_columns))
    return int(max(group.total_byte_size, sum(one.total_uncompressed_size for one in columns)))
