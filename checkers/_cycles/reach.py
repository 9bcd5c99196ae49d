"""Reachability in a graph without cycles, for many pairs at once: sixty-four to a word."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkers._cycles.arrays import Bools, Ints, ranges
from harness.compiled import kernel

WORD = 64
Words = npt.NDArray[np.uint64]


@kernel
def _ordered(heads: Ints, targets: Ints, waiting: Ints, order: Ints) -> int:
    """Write Kahn's topological order into `order`; return its length. `waiting`: edges into each
    node."""
    count = 0
    for node in range(len(waiting)):
        if waiting[node] == 0:
            order[count] = node
            count += 1
    done = 0
    while done < count:
        node = order[done]
        done += 1
        for edge in range(heads[node], heads[node + 1]):
            target = targets[edge]
            waiting[target] -= 1
            if waiting[target] == 0:
                order[count] = target
                count += 1
    return count


@kernel
def _spread(heads: Ints, targets: Ints, order: Ints, low: int, high: int, words: Words) -> None:
    for place in range(low, high):
        node = order[place]
        word = words[node]
        if word != 0:
            for edge in range(heads[node], heads[node + 1]):
                words[targets[edge]] |= word


@dataclass(frozen=True)
class Dag:
    """`heads` and `targets`: each node's edges out. `order`: its nodes, sources first; `place`: the
    place of each node in it."""

    heads: Ints
    targets: Ints
    order: Ints
    place: Ints

    @classmethod
    def of(cls, src: Ints, dst: Ints, count: int) -> "Dag":
        """Return the graph of these edges. Raises ValueError if they form a cycle."""
        by_source = np.argsort(src, kind="stable")
        heads = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=count))])
        targets = dst[by_source]
        order = np.empty(count, np.int64)
        waiting = np.bincount(dst, minlength=count).astype(np.int64)
        if _ordered(heads, targets, waiting, order) < count:
            raise ValueError("the graph has a cycle")
        place = np.empty(count, np.int64)
        place[order] = np.arange(count)
        return cls(heads, targets, order, place)

    def reached(self, start: Ints, goals: Ints, goal_count: Ints) -> Bools:
        """Return for each start whether a path of one or more edges leads to any of its goals.

        `goals` are adjacent, `goal_count` of them for each start.
        """
        answer = np.zeros(len(start), np.bool_)
        order = np.argsort(self.place[start], kind="stable")
        begin = np.cumsum(goal_count) - goal_count
        words = np.zeros(len(self.order), np.uint64)
        for first in range(0, len(order), WORD):
            batch = order[first : first + WORD]
            answer[batch] = self._batch(start, goals, begin, goal_count, batch, words)
        return answer

    def _batch(
        self, start: Ints, goals: Ints, begin: Ints, counts: Ints, batch: Ints, words: Words
    ) -> Bools:
        ours = goals[ranges(begin[batch], counts[batch])]
        answer = np.zeros(len(batch), np.bool_)
        low = int(self.place[start[batch]].min())
        high = int(self.place[ours].max()) if len(ours) else -1
        if high <= low:
            return answer
        words[self.order[low:]] = 0
        bits = np.left_shift(np.uint64(1), np.arange(len(batch), dtype=np.uint64))
        out = self.heads[start[batch] + 1] - self.heads[start[batch]]
        first = self.targets[ranges(self.heads[start[batch]], out)]
        np.bitwise_or.at(words, first, np.repeat(bits, out))
        _spread(self.heads, self.targets, self.order, low, high + 1, words)
        ahead = self.place[ours] > low  # earlier words belong to other batches
        found = ahead & ((words[ours] & np.repeat(bits, counts[batch])) != 0)
        np.logical_or.at(answer, np.repeat(np.arange(len(batch)), counts[batch]), found)
        return answer
