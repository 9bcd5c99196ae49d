"""Restarts, clocks and starvation in a world in memory and virtual time."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
from carried import carried_out, planned

from harness import registry
from harness.contracts import Node, PlannedFault
from harness.errors import BadRequest
from nemesis import clock, open_entries
from nemesis._plan import plan as _plan
from nemesis._runner.interval import describe_effect

S = 1_000_000_000
KINDS = ("restart", "clock", "starve-cpu", "starve-descriptors", "starve-memory")
ROLLING = {"order": "rolling"}


def effect(world: Any, number: int = 0) -> Any:
    return json.loads(world.last(number)["observation"])["effect"]


@pytest.mark.parametrize(
    "one",
    [
        PlannedFault("restart", 2.0, 9.0, "broker-2"),
        PlannedFault("restart", 2.0, 9.0, "slave", ROLLING),
        PlannedFault("clock", 2.0, 9.0, "minority broker", {"skew_s": -20.0}),
        PlannedFault("clock", 2.0, 9.0, "master", {"skew_s": 0.0, "rate": 1.1}),
        PlannedFault("starve-cpu", 2.0, 9.0, "controller-leader"),
        PlannedFault("starve-descriptors", 2.0, 9.0, "all broker", {"room": 2.0}),
        PlannedFault("starve-memory", 2.0, 9.0, "slave"),
    ],
    ids=lambda one: f"{one.kind} {one.params}",
)
def test_every_fault_passes_all_stages(world: Any, tmp_path: Path, one: PlannedFault) -> None:
    """Begun on time, seen, healed after its time, seen healed, with nothing left of it."""
    ledger = carried_out(world, planned(one), tmp_path)
    row = world.last(0)
    assert row["begin"] == 2 * S
    assert row["begin"] <= row["applied"] < row["observed"] <= row["heal"] < row["healed"]
    assert row["heal"] - row["applied"] == 9 * S
    assert row["state"] == "installed"
    assert describe_effect(json.loads(row["observation"]))
    assert world.sound
    assert open_entries(ledger) == ()


@pytest.mark.parametrize("at_s", [1.0005, 1.0015, 1.0025, 1.0035, 1.06, 1.5, 6.0005, 6.0015])
@pytest.mark.parametrize("kind", KINDS)
def test_stop_at_any_moment_heals(world: Any, tmp_path: Path, kind: str, at_s: float) -> None:
    """Also when it comes while a fault is being applied, observed or healed."""

    async def interrupt(stop: asyncio.Event) -> None:
        await asyncio.sleep(at_s)
        stop.set()

    params = ROLLING if kind == "restart" else {}
    one = PlannedFault(kind, 1.0, 5.0, "all broker", params)
    ledger = carried_out(world, planned(one), tmp_path, meanwhile=interrupt)
    assert world.sound
    assert open_entries(ledger) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_belongs_to_one_fault(world: Any, tmp_path: Path, kind: str) -> None:
    """No other fault touches the process meanwhile, and it touches no other process."""
    one = PlannedFault(kind, 1.0, 5.0, "broker-1, broker-2")
    carried_out(world, planned(one, PlannedFault("kill", 2.0, 2.0, "all broker")), tmp_path)
    assert json.loads(world.last(1)["targets"]) == {"slave": ["broker-3"]}
    assert world.sound


@pytest.mark.parametrize("kind", ["kill", "pause", *KINDS])
def test_the_row_names_the_nodes_that_were_hit(world: Any, tmp_path: Path, kind: str) -> None:
    """Not those that exited before; a fault that hit no node names none to later faults."""
    world.agents["broker-1"].end(70)
    plan = planned(
        PlannedFault(kind, 1.0, 5.0, "broker-1, broker-2"),
        PlannedFault(kind, 1.5, 2.0, "broker-1"),
        PlannedFault("loss", 2.0, 2.0, "fault-0"),
    )
    carried_out(world, plan, tmp_path)
    hit = [json.loads(world.last(number)["targets"]) for number in range(3)]
    assert hit == [{"slave": ["broker-2"]}, {}, {"slave": ["broker-2"]}]
    assert world.last(1)["state"] == "failed"


def test_a_restarted_process_was_asked(world: Any, tmp_path: Path) -> None:
    """It ended by itself, with an exit code of its own."""
    carried_out(world, planned(PlannedFault("restart", 1.0, 5.0, "broker-3")), tmp_path)
    seen = effect(world)["processes"]["broker-3"]
    assert (seen["is"], seen["code"]) == ("exited", 0)
    assert world.log == ["start broker-3"]


def test_one_that_will_not_end_is_made_to(world: Any, tmp_path: Path) -> None:
    """The fault was not observed, and its victim is started again nevertheless."""
    world.agents["broker-3"].deaf.add(SIGTERM)
    carried_out(world, planned(PlannedFault("restart", 1.0, 15.0, "broker-3")), tmp_path)
    assert world.last(0)["state"] == "failed"
    assert world.log == ["start broker-3"]
    assert world.last(0)["healed"]
    assert world.sound


def test_a_member_that_will_not_end_is_made_to(world: Any, tmp_path: Path) -> None:
    """A process that got the signal, and would exit because of it later, unobserved."""

    async def nothing(*_: Any) -> None: ...

    async def enrolled(*_: Any) -> bool:
        return True

    system = world.bed.system
    system.members = system.stopped_first = ("broker",)
    system.can = frozenset({"members"})
    system.remove_member = system.add_member = nothing
    system.is_member, system.start_new_member = enrolled, system.start_node
    world.agents["broker-3"].deaf.add(SIGTERM)
    one = PlannedFault("membership", 1.0, 15.0, "broker-3", {"disk": "kept"})
    carried_out(world, planned(one), tmp_path)
    assert (world.last(0)["state"], world.log) == ("failed", ["start broker-3"])
    assert world.last(0)["healed"]
    assert world.sound


def test_one_that_can_not_be_ended_is_not_healed(world: Any, tmp_path: Path) -> None:
    """It may still exit, and would not be started again then."""
    world.agents["broker-3"].deaf |= {SIGTERM, SIGKILL}
    carried_out(world, planned(PlannedFault("kill", 1.0, 15.0, "broker-3")), tmp_path)
    assert world.last(0)["state"] == "failed"
    assert world.last(0)["healed"] is None
    assert world.alarms == [
        "NOT HEALED: fault 0 (kill on broker-3): broker-3 did not stop after the signal to do so"
    ]


def test_a_rolling_restart_waits_until_the_cluster_is_whole(world: Any, tmp_path: Path) -> None:
    """Never are two of them down, nor the second while the first is missed."""
    down: list[set[str]] = []
    begun_s: list[float] = []
    start = world.bed.system.start_node

    async def slowly_whole(bed: Any, node: str) -> None:
        await start(bed, node)
        begun_s.append(bed.now_ns() / S)
        world.standing = replace(world.standing, redundant=False)
        asyncio.get_running_loop().call_later(2.0, whole)

    def whole() -> None:
        world.standing = replace(world.standing, redundant=True)

    async def look(_stop: asyncio.Event) -> None:
        for _ in range(1000):
            await asyncio.sleep(0.01)
            down.append({n for n, a in world.agents.items() if a.process == "exited"})

    world.bed.system.start_node = slowly_whole
    one = PlannedFault("restart", 1.0, 30.0, "all broker", {**ROLLING, "down_s": 0.5})
    carried_out(world, planned(one), tmp_path, meanwhile=look)
    assert max(map(len, down)) == 1
    assert set().union(*down) == {"broker-1", "broker-2", "broker-3"}
    assert [later - earlier >= 2.5 for earlier, later in pairwise(begun_s)] == [True] * 2
    assert world.last(0)["state"] == "installed"


def test_a_round_that_is_not_over_in_time_is_partial(world: Any, tmp_path: Path) -> None:
    """The cluster was never whole after the first restart: no other node is touched."""
    start = world.bed.system.start_node

    async def never_whole(bed: Any, node: str) -> None:
        await start(bed, node)
        world.standing = replace(world.standing, redundant=False)

    world.bed.system.start_node = never_whole
    carried_out(world, planned(PlannedFault("restart", 1.0, 5.0, "all broker", ROLLING)), tmp_path)
    assert world.last(0)["state"] == "partial"
    assert world.log == ["start broker-1"]
    assert world.sound


def test_a_failed_rolling_restart_is_reported(world: Any, tmp_path: Path) -> None:
    """An agent that is gone in the middle of it is that fault's state."""
    world.agents["broker-2"].broken.add("signal")
    carried_out(world, planned(PlannedFault("restart", 1.0, 5.0, "all broker", ROLLING)), tmp_path)
    assert world.last(0)["state"] == "failed"
    assert "agent of broker-2 is gone" in world.last(0)["observation"]


