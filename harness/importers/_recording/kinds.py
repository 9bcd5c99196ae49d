"""What a history can be about: which checkers judge it, and what it must hold to say anything.

A history in which nothing of some kind ever succeeded proves nothing about it, whatever its
checkers say: each kind lists the operations of which at least one must have ended ok.
"""

from dataclasses import dataclass

from harness.operation import F
from harness.trial import ISOLATION

NO_LOSS = "no-loss"
QUEUE = ("at-least-once", "order-per-queue")


@dataclass(frozen=True)
class Kind:
    """`needs`: of each group of operations at least one completed ok. `quantity`: the column, of
    `value` and `arg`, that is reckoned with, so that nothing but a number will do; what else they
    hold are names. `unsaid`: which of the two no such operation has; it is passed over. `parted`:
    checkers that judge as well where operations have several parts. `contract`: the demands that a
    contract can name; linearizability is always demanded of what is not a message."""

    checkers: tuple[str, ...]
    needs: tuple[tuple[F, ...], ...]
    quantity: str = ""
    unsaid: tuple[str, ...] = ("arg",)
    parted: tuple[str, ...] = ()
    contract: tuple[str, ...] = ()


KINDS = {
    "messages": Kind(
        ("loss", "phantom", "duplicates", "order", "offsets", "linearizable"),
        ((F.SEND,), (F.POLL, F.READ)),
        parted=("interleaving",),
        contract=(NO_LOSS, *QUEUE, *ISOLATION),
    ),
    "registers": Kind(("registers",), ((F.PUT, F.CAS, F.APPEND), (F.GET,)), unsaid=()),
    "mutex": Kind(("registers",), ((F.CAS,),), unsaid=()),
    "transactions": Kind(
        ("transactions",), ((F.APPEND, F.PUT), (F.LIST, F.GET)), unsaid=(), contract=ISOLATION
    ),
    "queue": Kind(("objects",), ((F.ENQUEUE,), (F.DEQUEUE,)), contract=(NO_LOSS, *QUEUE)),
    "set": Kind(("objects",), ((F.ADD,), (F.LIST,)), contract=(NO_LOSS,)),
    "counter": Kind(("objects",), ((F.ADD,), (F.COUNT,)), "value"),
    "lock": Kind(("objects",), ((F.ACQUIRE,), (F.RELEASE,)), "arg", ("value",)),
}
