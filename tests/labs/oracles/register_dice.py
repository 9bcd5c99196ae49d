"""Small random histories of registers and strings, with planted errors.

An object is simulated step by step: clients invoke, the operation takes effect at some time or
never, and is answered or not. A planted error changes one step: the client's answer is then wrong.
The oracle decides whether the history became illegal.

Kernels get rows of a table with thousands of keys; the oracle gets the operations as simulated, so
that pairing and numbering are tested too.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from checkers._linear.batch import ABSENT
from checkers._linear.pairing import OperationColumns
from harness.operation import F, Type

Row = tuple[int, int, int, int, int, int, int | None, int | None, int | None]
NEVER = 1 << 40
DTYPES = (*(np.int64, np.int32, np.int64, np.int8, np.int8, np.int32), np.int64, np.int64, np.int32)

STALE = "a read of what was there before"
PHANTOM = "a read of what nobody wrote"
LOST = "an acknowledged write that never happened"
UNDEAD = "a refused write that happened"
LIED = "a compare-and-set that was told the opposite"
KINDS = (  # what may be asked of one key
    (F.GET, F.PUT, F.CAS),
    (F.GET, F.PUT),
    (F.GET, F.PUT, F.CAS, F.CAS),
    (F.CAS, F.PUT),
    (F.GET, F.GET, F.PUT),
)
CROWDED = (
    (F.GET, F.PUT, F.CAS),
    (F.GET, F.CAS, F.CAS),
    (F.PUT, F.CAS),
    (F.GET, F.PUT),
    (F.GET, F.CAS, F.CAS, F.CAS, F.PUT),
)
ANOMALIES = (STALE, PHANTOM, LOST, UNDEAD, LIED)


@dataclass
class Played:
    """One simulated operation; `ret` is NEVER if unknown, `no` if refused."""

    f: F
    value: int | None
    arg: int | None
    call: int
    op: int
    ret: int = NEVER
    type: Type = Type.INFO
    no: bool = False
    acted: bool = False
    seen: int | None = None


@dataclass
class Game:
    """One key's history. `anomaly`: the fault that was planted, if any."""

    key: int
    ops: list[Played] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    anomaly: str = ""
    state: int | None = None
    before: int | None = None

    def play(self, dice: random.Random, clock: Iterator[int], shape: dict[str, object]) -> None:
        clients = range(8 * self.key, 8 * self.key + shape["clients"])  # type: ignore[operator]
        pending: dict[int, Played] = {}
        while len(self.ops) < shape["most"] or pending:  # type: ignore[operator]
            client = dice.choice(clients)
            op = pending.get(client)
            if op is None and len(self.ops) < shape["most"]:  # type: ignore[operator]
                pending[client] = self._invoke(dice, client, next(clock), shape)
            elif op is not None and not op.acted and dice.random() < 0.6:
                self._act(op)
            elif op is not None and dice.random() < shape["lost"]:  # type: ignore[operator]
                del pending[client]
            elif op is not None and op.acted:
                self._answer(op, client, next(clock))
                del pending[client]

    def _invoke(self, dice: random.Random, client: int, t: int, shape: dict) -> Played:
        f = dice.choice(shape["kinds"])
        value = None if f is F.GET else dice.randrange(shape["values"])
        arg = dice.randrange(shape["values"]) if f is F.CAS else None
        op = Played(f, value, arg, t, 100 * self.key + len(self.ops))
        self.ops.append(op)
        self._row(op, client, t, Type.INVOKE)
        return op

    def _act(self, op: Played) -> None:
        op.acted = True
        lost = self.anomaly == LOST and op.f is F.PUT and op.op % 2 == 0
        if op.f is F.GET:
            op.seen = self.before if self.anomaly == STALE else self.state
            if self.anomaly == PHANTOM and op.op % 3 == 0:
                op.seen = 77
        elif op.f is F.CAS:
            op.no = op.value != self.state
        if op.f is F.PUT and not lost:
            self.before, self.state = self.state, op.value
        elif op.f is F.CAS and not op.no:
            self.before, self.state = self.state, op.arg
        if self.anomaly == LIED and op.f is F.CAS:
            op.no = not op.no

    def _answer(self, op: Played, client: int, t: int) -> None:
        op.ret, op.type = t, Type.OK
        if op.f is F.GET:
            op.value = op.seen
        refused = self.anomaly == UNDEAD and op.f is F.PUT and op.op % 2 == 0
        if op.no or refused:
            op.type = Type.FAIL
        self._row(op, client, t, op.type)

    def _row(self, op: Played, client: int, t: int, kind: Type) -> None:
        pos = 0 if op.no and kind is Type.FAIL else None
        self.rows.append((t, client, op.op, kind, op.f, self.key, op.value, op.arg, pos))


