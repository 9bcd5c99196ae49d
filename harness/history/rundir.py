"""A run's folder: where each thing of a run is found.

runs/<when>-<name>/
  trial.toml        the trial, complete: enough to run it again
  plan.toml         the faults as planned, explicit (BREAK); replay reads it
  names.json        dictionaries: {"keys": [...], "nodes": [...], "roles": {...}, "sets": {...}}
  run.json          state of the run: schema_version, phase, started, ended, versions, seed
  journal/          Arrow streams while the run goes on: TABLE-WRITER-NNN.arrows, and beside
                    each a `.count`: rows the writer says it has written
  history/          the same tables sealed to Parquet: TABLE-WRITER-NNN.parquet
  ledger.jsonl      intents and closings of faults, for `seatrial heal`
  nodes/NODE/       each node's configuration, logs and events
  harness.log       the log of the harness itself
  status.json       while it runs: its current state (`harness.run.status_file`)
  messages.parquet  of a failed simulated run: messages around its first violation
  verdict.json report.html
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from harness.errors import BadRequest
from harness.text.parsing import read_json, read_text
from harness.text.sanitize import map_text, mask_secrets
from harness.trial import Trial


@dataclass(frozen=True)
class RunDir:
    """Paths of one run, and the small files in it."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """Open an existing run, also by a `file:` address. Raises BadRequest if the folder is not
        one."""
        run = cls(_local_folder(path).resolve())
        if not run.trial_file.is_file():
            raise BadRequest(_not_a_run(path, run.path))
        return run

    @property
    def name(self) -> str:
        """The name of the run in commands."""
        return str(self.path)

    def display_path(self, path: Path) -> str:
        """Return the name of a file in it for messages."""
        return str(path)

    @property
    def probe_path(self) -> Path:
        """The path that must exist where executors run."""
        return self.path

    def find(self, folder: str, pattern: str) -> list[Path]:
        """Return its files that match a pattern, sorted by name."""
        return sorted((self.path / folder).glob(pattern))

    def history_bytes(self) -> int:
        """Return the size of the recorded history, sealed or not."""
        files = (*self.find("history", "*.parquet"), *self.find("journal", "*.arrows"))
        return sum(path.stat().st_size for path in files)

    def on_sealed(self) -> None:
        """Called when journals have become sealed files."""

    @property
    def trial_file(self) -> Path:
        return self.path / "trial.toml"

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.toml"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def history(self) -> Path:
        return self.path / "history"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def messages_file(self) -> Path:
        return self.path / "messages.parquet"

    @property
    def log(self) -> Path:
        return self.path / "harness.log"

    @property
    def verdict_file(self) -> Path:
        return self.path / "verdict.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def node(self, name: str) -> Path:
        return self.path / "nodes" / name

    def trial(self) -> Trial:
        return Trial.from_toml(read_text(self.trial_file, "the trial"), str(self.trial_file))

    def plan_text(self) -> str:
        """Return the plan as TOML; empty if there is none yet. Raises BadRequest if it is not
        text."""
        return read_text(self.plan_file, "the plan") if self.plan_file.is_file() else ""

    def names(self) -> Mapping[str, Any]:
        return self._json("names.json")

    def load_began(self) -> int:
        """Return when the load began, in ns since the run's start; 0 for a history without a
        load."""
        began = self.state().get("load_began_ns", 0)
        return began if isinstance(began, int) else 0

    def state(self) -> Mapping[str, Any]:
        return self._json("run.json")

    def write_names(self, names: Mapping[str, Any]) -> None:
        self._replace("names.json", names)

    def update_state(self, **changes: Any) -> None:
        """Merge into run.json, atomically: a reader sees the old state or the new one. Secrets in
        the changes are masked."""
        self._replace("run.json", {**self.state(), **map_text(changes, mask_secrets)})

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.is_file():
            return {}
        try:
            fields = read_json(path)
        except (ValueError, OSError) as e:
            raise BadRequest(f"{path} cannot be read: {e}; restore it from a copy") from e
        if not isinstance(fields, dict):
            raise BadRequest(f"{path} does not contain a JSON object; restore it from a copy")
        return fields

    def _replace(self, name: str, fields: Mapping[str, Any]) -> None:
        temporary = self.path / f".{name}.tmp"
        try:
            temporary.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
            os.replace(temporary, self.path / name)
        except OSError as e:
            e.filename = e.filename or str(self.path / name)  # of a write it is not known
            raise


def _not_a_run(path: Path, folder: Path) -> str:
    """Say why a path is not a run, and what to name instead."""
    if not folder.exists():
        return f"{path} does not exist; name the folder of a run, such as runs/latest"
    if not folder.is_dir():
        return f"{path} is a file; name the folder of a run, such as runs/latest"
    inside = sorted(path.parent.name for path in folder.glob("*/trial.toml"))
    if inside:
        newest = "latest" if "latest" in inside else inside[-1]
        return f"{path} is a folder of runs; name one of them, such as {path / newest}"
    return f"{path} is not a run: there is no trial.toml in it"


def _local_folder(path: Path) -> Path:
    """Return the folder that an address means; a Path has made one slash of several."""
    scheme, _, rest = str(path).partition(":/")
    if not rest or not re.fullmatch("[a-z][a-z0-9]+", scheme) or path.exists():
        return path
    if scheme != "file":
        why = f"{scheme}: addresses are not read here"
        raise BadRequest(f"{why}; mount that storage, or copy the run to a folder")
    return Path(unquote(f"/{rest}"))
