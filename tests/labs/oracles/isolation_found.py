"""The dependencies of a small history of transactions by definition, one by one, and its direct
anomalies."""

from dataclasses import dataclass, field

from transacting import Move, Transaction

from checkers._cycles.arrays import NULL
from harness.operation import Type
from harness.trial import ISOLATION

UNCOMMITTED, COMMITTED, SNAPSHOT, SERIALIZABLE, SESSION, STRICT = ISOLATION


COLUMNS = ("op", "key", "value", "other")
WRONG = {  # what a remark is called, which level it offends, and what tells two causes apart
    "UNSEEN_OWN": ("INTERNAL", UNCOMMITTED, ("op",)),
    "SHUFFLED": ("INTERNAL", UNCOMMITTED, ("op",)),
    "PHANTOM": ("PHANTOM_VALUE", UNCOMMITTED, ("key", "value")),
    "DUPLICATE": ("DUPLICATE_ELEMENT", UNCOMMITTED, ("key", "value")),
    "ABORTED": ("G1A", COMMITTED, ("op",)),
    "INTERMEDIATE": ("G1B", COMMITTED, ("op",)),
    "INCOMPATIBLE": ("INCOMPATIBLE_ORDER", COMMITTED, ("key",)),
    "LOST_OWN": ("LOST_APPEND", COMMITTED, ("key", "value")),
    "READ_TWICE": ("INTERNAL", SNAPSHOT, ("op",)),
    "LOST_UPDATE": ("LOST_UPDATE", SNAPSHOT, ("op", "key")),
    "NOT_UNIQUE": ("", "", ("key",)),
}
Remarked = tuple[str, int, int, int, int]


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
    """An append that no read has, and the transactions at the end of its list's known versions."""

    op: int
    known: bool
    readers: tuple[int, ...]
    writers: tuple[int, ...]


@dataclass
class Found:
    """`remarks`: what is wrong without a cycle: a word of WRONG, then the operation to blame, key,
    value and another operation that proves it."""

    history: list[Transaction]
    edges: set[Edge] = field(default_factory=set)
    missing: list[Lost] = field(default_factory=list)
    remarks: set[Remarked] = field(default_factory=set)

    def remark(
        self, word: str, op: int, key: int, value: int | None = None, other: int = -1
    ) -> None:
        self.remarks.add((word, op, key, NULL if value is None else value, other))

    def roots(self) -> dict[tuple[str, tuple[int, ...]], Remarked]:
        """One remark on each cause, the least."""
        found: dict[tuple[str, tuple[int, ...]], Remarked] = {}
        for remark in sorted(self.remarks):
            word, *told = remark
            root = tuple(told[COLUMNS.index(name)] for name in WRONG[word][2])
            found.setdefault((word, root), remark)
        return found

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
