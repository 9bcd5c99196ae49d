"""Upgrades and downgrades in a world in memory and virtual time."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from carried import carried_out, planned

from harness import registry
from harness.contracts import PlannedFault
from harness.errors import BadRequest, Unsupported
from harness.run.launch import PlanLimits, make_plan
from harness.trial import Trial
from nemesis import demo_plan, open_entries, planned_versions

BROKERS = ("broker-1", "broker-2", "broker-3")
UPGRADE = PlannedFault("upgrade", 1.0, 20.0, "all broker", {"to": "2"})


class Versions:
    """A system of three brokers that run version 1 at first, and serve a while after a start."""

    detection_s, serves_after_s = 1.5, 0.5

    def __init__(self, world: Any) -> None:
        self.world, self.bad = world, ""
        self.at = dict.fromkeys(BROKERS, "1")  # the version that a node is to run
        self.runs = dict.fromkeys(BROKERS, "1")
        self.serves_s = dict.fromkeys(BROKERS, 0.0)
        self.started: list[tuple[str, float]] = []
        self.least = 3  # nodes that ran whenever one was started

    def process(self, _node: str) -> str:
        return "versions"

    def running(self, but: str = "") -> list[str]:
        agents = self.world.agents
        return [n for n in BROKERS if agents[n].process == "running" or n == but]

    async def cluster_state(self, _bed: Any) -> Any:
        now_s = asyncio.get_running_loop().time()
        serving = tuple(n for n in self.running() if self.serves_s[n] <= now_s)
        return replace(self.world.standing, serving=serving, redundant=len(serving) == 3)

    async def start_node(self, _bed: Any, node: str) -> None:
        self.least = min(self.least, len(self.running(node)))
        self.world.log.append(f"start {node}")
        self.started.append((node, asyncio.get_running_loop().time()))
        agent = self.world.agents[node]
        agent.process, agent.pid, self.runs[node] = "running", agent.pid + 100, self.at[node]
        self.serves_s[node] = asyncio.get_running_loop().time() + self.serves_after_s
        if self.at[node] == self.bad:
            agent.end(7)

    def version(self, node: str) -> str:
        return self.at[node]

    def first_version(self, _node: str) -> str:
        return "1"

    async def before_version(self, _bed: Any, node: str, version: str) -> None:
        self.world.log.append(f"{node} before {version}")

    async def set_version(self, _bed: Any, node: str, version: str) -> None:
        self.at[node] = version

    async def running_version(self, _bed: Any, node: str) -> str:
        return self.runs[node] if node in self.running() else ""


@pytest.fixture
def system(world: Any) -> Versions:
    made = Versions(world)
    world.bed = replace(world.bed, system=made)
    return made


def effect(world: Any, number: int = 0) -> Any:
    return json.loads(world.last(number)["observation"])["effect"]


def measured(world: Any, number: int = 0) -> str:
    return str(json.loads(world.last(number)["observation"])["measured"])


def test_one_after_the_other_when_the_cluster_is_whole(
    world: Any, system: Versions, tmp_path: Path
) -> None:
    ledger = carried_out(world, planned(UPGRADE), tmp_path)
    assert world.last(0)["state"] == "installed"
    assert world.last(0)["healed"]
    assert system.runs == dict.fromkeys(BROKERS, "2")
    assert system.least == 3
    assert effect(world)["processes"]["broker-2"]["version_was"] == "1"
    assert measured(world) == "broker-1, broker-2, broker-3 brought from 1 to 2"
    assert [line for line in world.log if "broker-1" in line] == [
        "broker-1 before 2",
        "start broker-1",
    ]
    assert world.sound
    assert open_entries(ledger) == ()


def test_all_together(world: Any, system: Versions, tmp_path: Path) -> None:
    one = replace(UPGRADE, params={"to": "2", "order": "together", "down_s": 1.0})
    carried_out(world, planned(one), tmp_path)
    assert (world.last(0)["state"], system.least) == ("installed", 1)


@pytest.mark.parametrize("node", ["broker-1", "broker-3"])
def test_it_waits_until_the_cluster_is_whole(
    world: Any, system: Versions, tmp_path: Path, node: str
) -> None:
    """A node that was killed is started with its own version first."""
    carried_out(world, planned(PlannedFault("kill", 0.5, 3.0, node), UPGRADE), tmp_path)
    assert [world.last(number)["state"] for number in (0, 1)] == ["installed", "installed"]
    assert world.log.count(f"start {node}") == 2
    assert (system.least, system.runs) == (3, dict.fromkeys(BROKERS, "2"))


def test_a_node_that_another_fault_holds_comes_later(
    world: Any, system: Versions, tmp_path: Path
) -> None:
    """Though the cluster is whole."""
    clock = PlannedFault("clock", 0.5, 5.0, "broker-1")
    carried_out(world, planned(clock, UPGRADE), tmp_path)
    assert [world.last(number)["state"] for number in (0, 1)] == ["installed", "installed"]
    assert system.started[0] == ("broker-1", pytest.approx(5.5, abs=0.2))


def test_what_another_fault_ended_is_not_started(
    world: Any, system: Versions, tmp_path: Path
) -> None:
    """Even when the upgrade's time is over. The new version stays."""
    kill = PlannedFault("kill", 1.4, 8.0, "broker-1")
    carried_out(world, planned(replace(UPGRADE, for_s=5.0), kill), tmp_path)
    assert [world.last(number)["state"] for number in (0, 1)] == ["failed", "installed"]
    assert [round(at_s) for node, at_s in system.started if node == "broker-1"] == [1, 9]
    assert system.runs == {**dict.fromkeys(BROKERS, "1"), "broker-1": "2"}


