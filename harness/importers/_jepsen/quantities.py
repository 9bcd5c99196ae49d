"""Counters are reckoned with: a number that is missing must not become one that nobody said."""

import numpy as np
import pyarrow as pa

from harness.importers._recording.recording import Slip, Slips
from harness.operation import F, Type


def with_numbers(table: pa.Table, slips: Slips) -> pa.Table:
    """The rows of counters, without those operations that added, or read, nobody knows how much."""
    f, kind, op = (table.column(name).to_numpy() for name in ("f", "type", "op"))
    said = table.column("value").is_valid().to_numpy()
    read = (f == F.COUNT) & np.isin(op, op[kind == Type.OK])
    lacking = ((f == F.ADD) | read) & ~np.isin(op, op[said])
    if not lacking.any():
        return table
    lines = np.unique(op[lacking])
    slips.add(
        Slip("ODD_VALUE", int(lines[0]), "value is absent, and must be a whole number", gap=True),
        len(lines),
    )
    return table.filter(pa.array(~lacking))


def most_counted(ops: pa.Table) -> float:
    """The sum of all that is added, or taken off."""
    value = ops.column("value").fill_null(0).to_numpy().astype(np.float64)
    added = (ops.column("f").to_numpy() == F.ADD) & (ops.column("type").to_numpy() == Type.INVOKE)
    return float(np.abs(value[added]).sum())
