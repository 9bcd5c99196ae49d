"""What an importer offers: one format of histories that other tools recorded."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from harness.contracts.plugin import Plugin


@dataclass(frozen=True, kw_only=True)
class ImporterPlugin(Plugin):
    """What the module of an importer declares as `PLUGIN`: `read` gives a recording."""

    MAIN: ClassVar[str] = "read"

    read: Callable[[Path], Any]
