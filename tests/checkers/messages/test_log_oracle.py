"""Kernels against naive oracles: small random histories, however cut into blocks and parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers._messages.log_bounds import LOG_FIELDS, LogBounds, LogContext
from checkers._messages.log_bounds import absorb as absorb_log
from checkers._messages.log_sweep import QueueSweep
from checkers._messages.message_rows import (
    BLOCK,
    COLUMNS,
    MESSAGE_FIELDS,
    Blocks,
    MessageFlag,
    MessageScan,
    OpColumns,
    absorb,
    empty,
    observe,
    pack,
    unpack,
)
from checkers._messages.messages import (
    REPORT,
    CensusJob,
    CensusScope,
    Members,
    MessageCensus,
    MessageClass,
    added_up,
    bits,
)
from checkers._spark.spark_stages import PARTIALS
from harness.operation import F, Type

NOTHING = LogContext(Members({}), (np.zeros(0, np.int64), np.zeros(0, np.int64)))


def rows_from(events: Sequence[dict[str, int]]) -> OpColumns:
    absent = dict.fromkeys(COLUMNS, -1)
    full = [absent | event for event in events]
    return OpColumns({n: np.array([e[n] for e in full], np.int64) for n in COLUMNS})


# ------------------------------------------------------------------------ the log, by brute force


@dataclass(frozen=True)
class Append:
    """One entry: invoked, acknowledged (or not: info), read at (or never)."""

    call: int
    ack: int | None
    reads: tuple[int, ...]


@st.composite
def logs(draw: st.DrawFn) -> list[Append]:
    """Up to five entries, in order of offsets, with distinct instants."""
    size = draw(st.integers(1, 5))
    instants = draw(st.permutations(range(4 * size)))
    entries = []
    for offset in range(size):
        a, b, c, d = instants[4 * offset : 4 * offset + 4]
        call, ack = min(a, b), max(a, b)
        reads = tuple(t for t in (c, d) if draw(st.booleans()))
        known = draw(st.booleans()) or not reads
        entries.append(Append(call, ack if known else None, reads))
    return entries


def linearizable_by_search(entries: list[Append]) -> bool:
    """Is there an order of appends and reads that respects real time and yields these offsets?

    Events are intervals; an order is legal when nobody is placed after somebody that began after
    he had ended. Appends must come by offset, a read after its append.
    """
    spans = []
    for offset, entry in enumerate(entries):
        spans.append((entry.call, entry.ack if entry.ack is not None else 10**9, "append", offset))
        spans += [(t - 0.5, t, "read", offset) for t in entry.reads]
    for order in permutations(spans):
        if any(a[0] > b[1] for i, a in enumerate(order) for b in order[i + 1 :]):
            continue
        grown, legal = -1, True
        for _, _, kind, offset in order:
            legal &= offset == grown + 1 if kind == "append" else offset <= grown
            grown += kind == "append"
        if legal:
            return True
    return False


def swept(events: list[dict[str, int]], known: LogContext, parts: int, first: int) -> QueueSweep:
    """The log's verdict, its rows dealt to so many writers."""
    sweep = QueueSweep(20)
    partials = []
    for part in range(parts):
        bounds = LogBounds(known)
        mine = [e for e in events if e["value"] % parts == part]
        bounds.observe(rows_from(sorted(mine, key=lambda e: (e["t"], e["type"]))))
        partials += list(bounds.offsets.items())
    blocks: dict[int, dict[str, np.ndarray]] = {}
    for number, block in partials:
        mine_ = blocks.setdefault(number, empty(LOG_FIELDS))
        absorb_log(mine_, unpack(pack(block, LOG_FIELDS), LOG_FIELDS))
    for number in sorted(blocks):
        sweep.add(number, blocks[number])
    return sweep


def events_of(entries: list[Append], first: int) -> list[dict[str, int]]:
    events = []
    for n, entry in enumerate(entries):
        what = {"process": n, "op": n, "key": 0, "value": n, "f": F.SEND}
        events.append({**what, "t": entry.call, "type": Type.INVOKE})
        if entry.ack is not None:
            events.append({**what, "t": entry.ack, "type": Type.OK, "offset": first + n})
        for i, t in enumerate(entry.reads):
            read = {"process": 100 + n, "op": 100 + 10 * n + i, "f": F.POLL, "pos": 0}
            events.append({**what, **read, "t": t, "type": Type.OK, "offset": first + n})
    return events


def late_of(entries: list[Append], first: int) -> LogContext:
    late = [n for n, e in enumerate(entries) if e.ack is None and e.reads]
    places = np.array([first + n + 1 for n in late], np.int64)
    return LogContext(Members({}), (np.array(late, np.int64), places))


