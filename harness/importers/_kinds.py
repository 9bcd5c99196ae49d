"""What a history can be about: which checkers judge it, and what it must hold to say anything.

A history in which nothing of some kind ever succeeded proves nothing about it, whatever its
checkers say: each kind lists the operations of which at least one must have ended ok.
"""

from dataclasses import dataclass

from harness.operation import F


@dataclass(frozen=True)
class Kind:
    """`needs`: of each group of operations at least one completed ok. `negative`: values below
    zero are numbers; in other kinds they are names like any other."""

    checkers: tuple[str, ...]
    needs: tuple[tuple[F, ...], ...]
    negative: bool = False


KINDS = {
    "messages": Kind(
        ("loss", "phantom", "duplicates", "order", "offsets", "linearizable"),
        ((F.SEND,), (F.POLL, F.READ)),
    ),
    "registers": Kind(("registers",), ((F.PUT, F.CAS, F.APPEND), (F.GET,))),
    "transactions": Kind(("transactions",), ((F.APPEND, F.PUT), (F.LIST, F.GET))),
    "queue": Kind(("objects",), ((F.ENQUEUE,), (F.DEQUEUE,))),
    "set": Kind(("objects",), ((F.ADD,), (F.LIST,))),
    "counter": Kind(("objects",), ((F.ADD,), (F.COUNT,)), negative=True),
    "lock": Kind(("objects",), ((F.ACQUIRE,), (F.RELEASE,))),
}
