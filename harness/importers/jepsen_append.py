"""Jepsen's list-append transactions: `[[:append k v] [:r k [v ...]]]`, as Elle writes them.

Each micro-operation has rows of its own, numbered by `mop`; a read list has a row for each element,
and a last one. A key that was never appended to reads as nil, the empty list. Reads count only if
the transaction ended ok. A line needs no `:f`: in Elle's own histories it has none.
"""

from functools import partial

from harness.importers._jepsen import (
    Format,
    JepsenEvent,
    atom,
    elements,
    importer,
    unexpected,
    written_value,
)
from harness.importers._recording import PartsBuilder
from harness.operation import F, Type


def transaction(parts: PartsBuilder, event: JepsenEvent, write: str, writes: F, reads: F) -> None:
    """Add a transaction of `[write k v]` and `[:r k v]` over lists (reads is LIST) or registers."""
    ok = event.type == Type.OK
    for mop, each in enumerate(elements(event.value, "a vector of micro-operations")):
        if not isinstance(each, list) or len(each) != 3:
            raise unexpected(each, "a micro-operation of three elements")
        name, key, value = each
        if key is None:
            raise unexpected(each, "a micro-operation with a key")
        if name == write:
            value = written_value(value, event.type)
            parts.add(event.number, writes, atom(key), value, mop=mop)
        elif name != "r":
            raise unexpected(each, f"[:{write} k v] or [:r k v]")
        elif ok and reads is F.LIST:
            found = [atom(one) for one in elements(value, "a vector of elements")]
            parts.add_read(event.number, reads, atom(key), found, mop)
        else:
            parts.add(event.number, reads, atom(key), atom(value) if ok else None, mop=mop)
    parts.add(event.number, writes)  # the transaction itself: neither key nor mop


FORMAT = Format(
    "jepsen-append",
    "transactions",
    ("txn",),
    partial(transaction, write="append", writes=F.APPEND, reads=F.LIST),
    heads=("append", "r"),
    nameless="txn",
)
PLUGIN = importer(FORMAT)
