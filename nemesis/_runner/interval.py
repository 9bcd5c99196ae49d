"""One fault of a plan while it is carried out, its row in the history, and what it measured.

Every change is recorded at once as a complete new row; the last row of an `id` counts.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from harness.contracts import ClusterState, Injection, PlannedFault
from nemesis._plan.conditions import Conditions
from nemesis._runner.waiting import NS

MAX_FIGURES = 3  # of evidence in an unknown format


@dataclass(eq=False)
class Interval:
    """One fault of the plan and its progress. Times are in ns since the run's start."""

    number: int
    planned: PlannedFault
    conditions: Conditions
    random: Random
    row: dict[str, Any]
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # applied, or never will be
    over: asyncio.Event = field(default_factory=asyncio.Event)  # healed, as far as possible
    settled_ns: int = 0
    acknowledged: int = 0  # sends, when it settled
    event_count: int = 0  # events received, when it settled
    event_node: str = ""  # which reported the event that the fault waited for
    standing: ClusterState | None = None  # of the cluster, when the target was resolved
    injection: Injection | None = None  # while it is, or may be, in the world
    gone: bool = False  # one of its nodes is gone, so the fault cannot be healed there
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """`fault 3 (partition on broker-1, broker-2)`."""
        groups = self.injection.targets.values() if self.injection else ()
        names = ", ".join(name for group in groups for name in group)
        return f"fault {self.number} ({self.planned.kind}{names and f' on {names}'})"

    def broke_off(self, why: str) -> None:
        """Note that the fault was observed, but ended before its time."""
        self.evidence["broke_off"] = why
        if self.row["state"] == "installed":
            self.row["state"] = "partial"

    def changed(self, **changes: Any) -> dict[str, Any]:
        """Change the row, add the evidence so far, and return it."""
        observation = as_json(self.evidence) if self.evidence else None
        self.row = {**self.row, **changes, "observation": observation}
        return self.row


def first_row(number: int, planned: PlannedFault) -> dict[str, Any]:
    """Return a row of the faults table, before anything has happened."""
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


as_json = json.JSONEncoder(sort_keys=True).encode


# ------------------------------------------------------------------ what a fault measured, as text


def describe_effect(observation: Mapping[str, Any]) -> str:
    """Describe the effect in a few words, from a fault's `observation` in the history.

    An observation may bring its own words (`Observation.measured`); the rest is for those with
    figures only.
    """
    if words := observation.get("measured"):
        return str(words)
    effect = observation.get("effect", {})
    if processes := effect.get("processes"):
        return _processes(processes)
    if threads := effect.get("threads"):
        return _threads(threads)
    if effect.get("probes"):
        return _probes(effect)
    plain = [(key, value) for key, value in effect.items() if isinstance(value, str | int | float)]
    return ", ".join(f"{key} {value}" for key, value in plain[:MAX_FIGURES])


def _processes(processes: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{node}: process {seen.get('was', 0)} is {_process_state(seen)}"
        for node, seen in processes.items()
    )


def _process_state(seen: Mapping[str, Any]) -> str:
    same = seen.get("pid") == seen.get("was")
    return str(seen.get("is", "")) if same else f"gone, {seen.get('pid')} is {seen.get('is', '')}"


def _threads(threads: Mapping[str, str]) -> str:
    return ", ".join(
        f"{node}: {states.count('T')} of {len(states)} threads stopped"
        for node, states in threads.items()
    )


def _probes(effect: Mapping[str, Any]) -> str:
    sent, arrived = effect["probes"], effect.get("arrived", 0)
    lost = f"{100 * (sent - arrived) / sent:.0f} % of {sent} packets lost"
    links = f"{effect.get('links', 0)} links"
    kept = effect.get("open_links_passing")
    return f"{lost} on {links}" + (f", {kept} others pass all" if kept else "")