@settings(max_examples=60)
@given(entries=logs().filter(lambda log: sum(1 + len(e.reads) for e in log) <= 6))
def test_the_running_maximum_agrees_with_a_search_over_all_orders(entries: list[Append]) -> None:
    """A log is linearizable exactly when no upper bound lies below an earlier lower bound."""
    sweep = swept(events_of(entries, 0), late_of(entries, 0), parts=2, first=0)
    assert (sweep.impossible == 0) == linearizable_by_search(entries)


@given(entries=logs(), parts=st.integers(1, 3), first=st.sampled_from([0, BLOCK - 2, 5 * BLOCK]))
def test_counts_agree_with_the_definition(entries: list[Append], parts: int, first: int) -> None:
    """REORDERED and NOT_LINEARIZABLE, offset by offset, across block boundaries and writers."""
    sweep = swept(events_of(entries, first), late_of(entries, first), parts, first)
    reordered = impossible = 0
    for n, entry in enumerate(entries):
        until = min([t for t in (entry.ack, *entry.reads) if t is not None])
        impossible += any(lower.call > until for lower in entries[: n + 1])
        reordered += entry.ack is not None and any(e.call > entry.ack for e in entries[:n])
    assert (sweep.reordered, sweep.impossible) == (reordered, impossible)
    assert len(sweep.contradictions) == impossible
    for shown in sweep.contradictions:
        assert shown.lower <= shown.offset
        assert shown.since > shown.until


# --------------------------------------------------------------------- messages, by plain Python


OUTCOMES = (Type.OK, Type.FAIL, Type.INFO)
events_of_messages = st.lists(
    st.tuples(
        st.sampled_from(["send", "poll", "read", "ghost"]),
        st.integers(0, 3),  # value
        st.integers(0, 1),  # producer
        st.integers(0, 2),  # offset
        st.sampled_from((*OUTCOMES, Type.INVOKE)),  # the last: it never ended
        st.integers(1, 2),  # attempts
    ),
    max_size=14,
)


def told(script: list[tuple[str, int, int, int, Type, int]]) -> list[dict[str, int]]:
    """Events that a run could record: each value is sent at most once."""
    events: list[dict[str, int]] = []
    sent: set[int] = set()
    for t, (verb, number, producer, offset, outcome, attempts) in enumerate(script):
        value = producer << 32 | number
        at = {"t": t, "op": t, "key": 0, "value": value}
        if verb == "send" and value not in sent:
            sent.add(value)
            events.append({**at, "f": F.SEND, "type": Type.INVOKE, "process": producer})
            if outcome is Type.INVOKE:
                continue
            where = {"offset": offset} if outcome is Type.OK else {}
            done = {"f": F.SEND, "type": outcome, "process": producer, "attempts": attempts}
            events.append({**at, **done, **where})
        elif verb in ("poll", "read"):
            f = F.POLL if verb == "poll" else F.READ
            seen = {"f": f, "type": Type.OK, "process": 8, "offset": offset, "pos": 0}
            events.append({**at, **seen})
    return events


def naive(events: list[dict[str, int]]) -> dict[MessageClass | str, int]:
    """What the findings mean, in sets."""

    def values(f: F, kind: Type) -> set[int]:
        return {e["value"] for e in events if e["f"] == f and e["type"] == kind}

    acked, failed, info = (values(F.SEND, kind) for kind in OUTCOMES)
    invoked, read = values(F.SEND, Type.INVOKE), values(F.READ, Type.OK)
    info |= invoked - acked - failed
    given = [e["value"] for e in events if e["f"] == F.POLL]
    polled = set(given)
    retried = {e["value"] for e in events if e.get("attempts", 1) > 1}
    reads = {(e["value"], e["offset"]) for e in events if e["f"] == F.READ}
    twice = {v for v in read if len([1 for value, _ in reads if value == v]) > 1}
    caused = retried | info | failed
    stored_at = {e["value"]: e["offset"] for e in events if e["f"] == F.SEND and "offset" in e}
    read_at = {e["value"]: e["offset"] for e in events if e["f"] == F.READ}
    left = {v for v in (acked & read & retried) - twice if stored_at[v] != read_at[v]}
    counts: dict[MessageClass | str, set[int]] = {
        MessageClass.LOST: (acked - read) | left,  # only an earlier try's copy is found
        MessageClass.NEVER_SENT: (read | polled) - invoked,
        MessageClass.REFUSED: failed & (read | polled),
        MessageClass.DOUBLED: (twice & invoked) - caused,
        MessageClass.RETRIED: twice & caused,
        MessageClass.RECOVERED: info & read,
        MessageClass.GIVEN_TWICE: {v for v in polled if given.count(v) > 1},
        "unread": (acked & read) - polled,
    }
    return {name: len(some) for name, some in counts.items()}


