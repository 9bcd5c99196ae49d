"""Laws of the conversion of a broker set to another mode, by the event logs of its brokers.

    CONVERTED_UNEQUAL     all brokers begin a generation with logs that end at the same place
    CONVERTED_EARLY       no broker begins a generation before the one that leads it first, nor
                          begins another one than that
    GENERATION_WENT_BACK  no broker starts again in an earlier generation
    GENERATIONS_MIXED     a master copies its log only to slaves of its own generation
    PROMISE_BROKEN        no broker leads a generation that it has promised to leave

A broker whose disk lost data may begin with a shorter log, and one whose disk was damaged may have
forgotten its generation: both are exempt.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from clusters.systems.flotilla.law_state import Law

Fields = Mapping[str, Any]
SUCCESS = 0


class SetGenerations:
    """The generations of one broker set. Methods yield violations; `checked`: the laws that the
    last call has checked."""

    def __init__(self) -> None:
        self.checked: tuple[Law, ...] = ()
        self.mode = ""  # of the latest generation; empty before any was reported
        self.latest = 0
        self._begun: dict[int, tuple[str, int]] = {}  # generation -> its mode, where logs end
        self._of: dict[str, int] = {}  # broker -> its generation
        self._promised: dict[str, int] = {}  # broker -> the generation that it will leave

    def begins(self, broker: str, fields: Fields, exempt: bool) -> Iterator[tuple[Law, str]]:
        """A broker begins a generation, or starts again in one."""
        number, end, mode = int(fields["generation"]), int(fields["end"]), str(fields["mode"])
        before = self._of.get(broker, 0)
        self.checked = (Law.GENERATION_WENT_BACK,)
        self._of[broker] = number
        if number < before and not exempt:
            why = f"{broker} was in generation {before}, and started in {number}"
            yield Law.GENERATION_WENT_BACK, why
        if number > before:
            self._promised.pop(broker, None)
            self.checked = (Law.CONVERTED_EARLY, Law.CONVERTED_UNEQUAL)
            first = number not in self._begun
            known_mode, known_end = self._begun.setdefault(number, (mode, end))
            if first and fields["brokerId"] != fields["masterId"] and not exempt:
                why = f"{broker} began generation {number} before broker {fields['masterId']}"
                yield Law.CONVERTED_EARLY, why
            elif mode != known_mode:
                why = f"{broker} began generation {number} as {mode}, others as {known_mode}"
                yield Law.CONVERTED_EARLY, why
            if end != known_end and not exempt:
                why = f"the log of {broker} ended at {end} when it began generation {number}"
                yield Law.CONVERTED_UNEQUAL, f"{why}, and that of another one at {known_end}"
        if number >= self.latest:
            self.latest, self.mode = number, mode

    def promises(self, broker: str) -> None:
        self._promised[broker] = self._of.get(broker, 0)

    def withdraws(self, broker: str) -> None:
        self._promised.pop(broker, None)

    def leads(self, broker: str) -> Iterator[tuple[Law, str]]:
        """A broker becomes master."""
        self.checked = (Law.PROMISE_BROKEN,)
        if broker in self._promised and self._promised[broker] == self._of.get(broker, 0):
            why = f"{broker} became master in generation {self._promised[broker]}"
            yield Law.PROMISE_BROKEN, f"{why}, which it had promised to leave"

    def copies(self, master: str, slave: str, fields: Fields) -> Iterator[tuple[Law, str]]:
        """A master has answered a handshake."""
        self.checked = ()
        if fields["status"] != SUCCESS or "generation" not in fields:
            return
        self.checked = (Law.GENERATIONS_MIXED,)
        own, theirs = int(fields["generation"]), int(fields["slaveGeneration"])
        if own != theirs:
            why = f"{master}, in generation {own}, copies its log to {slave}, in {theirs}"
            yield Law.GENERATIONS_MIXED, why
