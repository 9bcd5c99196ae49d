"""Replicas are compared once in every stretch without a fault, when the cluster is whole."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.cli.options import Request
from harness.contracts import ClusterState, TestBed
from harness.errors import BadRequest, BedFailed
from harness.run.preflight import refuse_unrunnable
from harness.run.replica_comparison import QuietPeriodRecorder, compare_in_quiet_periods
from harness.trial import Trial

PLANNED = {"id": 0, "state": "planned", "begin": None, "applied": None, "heal": None}


class Kept:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.events: list[Mapping[str, Any]] = []
        self.notes: list[str] = []

    def fault(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def event(self, t: int, node: str, kind: str, fields: Mapping[str, Any]) -> None:
        self.events.append(fields)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def replicas(self, node: str, rows: object) -> None:
        raise AssertionError("nobody reads replicas here")


def test_a_stretch_begins_when_the_last_fault_is_being_healed() -> None:
    """Faults that overlap make one stretch after them; one that never came makes none."""
    kept = Kept()
    calm = QuietPeriodRecorder(kept)
    rows = [
        (PLANNED, 0),
        ({**PLANNED, "id": 1}, 0),
        ({**PLANNED, "begin": 1}, None),
        ({**PLANNED, "id": 1, "begin": 2, "applied": 2}, None),
        ({**PLANNED, "begin": 1, "applied": 1, "heal": 3}, None),
        ({**PLANNED, "id": 1, "begin": 2, "applied": 2, "heal": 4}, 1),
        ({**PLANNED, "id": 1, "begin": 2, "applied": 2, "heal": 4, "healed": 5}, 1),
        ({**PLANNED, "id": 2, "begin": 6}, None),
        ({**PLANNED, "id": 2, "begin": 6, "state": "failed"}, 2),
    ]
    for row, stretch in rows:
        calm.fault(row)
        assert calm.quiet_period == stretch, row
    assert kept.rows == [row for row, _ in rows], "all of it is recorded"


class System:
    """A cluster that is whole after the third look, and may fail to answer."""

    def __init__(self, error: str = "") -> None:
        self.looks = self.asked = 0
        self._error = error

    async def cluster_state(self, bed: TestBed) -> ClusterState:
        self.looks += 1
        return ClusterState(redundant=self.looks > 3)

    async def compare_replicas(self, bed: TestBed) -> Mapping[str, Any] | None:
        self.asked += 1
        if self._error:
            raise BedFailed(self._error)
        return {"broker-a": {"bytes": 10, "digests": {"broker-1": "x"}}} if self.asked > 1 else None


async def _watched(system: System, calm: QuietPeriodRecorder, kept: Kept, until: int) -> None:
    """For so many looks of the comparer, at no real pace."""
    slept = 0
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        if slept == until:
            enough.set()
        await asyncio.sleep(0)

    bed = TestBed((), {}, None, system, kept, lambda: 0, lambda: 0, sleep)  # type: ignore[arg-type]
    task = asyncio.create_task(compare_in_quiet_periods(bed, calm))
    await asyncio.wait(
        [task, asyncio.create_task(enough.wait())], return_when=asyncio.FIRST_COMPLETED
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_it_is_done_once_and_only_when_the_cluster_is_whole() -> None:
    """And when there is something to compare."""
    kept, system = Kept(), System()
    calm = QuietPeriodRecorder(kept)
    asyncio.run(_watched(system, calm, kept, 20))
    assert [event["stretch"] for event in kept.events] == [0]
    assert system.asked == 2
    calm.fault({**PLANNED, "begin": 1, "applied": 1})
    asyncio.run(_watched(system, calm, kept, 5))
    assert len(kept.events) == 1, "not while a fault is in the world"


def test_a_comparison_that_fails_breaks_nothing() -> None:
    """It is noted, and not tried again in the same stretch."""
    kept, system = Kept(), System("broker-1 does not answer")
    asyncio.run(_watched(system, QuietPeriodRecorder(kept), kept, 20))
    assert system.asked == 1
    assert kept.notes == ["NOT_COMPARED stretch 0: broker-1 does not answer"]
    assert not kept.events


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"system": "redis"}, "redis cannot compare its replicas"),
        ({"checkers": ("loss",)}, "the trial does not name the checker replicas"),
        ({}, "on simulated hosts replicas are not compared"),
    ],
)
def test_looks_that_nobody_makes_or_judges_are_refused(
    tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    """Before a run that would not show what was asked for."""
    asked = Request(Trial(compare_replicas=True, hosts="simulated", **fields))
    with pytest.raises(BadRequest, match=f"compare_replicas: {says}"):
        refuse_unrunnable(asked, tmp_path)
