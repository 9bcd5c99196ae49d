"""The messages of a failed simulated run around its first violation: `messages.parquet`.

Nothing is recorded while thousands of seeds run. A simulated run is a function of its seed, so one
that failed is carried out a second time with recording on (`harness.campaign.simulation`), in a
window around its first violation. The file belongs to the run with the same digest. It is no table
of the history: checkers do not read it, and its damage is no doubt about a verdict.

The run may have come from another person, so the file is read within limits.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import BadRequest
from harness.history.journal import UNREADABLE, damage_text
from harness.history.rundir import RunDir
from harness.history.schema import MESSAGES
from harness.text.parsing import parse_json

BEFORE_NS, AFTER_NS = 5_000_000_000, 1_000_000_000  # the window around a violation
MAX_MESSAGES = 5_000
MAX_FILE_BYTES, MAX_UNPACKED_BYTES = 2 << 20, 16 << 20
MAX_NAME = 80  # letters of a node's name, or of a kind
MAX_NS = 1 << 60
NOTE = b"seatrial"  # the key of the file's metadata
REQUEST = "record_messages"  # in run.json: the window to record


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A message between two nodes; times in ns since the run's start. Without `received` it was
    lost with its receiver, or still held up a second after the window."""

    sent: int
    received: int | None
    lost: bool
    source: str
    target: str
    kind: str
    size_bytes: int
    routine: bool


@dataclass(frozen=True)
class RecordingWindow:
    """The window, ns since the run's start, and the moment of the violation in it. `digest`: of the
    run, which tells its recording from another run's."""

    begin: int
    end: int
    moment: int
    digest: str = ""

    @classmethod
    def around(cls, moment: int, digest: str) -> "RecordingWindow":
        return cls(max(0, moment - BEFORE_NS), moment + AFTER_NS, moment, digest)

    @classmethod
    def of(cls, table: Any) -> "RecordingWindow | None":
        """Return the window in a table of JSON; None if there is none in it."""
        fields = table if isinstance(table, Mapping) else {}
        numbers = [fields.get(name) for name in ("begin", "end", "moment")]
        begin, end, moment = (n if type(n) is int else -1 for n in numbers)
        length = end - begin
        sound = 0 <= begin <= moment <= end < MAX_NS and 0 < length <= BEFORE_NS + AFTER_NS
        return cls(begin, end, moment, str(fields.get("digest", ""))) if sound else None


@dataclass(frozen=True)
class MessageRecording:
    """The messages in a window, in order of time. `left_out`: how many there were besides."""

    window: RecordingWindow
    messages: Sequence[RecordedMessage]
    left_out: int = 0


def choose_messages(
    window: RecordingWindow, messages: Iterable[RecordedMessage]
) -> MessageRecording:
    """Return what is kept: messages that are not routine first, then the nearest to the moment."""
    every = list(messages)
    every.sort(key=lambda one: (one.routine, abs(one.sent - window.moment)))
    kept = sorted(every[:MAX_MESSAGES], key=lambda one: one.sent)
    return MessageRecording(window, kept, len(every) - len(kept))


def write_messages(run: RunDir, recording: MessageRecording) -> None:
    """Write the file of a run, atomically."""
    note = {**asdict(recording.window), "left_out": recording.left_out}
    schema = MESSAGES.with_metadata({NOTE: json.dumps(note).encode()})
    columns = zip(*map(astuple, recording.messages), strict=True)
    arrays = [
        pa.array(values, field.type)
        for field, values in zip(MESSAGES, list(columns) or [()] * len(MESSAGES), strict=True)
    ]
    temporary = run.messages_file.with_name(f".{run.messages_file.name}")
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), temporary, compression="zstd")
    os.replace(temporary, run.messages_file)


def read_messages(run: RunDir) -> MessageRecording | None:
    """Return a run's messages; None if none were recorded. Raises BadRequest if the file is
    damaged, too large, or another run's."""
    path = run.messages_file
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_FILE_BYTES:
        raise BadRequest(f"it has more than {MAX_FILE_BYTES >> 20} MB")
    texts = [field.name for field in MESSAGES if field.type == pa.string()]
    try:
        note = _note(pq.read_metadata(path), str(run.state().get("digest", "")))
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read(use_threads=False)
        if max(_lengths(table, texts), default=0) > MAX_NAME:
            raise BadRequest(f"a name in it has more than {MAX_NAME} letters")
        rows = [RecordedMessage(*row.values()) for row in table.to_pylist()]
    except UNREADABLE as e:
        raise BadRequest(damage_text(e)) from e
    window = RecordingWindow.of(note)
    if window is None or not all(map(_sound, rows)):
        raise BadRequest("its times make no sense")
    left_out = note.get("left_out")
    return MessageRecording(
        window,
        sorted(rows, key=lambda one: one.sent),
        left_out if type(left_out) is int and 0 <= left_out < MAX_NS else 0,
    )


def _note(file: pq.FileMetaData, digest: str) -> Mapping[str, Any]:
    """Return what the file says about itself. Raises BadRequest if it is not this run's, or is
    larger than is read."""
    groups = map(file.row_group, range(file.num_row_groups))
    unpacked = sum(group.total_byte_size for group in groups)
    if file.num_rows > MAX_MESSAGES or unpacked > MAX_UNPACKED_BYTES:
        raise BadRequest(f"it holds more than {MAX_MESSAGES:,} messages can take")
    if not file.schema.to_arrow_schema().equals(MESSAGES):
        raise BadRequest("its columns are not those of messages")
    note = parse_json((file.metadata or {}).get(NOTE, b"{}"))
    if not isinstance(note, dict) or note.get("digest") != digest:
        raise BadRequest("it belongs to another run")
    return note


def _lengths(table: pa.Table, texts: Iterable[str]) -> Iterator[int]:
    """Yield the longest text of each piece of these columns, without unpacking equal ones."""
    for chunk in (chunk for name in texts for chunk in table[name].chunks):
        yield pc.max(pc.utf8_length(chunk.dictionary)).as_py() or 0


def _sound(one: RecordedMessage) -> bool:
    return 0 <= one.sent <= (one.received if one.received is not None else one.sent) < MAX_NS