def test_a_clock_drifts_along_a_line(world: Any, tmp_path: Path) -> None:
    """Ahead at once, and further ahead the longer it lasts; the others' clocks are right."""
    ahead: dict[str, Any] = {}

    async def look(_stop: asyncio.Event) -> None:
        await asyncio.sleep(5.0)
        for name in ("broker-1", "broker-2"):
            ahead[name] = world.agents[name]._clock("read", ())["ahead_s"]

    one = PlannedFault("clock", 1.0, 6.0, "broker-1", {"skew_s": 10.0, "rate": 1.5})
    carried_out(world, planned(one), tmp_path, meanwhile=look)
    assert ahead["broker-1"] == pytest.approx(12.0, abs=0.1)
    assert ahead["broker-2"] == 0


def test_a_clock_that_did_not_change_is_not_installed(world: Any, tmp_path: Path) -> None:
    """The state of the process decides, not the program's exit code."""
    agent = world.agents["broker-1"]
    agent._clock = lambda verb, words: {"ahead_s": 0.0, "rate": 1.0}
    carried_out(
        world, planned(PlannedFault("clock", 1.0, 5.0, "broker-1", {"skew_s": 1.0})), tmp_path
    )
    assert world.last(0)["state"] == "failed"
    assert world.last(0)["healed"]


