"""A small replicated map on the controllers, like RocketMQ's KVConfig, but agreed on. Pure.

A register is a namespace and a key; its value is a string, or absent. Values change by events in
the controllers' log, and reads are linearizable (see `consensus`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

Registers = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class PutValue:
    """A register's new value; None removes it."""

    namespace: str
    key: str
    value: str | None


def answers_alone(leads: bool) -> bool:
    """Decide whether a controller answers a read from memory, without asking a majority whether it
    still leads. It never does: its memory may be outdated even if it believes that it leads."""
    return False


def value_of(registers: Registers, namespace: str, key: str) -> str | None:
    return registers.get(namespace, {}).get(key)


def put(registers: Registers, event: PutValue) -> Registers:
    """Return the registers after an event. A namespace without keys is dropped."""
    row = {k: v for k, v in registers.get(event.namespace, {}).items() if k != event.key}
    if event.value is not None:
        row[event.key] = event.value
    others = {name: r for name, r in registers.items() if name != event.namespace}
    return {**others, event.namespace: row} if row else others
