"""What becomes of the rows of leases, row by row, against the words that define it."""

from collections import Counter
from itertools import count, islice
from random import Random

import numpy as np

from checkers._linear.batch import ABSENT
from checkers._linear.leases import without_leases
from checkers._linear.objects import COLUMNS, LOCK
from harness.operation import F, Type

NAMES = (*COLUMNS, "arg")
LEASES_MS = (-1, 0, 1, 2, 5, 50)
HISTORIES = 2_000
BEFORE_ALL = -1
NS_IN_MS, MADE_UP = 1_000_000, 1 << 62

Row = dict[str, int]
Rows = list[Row]


def naive(rows: Rows, met: Counter[str]) -> Rows:
    """Return the rows that remain and those added, by loops; and the kinds of leases in them."""
    leases = [row for row in rows if row["f"] == F.ACQUIRE and row["type"] == Type.OK]
    leases = [row for row in leases if row["arg"] >= 0]
    invoked = {row["op"]: row for row in rows if row["type"] == Type.INVOKE}
    calls = [call for call in invoked.values() if call["f"] in LOCK and not undone(call, rows)]
    calls += [lease for lease in leases if lease["op"] not in invoked]
    kept = [dict(row) for row in rows]
    for lease in leases:
        asked = lease["op"] in invoked
        begin = invoked.get(lease["op"], lease)
        over = begin["t"] + lease["arg"] * NS_IN_MS if asked else BEFORE_ALL
        later = [call for call in calls if follows(call, begin)]
        after = min(later, key=lambda row: (row["t"], row["op"]), default=None)
        release = after is not None and after["f"] == F.RELEASE
        if after is not None and after["t"] <= over and release:
            met["released in time"] += 1
            continue
        if after is not None and release:
            kept = [row for row in kept if row["op"] != after["op"]]
        end = over if after is None else min(over, after["t"] - 1)
        certain = end > lease["t"]
        if certain:
            made = {"t": end, "op": lease["op"] | MADE_UP, "type": Type.INVOKE, "f": F.RELEASE}
            kept.append(lease | made | {"value": ABSENT, "offset": ABSENT})
        else:
            for row in kept:
                if row["op"] == lease["op"] and row["type"] == Type.OK:
                    row["type"] = Type.INFO
        what = "nothing" if after is None else "released late" if release else "asked again"
        met[f"{what}, {'certain' if certain else 'never'}{'' if asked else ', unheard'}"] += 1
    return kept


def follows(call: Row, begin: Row) -> bool:
    """Is it of the same process on the same lock, after that one?"""
    same = all(call[name] == begin[name] for name in ("key", "process"))
    return same and (call["t"], call["op"]) > (begin["t"], begin["op"])


def undone(call: Row, rows: Rows) -> bool:
    """Whether it certainly did not happen; a refusal with a reason is an observation."""
    return any(
        row["op"] == call["op"] and row["type"] == Type.FAIL and row["pos"] != 0 for row in rows
    )


def played(dice: Random, key: int, ops: "count[int]") -> Rows:
    """Return the rows of a few processes on one lock, with rows of other objects of the key."""
    rows: Rows = []
    for process in range(dice.choice((1, 2, 3))):
        t = dice.randrange(4)
        for _ in range(dice.randrange(7)):
            f = dice.choice((F.ACQUIRE, F.ACQUIRE, F.RELEASE, F.RELEASE, F.ENQUEUE))
            head = {"process": process, "op": next(ops), "f": f, "key": key}
            head |= {"value": dice.randrange(9), "offset": dice.randrange(9), "mop": -1}
            lease = {"arg": dice.choice(LEASES_MS)}
            ret = t + dice.choice((0, 0, 1, 1, 3, 10))
            kind = dice.choice((*[Type.OK] * 6, Type.FAIL, Type.INFO))
            pos = dice.choice((-1, 0)) if kind is Type.FAIL else -1
            if dice.random() < 0.95 or kind is not Type.OK:
                rows.append(head | lease | {"t": t * NS_IN_MS, "type": Type.INVOKE, "pos": -1})
            rows.append(head | lease | {"t": ret * NS_IN_MS, "type": kind, "pos": pos})
            t = ret + dice.choice((0, 0, 1, 2, 5, 40))
    return rows


def test_every_row_is_what_its_lease_makes_of_it() -> None:
    """Locks of few processes, with leases of zero and of long duration, at equal times; in tables
    of a few locks each, in random order."""
    dice, ops, met = Random(3), count(), Counter[str]()
    keys = iter(range(HISTORIES))
    while some := list(islice(keys, dice.choice((1, 2, 20)))):
        histories = [played(dice, key, ops) for key in some]
        expected = [row for history in histories for row in naive(history, met)]
        rows = [row for history in histories for row in history]
        dice.shuffle(rows)
        table = {name: np.array([row[name] for row in rows], np.int64) for name in NAMES}
        given = {name: column.copy() for name, column in table.items()}
        answer = without_leases(table)
        found = zip(*(answer[name].tolist() for name in NAMES), strict=True)
        assert sorted(found) == sorted(tuple(int(row[name]) for name in NAMES) for row in expected)
        assert all((table[name] == given[name]).all() for name in NAMES)
    print(dict(met))
    assert len(met) == 10
    assert min(met.values()) >= 30
