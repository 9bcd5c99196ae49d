"""Small histories as files, imported."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness import registry
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder

Import = Callable[..., RunDir]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """`imported("jepsen-set", text)`: the run folder of a history with this text. `initial`: what
    each register held at first; `contract`: what is demanded."""

    def make(
        name: str,
        text: str | bytes,
        *,
        packed: bool = False,
        initial: str | None = None,
        contract: Sequence[str] | None = None,
    ) -> RunDir:
        number = len(list(tmp_path.iterdir()))
        path = tmp_path / f"history-{number}"
        data = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(data) if packed else data)
        recording = registry.load("importer", name)(path)
        return _folder.write(recording, path, name, tmp_path / f"run-{number}", initial, contract)

    return make
