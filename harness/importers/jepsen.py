"""Jepsen's histories: which operations each workload has, and how they become rows.

`FORMATS` has an entry for each workload: for each `:f` the operation that its rows have, and the
function that turns `:value` into them. `_jepsen` reads the files.

**Registers.** A cas that fails without an error was refused by its comparison, and so proves that
the register did not hold the old value; with an error it did not happen, and proves nothing. In a
file whose failed reads have no errors either, it proves nothing.

**Set.** A read has a row for each element, and a last one, as polls have. A read that ended with
nil did not see the empty set: it saw nothing.

**Queue.** A dequeue that fails took nothing; an error such as `:empty` says that the queue was
empty. A drain is as many dequeues as it returned elements, numbered by `pos`, and a last one that
found nothing. A word such as `:exhausted` in place of the elements says that the drain reached the
end, and that its elements are in dequeues of their own between its two lines. A drain of unknown
outcome may have taken everything that was there since its invocation, which has a `pos` of 0.

**Lock.** A process holds it. A fencing token is the `:fence` in the value of an acquire. A failed
operation did not happen, and proves nothing.

**Mutex.** Any process may release it. An acquire is a compare-and-set from free to held, a release
one from held to free.

**Transactions.** Each micro-operation has rows of its own, numbered by `mop`; a read list has a row
for each element, and a last one. A key that was never appended to reads as nil, the empty list.
Reads count only if the transaction ended ok. A line needs no `:f`: in Elle's own histories it has
none.
"""

from harness.importers._jepsen import (
    Format,
    JepsenEvent,
    KeyedFs,
    atom,
    elements,
    importer,
    pair,
    unexpected,
    written_value,
)
from harness.importers._lines import means_empty
from harness.importers._recording import EMPTY, MAX_NUMBER, SAME, PartsBuilder
from harness.operation import F, Type

DONE = ("done", "complete", "completed", "finished", "end", "ok")  # what an ended drain returns
DRAIN = REFUSED = 0  # the `pos` of an invoked drain, and of a cas that its comparison refused
FREE, HELD = ":free", ":held"
MICRO_OPERATIONS = {F.APPEND: ("append", F.LIST), F.PUT: ("w", F.GET)}  # word, and its read


