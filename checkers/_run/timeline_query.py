"""Questions about the timeline of a run, answered exactly.

Cells (see `timeline`) are the result of one pass over the operations. Here they become counts in a
window, quantiles, the first acknowledgement after a fault, and the longest silence. `None` always
means that something never happened; it is never zero.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from checkers._run.timeline import NEVER, CellKind, Ints, TimelineQuery, latency_ms
from harness.history.faults_and_events import TimeWindow
from harness.operation import SENDS, F, Type


@dataclass(frozen=True)
class Outage:
    """An outage by its published definition: from the first failure to the next success."""

    begin: int  # the failed operation's invocation
    seen: int  # its completion
    end: int | None  # the first success after `seen`


class Timeline:
    """The cells of one history, and the query that they answer."""

    def __init__(self, table: pa.Table, query: TimelineQuery) -> None:
        self.query = query
        self._columns = {name: table.column(name).to_numpy() for name in table.column_names}
        self._acks: dict[int | None, tuple[Ints, Ints]] = {}  # by broker set

    def total(self, f: F, kind: Type, group: int | None = None) -> int:
        return self._sum(self._where(CellKind.OPS, f=f, type=kind, set=group))

    def sends(self, kind: Type) -> int:
        """Return how many sends there are of all kinds of messages."""
        return sum(self.total(f, kind) for f in SENDS)

    def messages(self, fs: Iterable[F]) -> int:
        """Return how many messages polls of these kinds returned."""
        return sum(self._sum(self._where(CellKind.MESSAGES, f=f)) for f in fs)

    def in_window(
        self,
        number: int,
        fs: Sequence[F] | None = None,
        kind: Type | None = None,
        group: int | None = None,
    ) -> int:
        """Return how many operations were invoked or completed in a window."""
        return sum(
            n
            for its_set, its_f, its_kind, n in self._in_windows.get(number, ())
            if (fs is None or its_f in fs) and kind in (None, its_kind) and group in (None, its_set)
        )

    @cached_property
    def _in_windows(self) -> Mapping[int, Sequence[tuple[int, int, int, int]]]:
        """By window: set, f, type and count."""
        cells = self._where(CellKind.WINDOW)
        columns = (self._of(name, cells).tolist() for name in ("slot", "set", "f", "type", "n"))
        found: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
        for slot, *cell in zip(*columns, strict=True):
            found[slot].append((cell[0], cell[1], cell[2], cell[3]))
        return found

    @cached_property
    def in_flight(self) -> Mapping[int, int]:
        """By window, how many operations were open at some moment of it; of polls, those that
        failed or returned a message."""
        cells = self._where(CellKind.FLIGHT)
        counts: Counter[int] = Counter()
        for window, n in zip(self._of("slot", cells), self._of("n", cells), strict=True):
            counts[int(window)] += int(n)
        return counts

    def open_during(self, number: int, fs: Sequence[F] | None) -> int:
        """Return how many operations of these kinds, or of all, were open at some moment of a
        window, as `in_flight`."""
        return sum(
            self._sum(self._where(CellKind.FLIGHT, f=f, slot=number))
            for f in ((None,) if fs is None else fs)
        )

    def left_open(self, number: int, f: F, group: int | None = None) -> int:
        """Return how many operations were open at the end of a window."""
        return self._sum(self._where(CellKind.LEFT, f=f, slot=number, set=group))

    def answer(self, mark: int, fs: Iterable[F], group: int | None = None) -> int | None:
        """Return the time of the first success among operations invoked after the mark."""
        times = [self._least(self._where(CellKind.ANSWER, f=f, slot=mark, set=group)) for f in fs]
        known = [t for t in times if t is not None]
        return min(known) if known else None

    def outage(self, mark: int, group: int | None = None) -> Outage | None:
        """Return the outage that begins with the first failure after the mark."""
        cells = self._where(CellKind.FAILURE, slot=mark, set=group)
        if not len(cells):
            return None
        seen = self._of("lo", cells)
        at = int(np.argmin(seen))
        failed = int(seen[at])
        start = int(self._of("slot2", cells)[at])
        return Outage(start if start >= 0 else failed, failed, self.acked_after(failed, group))

    def acked_after(self, t: int, group: int | None = None) -> int | None:
        """Return the time of the first acknowledgement after `t`. It is exact unless its fine bin
        began before `t`, and then no more than one fine bin late."""
        firsts, lasts = self._acked(group)
        at = int(np.searchsorted(lasts, t, side="right"))
        if at == len(lasts):
            return None
        return int(firsts[at] if firsts[at] > t else lasts[at])

    def silences(self, window: TimeWindow, group: int | None = None) -> list[TimeWindow]:
        """Return the stretches between acknowledgements within the window, its ends included. They
        are exact if they are longer than a fine bin."""
        firsts, lasts = self._acked(group)
        inside = (lasts >= window.begin) & (firsts < window.end)
        begins = np.concatenate([[window.begin], np.minimum(lasts[inside], window.end)])
        ends = np.concatenate([np.maximum(firsts[inside], window.begin), [window.end]])
        return [TimeWindow(int(b), int(max(b, e))) for b, e in zip(begins, ends, strict=True)]

    def idle(self, window: TimeWindow, fs: Iterable[F]) -> list[TimeWindow]:
        """Return the stretches of a window without a success of these kinds, with the precision of
        a bin."""
        cells = self._where(CellKind.OPS, type=Type.OK)
        cells = cells[np.isin(self._of("f", cells), [*fs])]
        slots = np.unique(self._of("slot", cells)) * self.query.bin_ns
        begins = [window.begin, *(slots + self.query.bin_ns).tolist()]
        ends = [*slots.tolist(), window.end]
        return [
            TimeWindow(max(b, window.begin), min(e, window.end))
            for b, e in zip(begins, ends, strict=True)
            if min(e, window.end) > max(b, window.begin)
        ]

    @property
    def sending(self) -> TimeWindow | None:
        """The time from the invocation of the first send to that of the last one."""
        cells = self._where(CellKind.SENT)
        if not len(cells):
            return None
        return TimeWindow(int(self._of("lo", cells).min()), int(self._of("hi", cells).max()))

    def in_vain(self, *, never: bool) -> int | None:
        """Return when the last send ended that was invoked after the last acknowledgement and not
        acknowledged, no more than one fine bin late. `never`: sends without an end count, too, and
        end at NEVER."""
        acked = self._where(CellKind.ACKED)
        last = int(self._of("hi", acked).max()) if len(acked) else -1
        cells = self._where(CellKind.IN_VAIN)
        cells = cells[self._of("hi", cells) > last]
        if not never:
            cells = cells[self._of("slot", cells) != NEVER]
        if not len(cells):
            return None
        slot = int(self._of("slot", cells).max())
        return slot if slot == NEVER else (slot + 1) * self.query.fine_ns

    def quantiles_ms(
        self, quantiles: Iterable[float], span: int | None = None
    ) -> list[float | None]:
        """Return latencies of acknowledged sends: of all, or of those acknowledged in a span. None
        of them exceeds the maximum, which is known exactly."""
        cells = (
            self._where(CellKind.LATENCY)
            if span is None
            else self._where(CellKind.WITHIN, slot=span)
        )
        buckets, counts = _summed(self._of("slot2", cells), self._of("n", cells))
        worst = float(self._of("hi", cells).max(initial=0)) / 1e6
        found = (_quantile(buckets, counts, q) for q in quantiles)
        return [None if value is None else min(value, worst) for value in found]

    def worst_ms(self) -> float | None:
        cells = self._where(CellKind.LATENCY)
        return float(self._of("hi", cells).max()) / 1e6 if len(cells) else None

    @cached_property
    def bins(self) -> range:
        """The bins from the first to the last in which anything happened."""
        cells = np.concatenate([self._where(CellKind.OPS), self._where(CellKind.MESSAGES)])
        slots = self._of("slot", cells)
        return range(int(slots.min()), int(slots.max()) + 1) if len(slots) else range(0)

    def lane(self, what: CellKind, fs: Iterable[F], kind: Type) -> list[int]:
        """Return counts by bin."""
        cells = self._where(what, type=kind)
        cells = cells[np.isin(self._of("f", cells), [*fs])]
        counts = np.zeros(len(self.bins), np.int64)
        if len(counts):
            np.add.at(counts, self._of("slot", cells) - self.bins.start, self._of("n", cells))
        return [int(n) for n in counts]

    def latency_lane(self, quantile: float) -> list[float | None]:
        """Return a latency quantile by bin."""
        cells = self._where(CellKind.LATENCY)
        slots, buckets, counts = (self._of(name, cells) for name in ("slot", "slot2", "n"))
        order = np.argsort(slots, kind="stable")
        slots, buckets, counts = slots[order], buckets[order], counts[order]
        lane: list[float | None] = []
        for slot in self.bins:
            low, high = np.searchsorted(slots, [slot, slot + 1])
            lane.append(_quantile(*_summed(buckets[low:high], counts[low:high]), quantile))
        return lane

    def _acked(self, group: int | None) -> tuple[Ints, Ints]:
        """Return the first and last acknowledgement of each fine bin, in order of time."""
        if group not in self._acks:
            self._acks[group] = self._sorted_acks(group)
        return self._acks[group]

    def _sorted_acks(self, group: int | None) -> tuple[Ints, Ints]:
        cells = self._where(CellKind.ACKED, set=group)
        slots, firsts, lasts = (self._of(name, cells) for name in ("slot", "lo", "hi"))
        order = np.lexsort((firsts, slots))
        slots, firsts, lasts = slots[order], firsts[order], lasts[order]
        if group is None and len(slots):
            heads = np.flatnonzero(np.concatenate([[True], slots[1:] != slots[:-1]]))
            return np.minimum.reduceat(firsts, heads), np.maximum.reduceat(lasts, heads)
        return firsts, lasts

    def _where(self, what: CellKind, **keys: int | None) -> Ints:
        """Return the numbers of the cells of a kind with these values."""
        cells = self._by_kind[what]
        for name, wanted in keys.items():
            if wanted is not None:
                cells = cells[self._columns[name][cells] == wanted]
        return cells

    @cached_property
    def _by_kind(self) -> Mapping[CellKind, Ints]:
        return {what: np.flatnonzero(self._columns["what"] == what) for what in CellKind}

    def _of(self, name: str, cells: Ints) -> Ints:
        column: Ints = self._columns[name][cells]
        return column

    def _sum(self, cells: Ints) -> int:
        return int(self._of("n", cells).sum())

    def _least(self, cells: Ints) -> int | None:
        return int(self._of("lo", cells).min()) if len(cells) else None


def _summed(buckets: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return distinct buckets in order, and the sum of the counts of each."""
    distinct, at = np.unique(buckets, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, at, counts)
    return distinct, total


def _quantile(buckets: Ints, counts: Ints, quantile: float) -> float | None:
    """Return the latency that `quantile` of the operations did not exceed."""
    if not len(buckets):
        return None
    reached = np.cumsum(counts)
    at = int(np.searchsorted(reached, quantile * reached[-1], side="left"))
    return latency_ms(int(buckets[min(at, len(buckets) - 1)]))
