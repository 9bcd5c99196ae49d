"""The nemesis in a world in memory and virtual time: order, conditions, healing, records."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from carried import carried_out, planned

from harness.contracts import ClusterState, LinkRule, PlannedFault
from harness.errors import BedFailed
from harness.history.reader import FAULTS
from nemesis import carry_out, open_entries
from nemesis._plan import plan as _plan

S = 1_000_000_000
ISOLATE_THEN_KILL = Path(__file__).resolve().parents[2] / "suites/plans/isolate-then-kill.toml"


def fault(kind: str, at_s: float, for_s: float, target: str, **more: Any) -> PlannedFault:
    return PlannedFault(kind, at_s, for_s, target, **more)


@pytest.mark.parametrize(
    "one",
    [
        fault("kill", 2.0, 5.0, "master"),
        fault("pause", 2.0, 5.0, "minority broker"),
        fault("partition", 2.0, 5.0, "master", params={"shape": "isolate"}),
        fault("partition", 2.0, 5.0, "", params={"shape": "ring"}),
        fault("partition", 2.0, 5.0, "", params={"shape": "bridge", "clients": True}),
        fault("partition", 2.0, 5.0, "broker-2", params={"shape": "one-way", "direction": "in"}),
        fault("partition", 2.0, 5.0, "", params={"shape": "between", "a": "broker", "b": "client"}),
        fault(
            "partition", 2.0, 5.0, "", params={"shape": "links", "cut": {"broker-1": ["broker-2"]}}
        ),
        fault("loss", 2.0, 5.0, "all broker", params={"direction": "both"}),
    ],
    ids=lambda f: f"{f.kind} {f.params.get('shape', '')}",
)
def test_every_fault_passes_all_stages(world: Any, tmp_path: Path, one: PlannedFault) -> None:
    """Begun on time, seen, healed after its time, seen healed, its ledger entry closed."""
    ledger = carried_out(world, planned(one), tmp_path)
    row = world.last(0)
    assert set(row) == set(FAULTS.names)
    assert row["planned"] == row["begin"] == 2 * S
    assert row["begin"] < row["applied"] <= row["observed"] < row["heal"] < row["healed"]
    assert row["heal"] - row["applied"] == 5 * S
    assert row["state"] == "installed"
    assert json.loads(row["observation"])["healing"]["state"] == "installed"
    assert json.loads(row["targets"])
    assert world.sound
    assert open_entries(ledger) == ()


def test_each_stage_is_recorded_when_it_is_passed(world: Any, tmp_path: Path) -> None:
    """A run that ends badly has recorded how far each fault had come."""
    carried_out(world, planned(fault("kill", 2.0, 5.0, "broker-3")), tmp_path)
    stages = ["begin", "applied", "observed", "heal", "healed"]
    reached = [[s for s in stages if row[s] is not None] for row in world.rows]
    assert reached == [stages[:n] for n in range(6)]
    assert [row["state"] for row in world.rows] == ["planned"] * 3 + ["installed"] * 3


def test_overlapping_cuts_compose(world: Any, tmp_path: Path) -> None:
    """Healing one of two faults leaves the other in place."""
    long = fault(
        "partition", 1.0, 10.0, "broker-1", params={"shape": "isolate", "from": "broker-2"}
    )
    short = fault("partition", 3.0, 4.0, "broker-1", params={"shape": "isolate"})
    seen: dict[float, int] = {}

    async def look(_stop: asyncio.Event) -> None:
        for at_s in (2.0, 5.0, 9.0, 13.0):
            await asyncio.sleep(at_s - world.bed.now_ns() / S)
            seen[at_s] = len(world.agents["broker-1"].rules)

    carried_out(world, planned(long, short), tmp_path, look)
    assert seen == {2.0: 1, 5.0: 6, 9.0: 1, 13.0: 0}
    assert [world.last(n)["state"] for n in (0, 1)] == ["installed"] * 2
    assert [world.last(n)["healed"] is not None for n in (0, 1)] == [True] * 2


def test_the_worse_of_two_effects_wins(world: Any, tmp_path: Path) -> None:
    """Loss under a cut is a cut, and both are still seen for what they are."""
    loss = fault("loss", 1.0, 10.0, "broker-1", params={"probability": 0.5})
    cut = fault("partition", 3.0, 4.0, "broker-1", params={"shape": "isolate", "from": "broker-2"})
    seen: dict[float, float] = {}

    async def look(_stop: asyncio.Event) -> None:
        for at_s in (2.0, 5.0, 9.0):
            await asyncio.sleep(at_s - world.bed.now_ns() / S)
            rules = {rule.source: rule.drop for rule in world.agents["broker-1"].rules}
            seen[at_s] = rules["10.0.2.2"]

    carried_out(world, planned(loss, cut), tmp_path, look)
    assert seen == {2.0: 0.5, 5.0: 1.0, 9.0: 0.5}
    assert world.last(1)["healed"], "healed to what the loss wants of the link"
    assert world.sound


@pytest.mark.parametrize("over", ["loss", "partition"])
def test_a_loss_that_a_worse_fault_hides_was_not_seen(
    world: Any, tmp_path: Path, over: str
) -> None:
    """What is lost is lost by the other; where there are links beside, it was seen on them."""
    more = {"loss": {"probability": 0.9}, "partition": {"shape": "isolate"}}[over]
    worse = fault(over, 1.0, 10.0, "broker-1", params=more)
    hidden = fault("loss", 3.0, 2.0, "broker-1", params={"probability": 0.3})
    half = fault("loss", 6.0, 2.0, "broker-1, broker-2", params={"probability": 0.3})
    carried_out(world, planned(worse, hidden, half), tmp_path)
    assert [world.last(n)["state"] for n in range(3)] == ["installed", "failed", "installed"]
    assert all(world.last(n)["healed"] for n in range(3))
    effects = [json.loads(world.last(n)["observation"])["effect"] for n in range(3)]
    assert effects[1]["links_hidden_by_others"] == effects[1]["links"] == 6
    assert 0 < effects[2]["links_hidden_by_others"] < effects[2]["links"]


def test_stop_heals_newest_first(world: Any, tmp_path: Path) -> None:
    """When the run is stopped, all is healed at once, in reverse, and nothing more begins."""
    plan = planned(
        fault("kill", 1.0, 50.0, "broker-1"),
        fault("kill", 2.0, 50.0, "broker-2"),
        fault("pause", 3.0, 50.0, "broker-3"),
        fault("kill", 20.0, 5.0, "controller-1"),
    )

    async def interrupt(stop: asyncio.Event) -> None:
        await asyncio.sleep(5.0)
        stop.set()

    ledger = carried_out(world, plan, tmp_path, interrupt)
    heals = [world.last(n)["heal"] for n in range(3)]
    assert heals == sorted(heals, reverse=True)
    assert all(5 * S <= heal < 6 * S for heal in heals)
    assert world.log == ["start broker-2", "start broker-1"]
    assert world.last(3)["state"] == "planned"
    assert world.last(3)["begin"] is None
    assert world.sound
    assert open_entries(ledger) == ()


@pytest.mark.parametrize("at_s", [1.0005, 1.0015, 1.0025, 1.0035, 1.5, 6.0005, 6.0015])
def test_stop_at_any_moment_heals(world: Any, tmp_path: Path, at_s: float) -> None:
    """Also when it comes while a fault is being applied, observed or healed."""
    plan = planned(
        fault("partition", 1.0, 5.0, "", params={"shape": "halves"}),
        fault("pause", 1.0, 5.0, "all controller"),
        fault("kill", 1.0, 5.0, "broker-2"),
    )

    async def interrupt(stop: asyncio.Event) -> None:
        await asyncio.sleep(at_s)
        stop.set()

    ledger = carried_out(world, plan, tmp_path, interrupt)
    assert world.sound
    assert open_entries(ledger) == ()


def test_cancelling_heals(world: Any, tmp_path: Path) -> None:
    """A runner that breaks off leaves nothing behind either."""

    async def story(world: Any) -> None:
        plan = planned(fault("partition", 1.0, 50.0, "master", params={"shape": "isolate"}))
        work = asyncio.ensure_future(
            carry_out(plan, world.bed, tmp_path / "ledger", asyncio.Event(), Random(1), 0)
        )
        await asyncio.sleep(3.0)
        assert world.agents["broker-1"].rules
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    world.run(story)
    assert world.sound


def test_the_kill_waits_for_acknowledgements_and_the_cut_for_the_kill(
    world: Any, tmp_path: Path
) -> None:
    """`after` counts from when the previous fault was applied, `until = next` ends with the kill,
    and the victim stays down until another master is elected."""
    _, plan = _plan.load(ISOLATE_THEN_KILL.read_text())

    async def cluster(_stop: asyncio.Event) -> None:
        for _ in range(26):  # 6.5 s, by when 1500 are acknowledged behind the cut
            await asyncio.sleep(0.25)
            world.acknowledged += 400
        assert world.agents["broker-1"].process == "exited"
        world.acknowledged += 10_000
        await asyncio.sleep(3.0)
        world.standing = replace(world.standing, masters={"set-1": "broker-2"}, epochs={"set-1": 2})

    carried_out(world, plan, tmp_path, cluster)
    cut, kill = world.last(0), world.last(1)
    assert kill["begin"] - cut["applied"] == pytest.approx(1 * S, abs=0.3 * S)
    assert cut["heal"] == pytest.approx(kill["applied"], abs=0.01 * S)
    assert cut["heal"] >= kill["applied"]
    assert kill["heal"] == pytest.approx(10.5 * S, abs=0.1 * S)
    assert json.loads(kill["targets"]) == {"master": ["broker-1"]}
    assert world.sound


def test_conditions_have_an_end(world: Any, tmp_path: Path) -> None:
    """A safe system acknowledges nothing behind the cut: the kill comes all the same. Nobody is
    elected: the victim comes back all the same."""
    _, plan = _plan.load(ISOLATE_THEN_KILL.read_text())
    carried_out(world, plan, tmp_path)
    cut, kill = world.last(0), world.last(1)
    assert kill["begin"] - cut["applied"] == pytest.approx(9 * S, abs=0.1 * S)
    assert kill["heal"] - kill["applied"] == pytest.approx(15 * S, abs=0.1 * S)
    assert (cut["state"], kill["state"]) == ("installed", "installed")


def test_it_waits_for_a_node_with_the_part(world: Any, tmp_path: Path) -> None:
    """A kill of the master in the middle of an election hits the elected one."""
    world.standing = ClusterState()

    async def elect(_stop: asyncio.Event) -> None:
        await asyncio.sleep(2.0)
        world.standing = ClusterState(masters={"set-1": "broker-3"}, epochs={"set-1": 4})

    carried_out(world, planned(fault("kill", 1.0, 5.0, "master")), tmp_path, elect)
    row = world.last(0)
    assert row["begin"] == 1 * S
    assert 2 * S <= row["applied"] < 2.2 * S
    assert json.loads(row["targets"]) == {"master": ["broker-3"]}


def test_a_fault_without_targets_has_failed(world: Any, tmp_path: Path) -> None:
    """It is recorded with the reason, and the next fault is carried out."""
    world.standing = ClusterState()
    plan = planned(fault("kill", 1.0, 5.0, "master"), fault("kill", 9.0, 5.0, "broker-1"))
    carried_out(world, plan, tmp_path)
    assert world.last(0)["state"] == "failed"
    assert "no node had the role" in world.last(0)["observation"]
    assert world.last(0)["applied"] is None
    assert world.last(1)["state"] == "installed"


def test_a_process_belongs_to_one_fault(world: Any, tmp_path: Path) -> None:
    """A paused node is not killed too: the second fault hits another node, or fails."""
    plan = planned(
        fault("pause", 1.0, 5.0, "broker-1, broker-2"), fault("kill", 2.0, 2.0, "all broker")
    )
    carried_out(world, plan, tmp_path)
    assert json.loads(world.last(1)["targets"]) == {"slave": ["broker-3"]}
    assert world.sound


def test_a_choice_among_the_others_is_made_at_once(world: Any, tmp_path: Path) -> None:
    """With two of three brokers paused, `one broker` is the third, without drawing again."""
    plan = planned(
        fault("pause", 1.0, 5.0, "broker-1, broker-2"), fault("kill", 2.0, 2.0, "one broker")
    )
    carried_out(world, plan, tmp_path)
    row = world.last(1)
    assert json.loads(row["targets"]) == {"slave": ["broker-3"]}
    assert row["applied"] - row["begin"] < 0.01 * S


def test_a_fault_of_servers_spares_the_clients_of_another_fault(world: Any, tmp_path: Path) -> None:
    """`fault-0` means the nodes that it hit; of these only the servers can be killed."""
    plan = planned(
        fault(
            "partition", 1.0, 5.0, "", params={"shape": "between", "a": "broker-1", "b": "client"}
        ),
        fault("kill", 2.0, 2.0, "fault-0"),
    )
    carried_out(world, plan, tmp_path)
    assert names_hit(world.last(1)) == ["broker-1"]
    assert world.last(1)["state"] == "installed"


@pytest.mark.parametrize("verb", ["links", "probe", "dropped"])
def test_a_dead_agent_fails_its_fault_and_no_other(world: Any, tmp_path: Path, verb: str) -> None:
    """The bed's failure is that fault's state; other faults are carried out and healed."""
    world.agents["broker-1"].broken.add(verb)
    plan = planned(
        fault("partition", 1.0, 5.0, "broker-1", params={"shape": "isolate"}),
        fault("kill", 2.0, 5.0, "broker-2"),
    )
    carried_out(world, plan, tmp_path)
    assert world.last(0)["state"] == "failed"
    assert "agent of broker-1 is gone" in world.last(0)["observation"]
    assert world.last(1)["state"] == "installed"
    assert not world.agents["broker-2"].rules


@pytest.mark.parametrize(
    ("one", "nodes"),
    [
        (fault("kill", 2.0, 5.0, "master, controller-2"), {"broker-1", "controller-2"}),
        (fault("pause", 2.0, 5.0, "slave"), {"broker-2", "broker-3"}),
        (fault("loss", 2.0, 5.0, "master", params={"from": "slave"}), {"broker-1"}),
        (
            fault("partition", 2.0, 5.0, "master", params={"shape": "isolate", "from": "slave"}),
            {"broker-1", "broker-2", "broker-3"},
        ),
    ],
    ids=lambda one: getattr(one, "kind", ""),
)
def test_each_nodes_injection_is_timed(
    world: Any, tmp_path: Path, one: PlannedFault, nodes: set[str]
) -> None:
    """How long a node took to be broken and to be mended is evidence of the fault, by node."""
    carried_out(world, planned(one), tmp_path)
    seen = json.loads(world.last(0)["observation"])
    assert seen["applied_ms"] == dict.fromkeys(nodes, 1.0)
    if one.kind != "kill":  # mending it is the system's: a start, which this world does itself
        assert seen["healed_ms"] == dict.fromkeys(nodes, 1.0)


def test_overlapping_faults_are_timed_apart(world: Any, tmp_path: Path) -> None:
    """Each has the nodes that it touched, whatever another does meanwhile."""
    plan = planned(
        fault("pause", 2.0, 5.0, "broker-2"),
        fault("pause", 2.0, 5.0, "broker-3"),
    )
    carried_out(world, plan, tmp_path)
    took = [json.loads(world.last(number)["observation"])["applied_ms"] for number in (0, 1)]
    assert [set(each) for each in took] == [{"broker-2"}, {"broker-3"}]


@pytest.mark.parametrize("rows", range(4, 12))
def test_a_full_disk_heals_and_ends_at_once(world: Any, tmp_path: Path, rows: int) -> None:
    """Nothing is done without a record: all is healed, and the error is raised, at any row."""
    plan = planned(
        fault("partition", 1.0, 5.0, "", params={"shape": "halves"}),
        fault("pause", 2.0, 5.0, "all controller"),
        fault("kill", 50.0, 5.0, "broker-2"),
    )
    ended_ns = []

    def record(row: Any) -> None:
        world.rows.append(row)
        if len(world.rows) >= rows:
            raise BedFailed("cannot write the journal: No space left on device")

    async def story(world: Any) -> None:
        world.bed = replace(world.bed, record=type("Full", (), {"fault": staticmethod(record)}))
        with pytest.raises(BedFailed, match="No space left"):
            await carry_out(plan, world.bed, tmp_path / "ledger", asyncio.Event(), Random(1), 0)
        ended_ns.append(world.bed.now_ns())

    world.run(story)
    assert world.sound
    assert ended_ns[0] < 10 * S


def test_a_fault_that_does_nothing_is_not_installed(world: Any, tmp_path: Path) -> None:
    """Probes detect rules that are accepted but not applied."""
    for agent in world.agents.values():
        agent.receive = lambda source, token, agent=agent: agent.arrived.update(
            {token: agent.arrived.get(token, 0) + 1}
        )
    cut = fault("partition", 1.0, 5.0, "broker-1", params={"shape": "isolate"})
    loss = fault("loss", 10.0, 5.0, "broker-1")
    carried_out(world, planned(cut, loss), tmp_path)
    assert [world.last(n)["state"] for n in (0, 1)] == ["failed", "failed"]


def test_a_cut_that_takes_more_than_it_should_is_partial(world: Any, tmp_path: Path) -> None:
    """Links that no fault cuts must stay open."""

    async def cut_more(_stop: asyncio.Event) -> None:
        await asyncio.sleep(0.5)
        agent = world.agents["broker-3"]
        links = agent.links

        async def too_much(rules: Any) -> None:
            await links((*rules, LinkRule("10.0.2.2")))

        agent.links = too_much

    one = fault("partition", 1.0, 5.0, "broker-1", params={"shape": "isolate"})
    carried_out(world, planned(one), tmp_path, cut_more)
    assert world.last(0)["state"] == "partial"
    odd = json.loads(world.last(0)["observation"])["effect"]["odd"]
    assert [link["link"] for link in odd] == ["broker-2 to broker-3"]


def test_the_same_seed_hits_the_same_nodes(world: Any, tmp_path: Path) -> None:
    """Replayed in the same world, a plan does the same things at the same times."""
    plan = planned(
        fault("kill", 1.0, 5.0, "random"),
        fault("partition", 2.0, 8.0, "", params={"shape": "halves"}),
        fault("loss", 4.0, 5.0, "one controller"),
    )
    histories = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        again = type(world)()
        carried_out(again, plan, tmp_path / folder)
        histories.append(again.rows)
    assert histories[0] == histories[1]


def names_hit(row: dict[str, Any]) -> list[str]:
    return sorted(name for names in json.loads(row["targets"]).values() for name in names)
