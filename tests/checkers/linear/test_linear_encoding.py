"""Rows as operations: what breaks a rule is named, and only ever weakens a verdict."""

import numpy as np
import pyarrow as pa
import pytest

from checkers._linear.batch import (
    CALL,
    ILLEGAL,
    INFO,
    KIND,
    LEGAL,
    NEVER,
    OK,
    READ,
    REFUSED,
    RET,
    STATUS,
    WRITE,
    A,
    B,
)
from checkers._linear.encoding import Rule, columns_of, encode
from checkers._linear.judge import judge
from harness.history.schema import OPS
from harness.operation import F, Type

PUT, GET, CAS = F.PUT, F.GET, F.CAS
CALLED, DONE, FAILED, LOST = Type.INVOKE, Type.OK, Type.FAIL, Type.INFO


def row(t, op, kind, f, value=None, **other):
    """A row of process 1 on key 0."""
    given = {"process": 1, "key": 0, "arg": None, "pos": None} | other
    return (t, given["process"], op, kind, f, given["key"], value, given["arg"], given["pos"])


def test_what_tells_nothing_is_left_out(table) -> None:
    """Operations that did not happen and reads without an answer are no operations here; a
    refusal by comparison is an observation."""
    rows = [
        row(0, 1, CALLED, PUT, 5),
        row(1, 1, FAILED, PUT, 5),
        row(2, 2, CALLED, GET),
        row(3, 2, LOST, GET),
        row(4, 3, CALLED, CAS, 5, arg=6),
        row(5, 3, FAILED, CAS, 5, arg=6, pos=0),
        row(6, 4, CALLED, CAS, 5, arg=6),
        row(7, 4, FAILED, CAS, 5, arg=6),
        row(8, 5, CALLED, PUT, 7),
        row(9, 5, LOST, PUT, 7),
    ]
    batch = encode(table(rows)).batch
    assert batch.names.tolist() == [3, 5]
    assert batch.ops[:, KIND].tolist() == [REFUSED, WRITE]
    assert batch.ops[:, STATUS].tolist() == [OK, INFO]
    assert batch.ops[:, RET].tolist() == [5, NEVER]


def test_calls_come_before_returns_at_one_time(table) -> None:
    """What touches may have overlapped: a read at the instant of a write's return can miss it."""
    rows = [
        row(0, 1, CALLED, PUT, 5),
        row(3, 1, DONE, PUT, 5),
        row(3, 2, CALLED, GET, process=2),
        row(4, 2, DONE, GET, process=2),
    ]
    batch = encode(table(rows)).batch
    assert batch.ops[1, CALL] < batch.ops[0, RET]
    assert judge(batch).worst == LEGAL
    rows[2] = row(4, 2, CALLED, GET, process=2)
    assert judge(encode(table(rows)).batch).worst == ILLEGAL


def test_values_are_numbered_by_key(table) -> None:
    """Each key has numbers of its own, 0 is the initial value, and the values can be had back."""
    rows = [
        row(0, 1, CALLED, CAS, 7, arg=9, key=1),
        row(1, 1, DONE, CAS, 7, arg=9, key=1),
        row(2, 2, CALLED, PUT, 9, key=4),
        row(3, 2, DONE, PUT, 9, key=4),
    ]
    batch = encode(table(rows), initial=7).batch
    assert batch.keys.tolist() == [1, 4]
    assert batch.ops[:, [A, B]].tolist() == [[0, 1], [1, 0]]
    assert batch.values.tolist() == [7, 9, 7, 9]
    assert batch.value_starts.tolist() == [0, 2, 4]


