"""Messages numbered anew: `producer << 32 | sequence`, dense for each producer.

A message of a foreign history is a key and a value. Its producer is the process that sent it first.
Where clients that crash get ever new numbers, a process takes over the producer of one that had
ended, so there are no more of them than ever sent at one time. Messages that somebody saw and
nobody sent belong to a producer of their own, the last.
"""

import heapq
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from harness.importers._recording.recording import Ints, Slip, Slips
from harness.operation import SEQUENCE_BITS, F, Type

TWICE = (
    "this value was sent to this key before; the two cannot be distinguished, so they are left out"
)
FEW_PROCESSES = 1024  # as many keep their own numbers


@dataclass(frozen=True)
class Originals:
    """What each message was in the file, in the order of the new numbers."""

    value: Ints
    key: Ints
    original: pa.Array  # numbers or texts
    line: Ints  # where it was sent, or else first seen


def renumbered(table: pa.Table, slips: Slips) -> tuple[pa.Table, Originals]:
    """The table with new values in rows of messages, and what each was."""
    f, kind = table.column("f").to_numpy(), table.column("type").to_numpy()
    key = table.column("key").fill_null(-1).to_numpy().astype(np.int64)
    texts, code = _codes(table.column("value"))
    at = np.flatnonzero(code >= 0)
    message, first = _identities(key[at], code[at])  # of each row, and where each is first met
    sent = (f[at] == F.SEND) & (kind[at] == Type.INVOKE)
    process, op = table.column("process").to_numpy()[at], table.column("op").to_numpy()[at]
    rows = np.flatnonzero(sent)
    again = _again(message[rows])
    if len(again):
        where = int(op[rows[again]].min())
        slips.add(Slip("SENT_TWICE", where, TWICE), len(again))
        kept = np.ones(table.num_rows, np.bool_)
        kept[at[np.isin(message, message[rows[again]])]] = False
        return renumbered(table.filter(pa.array(kept)), slips)
    count = int(message.max()) + 1 if len(message) else 0
    sending = _first_of_each(message[rows], rows, count)
    number = _numbers(sending, process, count)
    shown = np.where(sending >= 0, sending, first)
    value = np.full(len(code), -1, np.int64)
    value[at] = number[message]
    new = pa.array(value, pa.int64(), mask=value < 0)
    order = np.argsort(number)
    originals = Originals(
        number[order],
        key[at][shown][order],
        texts.take(pa.array(code[at][shown][order])),
        op[shown][order],
    )
    return table.set_column(table.column_names.index("value"), "value", new), originals


def _codes(column: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """Distinct values, and the column as their numbers; -1 is null."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return encoded.dictionary, indices.astype(np.int64)


def _identities(key: Ints, code: Ints) -> tuple[Ints, Ints]:
    """A number for each pair of key and value, in the order of their first row; and that row."""
    pair = ((key + 1) << SEQUENCE_BITS) | code
    _, first, inverse = np.unique(pair, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[inverse], first[order]


def _again(message: Ints) -> Ints:
    """Where a message is sent that was sent before."""
    order = np.argsort(message, kind="stable")
    again: Ints = order[1:][np.diff(message[order]) == 0]
    return again


def _first_of_each(message: Ints, rows: Ints, count: int) -> Ints:
    """The first of these rows that sends each message, or -1."""
    sending = np.full(count, -1, np.int64)
    sending[message[::-1]] = rows[::-1]
    return sending


def _numbers(sending: Ints, process: Ints, count: int) -> Ints:
    """The new number of each message. Those that nobody sent have the last producer."""
    sent = np.flatnonzero(sending >= 0)
    producer = np.full(count, 0, np.int64)
    if len(sent):
        slots = _producers(process[np.sort(sending[sent])])
        producer[sent] = np.array([slots[p] for p in process[sending[sent]].tolist()])
        producer[sending < 0] = max(slots.values()) + 1
    order = np.lexsort((np.arange(count), producer))  # messages are in order of appearance
    ordered = producer[order]
    heads = np.flatnonzero(np.diff(ordered, prepend=-1))
    sequence = np.arange(count) - np.repeat(heads, np.diff(np.append(heads, count)))
    number = np.empty(count, np.int64)
    number[order] = (ordered << SEQUENCE_BITS) | sequence
    return number


def _producers(process: Ints) -> dict[int, int]:
    """A producer for each process; `process` is that of each send, in order."""
    distinct, first = np.unique(process, return_index=True)
    if not len(distinct) or (distinct.max() < FEW_PROCESSES and distinct.min() >= 0):
        return {int(p): int(p) for p in distinct}
    last = len(process) - 1 - np.unique(process[::-1], return_index=True)[1]
    slots: dict[int, int] = {}
    ended: list[tuple[int, int]] = []  # a heap: the last send of each producer, and which it is
    for at in np.argsort(first).tolist():
        free = bool(ended) and ended[0][0] < first[at]
        slot = heapq.heappop(ended)[1] if free else len(ended)
        slots[int(distinct[at])] = slot
        heapq.heappush(ended, (int(last[at]), slot))
    return slots


def passed(table: pa.Table) -> dict[int, int]:
    """For each key the offset up to which somebody read on: the highest that was returned, plus
    one. What was acknowledged below it and nobody ever saw is lost."""
    f, kind = table.column("f").to_numpy(), table.column("type").to_numpy()
    reads = np.isin(f, (F.POLL, F.READ)) & (kind == Type.OK)
    seen = table.select(["key", "offset"]).filter(pa.array(reads))
    best = seen.group_by("key").aggregate([("offset", "max")])
    pairs = zip(best.column("key").to_pylist(), best.column("offset_max").to_pylist(), strict=True)
    return {key: top + 1 for key, top in pairs if key is not None and top is not None}
