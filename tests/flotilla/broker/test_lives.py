"""Each process of a broker is a life of its own, whatever dice it was given."""

from dataclasses import dataclass, replace
from typing import Any, cast

from clusters.flotilla.world.ports import Ports, incarnation_of, real


@dataclass(frozen=True)
class At:
    """A moment, and a process that begins then."""

    ms: int
    number: int

    def wall_ms(self) -> int:
        return self.ms

    def pid(self) -> int:
        return self.number


def begun(ms: int, pid: int) -> Ports:
    """The ports of a process that begins then; each has the same seed."""
    at = cast(Any, At(ms, pid))
    return replace(real(7), clock=at, process=at)


def test_a_broker_that_starts_again_is_another_life() -> None:
    """With its old seed, as trials give it, and, as in a container, with its old process id.

    If it were the same, its heartbeats, counted from 1, would be taken for late ones of the life
    before, until they outnumbered those.
    """
    lives = [incarnation_of(begun(ms, pid)) for ms, pid in ((1_000, 7), (1_001, 7), (1_000, 8))]
    assert len(set(lives)) == 3
