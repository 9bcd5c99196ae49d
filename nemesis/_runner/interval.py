"""One fault of a plan while it is carried out, and its row in the history.

Whatever becomes of it is recorded at once as the whole row anew; the last row of an `id` counts.
"""

import asyncio
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from harness.contracts import Injection, PlannedFault, Standing
from nemesis._runner.waiting import NS


@dataclass(eq=False)
class Interval:
    """One fault of the plan and how far it has come. Times are ns since the run's start."""

    number: int
    planned: PlannedFault
    random: Random
    row: dict[str, Any]
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # applied, or never will be
    over: asyncio.Event = field(default_factory=asyncio.Event)  # healed, as far as it can be
    settled_ns: int = 0
    acknowledged: int = 0  # when it settled
    heard: int = 0  # events, when it settled
    teller: str = ""  # of the event that it waited for
    standing: Standing | None = None  # when it was aimed
    injection: Injection | None = None  # while it is in the world, or may be
    gone: bool = False  # a node of it is, so nobody can heal it there
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """`fault 3 (partition on broker-1, broker-2)`."""
        groups = self.injection.targets.values() if self.injection else ()
        names = ", ".join(name for group in groups for name in group)
        return f"fault {self.number} ({self.planned.kind}{names and f' on {names}'})"

    def broke_off(self, why: str) -> None:
        """It was seen at work, and not for as long as it was meant to be."""
        self.evidence["broke_off"] = why
        if self.row["state"] == "installed":
            self.row["state"] = "partial"

    def changed(self, **changes: Any) -> dict[str, Any]:
        """The row as it stands now."""
        observation = as_json(self.evidence) if self.evidence else None
        self.row = {**self.row, **changes, "observation": observation}
        return self.row


def first_row(number: int, planned: PlannedFault) -> dict[str, Any]:
    """A row of the faults table, before anything has happened."""
    return {
        "id": number,
        "kind": planned.kind,
        "params": as_json(planned.params),
        "selector": planned.target,
        "targets": None,
        "planned": round(planned.at_s * NS),
        "planned_for": round(planned.for_s * NS),
        "begin": None,
        "applied": None,
        "observed": None,
        "heal": None,
        "healed": None,
        "state": "planned",
        "observation": None,
    }


def as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
