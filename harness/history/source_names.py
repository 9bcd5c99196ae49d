"""Original names in the evidence of an imported history.

Importers renumber messages, keys and values, and number an operation by the line of its invocation.
A row of evidence that names one of them also gets its original name and its line, so that a reader
finds it in the file without a table of ours. What is not in the folder is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Result

SUFFIX = "value"  # `value`, `lower_value` ...: a column of evidence that holds one


def with_originals(
    results: Sequence[Result], run: RunDir, names: Mapping[str, Any]
) -> tuple[Result, ...]:
    """Return the results with originals and lines in their evidence."""
    findings = [finding for result in results for finding in result.findings]
    originals = _Originals(run, names, {v for finding in findings for v in _values(finding)})
    return tuple(
        replace(
            result, findings=tuple(originals.with_originals(finding) for finding in result.findings)
        )
        for result in results
    )


def _values(finding: Finding) -> Iterable[int]:
    for row in finding.evidence:
        for name, cell in row.items():
            if name.endswith(SUFFIX) and isinstance(cell, int):
                yield cell


def original_messages(run: RunDir, values: set[int]) -> Mapping[int, tuple[Any, int]]:
    """Return the original names of messages of an imported history, and the lines they are on."""
    paths = run.find("origin", "messages.parquet")
    if not values or not paths:
        return {}
    table = pq.read_table(paths[0])
    wanted = pa.array(sorted(values), pa.int64())
    rows = table.filter(pc.is_in(table.column("value"), value_set=wanted)).to_pylist()
    return {row["value"]: (row["original"], row["line"]) for row in rows}


class _Originals:
    """The originals of some values."""

    def __init__(self, run: RunDir, names: Mapping[str, Any], values: set[int]) -> None:
        self._texts: Sequence[str] = names.get("values", ())
        self._messages = original_messages(run, values)

    def with_originals(self, finding: Finding) -> Finding:
        return replace(finding, evidence=tuple(self._row(row) for row in finding.evidence))

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        extended = dict(row)
        for name, cell in row.items():
            if name.endswith(SUFFIX) and isinstance(cell, int):
                extended |= self._original(name.removesuffix(SUFFIX), cell)
        if isinstance(row.get("op"), int):
            extended["line"] = row["op"]
        return extended

    def _original(self, prefix: str, value: int) -> dict[str, Any]:
        if value in self._messages:
            original, line = self._messages[value]
            return {f"{prefix}original": original, f"{prefix}line": line}
        if 0 <= value < len(self._texts):
            return {f"{prefix}original": self._texts[value]}
        return {}
