"""The journal: the crash-safe, append-only form of a history while it is being written.

Each process of the harness writes its own files, one stream of Arrow record batches (zstd) for each
table, so no process waits for another. Three rules make a journal survive a kill -9 at any moment:

* a batch reaches the file by *one* write, so what is lost is at most the last batch;
* the file only grows, and a new one is begun every 64 MB, so a torn tail is the only damage a
  killed writer can do, and `read_stream` stops cleanly in front of it;
* beside each file an eight-byte counter, mapped into memory, holds the number of rows written. It
  is set after the write, so a file with fewer rows than its counter has been damaged since.

A batch is flushed when it holds 8,192 rows, or 50 ms after its first row by the event loop's timer;
a *patient* journal, of a run that can be repeated, waits until it is full. Integer tables pack each
row into a preallocated buffer, which numpy then reads as columns: no Python object is kept. In
columns that may be null, NONE (-1) is null.
"""

import asyncio
import fcntl
import mmap
import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from harness.errors import BedFailed
from harness.history.row_stream import BATCH_ROWS as BATCH_ROWS
from harness.history.row_stream import FLUSH_AFTER_S
from harness.history.schema import TABLES
from harness.operation import NONE

ROLL_BYTES = 64 << 20
MAX_BATCH_BYTES = 64 << 20  # unpacked; a journal's own batches have 8,192 rows

_OPTIONS = pa.ipc.IpcWriteOptions(
    compression=pa.Codec("zstd", compression_level=1), use_threads=False
)
_COUNTER = struct.Struct("<q")
_STRUCT_CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}


class _PandasFinder:
    """Finds pandas nowhere."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def skip_pandas() -> None:
    """Keep pyarrow from importing pandas in this process, for those that never use it.

    pyarrow imports it at the first array, to recognise its objects; that takes 0.4 s, more than all
    else that a client process imports. It still imports it where a table is converted to pandas.
    """
    finder: Any = _PandasFinder()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class TableJournal:
    """One writer's stream of one table: `append` rows, `close` at the end."""

    def __init__(
        self,
        folder: Path,
        table: str,
        writer: str,
        roll_bytes: int = ROLL_BYTES,
        *,
        patient: bool = False,
    ) -> None:
        self._schema, self._patient = TABLES[table], patient
        self._folder, self._stem, self._roll_bytes = folder, f"{table}-{writer}", roll_bytes
        self._pending = _row_buffer(self._schema)
        self._append = self._pending.append
        self._timer: asyncio.TimerHandle | None = None
        self._file = self._next_file()

    def append(self, row: tuple[Any, ...]) -> None:
        """Append a row in the schema's order. Times must not go back."""
        if self._append(row) == BATCH_ROWS:
            self._flush_now()
        elif self._timer is None and not self._patient:
            self._timer = self._start_timer()

    def append_columns(self, columns: Mapping[str, Any]) -> None:
        """Append many rows at once, as equally long arrays by column; columns left out are null."""
        self._flush_now()
        rows = len(next(iter(columns.values())))
        batch = pa.record_batch(
            [_array(columns.get(f.name), f, rows) for f in self._schema], schema=self._schema
        )
        for start in range(0, rows, BATCH_ROWS):
            self._write(batch.slice(start, BATCH_ROWS))

    def flush(self) -> None:
        """Write pending rows, unless patient. Raises BedFailed if the disk refuses it."""
        if not self._patient:
            self._flush_now()

    def close(self) -> None:
        self._flush_now()
        self._file.close()

    def _flush_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending.rows:
            self._write(self._pending.take())

    def _write(self, batch: pa.RecordBatch) -> None:
        self._file.write(batch)
        if self._file.bytes >= self._roll_bytes:
            self._file.close()
            self._file = self._next_file()

    def _start_timer(self) -> asyncio.TimerHandle | None:
        """Start the flush timer; without an event loop (an importer, a test) the caller flushes."""
        try:
            return asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self.flush)
        except RuntimeError:
            return None

    def _next_file(self) -> "_StreamFile":
        """Open the first file whose number is free: a writer that restarts adds files."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for number in count():
            path = self._folder / f"{self._stem}-{number:03}.arrows"
            if not path.exists() and not path.with_suffix(".count").exists():
                return _StreamFile(path, self._schema)
        raise AssertionError("unreachable")


class _StreamFile:
    """One `.arrows` file and its `.count`; each batch is one write."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self._chunks, self._rows, self.bytes = path, list[bytes](), 0, 0
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # so that it is not sealed
            self._counter = _mapped_counter(path.with_suffix(".count"))
        except OSError as e:
            raise _write_error(path, e) from e
        sink = pa.PythonFile(_Chunks(self._chunks), mode="w")
        self._stream = pa.ipc.new_stream(sink, schema, options=_OPTIONS)
        self._stream.write_table(schema.empty_table())  # else the schema is written with a batch
        self._emit()

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write_batch(batch)
        self._emit()
        self._rows += batch.num_rows
        _COUNTER.pack_into(self._counter, 0, self._rows)

    def close(self) -> None:
        self._stream.close()
        self._emit()
        os.close(self._descriptor)
        self._counter.close()

    def _emit(self) -> None:
        """Write everything that Arrow produced, in one write; a file never keeps half a batch, nor
        a hole where one was refused."""
        data = memoryview(b"".join(self._chunks))
        self._chunks.clear()
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self.bytes + written)
        except OSError as e:
            os.ftruncate(self._descriptor, self.bytes)
            raise _write_error(self._path, e) from e
        self.bytes += len(data)


