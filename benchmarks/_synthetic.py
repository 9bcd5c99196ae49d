"""Histories of any size for the benchmarks: what two crews of a sound run would have recorded.

Producers send to queues in turn, every message is acknowledged, consumed once, and read by the
fresh reader at the end: a message is four rows, and a run of n messages 4n events. Of each of
WRONGS some messages may be spoilt, which checkers must find and count.
"""

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from harness.history.journal import TableJournal
from harness.history.rundir import RunDir
from harness.history.seal import seal
from harness.operation import SEQUENCE_BITS, F, Type
from harness.trial import Trial

CREWS, QUEUES, PRODUCERS = 2, 4, 4
MESSAGE_CHECKERS = ("loss", "phantom", "duplicates", "order", "linearizable")
APART_NS, LATENCY_NS = 2_000, 1_000_000
POLLED_AT_ONCE = 32
WRONGS = ("lost", "phantom", "twice", "clash", "back", "swapped")
LOST, PHANTOM, TWICE, CLASH, BACK, SWAPPED = range(1, len(WRONGS) + 1)
WINDOW = 2_500_000  # messages that are in memory at a time
FAR = 1 << 40  # an offset where nobody is
OVERTAKEN = 1_000  # messages later, so that one was acknowledged before the other was sent

Columns = dict[str, Any]


