"""Locks that end by themselves: what is certain of a lease, and what is not."""

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest

from checkers._linear.leases import NS_IN_MS, without_leases
from checkers._linear.object_verdicts import bucket_verdicts
from checkers._linear.objects import COLUMNS
from harness.operation import F, Type

NAMES = (*COLUMNS, "arg")
ABSENT = -(1 << 63)
A, R = F.ACQUIRE, F.RELEASE
OK, FAIL, INFO = Type.OK, Type.FAIL, Type.INFO
LEASE_MS = 100

Did = tuple[int, int, F, Type, int]  # process, call, what, how it ended, return (in ms)


def table(*acts: Did, lease_ms: int = LEASE_MS) -> Mapping[str, Any]:
    """Rows of one lock. Leases are counted from the call."""
    rows = []
    for op, (process, call, f, end, ret) in enumerate(acts):
        head = {"process": process, "op": op, "f": f, "key": 0, "value": ABSENT, "offset": ABSENT}
        head |= {"pos": -1, "mop": -1, "arg": -1}
        lease = lease_ms if (f, end) == (A, OK) else -1
        rows.append(head | {"t": call * NS_IN_MS, "type": Type.INVOKE})
        rows.append(head | {"t": ret * NS_IN_MS, "type": end, "arg": lease})
    return {name: np.array([row[name] for row in rows], np.int64) for name in NAMES}


def codes(*acts: Did) -> list[str]:
    found = bucket_verdicts(without_leases(table(*acts)))
    assert not found["unknown"]["lock"]
    return [code for _, code, _, _ in found["wrong"]]


TWICE = ["LOCK_HELD_TWICE"]


@pytest.mark.parametrize(
    ("acts", "found"),
    [
        # it is held until its lease ends, and no longer, whatever is said of it later
        (((1, 0, A, OK, 10), (2, 90, A, OK, 95)), TWICE),
        (((1, 0, A, OK, 10), (2, 90, A, OK, 101)), []),
        (((1, 0, A, OK, 10), (2, 90, A, OK, 110), (1, 120, R, OK, 130)), []),
        (((1, 0, A, OK, 10), (1, 120, R, OK, 130), (2, 110, A, OK, 115)), []),
        # a release that was called for in time ends it, whether it was answered or not
        (((1, 0, A, OK, 10), (1, 50, R, OK, 60), (2, 40, A, OK, 55)), []),
        (((1, 0, A, OK, 10), (1, 50, R, INFO, 60), (2, 40, A, OK, 55)), []),
        (((1, 0, A, OK, 10), (1, 50, R, OK, 60), (2, 40, A, OK, 45)), TWICE),
        # one that failed does not
        (((1, 0, A, OK, 10), (1, 50, R, FAIL, 60), (2, 70, A, OK, 80)), TWICE),
        (((1, 0, A, OK, 10), (1, 50, R, FAIL, 60), (2, 70, A, OK, 101)), []),
        # it was over before anybody heard of it
        (((1, 0, A, OK, 150), (2, 20, A, OK, 30)), []),
        # taken again, it is held for longer; what lies between the two is not certain
        (((1, 0, A, OK, 10), (1, 50, A, OK, 60), (2, 110, A, OK, 120)), TWICE),
        (((1, 0, A, OK, 10), (1, 50, A, OK, 60), (2, 140, A, OK, 151)), []),
        (((1, 0, A, OK, 10), (1, 150, A, OK, 160), (2, 110, A, OK, 120)), TWICE),
    ],
)
def test_a_lease_is_certain_until_it_ends(acts: tuple[Did, ...], found: list[str]) -> None:
    assert codes(*acts) == found


def test_nobody_else_s_rows_are_touched() -> None:
    """A lock without leases is what it was."""
    rows = table((1, 0, A, OK, 10), (2, 20, A, OK, 30), lease_ms=-1)
    assert without_leases(rows) is rows
    assert [code for _, code, _, _ in bucket_verdicts(rows)["wrong"]] == TWICE


def test_a_lease_never_heard_to_be_asked_for_is_not_certain() -> None:
    """It may have been over when another process was given the lock, and its release may have been
    late."""
    acts = [(1, 0, A, OK, 200), (2, 210, A, OK, 220), (1, 230, R, OK, 240), (2, 250, R, OK, 260)]
    rows = table(*acts, lease_ms=300)
    assert [code for _, code, _, _ in bucket_verdicts(without_leases(rows))["wrong"]] == TWICE
    heard = (rows["op"] != 0) | (rows["type"] != Type.INVOKE)
    rows = {name: column[heard] for name, column in rows.items()}
    assert bucket_verdicts(without_leases(rows))["wrong"] == []


def naive(acts: list[Did]) -> bool:
    """Do two certain holds overlap?"""
    holds = []
    for process, call, f, end, ret in acts:
        if (f, end) != (A, OK):
            continue
        later = [d for d in acts if d[0] == process and d[1] > call and d[3] is not FAIL]
        until = min([call + LEASE_MS, *(d[1] for d in later)])
        if until > ret:
            holds.append((process, ret, until))
    return any(a[1] < b[2] and b[1] < a[2] for a in holds for b in holds if a[0] != b[0])


def test_random_leases_against_a_naive_judge() -> None:
    """Three holders, each doing one thing after the other; times never equal."""
    random, both = Random(1), [0, 0]
    for _ in range(600):
        acts: list[Did] = []
        times = sorted(random.sample(range(600), 24))
        random.shuffle(slots := [0, 1, 2] * 8)
        open_calls: dict[int, int] = {}
        held: set[int] = set()
        gone: set[int] = set()
        for at, process in zip(times, slots, strict=True):
            if process in gone:
                continue
            if process not in open_calls:
                open_calls[process] = at
                continue
            call = open_calls.pop(process)
            f = R if process in held and random.random() < 0.8 else A
            end = random.choice((OK, OK, OK, FAIL, INFO))
            acts.append((process, call, f, end, at))
            if end is INFO:
                gone.add(process)
            elif end is OK:
                (held.add if f is A else held.discard)(process)
        expected = naive(acts)
        assert codes(*acts) == (TWICE if expected else []), acts
        both[expected] += 1
    assert min(both) > 100
