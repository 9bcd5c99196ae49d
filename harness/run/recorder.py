"""The runner's part of the history: faults, server-side events, replicas and phase marks.

Times are taken when a method is called, on the clock of record. Stages of faults are also reported
to the live view.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.history.journal import TableJournal
from harness.history.schema import FAULTS

WRITER = "runner"
STAGES = ("healed", "heal", "observed", "applied", "begin")  # the last one reached counts
_JSON_COLUMNS = frozenset({"params", "targets", "observation"})


class JournalRecorder:
    """`harness.contracts.Recorder` over the journal of one run."""

    def __init__(
        self,
        folder: Path,
        now_ns: Callable[[], int],
        tell: Callable[[Mapping[str, Any]], None],
        *,
        patient: bool = False,
    ) -> None:
        self._now_ns = now_ns
        self._tell = tell
        self._tables = {
            table: TableJournal(folder, table, WRITER, patient=patient)
            for table in ("faults", "events", "notes", "replicas")
        }
        self._node_index: Mapping[str, int] = {}
        self._key_index: Mapping[str, int] = {}

    def set_names(self, nodes: Sequence[str], keys: Sequence[str]) -> None:
        """Set the run's node and key names, by whose index replicas are recorded."""
        self._node_index = {name: at for at, name in enumerate(nodes)}
        self._key_index = {name: at for at, name in enumerate(keys)}

    def note(self, text: str) -> None:
        self._tables["notes"].append((self._now_ns(), None, None, text))

    def alarm(self, text: str) -> None:
        """Record a note; also show it to the user, and write it to the log."""
        print(text, file=sys.stderr, flush=True)
        self._tell({"alarm": text})
        self.note(text)

    def fault(self, row: Mapping[str, Any]) -> None:
        values = {column: _column_value(column, row.get(column)) for column in FAULTS.names}
        self._tables["faults"].append(tuple(values.values()))
        self._tables["faults"].flush()  # no fault may exist without a record of it
        stage = next((name for name in STAGES if row.get(name) is not None), "planned")
        if stage != "planned":
            fields = {name: _decoded(row.get(name)) for name in ("id", "kind", "targets", "state")}
            self._tell({"fault": {**fields, "stage": stage}})

    def event(self, t: int, node: str, kind: str, fields: Mapping[str, Any]) -> None:
        self._tables["events"].append((t, node, kind, json.dumps(fields, sort_keys=True)))

    def replicas(self, node: str, rows: Sequence[tuple[str, int, int, int, int]]) -> None:
        """Record messages of a replica, without those of keys that are not the workload's (a
        system's own topics)."""
        at = self._node_index[node]
        append = self._tables["replicas"].append
        for key, offset, value, epoch, crc in rows:
            index = self._key_index.get(key)
            if index is not None:
                append((at, index, offset, value, epoch, crc))

    def close(self) -> None:
        for journal in self._tables.values():
            journal.close()


def _column_value(column: str, value: Any) -> Any:
    """Return structures as JSON text; text that is JSON already stays."""
    if column in _JSON_COLUMNS and value is not None and not isinstance(value, str):
        return json.dumps(value, sort_keys=True)
    return value


def _decoded(value: Any) -> Any:
    """Return the value of JSON text."""
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