def messages(first: int, count: int, offsets: list[int]) -> Columns:
    """Value, queue, offset and times of so many messages from number `first` on. `offsets`: the
    next one of each queue, which is updated."""
    number = np.arange(first, first + count, dtype=np.int64)
    producer = number % PRODUCERS
    key = np.random.default_rng(1 + first).integers(0, QUEUES, count)
    offset = np.zeros(count, np.int64)
    for queue in range(QUEUES):
        mine = key == queue
        offset[mine] = offsets[queue] + np.arange(int(mine.sum()))
        offsets[queue] += int(mine.sum())
    return {
        "value": (producer << SEQUENCE_BITS) | (number // PRODUCERS),
        "process": producer,
        "op": number,
        "key": key,
        "offset": offset,
        "t": number * APART_NS,
        "wrong": np.zeros(count, np.int8),
    }


def spoil(m: Columns, each: int) -> None:
    """So many messages of each of WRONGS go wrong."""
    count = len(m["t"])
    spots = np.random.default_rng(2).choice(count // 8192 - 1, len(WRONGS) * each, replace=False)
    for number, some in enumerate((spots * 8192).reshape(len(WRONGS), each), 1):
        m["wrong"][some] = number
    for at in np.flatnonzero(m["wrong"] >= CLASH).tolist():
        near = np.flatnonzero(
            (m["key"][at + 1 : at + 8192] == m["key"][at])
            & (m["process"][at + 1 : at + 8192] == m["process"][at])
        )
        if m["wrong"][at] == CLASH:  # all say that it is where another one is
            m["offset"][at] = m["offset"][at + 1 + near[0]]
        elif m["wrong"][at] == SWAPPED:
            other = at + 1 + near[near > OVERTAKEN][0]
            m["offset"][[at, other]] = m["offset"][[other, at]]


def load_rows(m: Columns, crew: int) -> Columns:
    """A crew's rows while the load goes on: sends of its producers, and polls of its queues."""
    sent = (m["process"] % CREWS == crew) & (m["wrong"] != PHANTOM)
    taken, back = _taken(m, crew), _of_queue(m, crew) & (m["wrong"] == BACK)
    seen = m["t"] + 2 * LATENCY_NS
    polls = {**m, "op": m["op"] // POLLED_AT_ONCE, "t": seen}
    given = {"process": 100 + crew}
    return _joined(
        _part(m, sent, Type.INVOKE, F.SEND, offset=-1),
        _part(m, sent, Type.OK, F.SEND, t=m["t"][sent] + LATENCY_NS, attempts=1),
        _part(polls, taken, Type.OK, F.POLL, **given),
        _part(polls, back, Type.OK, F.POLL, t=seen[back] + 1, **given),
    )


def read_rows(m: Columns, crew: int, begin: int) -> Columns:
    """What a crew's final reader reads of these messages, from an instant on."""
    taken, twice = _taken(m, crew), _of_queue(m, crew) & (m["wrong"] == TWICE)
    rank = np.argsort(np.lexsort((m["offset"][taken], m["key"][taken])))
    return _joined(
        _part(m, taken, Type.OK, F.READ, t=begin + rank, process=200 + crew),
        _part(m, twice, Type.OK, F.READ, t=begin, process=200 + crew, offset=FAR + m["op"][twice]),
    )


def _of_queue(m: Columns, crew: int) -> Any:
    return m["key"] % CREWS == crew


def _taken(m: Columns, crew: int) -> Any:
    return _of_queue(m, crew) & (m["wrong"] != LOST)


def _joined(*parts: Columns) -> Columns:
    """Rows of all parts in time order."""
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(rows["t"], kind="stable")
    return {name: array[order] for name, array in rows.items()}


def _part(m: Columns, mask: Any, kind: Type, f: F, **columns: Any) -> Columns:
    rows = {name: array[mask] for name, array in m.items() if name != "wrong"}
    n = len(rows["t"])
    shape = {"pos": 0 if f is not F.SEND else -1, "attempts": -1, "type": kind, "f": f}
    filled = {name: np.full(n, value, np.int64) for name, value in shape.items()}
    given = {name: np.broadcast_to(np.asarray(v, np.int64), n) for name, v in columns.items()}
    return {**rows, **filled, **given}


def write_run(
    path: Path, count: int, checkers: tuple[str, ...] = MESSAGE_CHECKERS, wrong: int = 0
) -> RunDir:
    """A sealed run of that many messages, of which so many of each of WRONGS are spoilt."""
    path.mkdir(parents=True)
    run = RunDir(path)
    contract = tuple(demand for demand in Trial.contract if demand != "recovers")
    run.trial_file.write_text(Trial(checkers=checkers, contract=contract).to_toml())
    keys = [f"orders-{queue}" for queue in range(QUEUES)]
    nodes = ["broker-1", "client-1", "client-2"]
    roles = {"broker-1": "broker", "client-1": "client", "client-2": "client"}
    run.write_names({"keys": keys, "nodes": nodes, "roles": roles, "processes": {}})
    run.update_state(ended=True, interrupted=False)
    crews = [CrewJournal(run, crew) for crew in range(CREWS)]
    offsets = [0] * QUEUES
    for first in range(0, count, WINDOW):
        some = _window(first, count, offsets, wrong)
        for crew in crews:
            crew.add(load_rows(some, crew.number), int(some["t"][-1]) + APART_NS)
    end, offsets = (count + 10) * APART_NS + 10 * LATENCY_NS, [0] * QUEUES
    for first in range(0, count, WINDOW):
        some = _window(first, count, offsets, wrong)
        for crew in crews:
            rows = read_rows(some, crew.number, end + first)
            crew.add(rows, end + first + WINDOW)
    for crew in crews:
        crew.close()
    _write_notes(run)
    seal(run)
    return run


def _window(first: int, count: int, offsets: list[int], wrong: int) -> Columns:
    """The messages of a window; the first one has those that are spoilt."""
    some = messages(first, min(WINDOW, count - first), offsets)
    if wrong and not first:
        spoil(some, wrong)
    return some


class CrewJournal:
    """A crew's journal, which is written and sealed a window at a time."""

    SMALL: ClassVar[Columns] = {
        "type": np.int8,
        "f": np.int8,
        "attempts": np.int16,
        "process": np.int32,
        "key": np.int32,
        "pos": np.int32,
    }

    def __init__(self, run: RunDir, number: int) -> None:
        self.run, self.number, self._waiting = run, number, Columns()

    def add(self, rows: Columns, until: int) -> None:
        """Add rows, of which those from `until` on wait for the next window."""
        rows = _joined(self._waiting, rows) if self._waiting else rows
        now = int(np.searchsorted(rows["t"], until))
        self._waiting = {name: array[now:] for name, array in rows.items()}
        self._write({name: array[:now] for name, array in rows.items()})

    def close(self) -> None:
        self._write(self._waiting)

    def _write(self, rows: Columns) -> None:
        journal = TableJournal(self.run.journal, "ops", f"client-{self.number + 1}")
        types = self.SMALL
        journal.append_columns({n: a.astype(types.get(n, np.int64)) for n, a in rows.items()})
        journal.close()
        seal(self.run)


def _write_notes(run: RunDir) -> None:
    notes = TableJournal(run.journal, "notes", "client-1")
    for t, phase in enumerate(("raised", "load", "healed", "drain", "collected", "ended")):
        notes.append((t, -1, -1, phase))
    for queue in range(QUEUES):
        span = {"key": queue, "from": 0, "to": 1}
        notes.append((9, 200 + queue % CREWS, -1, f"DRAINED {json.dumps(span)}"))
        group = {**span, "group": "group-0"}
        notes.append((9, 100 + queue % CREWS, -1, f"DRAINED {json.dumps(group)}"))
    notes.close()