def census(parts: Sequence[Blocks], scope: CensusScope) -> MessageCensus:
    """The census of what several tasks know."""
    merge = CensusJob.of(scope).merge
    rows = pa.Table.from_batches([b for blocks in parts for b in blocks.packed()], PARTIALS)
    merged = merge(iter(rows.sort_by("block").to_batches()))
    return added_up(pa.Table.from_batches(merged, REPORT), scope)


@given(script=events_of_messages, parts=st.integers(1, 4), seed=st.randoms())
def test_blocks_count_what_sets_count(script, parts, seed) -> None:  # type: ignore[no-untyped-def]
    """Loss, phantoms and duplicates, whatever the order of events and however they are dealt."""
    events = told(script)
    scope = CensusScope(frozenset({0}), {0: 1}, groups={8: 0}, group_names=("group-0",))
    dealt = [seed.randrange(parts) for _ in events]
    known = [Blocks(MESSAGE_FIELDS) for _ in range(parts)]
    for part, blocks in enumerate(known):
        mine = [e for e, p in zip(events, dealt, strict=True) if p == part]
        observe(blocks, rows_from(mine), CensusJob.of(scope).messages)
    found, expected = census(known, scope), naive(events)
    counted = {name: found.counts[MessageClass(name)] for name in expected if name != "unread"}
    assert counted | {"unread": found.groups[0].unread} == expected


Sighting = tuple[tuple[F, Type], int, int]  # what it is, key, offset
known_by_one = st.lists(
    st.tuples(
        st.sampled_from(
            [(F.SEND, Type.INVOKE), (F.SEND, Type.OK), (F.POLL, Type.OK), (F.READ, Type.OK)]
        ),
        st.integers(-1, 1),
        st.integers(-1, 2),
    ),
    max_size=3,
)


@given(first=known_by_one, second=known_by_one)
def test_two_machines_know_together_what_one_would(
    first: list[Sighting], second: list[Sighting]
) -> None:
    """Merging commutes, and misses no second place that only the other machine saw. Which place is
    kept is decided by one rule, where rows are added and where blocks are merged."""

    def known(*parts: list[Sighting]) -> dict[str, list[int]]:
        whole = empty(MESSAGE_FIELDS)
        for part in parts:
            some = Blocks(MESSAGE_FIELDS)
            rows = [
                {"f": f, "type": kind, "key": key, "offset": offset, "value": 7, "process": 1}
                for (f, kind), key, offset in part
            ]
            observe(some, rows_from(rows), MessageScan(np.array([-1, 0])))
            for block in dict(some.items()).values():
                absorb(whole, block)
        return {name: array.tolist() for name, array in whole.items()}

    assert known(first + second) == known(first, second) == known(second, first)


@given(
    reads=st.sets(st.integers(0, 3 * BLOCK), max_size=5),
    lost=st.sets(st.integers(0, 3 * BLOCK), max_size=5),
)
def test_losses_are_placed_across_blocks(reads: set[int], lost: set[int]) -> None:
    """Prefix, middle and tail of a producer's sequence, stitched from its blocks."""
    lost -= reads
    blocks = Blocks(MESSAGE_FIELDS)
    for some, flag in ((reads, MessageFlag.READ), (lost, MessageFlag.ACKED)):
        values = np.array(sorted(some), np.int64)
        at = blocks.at(values)
        blocks["flags"][at] = int(MessageFlag.INVOKED | flag)
        blocks["place"][at] = values + 1
    first, last = min(reads, default=10**9), max(reads, default=10**9)
    prefix, tail = sum(v < first for v in lost), sum(v > last for v in lost)
    expected = {"prefix": prefix, "middle": len(lost) - prefix - tail, "tail": tail}
    assert census([blocks], CensusScope(drained=frozenset({0}))).where_lost == expected


@given(
    numbers=st.lists(st.integers(0, 1 << 40), max_size=30), others=st.lists(st.integers(0, 1 << 40))
)
def test_members_hold_what_was_put_in(numbers: list[int], others: list[int]) -> None:
    """A set as bits in blocks is the set."""
    packed: dict[int, bytes] = {}
    for block in {n // BLOCK for n in numbers}:
        mask = np.zeros(BLOCK, np.bool_)
        mask[[n % BLOCK for n in numbers if n // BLOCK == block]] = True
        packed[block] = bits(mask)
    members = Members(packed)
    asked = [*numbers, *others]
    assert members.holds(np.array(asked, np.int64)).tolist() == [n in numbers for n in asked]
    assert len(members) == len(set(numbers))
