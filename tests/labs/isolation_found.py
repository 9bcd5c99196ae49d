"""What a small history of transactions says by the definitions: dependencies, one by one, and what
is wrong without a cycle.
"""

from dataclasses import dataclass, field

from transacting import Move, Transaction

from checkers._cycles.arrays import NULL
from harness.operation import Type
from harness.trial import ISOLATION

UNCOMMITTED, COMMITTED, SNAPSHOT, SERIALIZABLE, SESSION, STRICT = ISOLATION


@dataclass(frozen=True)
class Edge:
    """`a`, `b`: the values before and after. `missing`: the append that no read shows which it is
    about, or -1. `shared`: edges of one transaction, kind and key that have the same word here
    rest on one observation."""

    src: int
    dst: int
    kind: str
    layer: int = 0
    key: int = -1
    a: int = NULL
    b: int = NULL
    missing: int = -1
    shared: str = ""


@dataclass(frozen=True)
class Lost:
    """An append that no read shows, and who stands at the end of what is known of its list."""

    op: int
    known: bool
    readers: tuple[int, ...]
    writers: tuple[int, ...]


@dataclass
class Found:
    """`roots`: what is wrong without a cycle, as code, demand and what tells two causes apart."""

    history: list[Transaction]
    edges: set[Edge] = field(default_factory=set)
    missing: list[Lost] = field(default_factory=list)
    roots: set[tuple[str, str, tuple[int, ...]]] = field(default_factory=set)

    def root(self, code: str, demand: str, *what: int) -> None:
        self.roots.add((code, demand, what))

    def add(
        self, src: int, dst: int, kind: str, *told: int, layer: int = 0, shared: str = ""
    ) -> None:
        if src != dst:
            self.edges.add(Edge(src, dst, kind, layer, *told, shared=shared))

    def among(self, op: int) -> Transaction:
        return next(t for t in self.history if t.op == op)


def moves(t: Transaction, key: int) -> list[Move]:
    return [move for move in t.moves if move.key == key]


def age(t: Transaction) -> tuple[int, int]:
    return t.begin, t.op


def end(t: Transaction) -> int:
    return t.end if t.status is not Type.INFO else 1 << 60