class _Chunks:
    """The file object that Arrow writes a batch into, piece by piece."""

    closed = False

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def write(self, data: bytes) -> int:
        self._chunks.append(bytes(data))
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _mapped_counter(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, bytes(_COUNTER.size))  # allocate it: later the disk may be full
        return mmap.mmap(descriptor, _COUNTER.size)
    finally:
        os.close(descriptor)


def _write_error(path: Path, error: OSError) -> BedFailed:
    return BedFailed(
        f"cannot write the journal {path}: {error.strerror}; "
        "free space or choose another folder for runs"
    )


# ------------------------------------------------------------------------------- pending rows


class _RowBuffer(Protocol):
    rows: int

    def append(self, row: tuple[Any, ...]) -> int:
        """Add a row; return the number of pending rows."""
        ...

    def take(self) -> pa.RecordBatch: ...


def _row_buffer(schema: pa.Schema) -> _RowBuffer:
    integers = all(pa.types.is_integer(field.type) for field in schema)
    return _PackedRows(schema) if integers else _ObjectRows(schema)


class _PackedRows:
    """Rows of integers, packed one after the other and read back as strided columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows, self._schema = 0, schema
        codes = "".join(_STRUCT_CODES[str(field.type)] for field in schema)
        row = struct.Struct("<" + codes)
        self._pack, self._size = row.pack_into, row.size
        self._buffer = bytearray(row.size * BATCH_ROWS)
        fields = [(field.name, field.type.to_pandas_dtype()) for field in schema]
        self._columns = np.frombuffer(self._buffer, dtype=np.dtype(fields))
        self.take()  # pyarrow loads what it needs at the first batch: now rather than under load

    def append(self, row: tuple[Any, ...]) -> int:
        rows = self.rows
        self._pack(self._buffer, rows * self._size, *row)
        self.rows = rows + 1
        return rows + 1

    def take(self) -> pa.RecordBatch:
        rows, self.rows = self.rows, 0
        filled = self._columns[:rows]
        arrays = [_array(filled[field.name], field, rows) for field in self._schema]
        return pa.record_batch(arrays, schema=self._schema)


class _ObjectRows:
    """Rows with strings, few and small."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows, self._schema, self._pending = 0, schema, list[tuple[Any, ...]]()

    def append(self, row: tuple[Any, ...]) -> int:
        if len(row) != len(self._schema):
            raise ValueError(f"a row has {len(self._schema)} columns, not {len(row)}: {row}")
        self._pending.append(row)
        self.rows += 1
        return self.rows

    def take(self) -> pa.RecordBatch:
        columns = zip(*self._pending, strict=True)
        arrays = [_array(c, f, self.rows) for c, f in zip(columns, self._schema, strict=True)]
        self.rows, self._pending = 0, []
        return pa.record_batch(arrays, schema=self._schema)


def _array(column: Any, field: pa.Field, rows: int) -> pa.Array:
    """Return one column; where null is possible, NONE and None are null."""
    if column is None:
        return pa.nulls(rows, field.type)
    absent_possible = field.nullable and pa.types.is_integer(field.type)
    if isinstance(column, np.ndarray):
        mask = column == NONE if absent_possible else None
        return pa.array(column, field.type, mask=mask)
    if absent_possible:
        return pa.array([None if item == NONE else item for item in column], field.type)
    return pa.array(column, field.type)


