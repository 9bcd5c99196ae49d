"""Jepsen's registers: `:read`, `:write v` and `:cas [old new]`, of one register or many by key.

A cas that fails without an error was refused by its comparison, and so proves that the register did
not hold the old value; with an error it did not happen, and proves nothing. In a file whose failed
reads have no errors either, it proves nothing.
"""

from harness.importers._jepsen import Format, JepsenEvent, KeyedFs, atom, importer, pair
from harness.importers._recording import PartsBuilder
from harness.operation import F, Type

REFUSED = 0


def decode(parts: PartsBuilder, event: JepsenEvent) -> None:
    number, kind, f, key, value, error = event
    if f == "read":
        parts.add(number, F.GET, key, atom(value) if kind == Type.OK else None)
    elif kind > Type.OK and (f == "write" or error):
        return  # its value may be an error, and it proves no more than its invocation
    elif f == "write":
        parts.add(number, F.PUT, key, atom(value))
    else:
        old, new = pair(value, "the old value and the new one")
        refused = REFUSED if kind == Type.FAIL else None
        parts.add(number, F.CAS, key, atom(old), atom(new), pos=refused)


FORMAT = Format(
    "jepsen-register",
    "registers",
    ("read", "write", "cas"),
    decode,
    keyed=KeyedFs(("read",), ("write",), ("cas",)),
)
PLUGIN = importer(FORMAT)
