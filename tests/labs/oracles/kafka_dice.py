"""Small random histories of Jepsen's kafka workload, most of them with an error.

A broker with planted errors is simulated with its clients: some keys, some processes, sends, polls
and transactions, some of unknown outcome. A history has its own keys, processes and lines, so that
many of them form one file.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

KEYS, PROCESSES = 2, 4  # of one history; a client that crashed goes on as another process
MOST = 8  # operations of a small history, those included that say what a process reads
PLANTS = (
    *("lost", "displaced", "two values", "twice", "aborted", "leap", "back", "gap", "swap", "slip"),
    *("sent back", "sent low", "sent low", "twice", "own", "torn", "ghost", "moved", "rebalance"),
    *("subscribe", "own", "torn", "swap"),
)
OFTEN = (  # what needs room in a small history; "early": read before it is even sent
    *("subscribe", "subscribe", "leap", "leap", "sent low", "early", "early"),
)


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
    small: bool = False
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
        said = self.who[: 2 if not self.small or word == "subscribe" else self.dice.randrange(2)]
        for process in said:
            self._say("ok", word, process, self.keys, self._invoke(word, process, self.keys))
        most = MOST - len(said) - 2
        for _ in range(self.dice.randint(2, most) if self.small else self.dice.randint(8, 16)):
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
        """Put a message into the log, correctly or not; return the offset that its client gets."""
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
        if self._planted("early"):
            some.append((self.end[key], self.values[key] + 1))
        if self._planted("two values"):
            some[0] = (some[0][0], self.dice.randint(1, max(1, self.values[key])))
        return some


def drawn(dice: random.Random, number: int, line: int, small: bool) -> list[Event]:
    """The number-th history of a file, from this line on."""
    usual = PLANTS + OFTEN if small else PLANTS
    plants = {dice.choice(usual) for _ in range(dice.randrange(4))}
    return World(dice, number, line, plants, small).run()


def sends_of(event: Event) -> Iterator[tuple[int, int, int | None]]:
    if event.f in ("send", "txn"):
        yield from (mop for mop in event.mops if isinstance(mop, tuple))


def polls_of(event: Event) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    for mop in event.mops if event.f in ("poll", "txn") else ():
        if isinstance(mop, dict):
            yield from mop.items()