def test_journals_interleave(table) -> None:
    """Rows of several writers, one after the other, are the same history as in order of time."""
    mine = [row(t, t // 2, Type(t % 2), PUT, t // 2) for t in range(40)]
    other = [row(t, 100 + t // 2, Type(t % 2), GET, 3, process=2) for t in range(40)]
    ordered = encode(table(sorted(mine + other, key=lambda r: (r[0], r[3])))).batch
    apart = encode(table(mine + other))
    assert not apart.flaws
    assert (np.sort(apart.batch.names) == np.sort(ordered.names)).all()
    assert judge(apart.batch).worst == judge(ordered).worst == ILLEGAL


def test_columns_of_arrow(table) -> None:
    """The columns of a history, absent values and all."""
    names = ("t", "process", "op", "type", "f", "key", "value", "arg", "pos")
    rows = [row(0, 1, CALLED, PUT, 5), row(1, 1, DONE, PUT, 5), row(2, 2, CALLED, GET)]
    rows += [row(3, 2, DONE, GET, 5)]
    absent = dict.fromkeys(OPS.names)
    full = [absent | dict(zip(names, r, strict=True)) for r in rows]
    columns = columns_of(pa.Table.from_pylist(full, schema=OPS))
    for ours, theirs in zip(columns, table(rows), strict=True):
        assert ours.tolist() == theirs.tolist()
    batch = encode(columns).batch
    assert batch.ops[:, KIND].tolist() == [WRITE, READ]
    assert batch.values[batch.ops[1, A]] == 5


SOUND = [row(0, 1, CALLED, PUT, 5), row(4, 1, DONE, PUT, 5)]
AGAIN = row(5, 1, CALLED, PUT, 5)
BROKEN = {
    Rule.UNKNOWN_TYPE: row(5, 2, 9, PUT, 6),
    Rule.UNKNOWN_KIND: row(5, 2, CALLED, 99, 6),
    Rule.NO_KEY: row(5, 2, CALLED, PUT, 6, key=None),
    Rule.INVOKED_TWICE: row(2, 1, CALLED, PUT, 5),
    Rule.NEVER_INVOKED: row(5, 2, DONE, PUT, 6),
    Rule.COMPLETED_TWICE: row(5, 1, DONE, PUT, 5),
    Rule.ANOTHER_KIND: row(3, 1, DONE, GET, 5),
    Rule.OVERLAPS_ITSELF: row(2, 2, CALLED, PUT, 6),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_row_that_breaks_a_rule_is_named(rule, table) -> None:
    """Row and rule; and what else there is is judged."""
    rows = sorted([*SOUND, BROKEN[rule]], key=lambda r: r[0])
    encoded = encode(table(rows))
    flaws = [flaw for flaw in encoded.flaws if flaw.rule is rule]
    assert [flaw.row for flaw in flaws] == [rows.index(BROKEN[rule])]
    assert f"row {flaws[0].row} " in str(flaws[0])
    assert judge(encoded.batch).worst == LEGAL


def test_a_name_is_used_once(table) -> None:
    """Also when the first operation of that name is over, and however far apart names lie."""
    for far in (3, 1 << 40):
        rows = [*SOUND, AGAIN, row(6, far, CALLED, GET, process=2)]
        (flaw,) = encode(table(rows)).flaws
        assert (flaw.rule, flaw.row) == (Rule.INVOKED_TWICE, 2)


def test_time_that_goes_back_is_named(table) -> None:
    """By the row as it was given, though rows are put in order."""
    rows = [row(5, 1, CALLED, PUT, 5), row(7, 1, DONE, PUT, 5), row(6, 2, CALLED, PUT, 6)]
    (flaw,) = [f for f in encode(table(rows)).flaws if f.rule is Rule.TIME_BACK]
    assert (flaw.row, flaw.op) == (2, 2)


def test_pipelined_processes_may_overlap(table) -> None:
    """Only if the trial declares it."""
    rows = sorted([*SOUND, BROKEN[Rule.OVERLAPS_ITSELF]], key=lambda r: r[0])
    assert not encode(table(rows), pipelined=True).flaws


def test_one_process_may_go_on_at_the_same_instant(table) -> None:
    """A coarse clock is no overlap."""
    rows = [*SOUND, row(4, 2, CALLED, PUT, 6), row(5, 2, DONE, PUT, 6)]
    assert not encode(table(rows)).flaws


def test_broken_rows_never_convict(registers, table) -> None:
    """Sound histories of which invocations were lost and rows doubled are not illegal: what is
    wrong only makes operations weaker."""
    games = [game for game in registers(50, 3_000) if not game.anomaly]
    for broken in (slice(0, None, 7), slice(3, None, 5)):
        rows = [row for game in games for row in game.rows]
        ended = {r[2] for r in rows if r[3] != CALLED}
        kept = [r for r in rows if r[3] != CALLED or r[2] % 3 or r[2] not in ended]
        doubled = [*kept, *[(r[0] + 1, *r[1:]) for r in kept[broken]]]
        doubled.sort(key=lambda r: r[0])
        encoded = encode(table(doubled), pipelined=True)
        assert encoded.flaws
        assert judge(encoded.batch).worst == LEGAL
