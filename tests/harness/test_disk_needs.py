"""Nodes are prepared for what the plan does to their disks, and for nothing else."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.contracts import BedFailed, Node
from harness.run.disk_needs import prepare_own_disks
from harness.run.trial_run import TrialRun

NODES = (Node("broker-1", "broker"), Node("client-1", "client"))
SYSTEM_STEPS = ("install", "install_version", "start", "healthy")
ABLE = frozenset({"disk", "unsynced", "own-disk"})
FAULT = '[[fault]]\nkind = "{}"\nat_s = 1.0\nfor_s = 9.0\ntarget = "one broker"\n'
BY = FAULT.format("unsynced") + 'params = {{ keeps = "nothing", by = "{}" }}\n'


class RecordingHosts:
    """Hosts that say what was done to the nodes."""

    def __init__(self, can: frozenset[str]) -> None:
        self.can, self.calls = can, list[str]()

    def why_no_own_disks(self) -> str:
        return "" if "own-disk" in self.can else "it is out of order; to fix it: mend it"

    def prepare_own_disks(self) -> None:
        self.calls.append("prepared")

    @asynccontextmanager
    async def own_disks(self, nodes: Any, agents: Any, data: str) -> AsyncIterator[Any]:
        self.calls.append(f"disks {data} of {', '.join(node.name for node in nodes)}")
        yield {**agents, "broker-1": "with a disk"}
        self.calls.append("released")

    async def intercept_syscalls(self, nodes: Any, agents: Any, unsynced: str = "") -> Any:
        self.calls.append(f"intercepted {unsynced or 'untracked'} of {agents['broker-1']}")
        return agents


def done(plan: str, can: frozenset[str] = ABLE, cannot: frozenset[str] = frozenset()) -> list[str]:
    """What is done to the nodes of a trial with this plan."""
    hosts = RecordingHosts(can)
    prepare_own_disks(plan, cast(Any, hosts))
    run = SimpleNamespace(
        run=SimpleNamespace(plan_text=lambda: plan),
        hosts=hosts,
        system=SimpleNamespace(data="store", cannot=cannot),
        trial=SimpleNamespace(hosts="local"),
    )

    async def enter() -> None:
        agents = cast(Mapping[str, Any], {"broker-1": "an agent"})
        async with TrialRun._with_disk_faults(cast(Any, run), NODES, agents):
            hosts.calls.append("used")

    asyncio.run(enter())
    return hosts.calls


DISK = ["prepared", "disks store of broker-1", "used", "released"]


@pytest.mark.parametrize(
    ("plan", "calls"),
    [
        (FAULT.format("kill"), ["used"]),
        (BY.format("disk"), DISK),
        (BY.format("auto"), DISK),
        (BY.format("calls"), ["intercepted store of an agent", "used"]),
        (FAULT.format("disk-full"), ["intercepted untracked of an agent", "used"]),
        (
            BY.format("disk") + FAULT.format("disk-full"),
            [*DISK[:2], "intercepted untracked of with a disk", *DISK[2:]],
        ),
    ],
)
def test_the_interposer_and_own_disks_only_where_the_plan_needs_them(
    plan: str, calls: list[str]
) -> None:
    assert done(plan) == calls


def test_auto_without_own_disks_is_the_interposer() -> None:
    calls = done(BY.format("auto"), ABLE - {"own-disk"})
    assert calls == ["intercepted store of an agent", "used"]


def test_a_disk_that_turns_out_to_be_impossible_is_refused_before_anything_is_installed() -> None:
    with pytest.raises(BedFailed, match="it is out of order; to fix it: mend it"):
        done(BY.format("disk"), ABLE - {"own-disk"})


def test_what_was_installed_is_synced_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def step(name: str) -> Any:
        async def done(*_: Any) -> Any:
            calls.append(name)
            return {}

        return done

    planned_versions = ["2.0"]
    nemesis = SimpleNamespace(
        unsupported_reason=step("reason"), planned_versions=lambda _: planned_versions
    )
    monkeypatch.setattr("harness.registry.nemesis", lambda: nemesis)
    node = SimpleNamespace(cut_disk=None, keep_unsynced=step("sync"))
    run = SimpleNamespace(
        _plan=lambda: (),
        deadlines=SimpleNamespace(required=lambda *_, **__: nullcontext()),
        system=SimpleNamespace(**{name: step(name) for name in SYSTEM_STEPS}),
        mark=lambda *_, **__: None,
    )
    bed = SimpleNamespace(distances={}, agents={"broker-1": node})
    asyncio.run(TrialRun.start_cluster(cast(Any, run), cast(Any, bed)))
    assert calls == ["reason", "install", "install_version", "sync", "start", "healthy"]
