"""Transactions as values, and as rows of a history: for tests of isolation.

`parsed` reads them from a few words, one transaction a line, each later than the one before:

    T1 p0 [0..9] ok: append x 1, list x 1 2, put y 3, get y none
"""

import gzip
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import NULL, unpack
from checkers._cycles.collect import TransactionHistory, _scan_chunk, merge_blocks, merge_on
from checkers._cycles.edges import OrderLayer
from checkers._cycles.rows import NEVER, Accesses, TransactionChunk
from checkers._cycles.rows import Transactions as Table
from checkers._spark.spark_stages import PARTIALS
from harness.history.journal import TableJournal
from harness.history.rundir import RunDir
from harness.history.schema import OPS
from harness.operation import F, Type
from harness.trial import Trial

KEYS = "xyzuvw"
STATUS = {"ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}


@dataclass(frozen=True)
class Move:
    """One micro-operation: `seen` is what a read returned."""

    f: F
    key: int
    value: int | None = None
    seen: tuple[int, ...] = ()


@dataclass(frozen=True)
class Transaction:
    op: int
    process: int
    begin: int
    end: int
    status: Type
    moves: tuple[Move, ...]


def parsed(text: str) -> list[Transaction]:
    """Transactions from words."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return [_line(line, 10 * number) for number, line in enumerate(lines)]


def _line(line: str, now: int) -> Transaction:
    head, _, body = line.partition(":")
    op = int(re.findall(r"T(\d+)", head)[0])
    process = re.findall(r"\bp(\d+)", head)
    when = re.findall(r"\[(\d+)\.\.(\d+)\]", head)
    begin, end = (int(t) for t in when[0]) if when else (now, now + 5)
    status = next((STATUS[word] for word in head.split() if word in STATUS), Type.OK)
    moves = tuple(_move(words.split()) for words in body.split(",") if words.split())
    return Transaction(op, int(process[0]) if process else op, begin, end, status, moves)


def _move(words: list[str]) -> Move:
    f, key, rest = F[words[0].upper()], KEYS.index(words[1]), words[2:]
    if f is F.LIST:
        return Move(f, key, seen=tuple(int(word) for word in rest))
    return Move(f, key, None if rest[0] == "none" else int(rest[0]))


def events(transaction: Transaction) -> Iterator[dict[str, Any]]:
    """Return the rows of a transaction: its invocation, and its end if there is one."""
    t = transaction
    row = {"op": t.op, "process": t.process}
    for mop, move in enumerate(t.moves):
        written = move.value if move.f not in (F.GET, F.LIST) else None
        told = {"f": move.f, "key": move.key, "value": written, "mop": mop}
        yield {**row, **told, "t": t.begin, "type": Type.INVOKE}
    yield {**row, "t": t.begin, "type": Type.INVOKE, "f": t.moves[0].f}
    for mop, move in enumerate(t.moves if t.status is Type.OK else ()):
        told = {"f": move.f, "key": move.key, "mop": mop, "t": t.end, "type": Type.OK}
        for pos, value in enumerate(move.seen):
            yield {**row, **told, "value": value, "pos": pos}
        yield {**row, **told, "value": move.value}
    yield {**row, "t": t.end, "type": t.status, "f": t.moves[0].f}


def table(transactions: Iterable[Transaction]) -> pa.Table:
    """All rows, in time order."""
    rows = [row for one in transactions for row in events(one)]
    rows.sort(key=lambda row: row["t"])
    absent = dict.fromkeys(OPS.names)
    whole = [absent | {k: v if v is None else int(v) for k, v in row.items()} for row in rows]
    return pa.Table.from_pylist(whole, schema=OPS)


def told(transactions: list[Transaction]) -> TransactionChunk:
    """Return their accesses without rows: for many histories at once."""
    ordered = sorted(transactions, key=lambda t: t.op)
    heads = [
        (t.op, t.process, t.begin, NEVER if t.status is Type.INFO else t.end, t.status)
        for t in ordered
    ]
    moves: dict[F, list[tuple[int, ...]]] = {F.APPEND: [], F.LIST: [], F.PUT: [], F.GET: []}
    lengths: list[int] = []
    elements: list[int] = []
    for number, t in enumerate(ordered):
        for mop, move in enumerate(t.moves):
            reads = move.f in (F.LIST, F.GET)
            if reads and t.status is not Type.OK:
                continue
            value = NULL if move.value is None else move.value
            if move.f is F.LIST:
                value = len(lengths)
                lengths.append(len(move.seen))
                elements.extend(move.seen)
            moves[move.f].append((t.op, move.key, 2 * mop + (not reads), value, number))

    def columns(rows: list[tuple[int, ...]], width: int) -> list[Any]:
        return list(np.array(rows, np.int64).reshape(-1, width).T)

    lists = Accesses(*columns(moves[F.LIST], 5))
    return TransactionChunk(
        Table(*columns(heads, 5)),
        Accesses(*columns(moves[F.APPEND], 5)),
        lists,
        np.array(lengths, np.int64),
        np.array(elements, np.int64),
        Accesses(*columns(moves[F.PUT], 5)),
        Accesses(*columns(moves[F.GET], 5)),
    )


def write_run(path: Path, transactions: list[Transaction], writers: int = 1) -> RunDir:
    """A run's folder with these transactions, dealt to some writers by process."""
    path.mkdir(parents=True)
    run = RunDir(path)
    run.trial_file.write_text(Trial(checkers=("transactions",)).to_toml())
    run.write_names({"keys": list(KEYS), "nodes": [], "roles": {}, "processes": {}})
    run.update_state(ended=True, interrupted=False)
    for writer in range(writers):
        journal = TableJournal(run.journal, "ops", f"client-{writer + 1}")
        mine = table(t for t in transactions if t.process % writers == writer)
        for row in mine.to_pylist():
            journal.append(tuple(-1 if row[name] is None else row[name] for name in OPS.names))
        journal.close()
    return run


# ------------------------------------------------------------------------------- Jepsen's append

EVENT = re.compile(r":type :(\w+), :process (\d+), :f :txn, :value \[(.*)\], :time (\d+)")
MOVE = re.compile(r"\[:(append|r) (\d+) (nil|\d+|\[[\d ]*\])\]")


def from_edn(path: Path) -> list[Transaction]:
    """List-append transactions from Jepsen's history, one event a line."""
    open_now: dict[int, tuple[int, int, tuple[Move, ...]]] = {}
    found: list[Transaction] = []
    with gzip.open(path, "rt") as lines:
        for number, line in enumerate(lines):
            match = EVENT.search(line)
            assert match, line
            kind, process, body, t = match[1], int(match[2]), match[3], int(match[4])
            moves = tuple(_edn_move(*move) for move in MOVE.findall(body))
            if kind == "invoke":
                open_now[process] = (number, t, moves)
                continue
            op, begin, asked = open_now.pop(process)
            status = STATUS[kind]
            done = moves if status is Type.OK else asked
            found.append(Transaction(op, process, begin, t, status, done))
    return [*found, *(Transaction(o, p, b, b, Type.INFO, m) for p, (o, b, m) in open_now.items())]


def _edn_move(kind: str, key: str, value: str) -> Move:
    if kind == "append":
        return Move(F.APPEND, int(key), int(value))
    seen = tuple(int(word) for word in value.strip("[]").split()) if value != "nil" else ()
    return Move(F.LIST, int(key), seen=seen)


def gathered_here(parts: list[TransactionChunk], layer: OrderLayer) -> TransactionHistory:
    """Both stages of the checker over transactions in memory, without files and Spark."""
    rows = [row for part in parts for row in _scan_chunk(part)]
    blocks = pa.Table.from_batches(rows, PARTIALS).sort_by("block")
    merged = merge_on(layer)(iter(blocks.to_batches()))
    return merge_blocks(
        (int(row["block"]), unpack(row["packed"])) for batch in merged for row in batch.to_pylist()
    )
