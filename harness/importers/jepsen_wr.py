"""Jepsen's transactions over registers: `[[:w k v] [:r k v]]`, as Elle's rw-register has them.

Each micro-operation is a row of its own, numbered by `mop`. A line needs no `:f`: in Elle's own
histories it has none.
"""

from functools import partial

from harness.importers._jepsen import Format, importer
from harness.importers.jepsen_append import transaction
from harness.operation import F

FORMAT = Format(
    "jepsen-wr",
    "transactions",
    ("txn",),
    partial(transaction, write="w", writes=F.PUT, reads=F.GET),
    heads=("w", "r"),
    nameless="txn",
)
PLUGIN = importer(FORMAT)
