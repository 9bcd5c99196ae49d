"""Every anomaly class of Jepsen's kafka workload against its definition, in plain sets and loops.

Small histories with planted anomalies are written as Jepsen writes them, many to a file, each with
keys and processes of its own; a file is imported and judged as a whole. What the checkers show, by
message, offset or step, is just what the definitions give, and its count is exact.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from checkers import _logbook, _survey, _witness, duplicates, loss, offsets, order, phantom
from checkers._logbook import logbook
from harness.history import History
from harness.importers import _folder, jepsen_kafka
from harness.trial import Trial

BATCHES, BATCH, EACH = 3, 1_670, 200
KEYS, PROCESSES = 2, 4  # of one history; a client that crashed goes on as another process
PLANTS = (
    *("lost", "displaced", "two values", "twice", "aborted", "leap", "back", "gap", "swap", "slip"),
    *("sent back", "sent low", "sent low", "twice", "own", "torn", "ghost", "moved", "rebalance"),
    *("subscribe", "own", "torn", "swap"),
)
Found = dict[str, set[tuple[int, ...]]]


# ------------------------------------------------------------------------------- making histories


@dataclass
class Event:
    """One line: micro-operations are (key, value, offset or None) or a map of what was polled."""

    line: int
    type: str
    f: str
    process: int
    mops: list[Any]
    op: int  # the line on which it was invoked
    lost: tuple[int, ...] = ()  # keys of its rebalance log

    def text(self) -> str:
        if self.f in ("assign", "subscribe"):
            value = f"[{' '.join(map(str, self.mops))}]"
        else:
            value = f"[{' '.join(map(_mop, self.mops))}]"
        log = f", :rebalance-log [{{:keys [{' '.join(map(str, self.lost))}]}}]" if self.lost else ""
        head = f"{{:index {self.line}, :type :{self.type}, :process {self.process}, :f :{self.f}, "
        return f"{head}:value {value}, :time {self.line}000{log}}}\n"


def _mop(mop: Any) -> str:
    if isinstance(mop, tuple):
        key, value, offset = mop
        return f"[:send {key} {value}]" if offset is None else f"[:send {key} [{offset} {value}]]"
    if mop is None:
        return "[:poll]"
    each = (f"{k} [{' '.join(f'[{o} {v}]' for o, v in some)}]" for k, some in mop.items())
    return f"[:poll {{{', '.join(each)}}}]"


@dataclass
class World:
    """A broker with planted mistakes, and its clients."""

    dice: random.Random
    number: int
    line: int
    plants: set[str]
    events: list[Event] = field(default_factory=list)
    logs: dict[int, dict[int, int]] = field(default_factory=dict)  # key -> offset -> value
    end: dict[int, int] = field(default_factory=dict)
    values: Counter[int] = field(default_factory=Counter)
    at: dict[tuple[int, int], int] = field(default_factory=dict)  # process and key: position

    def run(self) -> list[Event]:
        if {"subscribe", "rebalance"} & self.plants:
            self.plants |= {"leap", "back"}
        self.keys = [self.number * KEYS + k for k in range(KEYS)]
        for key in self.keys:
            self.logs[key], self.end[key] = {}, 0
        self.who = [self.number * PROCESSES * 8 + n for n in range(PROCESSES)]
        self.reads = {p: list(self.keys) for p in self.who}
        word = "subscribe" if "subscribe" in self.plants else "assign"
        for process in self.who[:2]:
            self._say("ok", word, process, self.keys, self._invoke(word, process, self.keys))
        for _ in range(self.dice.randint(8, 16)):
            self._operation()
        for process in self.who[:2]:
            if self.dice.random() < 0.7:
                self._poll(process, most=9)
        return self.events

    def _planted(self, plant: str) -> bool:
        return plant in self.plants and self.dice.random() < 0.5

    def _say(
        self, kind: str, f: str, process: int, mops: list[Any], op: int, lost: Any = ()
    ) -> None:
        self.events.append(Event(self.line, kind, f, process, mops, op, tuple(lost)))
        self.line += 1

    def _invoke(self, f: str, process: int, mops: list[Any]) -> int:
        op = self.line
        self._say("invoke", f, process, mops, op)
        return op

    def _operation(self) -> None:
        few = 1 + ("sent low" not in self.plants)
        index = self.dice.randrange(few if self.plants else PROCESSES)
        process = self.who[index]
        dice = self.dice.random() - 0.25 * bool({"torn", "sent low", "own"} & self.plants)
        if dice < 0.2:
            self._send(process, 1 + ("torn" in self.plants))
        elif dice < 0.45:
            self._send(process, self.dice.randint(2, 3))
        elif dice < 0.92:
            self._poll(process)
        elif dice < 0.98:
            keys = [k for k in self.keys if self.dice.random() < 0.6]
            word = "subscribe" if "subscribe" in self.plants else "assign"
            self._say("ok", word, process, keys, self._invoke(word, process, keys))
            self.reads[process] = keys
        else:
            self._crash(index)

    def _crash(self, index: int) -> None:
        old, self.who[index] = self.who[index], self.who[index] + PROCESSES
        self.reads[self.who[index]] = self.reads[old]

    def _put(self, key: int, value: int) -> int:
        """A message put into the log, rightly or not; the offset that its client is told."""
        wide = 0.15 + 0.6 * ("sent low" in self.plants)
        log, offset = self.logs[key], self.end[key] + (self.dice.random() < wide)
        low = [o for o in range(offset) if o not in log]
        if self._planted("sent low") and low:
            offset = self.dice.choice(low)
        elif log and self._planted("displaced"):
            return self.dice.choice(list(log))
        self.end[key] = max(self.end[key], offset + 1)
        if self._planted("lost"):
            return offset
        if self._planted("moved"):
            log[offset + 1] = value
            self.end[key] += 1
            return offset
        log[offset] = value
        if self._planted("twice"):
            log[self.end[key]] = value
            self.end[key] += 1
        return offset

    def _send(self, process: int, count: int) -> None:
        key = self.keys[0] if "sent low" in self.plants else self.dice.choice(self.keys)
        sent = []
        for _ in range(count):
            self.values[key] += 1
            sent.append((key, self.values[key], None))
        polls = [None] if count > 1 and self.dice.random() < 0.4 else []
        f = "send" if count == 1 and not polls else "txn"
        op = self._invoke(f, process, [*sent, *polls])
        kind = self.dice.choices(
            ("ok", "info", "fail"),
            (8, 1.5 + 5 * ("torn" in self.plants), 1 + 2 * ("aborted" in self.plants)),
        )
        self._sent(process, f, op, kind[0], sent, bool(polls))

    def _sent(self, process: int, f: str, op: int, kind: str, sent: list[Any], polls: bool) -> None:
        told = list(sent)
        if kind == "ok" or (kind == "info" and self.dice.random() < 0.6):
            told = [(key, value, self._put(key, value)) for key, value, _ in sent]
            if len(told) > 1 and self._planted("sent back"):
                (k, v, o), (_, w, p) = told[:2]
                told[:2] = [(k, v, p), (k, w, o)]
                if self.logs[k].get(o) == v and self.logs[k].get(p) == w:
                    self.logs[k][o], self.logs[k][p] = w, v
            if kind == "info" and len(told) > 1 and self._planted("torn"):
                key, value, _ = told[self.dice.randrange(len(told))]
                self.logs[key] = {o: v for o, v in self.logs[key].items() if v != value}
        elif kind == "fail" and "aborted" in self.plants:  # a log that shows what was refused
            for key, value, _ in sent:
                self._put(key, value)
        if kind == "fail" or (kind == "info" and "torn" not in self.plants):
            told = list(sent)
        mine = {(key, value) for key, value, _ in sent}
        seen = [self._answer(process, 2, mine)] if polls else []
        self._say(kind, f, process, [*told, *seen], op)

    def _poll(self, process: int, most: int = 3) -> None:
        op = self._invoke("poll", process, [None])
        kind = "info" if self.dice.random() < 0.06 else "ok"
        before = dict(self.at)
        seen = self._answer(process, most)
        if kind == "info":
            self.at = before if self.dice.random() < 0.5 else self.at
        lost = [k for k in self.keys if self._planted("rebalance")]
        self._say(kind, "poll", process, [seen], op, lost)

    def _answer(
        self, process: int, most: int, own: Any = frozenset()
    ) -> dict[int, list[tuple[int, int]]]:
        own = own if "own" not in self.plants else frozenset()
        found = {}
        for key in self.reads[process]:
            log, at = self.logs[key], self.at.get((process, key), 0)
            if self._planted("leap"):
                at += self.dice.randint(1, 2)
            elif self._planted("back"):
                at = max(0, at - self.dice.randint(1, 2))
            some = [(o, log[o]) for o in sorted(log) if o >= at and (key, log[o]) not in own][:most]
            if not some:
                continue
            self.at[process, key] = some[-1][0] + 1
            found[key] = self._spoilt(key, some)
        return found

    def _spoilt(self, key: int, some: list[tuple[int, int]]) -> list[tuple[int, int]]:
        if len(some) > 2 and self._planted("gap"):
            del some[1]
        if len(some) > 1 and self._planted("swap"):
            some[0], some[1] = some[1], some[0]
        if self._planted("ghost"):
            some[-1] = (some[-1][0], 900 + self.dice.randrange(3))
        if self._planted("slip"):
            some[-1] = (some[-1][0] + self.dice.randint(1, 3), some[-1][1])
        if self._planted("two values"):
            some[0] = (some[0][0], self.dice.randint(1, max(1, self.values[key])))
        return some


# -------------------------------------------------------------------------------- the definitions


class Naive:
    """What Jepsen's checker is asked, of one history, by definition. Messages are (key, value)."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.outcome: dict[Any, str] = {}
        self.claim: dict[Any, int] = {}  # where a client was told that its message is
        self.told: dict[Any, set[int]] = {}  # by acknowledgements and polls
        self.seen: dict[Any, set[int]] = {}
        self.over: Counter[Any] = Counter()
        self.parts: dict[Any, list[Any]] = {}  # of transactions of unknown outcome
        for event in events:
            for key, value, offset in sends_of(event):
                self._sent(event, (key, value), offset)
            for key, some in polls_of(event):
                for offset, value in some:
                    self.seen.setdefault((key, value), set()).add(offset)
                    self.told.setdefault((key, value), set()).add(offset)
        self.unsure = {m for m in self.seen if self._unsure(m)}
        self.bound: dict[int, int] = {}
        for m in self.seen:
            self.bound[m[0]] = max(self.bound.get(m[0], 0), min(self.told[m]) + 1)
        self._missing()
        self._offsets()

    def _sent(self, event: Event, message: Any, offset: int | None) -> None:
        self.outcome[message] = event.type
        if event.type == "info" and len(event.mops) > 1:
            self.parts.setdefault(event.op, []).append(message)
        if offset is not None and event.type in ("ok", "info"):
            self.claim[message] = offset
            if event.type == "ok":
                self.told.setdefault(message, set()).add(offset)

    def _unsure(self, m: Any) -> bool:
        places = self.seen[m] | ({self.claim[m]} if m in self.claim else set())
        return self.outcome.get(m) in (None, "fail") or len(places) > 1

    def _missing(self) -> None:
        """Acknowledged, or proven to be committed, and seen by nobody."""
        taken = {(m[0], o) for m, some in self.seen.items() for o in some}
        acked = {m for m, kind in self.outcome.items() if kind == "ok"} - set(self.seen)
        self.displaced = {m for m in acked if (m[0], self.claim.get(m)) in taken}
        proven = {
            m
            for some in self.parts.values()
            if any(other in self.seen for other in some)
            for m in some
            if m not in self.seen
        }
        passed = {m for m in self.claim if self.claim[m] < self.bound.get(m[0], 0)}
        self.lost = (acked - self.displaced) & passed
        self.unseen = acked - self.displaced - passed
        self.torn = proven & passed

    def _offsets(self) -> None:
        held: dict[Any, set[Any]] = {}
        for m, places in self.told.items():
            for offset in places if m not in self.lost else ():
                held.setdefault((m[0], offset), set()).add(m)
        self.conflicts = {place for place, some in held.items() if len(some) > 1}
        doubtful = {(m[0], o) for m in self.unsure for o in self.seen[m]} | self.conflicts
        self.given = {(m[0], o) for m, some in self.seen.items() for o in some} - doubtful

    def found(self) -> Found:
        twice = {m for m, some in self.seen.items() if len(some) > 1}
        acked = {m for m, kind in self.outcome.items() if kind == "ok"}
        caused = {m for m, kind in self.outcome.items() if kind != "ok"}
        moved = {m for m in acked & set(self.seen) - twice if {self.claim[m]} != self.seen[m]}
        found: Found = {
            "LOST_ACKED": self.lost,
            "UNSEEN_ACKED": self.unseen,
            "TXN_TORN": self.torn,
            "OFFSET_CONFLICT": self.conflicts,
            "OFFSET_MOVED": moved,
            "DUPLICATED": twice & acked,
            "DUPLICATED_BY_RETRY": twice & caused,
            "PHANTOM_REFUSED": {m for m in self.seen if self.outcome.get(m) == "fail"},
            "PHANTOM_NEVER_SENT": set(self.seen) - set(self.outcome),
            "PRECOMMITTED_READ": set(self._own()),
            "recovered": {m for m in self.seen if self.outcome.get(m) == "info"},
        }
        for name, step in [*self._poll_steps(), *self._send_steps()]:
            found.setdefault(name, set()).add(step)
        found["stepped_over"] = {(*m, times) for m, times in self.over.items()}
        return found

    def _own(self) -> Iterator[tuple[int, ...]]:
        for event in self.events:
            mine = {(key, value) for key, value, _ in sends_of(event)}
            for key, some in polls_of(event):
                yield from ((*m, event.op) for m in mine & {(key, v) for _, v in some})

    def _step(self, key: int, before: int, offset: int) -> str:
        """Back, over, or nothing to speak of. Lost messages that it goes over are noted."""
        for m in self.lost | self.torn:
            if m[0] == key and before < self.claim[m] < offset:
                self.over[m] += 1
        if offset <= before:
            return "" if offset == before and (key, offset) in self.conflicts else "back"
        return "over" if any((key, o) in self.given for o in range(before + 1, offset)) else ""

    def _poll_steps(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        last: dict[Any, dict[int, int]] = {}
        loose: dict[int, bool] = {}
        rebalanced: dict[Any, bool] = {}
        for event in self.events:
            mine = last.setdefault(event.process, {})
            if event.f in ("assign", "subscribe") and event.type == "ok":
                last[event.process] = {k: o for k, o in mine.items() if k in event.mops}
                loose[event.process] = event.f == "subscribe"
            if event.type == "invoke" or event.f not in ("poll", "txn"):
                continue
            for key in event.lost:
                rebalanced[event.process, key] = True
            for key, some in polls_of(event):
                read = [offset for offset, _ in some]
                if key in mine:
                    what = self._step(key, mine[key], read[0])
                    free = loose.get(event.process) or rebalanced.get((event.process, key))
                    code = {"back": "CONSUMER_WENT_BACK", "over": "CONSUMER_SKIPPED"}.get(what)
                    if code:
                        step = (key, mine[key], read[0], event.op)
                        yield ("CONSUMER_MOVED" if free else code), step
                for before, offset in pairwise(read):
                    if key in event.lost:
                        continue
                    what = self._step(key, before, offset)
                    code = {"back": "NONMONOTONIC_POLL", "over": "POLL_SKIPPED"}.get(what)
                    if code:
                        yield code, (key, before, offset, event.op)
                if event.type == "ok":
                    mine[key] = read[-1]
                    rebalanced[event.process, key] = key in event.lost

    def _send_steps(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        last: dict[Any, int | None] = {}
        for event in self.events:
            if event.type not in ("ok", "info"):
                continue
            by_key: dict[int, list[int | None]] = {}
            for key, value, _ in sends_of(event):
                by_key.setdefault(key, []).append(self._place((key, value), event.type))
            for key, some in by_key.items():
                before = last.get((event.process, key))
                pairs = [("sent_before", before, some[0])]
                pairs += [("NONMONOTONIC_SEND", a, b) for a, b in pairwise(some)]
                for name, a, b in pairs:
                    clear = not {(key, a), (key, b)} & self.conflicts
                    if a is not None and b is not None and b <= a and clear:
                        yield name, (key, a, b, event.op)
                if event.type == "ok":
                    last[event.process, key] = some[-1]

    def _place(self, m: Any, kind: str) -> int | None:
        """Where a message certainly is."""
        if m in self.unsure or m in self.lost:
            return None
        return self.claim.get(m) if kind == "ok" else next(iter(self.seen.get(m, ())), None)


def sends_of(event: Event) -> Iterator[tuple[int, int, int | None]]:
    if event.f in ("send", "txn"):
        yield from (mop for mop in event.mops if isinstance(mop, tuple))


def polls_of(event: Event) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    for mop in event.mops if event.f in ("poll", "txn") else ():
        if isinstance(mop, dict):
            yield from mop.items()


# ------------------------------------------------------------------------------------ comparing


def judged(path: Path, out: Path) -> Found:
    """What the checkers show of a file, by the file's own names."""
    run = _folder.write(jepsen_kafka.read(path), path, "jepsen-kafka", out)
    history = History.open(run)
    results = [c.check(history, Trial(), None) for c in (loss, phantom, duplicates, offsets, order)]
    names = originals(run.path)
    keys = [int(key) for key in history.names["keys"]]
    found: Found = {}
    for finding in (f for result in results for f in result.findings):
        shown = {identity(row, names) for row in finding.evidence}
        if finding.code != "REORDERED":
            assert len(shown) == finding.count, finding.code
            found[finding.code] = shown
    rows = [row for finding in results[0].findings for row in finding.evidence]
    rows = [row for row in rows if "stepped_over" in row]
    found["stepped_over"] = {(*names[row["value"]], row["stepped_over"]) for row in rows}
    late = _survey.survey(history, None)
    found["recovered"] = {names[value] for value in late.late[0].tolist()}
    assert results[0].stats["recovered"] == len(found["recovered"])
    steps = logbook(history, None).odd["sent_before"]
    found["sent_before"] = {(keys[s.key], s.before, s.offset, s.op) for s in steps}
    return found


def originals(folder: Path) -> dict[int, tuple[int, int]]:
    keys = json.loads((folder / "names.json").read_text())["keys"]
    rows = pq.read_table(folder / "origin" / "messages.parquet").to_pylist()
    return {row["value"]: (int(keys[row["key"]]), int(row["original"])) for row in rows}


def identity(row: Any, names: dict[int, tuple[int, int]]) -> tuple[int, ...]:
    if "after" in row:
        return int(row["queue"]), row["after"], row["offset"], row["op"]
    if "other_value" in row:
        return int(row["queue"]), row["offset"]
    return (*names[row["value"]], *([row["op"]] if "op" in row else []))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_checkers_find_what_the_definitions_say(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Each class, by message, offset or step: all that is there, and nothing else."""
    for module in (_survey, _logbook, _witness, phantom, loss):
        monkeypatch.setattr(module, "SAMPLE", 1 << 30)
    if batch == 2:  # processes of one history are in different files
        monkeypatch.setattr(_folder, "ROWS_OF_A_FILE", 80_000)
    dice = random.Random(batch)
    expected: Found = {}
    histories: Counter[str] = Counter()
    line = 1
    with (tmp_path / "history.edn").open("w") as file:
        for number in range(BATCH):
            plants = {dice.choice(PLANTS) for _ in range(dice.randrange(4))}
            events = World(dice, number, line, plants).run()
            line += len(events)
            file.writelines(event.text() for event in events)
            for name, some in Naive(events).found().items():
                expected.setdefault(name, set()).update(some)
                histories[name] += bool(some)
    found = judged(tmp_path / "history.edn", tmp_path / "run")
    for name in sorted(expected.keys() | found.keys()):
        assert found.get(name, set()) == expected.get(name, set()), name
    with capsys.disabled():
        print(f"\n{BATCH} histories, {line - 1} lines: {dict(sorted(histories.items()))}")
    assert min(histories.values()) >= EACH / BATCHES
