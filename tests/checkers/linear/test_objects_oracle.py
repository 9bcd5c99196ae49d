"""Queues, sets, counters, logs and locks: the kernels and the naive truth agree on small ones."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from object_dice import drawn
from object_oracle import Act, Table, possible

from checkers._linear import kinds
from checkers._linear.objects import Objects, objects
from checkers._linear.wrongs import Code

BATCH, BATCHES = 3_000, 2  # of each kind
EACH = 200  # at least, of every code
CODES = {
    "queue": {"PHANTOM_ELEMENT", "DUPLICATE_ELEMENT", "ELEMENT_LOST", "QUEUE_ORDER", "NOT_EMPTY"},
    "set": {
        *("PHANTOM_ELEMENT", "DUPLICATE_ELEMENT", "ELEMENT_LOST", "STALE_READ"),
        "NOT_LINEARIZABLE",
    },
    "counter": {"COUNTER_OUT_OF_RANGE", "NOT_LINEARIZABLE"},
    "log": {
        *("PHANTOM_ELEMENT", "DUPLICATE_ELEMENT", "ELEMENT_LOST", "STALE_READ", "LOG_HOLE"),
        *("OFFSET_CONFLICT", "NOT_LINEARIZABLE"),
    },
    "lock": {
        *("LOCK_HELD_TWICE", "LOCK_NOT_HELD", "LOCK_LOST", "FENCING_BROKEN"),
        "NOT_LINEARIZABLE",
    },
}


def encoded(histories: list[tuple[Act, ...]]) -> Objects:
    """All histories as keys of one table."""
    columns = Table.of(histories).columns()
    shuffled = np.random.default_rng(7).permutation(len(columns["op"]))
    return objects({name: column[shuffled] for name, column in columns.items()})


@pytest.mark.parametrize("kind", list(CODES))
def test_objects_are_what_all_orders_say(kind: str) -> None:
    """Illegal is exactly what no order explains, and every code is put to the test."""
    dice = Random(list(CODES).index(kind))
    codes: Counter[str] = Counter()
    truths: Counter[bool] = Counter()
    for _ in range(BATCHES):
        histories = [drawn(dice, kind) for _ in range(BATCH)]
        verdicts = kinds.judge(encoded(histories))
        bad: dict[int, set[Code]] = {}
        for _, wrong in verdicts.wrongs:
            for key in set(wrong.key.tolist()):
                bad.setdefault(key, set()).add(wrong.code)
        assert not verdicts.unknown.any()
        for key, acts in enumerate(histories):
            truth = possible(kind, acts)
            assert truth is (key not in bad), (key, bad.get(key), acts)
            truths[truth] += 1
        codes.update(code for found in bad.values() for code in found)
    print(f"\n{kind}: legal {truths[True]}, illegal {truths[False]}, {dict(codes)}")
    assert {code: codes[code] for code in CODES[kind] if codes[code] < EACH} == {}
    assert truths[True] >= EACH