@pytest.mark.parametrize(
    ("roles", "advice"),
    [
        (("controller", "client"), "aim at others, such as 'one controller'"),
        ((), "leave clock out"),
    ],
)
def test_a_clock_that_dates_events_is_refused(roles: tuple[str, ...], advice: str) -> None:
    dating = Node("broker-1", "broker", address="198.18.1.11", own_wall_clock=True)
    others = [Node(f"{role}-1", role, address="198.18.1.12") for role in roles]
    fault = PlannedFault("clock", 1.0, 9.0, "one broker", {"skew_s": 60.0, "rate": 1.0})
    with pytest.raises(BadRequest, match=f"cannot hit broker-1, .*{advice}"):
        clock.check_nodes(fault, [dating, *others])


def test_a_right_clock_is_refused() -> None:
    text = '[[fault]]\nkind = "clock"\nat_s = 1\nfor_s = 5\ntarget = "master"\n'
    for params in ("skew_s = 0.0", "skew_s = 0.05", "skew_s = -0.04, rate = 1.02"):
        with pytest.raises(BadRequest, match=r"line \d: params: .*more than 0.05 s either way"):
            _plan.load(text + f"params = {{ {params} }}\n")
    _plan.load(text + "params = { skew_s = -0.06 }\n")


@pytest.mark.parametrize("params", [{"skew_s": 0.06}, {"skew_s": 0.0, "rate": 1.0203}])
def test_an_unchanged_clock_is_not_seen_wrong(world: Any, tmp_path: Path, params: Any) -> None:
    """However little is asked of it."""
    set_as_told = world.agents["broker-1"]._clock
    one = PlannedFault("clock", 1.0, 5.0, "broker-1", params)
    carried_out(world, planned(one), tmp_path)
    assert world.last(0)["state"] == "installed"
    world.agents["broker-1"]._clock = lambda _verb, _words: set_as_told("read", ())
    carried_out(world, planned(one), tmp_path)
    assert world.last(0)["state"] == "failed"


def test_the_share_of_a_starved_process_is_measured(world: Any, tmp_path: Path) -> None:
    """By looking at odd moments: near to what was asked for."""
    one = PlannedFault("starve-cpu", 1.0, 20.0, "broker-1", {"share": 0.3})
    carried_out(world, planned(one), tmp_path)
    assert effect(world)["runs"]["broker-1"] == pytest.approx(0.3, abs=0.2)


def test_a_process_that_is_always_let_go_is_not_starved(world: Any, tmp_path: Path) -> None:
    """Signals that are taken and do nothing are found out."""
    agent = world.agents["broker-1"]
    agent.signal = _nothing
    carried_out(world, planned(PlannedFault("starve-cpu", 1.0, 20.0, "broker-1")), tmp_path)
    assert world.last(0)["state"] == "failed"


@pytest.mark.parametrize("kind", ["kill", "restart"])
def test_a_node_that_another_program_starts_was_not_down(
    world: Any, tmp_path: Path, kind: str
) -> None:
    """A supervisor of the host's, say: the fault had hardly begun when it was over."""

    async def supervise(_stop: asyncio.Event) -> None:
        await asyncio.sleep(3.0)
        agent = world.agents["broker-1"]
        agent.process, agent.pid = "running", agent.pid + 1

    carried_out(
        world, planned(PlannedFault(kind, 1.0, 9.0, "broker-1")), tmp_path, meanwhile=supervise
    )
    assert world.last(0)["state"] == "partial"
    assert world.last(0)["healed"]
    assert "something else had started broker-1" in world.last(0)["observation"]
    assert world.log == [], "it runs, and is left alone"


