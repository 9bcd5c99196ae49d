"""Concurrent clients of a model, whose operations are recorded as events of a history.

Each operation takes effect at one instant between its call and its return.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

PLANTED = 5  # faults of each class
OK, FAIL, INFO = "ok", "fail", "info"


class Event(NamedTuple):
    """A line of a history."""

    process: int
    type: str
    f: str
    value: Any
    time: int


class Answer(NamedTuple):
    """How an operation ends. `value`: what the line of the end holds."""

    type: str
    value: Any


@dataclass
class Operation:
    """What a client does. `apply` changes the model and returns the answer; it is called once."""

    f: str
    value: Any
    apply: Callable[[], Answer]
    ended: Callable[[], None] = lambda: None


@dataclass
class Clients:
    """Concurrent clients, whose events are recorded. A client without an answer is replaced."""

    dice: Random
    count: int
    events: list[Event] = field(default_factory=list)
    time: int = 0

    def __post_init__(self) -> None:
        self.processes = list(range(self.count))

    def run(self, operations: Iterator[Callable[[int], Operation]]) -> None:
        """Run all operations; each is made when a process is free to call it."""
        pending: dict[int, tuple[Operation, Answer | None]] = {}
        upcoming = next(operations, None)
        while upcoming or pending:
            slot = self.dice.randrange(self.count)
            if slot in pending:
                operation, answer = pending.pop(slot)
                answer = answer or operation.apply()
                self._record(slot, answer.type, operation.f, answer.value)
                operation.ended()
                if answer.type == INFO:
                    self.processes[slot] += self.count
            elif upcoming:
                operation = upcoming(self.processes[slot])
                self._record(slot, "invoke", operation.f, operation.value)
                pending[slot] = operation, operation.apply() if self.dice.random() < 0.5 else None
                upcoming = next(operations, None)

    def one_by_one(self, *operations: Operation) -> None:
        """Run these with nothing else under way."""
        for operation in operations:
            self.run(iter([lambda _, operation=operation: operation]))  # type: ignore[misc]

    def _record(self, slot: int, type_: str, f: str, value: Any) -> None:
        self.time += self.dice.randint(10_000, 500_000)
        self.events.append(Event(self.processes[slot], type_, f, value, self.time))


def answering(f: str, value: Any, answer: Answer) -> Operation:
    return Operation(f, value, lambda: answer)


def spread(dice: Random, classes: Sequence[str], among: int) -> dict[int, str]:
    """Which of the numbers below `among` is a fault of which class: some of each, far apart."""
    chosen = dice.sample(range(among // 10, among * 8 // 10, 20), PLANTED * len(classes))
    return {number: classes[i % len(classes)] for i, number in enumerate(chosen)}
