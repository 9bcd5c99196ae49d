"""Rows that were lost, doubled, changed and put out of order, and what the definitions make of
them: operations by key, and the rule that each offending row breaks."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from random import Random

import numpy as np
import pytest
from register_dice import KINDS, Row, columns, games

from checkers._linear.batch import (
    ABSENT,
    APPEND,
    CAS,
    INFO,
    NEVER,
    OK,
    READ,
    REFUSED,
    WRITE,
    OperationBatch,
    value_of,
)
from checkers._linear.encoding import Rule, encode
from harness.operation import F, Type

KIND_OF = {F.GET: READ, F.PUT: WRITE, F.CAS: CAS, F.APPEND: APPEND}
FARTHER = (1, 1 << 14)  # keys and processes, some of them too many to be counted; names too
UNKNOWN_F, UNKNOWN_TYPES = 99, (-1, 4)
BEFORE_ALL = -1

Said = tuple[int, int, int | None, int | None, int, int, int]


@dataclass
class Entry:
    """An operation according to its rows. `row`: the first, as given."""

    first: Row
    row: int
    kind: int
    call: int
    value: int | None
    opened: bool
    status: int | None = INFO
    ret: int = NEVER
    closed: int | None = None  # by which row

    def close(self, row: Row, rank: int) -> None:
        kind, pos = row[3], row[8]
        if kind == Type.OK:
            self.status, self.ret = OK, rank
        elif kind == Type.FAIL and self.kind == CAS and pos == 0:
            self.status, self.ret, self.kind = OK, rank, REFUSED
        elif kind == Type.FAIL:
            self.status = None
        if self.kind == READ:
            self.value = row[6]
            self.status = self.status if kind == Type.OK else None

    def doubt(self) -> None:
        self.kind = CAS if self.kind == REFUSED else self.kind
        self.status, self.ret = None if self.kind == READ else INFO, NEVER


@dataclass
class Naive:
    """The meaning of the rows, name by name."""

    rows: Sequence[Row]
    pipelined: bool
    rules: dict[int, Rule] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        numbered = list(enumerate(self.rows))
        order = sorted(numbered, key=lambda n: (n[1][0], n[1][3] != Type.INVOKE))
        if order != numbered:
            self._times()
        good = [(number, row) for number, row in order if self._understood(number, row)]
        ranks: Counter[int] = Counter()
        self.ranks: dict[int, int] = {}
        for number, row in good:
            self.ranks[number] = ranks[row[5]]
            ranks[row[5]] += 1
        self.place = {number: at for at, (number, _) in enumerate(good)}
        alike: dict[int, list[tuple[int, Row]]] = defaultdict(list)
        for number, row in good:
            alike[row[2]].append((number, row))
        for some in alike.values():
            self._named(some)
        if not self.pipelined:
            self._overlaps()
        self.entries.sort(key=lambda entry: self.place[entry.row])
        self._repeated()

    def _break(self, row: int, rule: Rule) -> None:
        self.rules.setdefault(row, rule)

    def _times(self) -> None:
        latest: dict[int, int] = {}
        for number, row in enumerate(self.rows):
            if row[0] < latest.get(row[1], row[0]):
                self._break(number, Rule.TIME_BACK)
            latest[row[1]] = max(row[0], latest.get(row[1], row[0]))

    def _understood(self, number: int, row: Row) -> bool:
        if row[4] in [*F] and row[4] not in KIND_OF:
            return False
        rule = None
        if row[4] not in KIND_OF:
            rule = Rule.UNKNOWN_KIND
        elif row[3] not in [*Type]:
            rule = Rule.UNKNOWN_TYPE
        elif row[5] is None or row[5] < 0:
            rule = Rule.NO_KEY
        if rule:
            self._break(number, rule)
        return rule is None

    def _named(self, rows: list[tuple[int, Row]]) -> None:
        """All rows of one name."""
        going: Entry | None = None
        for number, row in rows:
            kind, invokes = KIND_OF[F(row[4])], row[3] == Type.INVOKE
            if going and not invokes:
                going.closed = number
                if kind == going.kind and row[5] == going.first[5]:
                    going.close(row, self.ranks[number])
                else:
                    self._break(number, Rule.ANOTHER_KIND)
                going = None
                continue
            call = self.ranks[number] if invokes else BEFORE_ALL
            entry = Entry(row, number, kind, call, row[6], opened=invokes and not going)
            if kind == READ:
                entry.status = None
            if not invokes:
                entry.close(row, self.ranks[number])
            elif not going:
                going = entry
            self.entries.append(entry)

    def _overlaps(self) -> None:
        """Whether a process continues although its last operation is open; a coarse clock is no
        overlap."""
        opened = sorted(
            (e for e in self.entries if e.opened), key=lambda e: (e.first[1], self.place[e.row])
        )
        for _, some in groupby(opened, key=lambda e: e.first[1]):
            mine = list(some)
            for before, after in pairwise(mine):
                if not self._over(before, after):
                    self._break(after.row, Rule.OVERLAPS_ITSELF)

    def _over(self, before: Entry, after: Entry) -> bool:
        if before.closed is None:
            return False
        end = self.rows[before.closed]
        if self.place[before.closed] > self.place[after.row]:
            return end[0] == after.first[0]
        return end[1] == before.first[1]

    def _repeated(self) -> None:
        first: dict[int, Entry] = {}
        for entry in self.entries:
            if first.setdefault(entry.first[2], entry) is not entry and entry.call != BEFORE_ALL:
                self._break(entry.row, Rule.INVOKED_TWICE)
                entry.doubt()
        for entry in self.entries:
            known = first[entry.first[2]]
            if entry.call != BEFORE_ALL:
                continue
            never = known is entry
            self._break(entry.row, Rule.NEVER_INVOKED if never else Rule.COMPLETED_TWICE)
            if not never:
                entry.status = None
                known.doubt()

    def said(self) -> dict[int, list[Said]]:
        """By key, in the order of calls."""
        said: dict[int, list[Said]] = {int(r[5] or 0): [] for r in self.rows if self._keyed(r)}
        for entry in sorted(self.entries, key=lambda e: e.call):
            if entry.status is not None:
                key, name = int(entry.first[5] or 0), entry.first[2]
                arg = entry.first[7] if compares(entry.kind) else 0
                told = (entry.status, entry.call, entry.ret)
                said[key].append((name, entry.kind, entry.value, arg, *told))
        return said

    def _keyed(self, row: Row) -> bool:
        return row[5] is not None and row[5] >= 0


def spoilt(dice: Random, given: Sequence[Row], badly: float) -> Iterator[Row]:
    """The same, but for a few rows that are lost, doubled or changed."""
    for row in given:
        row = tuple(None if number is None else int(number) for number in row)  # type: ignore[assignment]
        if dice.random() > badly:
            yield row
            continue
        t, process, op, kind, f, key, value, arg, pos = row
        match dice.randrange(12):
            case 0 | 1 | 2:
                pass
            case 3 | 4:
                yield row
                yield row
            case 5:
                yield t, process, op, dice.choice((*UNKNOWN_TYPES, *Type)), f, key, value, arg, pos
            case 6:
                yield (
                    t,
                    process,
                    op,
                    kind,
                    dice.choice((UNKNOWN_F, F.SEND, *KIND_OF)),
                    key,
                    value,
                    arg,
                    pos,
                )
            case 7:
                yield t, process, op, kind, f, dice.choice((None, key, 3)), value, arg, pos
            case 8:
                yield t, process, dice.choice((op - 1, op + 1)), kind, f, key, value, arg, pos
            case 9 | 10:
                yield t + dice.choice((-3, -1, 1, 3)), process, op, kind, f, key, value, arg, pos
            case 11:
                yield t, process, op, kind, f, key, value, arg, dice.choice((None, 0, 1))


def met_in_time(dice: Random, seed: int, keys: int, far: int) -> list[Row]:
    """Rows of games that are all played at once, in order of time."""
    rows: list[Row] = []
    for game in games(seed, keys, KINDS):
        begin = min((row[0] for row in game.rows), default=0)
        apart, wide = dice.choice((1, far)), dice.choice((1, far))
        for t, process, op, kind, f, key, value, arg, pos in game.rows:
            at = (t - begin) // dice.choice((1, 1, 2))
            seen, new = (None if v is None else v * wide for v in (value, arg))
            rows.append((at, process * far, op * apart, kind, f, key * far, seen, new, pos))
    calls_first = dice.random() < 0.7
    return sorted(rows, key=lambda row: (row[0], calls_first and row[3] != Type.INVOKE))


def told(batch: OperationBatch) -> dict[int, list[Said]]:
    found: dict[int, list[Said]] = {}
    for k, key in enumerate(batch.keys.tolist()):
        first, last = int(batch.starts[k]), int(batch.starts[k + 1])
        rows = zip(batch.names[first:last].tolist(), batch.ops[first:last].tolist(), strict=True)
        found[key] = [
            (
                name,
                kind,
                value_of(batch, k, a),
                value_of(batch, k, b) if compares(kind) else b,
                *rest,
            )
            for name, (kind, a, b, *rest) in rows
        ]
    return found


def compares(kind: int) -> bool:
    return kind in (CAS, REFUSED)


def numbered(said: Sequence[Said], initial: int) -> list[int]:
    """The values of a key in the order of their appearance, its first one before all."""
    values = [(value, arg) if compares(kind) else (value,) for _, kind, value, arg, *_ in said]
    flat = (ABSENT if value is None else value for some in values for value in some)
    return list(dict.fromkeys((initial, *flat)))


def compared(rows: Sequence[Row], pipelined: bool, initial: int) -> list[Rule]:
    """Assert that rows and definitions give the same operations; return the rules that rows
    break."""
    naive, encoded = Naive(rows, pipelined), encode(columns(rows), initial, pipelined)
    batch, said = encoded.batch, naive.said()
    assert {flaw.row: flaw.rule for flaw in encoded.flaws} == naive.rules, rows
    assert all(rows[flaw.row][1:3] == (flaw.process, flaw.op) for flaw in encoded.flaws)
    assert told(batch) == said, rows
    values = [numbered(said[key], initial) for key in batch.keys.tolist()]
    assert np.diff(batch.value_starts).tolist() == [len(some) for some in values]
    assert batch.values.tolist() == [value for some in values for value in some]
    return [flaw.rule for flaw in encoded.flaws]


@pytest.mark.parametrize("keys", [1, 3, 40, 400])
def test_rows_are_the_operations_that_they_tell(keys: int) -> None:
    """No operation more or less, none stronger than its rows, and each offending row with the first
    rule that it breaks; with few keys, and with so many that hundreds of operations are open."""
    dice, broken = Random(keys), Counter[Rule]()
    for seed in range(1_200 // keys):
        far, pipelined = dice.choice(FARTHER), dice.random() < 0.3
        rows = list(spoilt(dice, met_in_time(dice, seed, keys, far), dice.choice((0, 0.03, 0.2))))
        if dice.random() < 0.3:  # the journals of two writers
            rows.sort(key=lambda row: row[1] % 2)
        if not rows:
            continue
        flaws = compared(rows, pipelined, dice.choice((ABSENT, 1)))
        broken.update(flaws)
    print(dict(broken))
    assert len(broken) == len(Rule)


def test_there_is_room_for_all_values() -> None:
    """A key whose operations name two values each, no two of them alike but many in their last
    bits, beside one of one."""
    rows: list[Row] = [(0, 0, 0, Type.INVOKE, F.PUT, 0, 3, None, None)]
    rows += [(t, t, t, Type.INVOKE, F.CAS, 1, 2_048 * t - 1, 7 * t, None) for t in range(1, 200)]
    assert not compared(rows, pipelined=False, initial=ABSENT)