@pytest.mark.parametrize("at_s", [1.05, 1.4, 1.8, 2.3])
def test_a_node_that_dies_while_it_catches_up(
    world: Any, system: Versions, tmp_path: Path, at_s: float
) -> None:
    """The kill finds a victim, which is started with the new version once it is healed."""
    system.serves_after_s = 1.0
    kill = PlannedFault("kill", at_s, 2.0, "broker-1")
    carried_out(world, planned(UPGRADE, kill), tmp_path)
    assert [world.last(number)["state"] for number in (0, 1)] == ["installed", "installed"]
    assert system.runs == dict.fromkeys(BROKERS, "2")
    assert world.sound


@pytest.mark.parametrize("order", ["rolling", "together"])
@pytest.mark.parametrize("at_s", [1.0005, 1.0025, 1.06, 1.3, 1.5, 1.6, 2.2, 6.0005])
def test_stop_at_any_moment_leaves_all_nodes_running(
    world: Any, system: Versions, tmp_path: Path, at_s: float, order: str
) -> None:
    async def interrupt(stop: asyncio.Event) -> None:
        await asyncio.sleep(at_s)
        stop.set()

    one = replace(UPGRADE, params={"to": "2", "order": order, "down_s": 0.5})
    ledger = carried_out(world, planned(one), tmp_path, meanwhile=interrupt)
    assert world.sound
    assert open_entries(ledger) == ()
    assert system.runs == system.at
    if order == "rolling" and at_s < 1.5:  # no further node is touched
        assert system.at["broker-3"] == "1"


def test_a_version_that_ends_by_itself_is_replaced_by_the_one_before(
    world: Any, system: Versions, tmp_path: Path
) -> None:
    """No further node is touched, and the fault did not take effect."""
    system.bad = "2"
    carried_out(world, planned(UPGRADE), tmp_path)
    assert (world.last(0)["state"], bool(world.last(0)["healed"])) == ("failed", True)
    assert system.runs == dict.fromkeys(BROKERS, "1")
    assert world.log == ["broker-1 before 2", "start broker-1", "start broker-1"]
    assert measured(world).startswith(
        "broker-1 ended with code 7 as 2, and is 1 again; 2 of 3 left"
    )


