"""Tables of tens of thousands of small histories, as runs: what every engine must judge alike.

They are drawn as the oracles' tests draw theirs, so what the kernels make of such histories is
known to be the truth; here each table is one run of several writers, for whatever Spark there is.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import kafka_table
import pytest
from isolation_dice import drawn as transactions_drawn
from isolation_dice import placed
from object_dice import drawn as object_drawn
from object_oracle import Table
from ops_run import ops_run
from register_dice import KINDS, games
from table_sizes import share
from transacting import Transaction, events

from checkers._linear.objects import COLUMNS
from harness.history.reader import History
from harness.importers import _run_folder as _folder

HISTORIES, WRITERS = share(20_000), 4
FILE_ROWS, GROUP_ROWS = 30_000, 4_096  # of messages: processes of one history are in several files
OBJECTS = ("queue", "set", "counter", "log", "lock")
Rows = Sequence[Mapping[str, Any]]


def registers(count: int = HISTORIES) -> tuple[Rows, list[Any]]:
    """Return rows, and their games; each operation has its own process, because players continue
    after an operation without an answer."""
    names = ("t", "process", "op", "type", "f", "key", "value", "arg", "pos")
    played = games(2_000, count, KINDS)
    rows = [dict(zip(names, row, strict=True)) for game in played for row in game.rows]
    return [row | {"process": row["op"]} for row in rows], played


def objects(count: int = HISTORIES) -> Rows:
    dice, table = Random(11), Table()
    for key in range(count):
        table.add(key, object_drawn(dice, OBJECTS[key % len(OBJECTS)]))
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table.rows]
    return sorted(rows, key=lambda row: (int(row["process"] or 0), int(row["t"] or 0)))


def transactions(count: int = HISTORIES) -> Rows:
    dice = Random(23)
    some: list[Transaction] = []
    for number in range(count):
        _, history = transactions_drawn(dice, registers=False)
        some += placed(history, number)
    return [row for transaction in some for row in events(transaction)]


def messages(folder: Path, count: int = HISTORIES) -> kafka_table.Table:
    """Return a run of Jepsen's kafka workload, and its findings by definition."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_folder, "ROWS_OF_A_FILE", FILE_ROWS)
        patch.setattr(_folder, "ROW_GROUP", GROUP_ROWS)
        return kafka_table.table(folder, 31, count, small=True)


TABLES: Mapping[str, Callable[[int], Rows]] = {
    "registers": lambda count: registers(count)[0],
    "objects": objects,
    "transactions": transactions,
}


def run_of(folder: Path, rows: Rows) -> History:
    """A sealed run, whose writers share its processes."""
    return ops_run(folder, sorted(rows, key=lambda row: int(row["t"])), WRITERS)