# ------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Damage:
    """A journal that could be read only up to some row."""

    path: Path
    rows: int
    why: str

    def __str__(self) -> str:
        return f"the file {self.path.name} is readable up to row {self.rows}: {self.why}"


# What Arrow raises for malformed bytes; a stated size may be 2**60 bytes.
UNREADABLE = (pa.ArrowException, MemoryError, OSError, EOFError, ValueError)


def damage_text(error: Exception) -> str:
    """Describe in a line why something is unreadable."""
    lines = str(error).splitlines() or [type(error).__name__]
    return f"torn or foreign data ({lines[0]})"


def read_stream(path: Path, damage: list[Damage] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a journal up to a torn tail, which is added to `damage`.

    A stream without an end mark is sound as long as it holds what its counter says: its writer was
    killed between two batches. An empty file is one whose writer had not begun to write.
    """
    rows = 0
    why = ""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            for batch in _batches(path, file) if size else ():
                yield batch
                rows += batch.num_rows
            if file.tell() < size and not _only_end_mark(file):
                why = "bytes follow its end"
        except UNREADABLE as e:
            why = damage_text(e)
    announced = announced_rows(path)
    if not why and announced is not None and rows < announced:
        why = f"its writer counted {announced} rows"
    if why and damage is not None:
        damage.append(Damage(path, rows, why))


def announced_rows(path: Path) -> int | None:
    """Return how many rows the writer counted in this journal; None if there is no counter."""
    counter = path.with_suffix(".count")
    if not counter.is_file() or counter.stat().st_size < _COUNTER.size:
        return None
    value: int = _COUNTER.unpack(counter.read_bytes()[: _COUNTER.size])[0]
    return value


def _batches(path: Path, file: Any) -> Iterator[pa.RecordBatch]:
    messages = pa.ipc.MessageReader.open_stream(file)
    first = next(messages, None)
    if first is None:
        raise ValueError("it has no columns")
    schema = pa.ipc.read_schema(first)
    expected = TABLES.get(table_of(path))
    if expected is not None and not schema.equals(expected):
        raise ValueError("its columns are not those of the table")
    for message in messages:
        size = unpacked_bytes(message)
        if size > MAX_BATCH_BYTES:
            raise ValueError(f"a batch of {size:,} bytes; at most {MAX_BATCH_BYTES:,} are read")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)  # offsets of a damaged one may point beyond its buffers
        yield batch


def unpacked_bytes(message: pa.ipc.Message) -> int:
    """Return the size of a record batch when its buffers are unpacked, from the batch's header: a
    compressed buffer begins with its size (Arrow's Message.fbs; tables are FlatBuffers).

    Raises ValueError if there is no such batch.
    """
    data, body = message.metadata, message.body

    def number(form: str, at: int) -> int:
        if not 0 <= at <= len(data) - struct.calcsize(form):
            raise ValueError("the header of a batch points beyond its end")
        value: int = struct.unpack_from(form, data, at)[0]
        return value

    def place(table: int, slot: int) -> int:
        """Where a field of a table is; 0 if it is absent."""
        fields = table - number("<i", table)
        inside = 4 + 2 * slot < number("<H", fields)
        at = number("<H", fields + 4 + 2 * slot) if inside else 0
        return table + at if at else 0

    def target(at: int) -> int:
        return at + number("<I", at)

    batch = target(place(target(0), 2))
    buffers = target(place(batch, 2))
    unpacked = bool(place(batch, 3))
    size = 0
    for one in range(number("<I", buffers)):
        at, length = (number("<q", buffers + 4 + 16 * one + half) for half in (0, 8))
        if not 0 <= at <= at + length <= body.size:
            raise ValueError("a buffer of a batch extends beyond its end")
        stated = struct.unpack_from("<q", body, at)[0] if unpacked and length >= 8 else -1
        size += max(length, stated)
    return size


def _only_end_mark(file: Any) -> bool:
    return not file.read().strip(b"\xff\x00")


def table_of(path: Path) -> str:
    """Return the table: ops-client-1-000.arrows -> ops."""
    return path.name.split("-", 1)[0]


def writer_of(path: Path) -> str:
    """Return the writer: ops-client-1-000.arrows -> client-1."""
    return path.stem.split("-", 1)[-1].rsplit("-", 1)[0]


def count_rows(paths: Sequence[Path]) -> int:
    """Return how many rows these journals hold, ignoring damage."""
    return sum(batch.num_rows for path in paths for batch in read_stream(path))