def test_a_process_of_another_version_is_not_believed(
    world: Any, system: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def always_first(*_: Any) -> str:
        return "1"

    monkeypatch.setattr(system, "running_version", always_first)
    carried_out(world, planned(UPGRADE), tmp_path)
    assert world.last(0)["state"] == "failed"
    assert not world.last(0)["healed"]


def test_a_downgrade_goes_back_to_the_first_version(
    world: Any, system: Versions, tmp_path: Path
) -> None:
    back = PlannedFault("downgrade", 30.0, 20.0, "all broker")
    carried_out(world, planned(UPGRADE, back, replace(back, at_s=60.0)), tmp_path)
    assert [world.last(number)["state"] for number in range(3)] == [
        "installed",
        "installed",
        "failed",
    ]
    assert measured(world, 1) == "broker-1, broker-2, broker-3 brought from 2 to 1"
    assert "broker-1, broker-2, broker-3 run 1 already" in world.last(2)["observation"]


def test_the_versions_that_a_plan_names() -> None:
    back = PlannedFault("downgrade", 30.0, 20.0, "all broker")
    assert planned_versions(planned(UPGRADE, back, UPGRADE)) == ("2",)


@pytest.mark.parametrize("kind", ["upgrade", "downgrade"])
def test_no_version_is_drawn(kind: str) -> None:
    with pytest.raises(BadRequest, match="is not drawn from a seed; write a plan with params"):
        registry.fault(kind).draw(Random(1), ())
    with pytest.raises(BadRequest, match="is not drawn from a seed"):
        make_plan(Trial(system="nats", faults=(kind,)))


def test_no_version_is_demonstrated() -> None:
    """The other kinds are, with the reason for this one."""
    stage = PlanLimits.of(Trial(system="nats"))
    found = demo_plan(("upgrade", "kill"), stage.nodes, stage.can, "local", 5.0)
    assert {fault.kind for fault in found.plan} == {"kill"}
    assert "is not drawn" in found.lacking["upgrade"]


PLAN = """
[[fault]]
kind = "upgrade"
at_s = 5.0
for_s = 20.0
target = "all server"
"""


@pytest.mark.parametrize(
    ("system_name", "hosts", "plan", "why"),
    [
        ("nats", "local", PLAN, "upgrade needs the version to bring the nodes to"),
        (
            "flotilla",
            "local",
            f'{PLAN}params = {{ to = "2" }}',
            "flotilla, which lacks several vers",
        ),
        ("redis", "local", f'{PLAN}params = {{ to = "2" }}', "redis, which lacks several versions"),
    ],
)
def test_what_makes_no_sense_is_refused(system_name: str, hosts: str, plan: str, why: str) -> None:
    with pytest.raises((BadRequest, Unsupported), match=why):
        make_plan(Trial(system=system_name, hosts=hosts, plan="p.toml"), plan)


@pytest.mark.parametrize(
    ("system_name", "mixed", "why"),
    [
        ("nats", {"server-9": "2.12.1"}, "server-9"),
        ("nats", {"client-1": "2.12.1"}, "client-1"),
        ("nats", {"server-1": 2.12}, "mixed.server-1 must be a version as a string, not 2.12"),
        ("flotilla", {"broker-1": "2"}, "flotilla has no versions of its program to choose from"),
    ],
)
def test_a_mixed_cluster_that_cannot_be(system_name: str, mixed: Any, why: str) -> None:
    with pytest.raises((BadRequest, Unsupported), match=why):
        make_plan(Trial(system=system_name, mixed=mixed))


@pytest.mark.parametrize(("field", "value"), [("version", "1.0"), ("supply", "/opt/flotilla")])
def test_a_system_without_programs_to_select(field: str, value: str) -> None:
    with pytest.raises(Unsupported, match=f"flotilla has no programs that {field} could select"):
        make_plan(replace(Trial(), **{field: value}))  # type: ignore[arg-type]
