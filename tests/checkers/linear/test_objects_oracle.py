"""Queues, sets, counters, logs and locks: the kernels and the naive truth agree on small ones."""

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from object_dice import drawn
from object_oracle import Act, Table, possible
from table_sizes import at_least, share

from checkers._linear import object_kinds
from checkers._linear.batch import OK
from checkers._linear.objects import REFUSED, Objects, encode_objects
from checkers._linear.violations import Code
from harness.operation import F

BATCH, BATCHES = share(3_000), 2  # of each kind
EACH = at_least(200)  # at least, of every code
PUTS = {"queue": F.ENQUEUE, "log": F.APPEND}
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
    return encode_objects({name: column[shuffled] for name, column in columns.items()})


def folded(acts: tuple[Act, ...]) -> tuple[Act, ...]:
    """The same with two values in place of many, so that some are put twice."""
    return tuple(
        replace(
            act,
            value=None if act.value is None else act.value % 2,
            seen=tuple(value % 2 for value in act.seen),
        )
        for act in acts
    )


def repeats(acts: tuple[Act, ...], put: F) -> bool:
    """Was a value put twice, perhaps?"""
    values = [act.value for act in acts if act.f is put and not act.failed]
    return len(set(values)) < len(values)


@pytest.mark.parametrize("kind", list(PUTS))
def test_what_is_put_twice_is_searched(kind: str) -> None:
    """Equal values are ambiguous: a short key is searched, and the operation that returned last is
    shown; a long one is unknown."""
    dice, put = Random(list(CODES).index(kind) + 30), PUTS[kind]
    histories = [folded(drawn(dice, kind)) for _ in range(BATCH)]
    long = tuple(
        Act(put, 0, 2 * n, 2 * n + 1, value=0) for n in range(object_kinds.MAX_SEARCHED + 1)
    )
    table = encoded([*histories, long, long[1:]])
    verdicts = object_kinds.judge_by_kind(table)
    truths = [possible(kind, acts) for acts in histories]
    bad = {key for _, wrong in verdicts.violations for key in wrong.key.tolist()}
    assert np.flatnonzero(verdicts.unknown).tolist() == [BATCH]
    assert bad == {key for key, truth in enumerate(truths) if not truth}
    searched = [
        (key, row[0])
        for _, wrong in verdicts.violations
        for key, row in zip(wrong.key.tolist(), wrong.ops.tolist(), strict=True)
        if wrong.code is Code.NOT_LINEARIZABLE and repeats(histories[key], put)
    ]
    o = table.operations
    for key, place in searched:
        told = (o.key == key) & np.isin(o.status, (OK, REFUSED))
        assert o.ret[place] == o.ret[told].max(), histories[key]
    print(f"\n{kind}: {len(bad)} illegal of {BATCH}")
    assert len(searched) >= EACH
    assert EACH <= len(bad) <= BATCH - EACH


@pytest.mark.parametrize("kind", list(CODES))
def test_objects_are_what_all_orders_say(kind: str) -> None:
    """Illegal is exactly what no order explains, and every code is put to the test."""
    dice = Random(list(CODES).index(kind))
    codes: Counter[str] = Counter()
    truths: Counter[bool] = Counter()
    for _ in range(BATCHES):
        histories = [drawn(dice, kind) for _ in range(BATCH)]
        verdicts = object_kinds.judge_by_kind(encoded(histories))
        bad: dict[int, set[Code]] = {}
        for _, wrong in verdicts.violations:
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
