"""Histories as other tools record them, made here, with planted faults and the truth about them.

A folder of them has the layout that `SEATRIAL_HISTORIES` has (tests/acceptance/histories.py), so
that one test judges both. What was planted is the only thing wrong. The same seed gives the same
files.
"""

import gzip
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from generated_clients import FAIL, INFO, OK, Answer, Clients, Event, Operation, answering, spread
from generated_messages import OPERATIONS, kafka_history

REGISTERS = 50  # in Porcupine's format of etcd's logs
SOUND_REGISTER = 2  # of five: etcd_002, etcd_007 and so on are linearizable


# ----------------------------------------------------------------------- registers, as etcd's logs


@dataclass
class Register:
    """Operations without an answer write 0 or 1 alone: they may take effect at any later time, so
    a planted read of another value can not be explained by them."""

    dice: Random
    value: int | None = None

    def operation(self, _process: int = 0) -> Operation:
        f = self.dice.choice(("read", "write", "cas"))
        if f == "read":
            return Operation(f, None, lambda: Answer(OK, self.value))
        lost = self.dice.random() < 0.1
        new = self.dice.randrange(2) if lost else self.dice.randrange(5)
        if f == "write":
            return Operation(f, new, lambda: self._change(new, new, lost))
        old = self.dice.randrange(5)
        return Operation(f, [old, new], lambda: self._change(new, [old, new], lost, old))

    def _change(self, new: int, shown: Any, lost: bool, old: int | None = None) -> Answer:
        matches = old is None or self.value == old
        if matches and not (lost and self.dice.random() < 0.5):
            self.value = new
        return Answer(INFO, ":timed-out") if lost else Answer(OK if matches else FAIL, shown)

    def planted(self, kind: int) -> Sequence[Operation]:
        """Operations that no order explains, when nothing else is under way."""
        self.value = 3
        writes = [answering("write", value, Answer(OK, value)) for value in (2, 3)]
        wrong = (
            answering("read", None, Answer(OK, 2)),
            answering("read", None, Answer(OK, 7)),
            answering("cas", [2, 3], Answer(OK, [2, 3])),
        )
        return [*writes, wrong[kind]]


def register_log(dice: Random, plant: int | None) -> str:
    """A history of one register; `plant`: which kind of fault is in it."""
    clients, register = Clients(dice, 5), Register(dice)
    clients.run(iter([register.operation] * 35))
    if plant is not None:
        clients.one_by_one(*register.planted(plant))
    clients.run(iter([register.operation] * 40))
    lines = [(e.process, f":{e.type}", f":{e.f}", spelled(e.value)) for e in clients.events]
    return "".join("INFO  jepsen.util - {}\t{}\t{}\t{}\n".format(*line) for line in lines)


# ------------------------------------------------------------------------------ strings, by key


def string_log(dice: Random, keys: int, count: int, plant: bool) -> str:
    """Gets and appends of strings; planted is a get that does not show a completed append."""
    clients, held = Clients(dice, 5), dict.fromkeys(map(str, range(keys)), "")

    def operation(number: int) -> Callable[[int], Operation]:
        def made(process: int) -> Operation:
            key, text = dice.choice(list(held)), f"x {process} {number} y"

            def append() -> Answer:
                held[key] += text
                return Answer(OK, (key, text))

            if dice.random() < 0.5:
                return Operation("append", (key, text), append)
            return Operation("get", (key, None), lambda: Answer(OK, (key, held[key])))

        return made

    clients.run(operation(number) for number in range(count))
    if plant:
        key, before = "0", held["0"]
        held[key] += "x 0 z y"
        wrote = (key, "x 0 z y")
        clients.one_by_one(
            answering("append", wrote, Answer(OK, wrote)),
            answering("get", (key, None), Answer(OK, (key, before))),
        )
    clients.run(operation(count + number) for number in range(count))
    return "".join(
        f"{{:process {e.process}, :type :{e.type}, :f :{e.f},"
        f' :key "{e.value[0]}", :value {spelled(e.value[1])}}}\n'
        for e in clients.events
    )


# --------------------------------------------------------------------- queues and sets, as Jepsen's


def truth_of(plants: dict[int, str], classes: Sequence[str]) -> dict[str, list[Any]]:
    return {name: sorted(n for n, each in plants.items() if each == name) for name in classes}