def key_only(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    parts.add(event.number, f, event.key)


def write(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    parts.add(event.number, f, event.key, written_value(event.value, event.type))


def read_register(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    value = atom(event.value) if event.type == Type.OK else None
    parts.add(event.number, f, event.key, value)


def write_register(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    if event.type <= Type.OK:  # else it may be an error, and proves no more than its invocation
        parts.add(event.number, f, event.key, atom(event.value))


def compare_and_set(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    if event.type > Type.OK and event.error:
        return
    old, new = pair(event.value, "the old value and the new one")
    refused = REFUSED if event.type == Type.FAIL else None
    parts.add(event.number, f, event.key, atom(old), atom(new), pos=refused)


def read_all(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    if event.type != Type.OK:
        return key_only(parts, event, f)
    if event.value is None:
        raise unexpected(event.value, "a set that a read can return")
    found = elements(event.value, "a vector or set of elements")
    return parts.add_read(event.number, f, event.key, [atom(each) for each in found])


def dequeue(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    found = None
    if event.type == Type.OK and not means_empty(event.value):
        found = atom(event.value)
    empty = event.type == Type.FAIL and event.error == EMPTY
    parts.add(event.number, f, event.key, found, type=Type.OK if empty else SAME)


def drain(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    if event.type != Type.OK:
        at = DRAIN if event.type == Type.INVOKE else None
        return parts.add(event.number, f, event.key, pos=at)
    word = event.value.removeprefix(":").lower() if isinstance(event.value, str) else ""
    done = event.value is None or means_empty(event.value) or word in DONE
    taken = [] if done else elements(event.value, "a vector of values")
    return parts.add_read(event.number, f, event.key, [atom(each) for each in taken])


def count(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    """Add a number to add, or a sum that was read."""
    value = event.value
    if f is F.COUNT and event.type != Type.OK:
        return key_only(parts, event, f)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) > MAX_NUMBER:
        raise unexpected(value, f"a whole number, or it is beyond {MAX_NUMBER:,}")
    return parts.add(event.number, f, event.key, -value if event.f == "decrement" else value)


def acquire(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    value = event.value
    token = value.get("fence", value.get("token")) if isinstance(value, dict) else None
    known = event.type == Type.OK and type(token) is int and 0 <= token < MAX_NUMBER
    parts.add(event.number, f, event.key, offset=token if known else None)


def change_mutex(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    old, new = (FREE, HELD) if event.f == "acquire" else (HELD, FREE)
    parts.add(event.number, f, event.key, old, new)


def transaction(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    """Add a transaction of `[:append k v]` and `[:r k v]` over lists, or `[:w k v]` and `[:r k v]`
    over registers."""
    ok, (word, reads) = event.type == Type.OK, MICRO_OPERATIONS[f]
    for mop, each in enumerate(elements(event.value, "a vector of micro-operations")):
        if not isinstance(each, list) or len(each) != 3:
            raise unexpected(each, "a micro-operation of three elements")
        name, key, value = each
        if key is None:
            raise unexpected(each, "a micro-operation with a key")
        if name == word:
            value = written_value(value, event.type)
            parts.add(event.number, f, atom(key), value, mop=mop)
        elif name != "r":
            raise unexpected(each, f"[:{word} k v] or [:r k v]")
        elif ok and reads is F.LIST:
            found = [atom(one) for one in elements(value, "a vector of elements")]
            parts.add_read(event.number, reads, atom(key), found, mop)
        else:
            parts.add(event.number, reads, atom(key), atom(value) if ok else None, mop=mop)
    parts.add(event.number, f)  # the transaction itself: neither key nor mop


FORMATS = {
    each.name: each
    for each in (
        Format(
            "jepsen-append",
            "Jepsen's list-append transactions: `[[:append k v] [:r k [v ...]]]`, as Elle writes"
            " them.",
            "transactions",
            {"txn": (F.APPEND, transaction)},
            heads=("append", "r"),
            nameless="txn",
        ),
        Format(
            "jepsen-wr",
            "Jepsen's transactions over registers: `[[:w k v] [:r k v]]`, as Elle's rw-register has"
            " them.",
            "transactions",
            {"txn": (F.PUT, transaction)},
            heads=("w", "r"),
            nameless="txn",
        ),
        Format(
            "jepsen-counter",
            "Jepsen's counter: `:add n`, also below zero, and `:read` that returns the sum.",
            "counter",
            {"add": (F.ADD, count), "decrement": (F.ADD, count), "read": (F.COUNT, count)},
            keyed=KeyedFs(("read",)),
        ),
        Format(
            "jepsen-lock",
            "Jepsen's lock: `:acquire` and `:release`, of one lock or of many by key, held by a"
            " process.",
            "lock",
            {"acquire": (F.ACQUIRE, acquire), "release": (F.RELEASE, key_only)},
            keyed=KeyedFs(("acquire", "release")),
        ),
        Format(
            "jepsen-mutex",
            "Knossos' mutex: `:acquire` and `:release` of one lock, or of many by key, by any"
            " process.",
            "mutex",
            {"acquire": (F.CAS, change_mutex), "release": (F.CAS, change_mutex)},
            keyed=KeyedFs(("acquire", "release")),
            initial=FREE,
        ),
        Format(
            "jepsen-queue",
            "Jepsen's queue: `:enqueue v`, `:dequeue` that returns v, and `:drain` that returns all"
            " the rest.",
            "queue",
            {
                "enqueue": (F.ENQUEUE, write),
                "dequeue": (F.DEQUEUE, dequeue),
                "drain": (F.DEQUEUE, drain),
            },
            keyed=KeyedFs(("dequeue", "drain")),
        ),
        Format(
            "jepsen-register",
            "Jepsen's registers: `:read`, `:write v` and `:cas [old new]`, of one register or many"
            " by key.",
            "registers",
            {
                "read": (F.GET, read_register),
                "write": (F.PUT, write_register),
                "cas": (F.CAS, compare_and_set),
            },
            keyed=KeyedFs(("read",), ("write",), ("cas",)),
        ),
        Format(
            "jepsen-set",
            "Jepsen's set: `:add v`, and `:read` that returns all elements.",
            "set",
            {"add": (F.ADD, write), "read": (F.LIST, read_all)},
            keyed=KeyedFs(("read",)),
        ),
    )
}
PLUGINS = {name: importer(each) for name, each in FORMATS.items()}