def test_starving_that_breaks_off_is_partial(world: Any, tmp_path: Path) -> None:
    """After it was observed, the process is not stopped any more."""

    async def fail(_stop: asyncio.Event) -> None:
        await asyncio.sleep(6.0)
        world.agents["broker-1"].broken.add("signal")
        await asyncio.sleep(2.0)
        world.agents["broker-1"].broken.clear()

    one = PlannedFault("starve-cpu", 1.0, 20.0, "broker-1")
    carried_out(world, planned(one), tmp_path, meanwhile=fail)
    assert world.last(0)["state"] == "partial"
    assert world.last(0)["healed"]
    assert "agent of broker-1" in world.last(0)["observation"]


def test_starving_that_breaks_off_without_a_word_is_partial(world: Any, tmp_path: Path) -> None:
    """An error without a message is reported by its type."""
    agent = world.agents["broker-1"]
    signal = agent.signal

    async def fail(name: str, number: int) -> None:
        if 6 * S < world.bed.now_ns() < 8 * S:
            raise TimeoutError
        await signal(name, number)

    agent.signal = fail
    carried_out(world, planned(PlannedFault("starve-cpu", 1.0, 20.0, "broker-1")), tmp_path)
    assert world.last(0)["state"] == "partial"
    assert json.loads(world.last(0)["observation"])["broke_off"] == "TimeoutError"


async def _nothing(*_: Any) -> None:
    await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", ["starve-memory", "starve-descriptors"])
def test_a_process_that_exits_is_started_again(world: Any, tmp_path: Path, kind: str) -> None:
    """That it ended was the effect; it is healed when another process runs."""

    async def die(_stop: asyncio.Event) -> None:
        await asyncio.sleep(3.0)
        world.agents["broker-1"].end(70)

    one = PlannedFault(kind, 1.0, 5.0, "broker-1")
    carried_out(world, planned(one), tmp_path, meanwhile=die)
    assert world.last(0)["state"] == "installed"
    assert world.last(0)["healed"]
    assert world.log == ["start broker-1"]
    assert world.sound


def test_a_process_that_exits_later_is_started_again(world: Any, tmp_path: Path) -> None:
    """The limit was taken away a moment before it found that it could not go on."""
    agent = world.agents["broker-1"]
    limits = agent._limits

    def too_late(verb: str, words: Any) -> Any:
        told = limits(verb, words)
        if verb == "give":
            agent.end(70)
        return told

    agent._limits = too_late
    carried_out(world, planned(PlannedFault("starve-memory", 1.0, 5.0, "broker-1")), tmp_path)
    assert world.last(0)["healed"]
    assert world.log == ["start broker-1"]
    assert world.sound


def test_a_limit_that_is_not_kept_is_not_installed(world: Any, tmp_path: Path) -> None:
    agent = world.agents["broker-1"]
    limits = agent._limits

    def forgetful(verb: str, words: Any) -> Any:
        told = limits(verb, words)
        agent.limit = -1
        return told

    agent._limits = forgetful
    carried_out(world, planned(PlannedFault("starve-descriptors", 1.0, 5.0, "broker-1")), tmp_path)
    assert world.last(0)["state"] == "failed"


@pytest.mark.parametrize("dies", [False, True])
def test_a_limit_above_the_previous_one_has_no_effect(
    world: Any, tmp_path: Path, dies: bool
) -> None:
    """With so much room the process has more than it had; if it ends, then of something else."""

    async def die(_stop: asyncio.Event) -> None:
        await asyncio.sleep(1.0015)
        if dies:
            world.agents["broker-1"].end(70)

    world.agents["broker-1"].limit = 1024
    one = PlannedFault("starve-descriptors", 1.0, 5.0, "broker-1", {"room": 5000.0})
    carried_out(world, planned(one), tmp_path, meanwhile=die)
    assert world.last(0)["state"] == "failed"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("targets", [(), ("one slave",)])
def test_what_is_drawn_makes_sense(kind: str, targets: tuple[str, ...]) -> None:
    """By the fault's own check, and within the limits of its parameters."""
    plugin = registry.fault(kind)
    for seed in range(50):
        target, params = plugin.draw(Random(seed), targets)
        assert not targets or target in targets
        _plan.load(_plan.dump((PlannedFault(kind, 1.0, 5.0, target, params),)))
