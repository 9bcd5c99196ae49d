"""The naive truth about small histories of Jepsen's kafka workload: its definitions, in plain sets
and loops over the events of one history. It knows nothing of the checkers' code.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from kafka_dice import Event, polls_of, sends_of

Found = dict[str, set[tuple[int, ...]]]


class Naive:
    """The properties that Jepsen's checker tests, of one history, by definition. Messages are (key,
    value)."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.outcome: dict[Any, str] = {}
        self.invoked: dict[Any, int] = {}  # lines
        self.ended: dict[Any, int] = {}
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
        if event.type == "invoke":
            self.invoked[message] = event.line
        self.ended[message] = event.line
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
        """Acknowledged, or proven to be committed, and never read."""
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
            committed = self.outcome.get(m) == "info" and m in self.seen and m in self.claim
            places = places | ({self.claim[m]} if committed else set())
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
        found["REORDERED"], found["NOT_LINEARIZABLE"] = self._impossible()
        return found

    def _impossible(self) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
        """Return offsets that were acknowledged before a lower one was sent; and those that were
        certainly there before one that is no higher was sent."""
        sent: dict[Any, list[int]] = {}
        acked: dict[Any, list[int]] = {}
        for m, line in self.invoked.items():
            place = (m[0], self._entry(m))
            if place[1] is not None and place not in self.conflicts:
                sent.setdefault(place, []).append(line)
                if self.outcome[m] == "ok":
                    acked.setdefault(place, []).append(self.ended[m])
        there = {place: list(lines) for place, lines in acked.items()}
        for event in self.events:
            for key, some in polls_of(event):
                for offset, value in some:
                    if (key, value) not in self.lost and (key, offset) not in self.conflicts:
                        there.setdefault((key, offset), []).append(event.line)

        def late(place: Any, until: int, reach: int) -> bool:
            key, offset = place
            return any(
                k == key and o < offset + reach and max(lines) > until
                for (k, o), lines in sent.items()
            )

        return (
            {place for place, lines in acked.items() if late(place, min(lines), 0)},
            {place for place, lines in there.items() if late(place, min(lines), 1)},
        )

    def _entry(self, m: Any) -> int | None:
        """Where in the log a message was appended, as far as it is known."""
        if self.outcome[m] == "ok":
            return None if m in self.lost else self.claim.get(m)
        certain = self.outcome[m] in ("info", "invoke") and m not in self.unsure
        return next(iter(self.seen.get(m, ())), None) if certain else None

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