def games(seed: int, keys: int, kinds: Sequence[Sequence[F]], unique: bool = False) -> list[Game]:
    """Histories of 2 to 8 operations, three quarters of them with a planted fault."""
    dice, clock, played = random.Random(seed), count(), []
    for key in range(keys):
        game = Game(key, anomaly=dice.choice(ANOMALIES) if dice.random() < 0.75 else "")
        shape = {
            "clients": dice.choice((2, 3, 4, 6)),
            "most": dice.randrange(2, 9),
            "lost": dice.choice((0.0, 0.1, 0.4)),
            "values": 1_000_000 if unique else dice.choice((1, 2, 3, 5)),
            "kinds": dice.choice(kinds),
        }
        game.play(dice, clock, shape)
        played.append(game)
    return played


def columns(rows: Sequence[Row]) -> OperationColumns:
    """Rows as the encoder takes them."""
    absent = (0, 0, 0, 0, 0, -1, ABSENT, ABSENT, -1)
    parts = [[e if v is None else int(v) for v in c] for c, e in zip(zip(*rows), absent)]  # noqa: B905
    return OperationColumns(*(np.array(p, dtype) for p, dtype in zip(parts, DTYPES, strict=True)))


def all_orders(ops: Sequence[Played]) -> bool:
    """Some order of all that happened, and some of what may have, is legal: tried one by one."""
    told = [o for o in ops if o.type is Type.OK or (o.type is Type.FAIL and o.no)]
    maybe = [o for o in ops if o.type is Type.INFO and o.f is not F.GET]
    return _orders(told, maybe, None)


def explained(ops: Sequence[Played]) -> int:
    """How many returns, in their order, some order of operations explains: those that return later
    may have happened by then, if they change anything."""
    told = [o for o in ops if o.type is Type.OK or (o.type is Type.FAIL and o.no)]
    told.sort(key=lambda o: o.ret)
    changing = [o for o in ops if o.type is not Type.FAIL and o.f is not F.GET]
    most = len(told)
    while not _orders(told[:most], [o for o in changing if o not in told[:most]], None):
        most -= 1
    return most


def _orders(told: list[Played], maybe: list[Played], state: int | None) -> bool:
    if not told:
        return True
    limit = min(o.ret for o in told)
    for o in (*told, *maybe):
        if o.call < limit and (after := _after(o, state)):
            rest = [x for x in told if x is not o], [x for x in maybe if x is not o]
            if _orders(*rest, after[0]):
                return True
    return False


def _after(op: Played, state: int | None) -> tuple[int | None] | None:
    """The state after it, in brackets; None if it is not possible."""
    if op.f is F.PUT:
        return (op.value,)
    if op.f is F.GET:
        return (state,) if op.value == state else None
    if op.no and op.type is Type.FAIL:
        return (state,) if op.value != state else None
    return (op.arg,) if op.value == state else None


def long_games(seed: int, keys: int) -> list[Game]:
    """Games of 20 operations on two values, all with a planted fault."""
    dice, clock, played = random.Random(seed), count(), []
    for key in range(keys):
        game = Game(key, anomaly=dice.choice((STALE, LOST, LIED)))
        kinds = (F.GET, F.GET, F.PUT, F.CAS)
        shape = {"clients": 3, "most": 20, "lost": 0.02, "values": 2, "kinds": kinds}
        game.play(dice, clock, shape)  # type: ignore[arg-type]
        played.append(game)
    return played


def crowded_games(seed: int, keys: int) -> list[Game]:
    """Games of 8 to 12 operations of seven clients on few values, all with a planted error, many of
    unknown outcome: the hard cases of a search."""
    dice, clock, played = random.Random(seed), count(), []
    for key in range(keys):
        game = Game(key, anomaly=dice.choice((STALE, LOST, LIED)))
        shape = {
            "clients": 7,
            "most": dice.randrange(8, 13),
            "lost": dice.choice((0.1, 0.3, 0.5, 0.6)),
            "values": dice.choice((2, 3, 4)),
            "kinds": dice.choice(CROWDED),
        }
        game.play(dice, clock, shape)  # type: ignore[arg-type]
        played.append(game)
    return played


def endless() -> list[Row]:
    """One key with some sixty operations open at once, and answers that are dice; then two reads
    that contradict each other, which all orders of the others have to be tried for."""
    dice = np.random.default_rng(5)
    rows: list[Row] = []
    for t in range(400):
        f = (F.GET, F.PUT, F.CAS)[dice.integers(3)]
        value, arg = int(dice.integers(6)), int(dice.integers(6)) if f is F.CAS else None
        asked = None if f is F.GET else value
        rows.append((t, t, t, Type.INVOKE, f, 0, asked, arg, None))
        rows.append((t + int(dice.integers(40, 90)), t, t, Type.OK, f, 0, value, arg, None))
    for t, value in ((1_000, 0), (1_010, 1)):
        rows.append((t, t, t, Type.INVOKE, F.GET, 0, None, None, None))
        rows.append((t + 5, t, t, Type.OK, F.GET, 0, value, None, None))
    return sorted(rows, key=lambda row: row[:3])
