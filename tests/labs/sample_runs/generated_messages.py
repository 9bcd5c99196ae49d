"""Histories of messages, as Jepsen's kafka workload records them, with planted faults."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from generated_clients import FAIL, INFO, OK, Answer, Clients, Event, Operation, answering, spread

OPERATIONS = 10_000  # of a history in Jepsen's formats


@dataclass
class Topic:
    """Queues of messages, and where each process is in those that it reads."""

    dice: Random
    sound: bool
    logs: list[list[int | None]] = field(default_factory=lambda: [[] for _ in range(12)])
    acked: list[int] = field(default_factory=lambda: [0] * 12)  # values whose offset is known
    sent: list[int] = field(default_factory=lambda: [0] * 12)
    at: dict[tuple[int, int], int] = field(default_factory=dict)
    skipped: set[tuple[int, int]] = field(default_factory=set)

    SENDS = ("lost", "duplicate", "inconsistent", "aborted")
    POLLS = ("skip", "nonmono")

    def __post_init__(self) -> None:
        self.truth: dict[str, list[Any]] = {name: [] for name in (*self.SENDS, *self.POLLS)}

    def keys(self, process: int) -> list[int]:
        """What a process reads; each queue has two readers or more."""
        return list(range(process % 5, 12, 5))

    def assign(self, process: int) -> Operation:
        keys = self.keys(process)
        for key in keys:
            self.at.setdefault((process, key), 0)
        return answering("assign", keys, Answer(OK, keys))

    def send(self, plant: str = "") -> Operation:
        key = self.dice.randrange(12)
        self.sent[key] += 1
        value, log = self.sent[key], self.logs[key]
        chance = self.dice.random()
        ends = OK if plant or chance > 0.015 else FAIL if chance > 0.001 else INFO

        def apply() -> Answer:
            if plant == "inconsistent":
                offset = self.acked[key]
                self.truth[plant].append([key, offset, value])
                return Answer(OK, [["send", key, [offset, value]]])
            if plant:
                self.truth[plant].append([key, value])
            if plant == "aborted" or ends != OK:
                log.extend([value] if plant else ())
                return Answer(FAIL if plant else ends, [["send", key, value]])
            log.append(None if plant == "lost" else value)
            offset = len(log) - 1
            if plant == "duplicate":
                log.append(value)
            elif not plant:
                self.acked[key] = offset
            return Answer(OK, [["send", key, [offset, value]]])

        return Operation("send", [["send", key, value]], apply)

    def poll(self, process: int, plant: str = "") -> Operation:
        def apply() -> Answer:
            wrong, some = plant, {}
            for key in self.keys(process):
                log, here = self.logs[key], self.at[process, key]
                start = self._start(wrong, process, key)
                wrong = "" if start != here else wrong
                end = max(here, len(log) - self.dice.randrange(3))
                found = [[i, v] for i, v in enumerate(log[:end]) if i >= start and v is not None]
                if found:
                    some[key] = found
                    self.at[process, key] = end
            return Answer(OK, [["poll", some]])

        return Operation("poll", [["poll"]], apply)

    def _start(self, plant: str, process: int, key: int) -> int:
        """Where a process reads on: one further, or some back, where a fault is planted."""
        log, here = self.logs[key], self.at[process, key]
        around = log[max(0, here - 3) : here + 6]
        calm = here > 20 and len(around) == 9 and None not in around and len(set(around)) == 9
        if not plant or not calm or (key, here) in self.skipped:
            return here
        self.truth[plant].append([process, key, here])
        self.skipped.add((key, here))
        return here + 1 if plant == "skip" else here - 2


def kafka_history(dice: Random, sound: bool) -> tuple[list[Event], dict[str, Any]]:
    """Messages that were lost, doubled, at two offsets, refused and read; readers that jumped."""
    clients, topic = Clients(dice, 10), Topic(dice, sound)
    plants = {} if sound else spread(dice, topic.SENDS, OPERATIONS // 2)

    def missing() -> str:
        """A class of jump of which there are too few so far."""
        wanted = [name for name in topic.POLLS if not sound and len(topic.truth[name]) < 3]
        return wanted[0] if wanted and dice.random() < 0.05 else ""

    def receive(process: int) -> Operation:
        is_assigned = (process, process % 5) in topic.at
        return topic.poll(process, missing()) if is_assigned else topic.assign(process)

    def operations() -> Iterator[Callable[[int], Operation]]:
        for number in range(OPERATIONS // 2):
            plant = plants.get(number, "")
            yield lambda _, plant=plant: topic.send(plant)
            yield receive

    clients.run(operations())
    for process in clients.processes:
        if (process, process % 5) in topic.at:
            for _ in range(6):
                clients.events += list(_last_poll(clients, topic, process))
    return clients.events, topic.truth


def _last_poll(clients: Clients, topic: Topic, process: int) -> Iterator[Event]:
    """A poll by a certain process, with nothing else under way."""
    operation = topic.poll(process)
    for type_, value in (("invoke", operation.value), operation.apply()):
        clients.time += 1_000_000
        yield Event(process, type_, "poll", value, clients.time)