def queue_history(dice: Random) -> tuple[list[Event], dict[str, Any]]:
    """Elements that were lost, given out twice, or never enqueued."""
    classes = ("lost", "duplicate", "unexpected")
    clients, held, plants = Clients(dice, 10), deque[int](), spread(dice, classes, OPERATIONS // 2)
    twice, invented = set(truth_of(plants, classes)["duplicate"]), list[int]()
    uncertain = {n for n in range(OPERATIONS // 2) if dice.random() < 0.01} - plants.keys()

    def enqueue(value: int) -> Operation:
        def apply() -> Answer:
            ends = dice.choice((FAIL, INFO)) if value in uncertain else OK
            if plants.get(value) != "lost" and (ends == OK or (ends == INFO and value % 2)):
                held.append(value)
            return Answer(ends, value)

        return Operation("enqueue", value, apply)

    def dequeue(_process: int) -> Operation:
        def apply() -> Answer:
            if not held:
                return Answer(FAIL, None)
            value = held[0]
            if plants.get(value) == "unexpected" and -value not in invented:
                invented.append(-value)
                return Answer(OK, -value)
            if value in twice:
                twice.discard(value)
            else:
                held.popleft()
            return Answer(OK, value)

        return Operation("dequeue", None, apply)

    def operations() -> Iterator[Callable[[int], Operation]]:
        for value in range(OPERATIONS // 2):
            yield lambda _, value=value: enqueue(value)
            yield dequeue
        while held:
            yield dequeue

    clients.run(operations())
    clients.one_by_one(*(dequeue(0) for _ in range(3)))
    truth = truth_of(plants, classes) | {"unexpected": sorted(invented)}
    return clients.events, truth


def set_history(dice: Random) -> tuple[list[Event], dict[str, Any]]:
    """Elements that were lost, or that one read did not show."""
    clients, held, plants = Clients(dice, 10), list[int](), spread(dice, ("lost",), OPERATIONS)
    added, stale = list[int](), list[int]()
    reads = OPERATIONS // 200
    stale_reads = dice.sample(range(reads // 4, reads - 2), 5)

    def add(value: int) -> Operation:
        fails = value not in plants and dice.random() < 0.01

        def apply() -> Answer:
            if value not in plants and not fails:
                held.append(value)
            return Answer(FAIL if fails else OK, value)

        def ended() -> None:
            added.extend([] if fails or value in plants else [value])

        return Operation("add", value, apply, ended)

    def read(number: int) -> Operation:
        missing = dice.sample(added, number in stale_reads)
        stale.extend(missing)
        return Operation("read", None, lambda: Answer(OK, [v for v in held if v not in missing]))

    def operations() -> Iterator[Callable[[int], Operation]]:
        for value in range(OPERATIONS):
            yield lambda _, value=value: add(value)
            if value % 200 == 199:
                yield lambda _, number=value // 200: read(number)

    clients.run(operations())
    clients.one_by_one(read(-1))
    return clients.events, {"lost": sorted(plants), "stale": sorted(stale)}


# ------------------------------------------------------------------- transactions that append


@dataclass
class Lists:
    """Lists that transactions read and append to; some are replaced by others as they grow."""

    dice: Random
    held: dict[int, list[int]] = field(default_factory=lambda: {k: [] for k in range(10)})
    given: dict[int, int] = field(default_factory=dict)  # appends so far, by key
    completed: dict[int, int] = field(default_factory=dict)  # the length that is known to all
    faulty: set[int] = field(default_factory=set)  # keys with a fault; no key has two

    def appended(self, key: int) -> int:
        self.given[key] = self.given.get(key, 0) + 1
        return self.given[key]

    def live(self) -> int:
        """A key that is in use; a long one makes room for a new one."""
        key = self.dice.choice(list(self.held)[-10:])
        if self.given.get(key, 0) > 25:
            self.held[len(self.held)] = []
        return key

    def transaction(self, _process: int) -> Operation:
        keys = [self.live() for _ in range(self.dice.randint(1, 4))]
        mops = [
            ["append", key, self.appended(key)] if self.dice.random() < 0.5 else ["r", key, None]
            for key in keys
        ]
        chance = self.dice.random()
        return self._of(mops, FAIL if chance < 0.01 else INFO if chance < 0.011 else OK)

    def _of(self, mops: list[list[Any]], ends: str, applied: bool | None = None) -> Operation:
        applied = ends == OK if applied is None else applied
        lengths: dict[int, int] = {}

        def apply() -> Answer:
            done = []
            for f, key, value in mops:
                if f == "append" and applied:
                    self.held[key].append(value)
                seen = list(self.held[key]) or None
                done.append([f, key, value if f == "append" else seen])
                lengths[key] = len(self.held[key])
            return Answer(ends, done if ends == OK else mops)

        def ended() -> None:
            for key, length in lengths.items() if applied else ():
                self.completed[key] = max(length, self.completed.get(key, 0))

        return Operation("txn", mops, apply, ended)

    def young(self) -> list[int]:
        """Keys that will be read and appended to for some time."""
        some = [key for key in list(self.held)[-10:] if key not in self.faulty]
        return [key for key in some if 3 < self.completed.get(key, 0) < 12]

    def planted(self, name: str) -> tuple[Operation, Any]:
        """A transaction with a fault, and what the truth says of it."""
        key = self.dice.choice(self.young())
        self.faulty.add(key)
        if name == "stale":
            seen = self.held[key][: self.completed[key] - 1]
            missed = self.held[key][len(seen)]
            answer = Answer(OK, [["r", key, seen]])
            return answering("txn", [["r", key, None]], answer), [key, missed]
        mops = [["append", key, self.appended(key)]]
        if name == "aborted":
            return self._of(mops, FAIL, applied=True), [mops[0][1:]]
        return answering("txn", mops, Answer(OK, mops)), mops[0][1:]


def append_history(dice: Random, sound: bool) -> tuple[list[Event], dict[str, Any]]:
    """Transactions that read old versions, were aborted and read, or vanished."""
    classes = ("stale", "aborted", "lost")
    plants = {} if sound else spread(dice, classes, OPERATIONS)
    clients, lists = Clients(dice, 10), Lists(dice)
    truth: dict[str, list[Any]] = {name: [] for name in classes}

    def plant(name: str) -> Operation:
        operation, fact = lists.planted(name)
        truth[name].append(fact)
        return operation

    def operations() -> Iterator[Callable[[int], Operation]]:
        waiting: list[str] = []
        for number in range(OPERATIONS):
            waiting += filter(None, [plants.get(number)])
            if waiting and lists.young():
                name = waiting.pop()
                yield lambda _, name=name: plant(name)
            else:
                yield lists.transaction

    clients.run(operations())
    return clients.events, truth


# ------------------------------------------------------------------------------------ the files


def spelled(value: Any) -> str:
    """A value as EDN, whose keywords are names of operations within a transaction."""
    if value is None:
        return "nil"
    if isinstance(value, str):
        return value if value.startswith(":") else json.dumps(value)
    if isinstance(value, list | tuple):
        f = value[0] if value and value[0] in ("r", "append", "send", "poll") else None
        words = [f":{f}"] if f else []
        return "[" + " ".join([*words, *map(spelled, value[bool(f) :])]) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} {spelled(v)}" for k, v in value.items()) + "}"
    return str(value)


def edn(events: Sequence[Event]) -> str:
    return "".join(
        f"{{:index {i}, :type :{e.type}, :process {e.process}, :f :{e.f},"
        f" :value {spelled(e.value)}, :time {e.time}}}\n"
        for i, e in enumerate(events)
    )


def write_porcupine(folder: Path, dice: Random) -> None:
    """Registers and strings in the formats that Porcupine reads, and which are linearizable."""
    texts = {}
    for number in range(REGISTERS):
        sound = number % 5 == SOUND_REGISTER
        texts[f"etcd_{number:03}.log"] = register_log(dice, None if sound else number % 3), sound
    for name, keys, count in (("c01", 1, 12), ("c10", 10, 100)):
        for sound, word in ((True, "ok"), (False, "bad")):
            texts[f"{name}-{word}.txt"] = string_log(dice, keys, count, plant=not sound), sound
    lines = []
    for name, (text, sound) in texts.items():
        (folder / name).write_text(text)
        words = "linearizable" if sound else "not linearizable"
        lines.append(f"{name}\t{text.count(':invoke')}\t{words}\n")
    (folder / "expected.tsv").write_text("".join(lines))


def write_jepsen(folder: Path, dice: Random) -> None:
    """Histories in the shapes of Jepsen's workloads, and what was planted in each."""
    made = {
        "append_10k_ok": append_history(dice, sound=True),
        "append_10k_bad": append_history(dice, sound=False),
        "kafka_fixed_10k_ok": kafka_history(dice, sound=True),
        "kafka_fixed_10k_bad": kafka_history(dice, sound=False),
        "queue_10k_bad": queue_history(dice),
        "set_10k_bad": set_history(dice),
    }
    for name, (events, truth) in made.items():
        (folder / f"{name}.edn.gz").write_bytes(gzip.compress(edn(events).encode(), mtime=0))
        sends = sum(e.f == "send" and e.type == "invoke" for e in events)
        facts = truth | {"events": len(events), **({"messages": sends} if sends else {})}
        (folder / f"{name}.edn.truth.json").write_text(json.dumps(facts))


def write(folder: Path, seed: int = 1) -> Path:
    """Write all of them below the folder, and return it."""
    for name in ("porcupine", "jepsen"):
        (folder / name).mkdir(parents=True)
    write_porcupine(folder / "porcupine", Random(seed))
    write_jepsen(folder / "jepsen", Random(seed))
    return folder
