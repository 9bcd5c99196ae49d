"""What a plan waits for besides the clock: what may be written, and when it holds."""

import asyncio
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.contracts import PlannedFault
from harness.contracts.cluster_view import ClusterState, LoggedEvent
from harness.errors import BadRequest, Unsupported
from harness.run.launch import PlanLimits
from harness.trial import Trial
from nemesis import carry_out
from nemesis._plan import conditions as _conditions
from nemesis._plan import plan as _plan
from nemesis._plan import targets as _targets
from nemesis._plan.conditions import AckCondition, EndCondition, EventCondition, StateCondition

S = 1_000_000_000
CAN = frozenset({"links", "loss", "signal", "restart", "events"})


# ----------------------------------------------------------------------------------- as written


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("", None),
        ("1000 acks within 9 s", AckCondition(1000, 9.0)),
        ("5,000 acks within 9 s", AckCondition(5000, 9.0)),
        ("master changes within 20 s", StateCondition("master changes", 0.0, 20.0)),
        ("set  shrinks + 0.5 s within 9 s", StateCondition("set shrinks", 0.5, 9.0)),
        ("cluster is whole within 60 s", StateCondition("cluster is whole", 0.0, 60.0)),
        ("event truncate within 5 s", EventCondition("truncate", within_s=5.0)),
        (
            "event  raft state=leader term=3 within 0.5s",
            EventCondition("raft", (("state", "leader"), ("term", "3")), within_s=0.5),
        ),
        (
            "event cutting by fault-0 + 0.00004 s within 5 s",
            EventCondition("cutting", (), "fault-0", 4e-5, 5.0),
        ),
        (
            "event raft state=leader by controller but fault-1 + 1 s within 5 s",
            EventCondition("raft", (("state", "leader"),), "controller but fault-1", 1.0, 5.0),
        ),
        (
            "event offsets-lowered by broker-1, broker-2 within 5 s",
            EventCondition("offsets-lowered", (), "broker-1, broker-2", 0.0, 5.0),
        ),
    ],
)
def test_after_reads(text: str, condition: Any) -> None:
    """Spaces do not matter; what is left out asks for nothing."""
    assert _conditions.parse_after(text) == condition


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("", EndCondition()),
        ("another-master", EndCondition("another-master")),
        ("next + 2 s", EndCondition("next", 2.0)),
        ("master is gone + 1 s", EndCondition("master is gone", 1.0)),
        ("event election", EndCondition(event=EventCondition("election"))),
        (
            "event election epoch=3 by controller + 0.5 s",
            EndCondition("", 0.5, EventCondition("election", (("epoch", "3"),), "controller", 0.5)),
        ),
    ],
)
def test_until_reads(text: str, condition: EndCondition) -> None:
    """An end needs no `within`: the fault's own time bounds it."""
    assert _conditions.parse_until(text) == condition


@pytest.mark.parametrize(
    "text",
    [
        "events truncate within 5 s",
        "event truncate",
        "event within 5 s",
        "event truncate within s",
        "truncate within 5 s",
        "event Truncate within 5 s",
        "event truncate + s within 5 s",
        "master changes",
        "master dies within 5 s",
    ],
)
def test_an_invalid_after_is_refused(text: str) -> None:
    """With both ways to write one."""
    with pytest.raises(BadRequest, match=r"'1000 acks within 9 s' or 'event truncate within 5 s'"):
        _conditions.parse_after(text)


@pytest.mark.parametrize(
    "text", ["event", "event election within 5 s", "election", "next + 2", "cluster is whole"]
)
def test_an_invalid_until_is_refused(text: str) -> None:
    """With all that it may be."""
    with pytest.raises(
        BadRequest, match=r"another-master, next, master changes.* or 'event election'"
    ):
        _conditions.parse_until(text)


@pytest.mark.parametrize(
    ("says", "fits"),
    [
        ("", True),
        ("state=leader", True),
        ("state=follower", False),
        ("term=3", True),
        ("term=4", False),
        ("set=[1,2]", True),
        ("clean=true", True),
        ("leader=null", True),
        ("nonsense=1", False),
        ("state=leader term=4", False),
    ],
)
def test_fields_of_an_event_must_match(says: str, fits: bool) -> None:
    """Each named field must exist and have this value, written as JSON without spaces."""
    event = _conditions.parse_after(f"event raft {says} within 1 s")
    fields = {"state": "leader", "term": 3, "set": [1, 2], "clean": True, "leader": None}
    assert isinstance(event, EventCondition)
    assert event.matches(LoggedEvent("controller-1", "raft", fields)) is fits
    assert not event.matches(LoggedEvent("controller-1", "role", fields))


# ------------------------------------------------------------------------------------- checked


def checked(world: Any, *faults: PlannedFault, can: frozenset[str] = CAN) -> None:
    plan = _plan.load(_plan.dump(faults)).faults
    _plan.check(plan, Trial(), 0.1, world.bed.nodes, can)


def fault(kind: str, at_s: float, target: str, **more: Any) -> PlannedFault:
    return PlannedFault(kind, at_s, more.pop("for_s", 2.0), target, **more)


CUT = "event cutting within 5 s"


def test_hosts_that_tell_nothing_refuse_a_plan_that_listens(world: Any) -> None:
    """By the fault's name and place, before anything has begun; in `after` and in `until`."""
    silent = CAN - {"events"}
    for more in ({"after": CUT}, {"until": "event election"}):
        checked(world, fault("kill", 1.0, "master", **more))
        with pytest.raises(Unsupported, match=r"fault 0 \(kill at 1 s\) waits for an event, but"):
            checked(world, fault("kill", 1.0, "master", **more), can=silent)


def test_words_of_the_plan_have_a_meaning_only_at_some_places(world: Any) -> None:
    """The node that reported an awaited event, and the nodes that an earlier fault hit."""
    first = fault("kill", 1.0, "master")
    checked(world, first, fault("kill", 2.0, "slave but fault-0"))
    checked(world, fault("kill", 2.0, "teller", after=CUT))
    for wrong in (
        fault("kill", 2.0, "teller"),
        fault("kill", 2.0, "fault-1"),
        fault("kill", 2.0, "fault-0 but teller"),
        fault("kill", 2.0, "master", after="event cutting by teller within 5 s"),
    ):
        with pytest.raises(BadRequest, match=r"fault 1 .*: unknown target '(teller|fault-1)'"):
            checked(world, first, wrong)


@pytest.mark.parametrize("by", ["master", "one broker", "broker but slave", "controller-leader"])
def test_the_reporting_node_must_not_depend_on_the_moment(world: Any, by: str) -> None:
    """A role, a name, a fault's victims are known when the event occurs."""
    with pytest.raises(BadRequest, match="depends on current roles or on chance"):
        checked(world, fault("kill", 2.0, "teller", after=f"event cutting by {by} within 5 s"))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("broker but master", ["broker-2", "broker-3"]),
        ("controller but controller-leader", ["controller-1", "controller-3"]),
        ("broker but master but fault-0", ["broker-2"]),
        ("fault-0", ["broker-3"]),
        ("teller, fault-0", ["broker-1", "broker-3"]),
        ("fault-1", []),
        ("server but broker", ["controller-1", "controller-2", "controller-3"]),
        ("one slave but fault-0", ["broker-2"]),
    ],
)
def test_but_takes_away(world: Any, selector: str, names: list[str]) -> None:
    """Nodes that are the first and not the second, before a random choice."""
    met = {"fault-0": ["broker-3"], "fault-1": [], "teller": ["broker-1"]}
    nodes = _targets.resolve(selector, world.bed.nodes, world.standing, Random(1), (), met)
    assert [node.name for node in nodes] == names


# ----------------------------------------------------------------------------------- carried out


class Tongue:
    """Hosts that report the events of a test."""

    can, shares_files = CAN, True

    def __init__(self) -> None:
        self.listener: Callable[[LoggedEvent], object] = lambda _: None

    def subscribe(self, listener: Callable[[LoggedEvent], object]) -> None:
        self.listener = listener

    def say(self, node: str, kind: str, **fields: Any) -> None:
        self.listener(LoggedEvent(node, kind, fields))


Said = tuple[float, str, str]  # when, by whom, of what kind


def played(world: Any, folder: Path, said: list[Said], *faults: PlannedFault) -> None:
    """Carry out faults while nodes report these events."""
    tongue = Tongue()
    world.bed = replace(world.bed, hosts=tongue)
    plan = _plan.load(_plan.dump(faults)).faults

    async def story(world: Any) -> None:
        loop, began_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        for at_s, node, kind in said:
            loop.call_at(began_s + at_s, tongue.say, node, kind)
        stop, ledger = asyncio.Event(), folder / "ledger"
        await carry_out(plan, world.bed, ledger, stop, Random(1), round(began_s * S))

    world.run(story)


def hit(world: Any, number: int) -> Any:
    return json.loads(world.last(number)["targets"] or "{}")


def test_a_fault_begins_with_its_event(world: Any, tmp_path: Path) -> None:
    """At that moment, on the node that reported it; earlier events do not count."""
    said = [(0.5, "broker-1", "cutting"), (2.0, "broker-2", "role"), (3.0, "broker-3", "cutting")]
    played(world, tmp_path, said, fault("kill", 1.0, "teller", after=CUT))
    assert world.last(0)["begin"] == 3 * S
    assert hit(world, 0) == {"slave": ["broker-3"]}
    assert json.loads(world.last(0)["observation"])["told"] == {"by": "broker-3", "at": 3 * S}
    assert world.last(0)["state"] == "installed"
    assert world.sound


def test_a_fault_may_come_a_little_later(world: Any, tmp_path: Path) -> None:
    """`+ 0.25 s` after the event."""
    after = "event cutting + 0.25 s within 5 s"
    said = [(3.0, "broker-2", "cutting")]
    played(world, tmp_path, said, fault("kill", 1.0, "teller", after=after))
    assert world.last(0)["begin"] == 3.25 * S


def test_the_reporting_node_may_be_restricted(world: Any, tmp_path: Path) -> None:
    """Events of other nodes do not count; a fault's victims are known once it is applied."""
    said = [(2.0, "broker-2", "cutting"), (2.5, "broker-1", "cutting")]
    after = "event cutting by fault-0 within 5 s"
    first = fault("partition", 1.0, "master", params={"shape": "isolate"})
    played(world, tmp_path, said, first, fault("kill", 1.0, "slave", after=after))
    assert hit(world, 0) == {"master": ["broker-1"]}
    assert world.last(1)["begin"] == 2.5 * S
    assert json.loads(world.last(1)["observation"])["told"]["by"] == "broker-1"


def test_events_count_from_the_previous_fault_on(world: Any, tmp_path: Path) -> None:
    """Two faults that wait for the same kind of event take one each, in the order of the plan."""
    said = [(2.0, "broker-2", "cutting"), (3.0, "broker-3", "cutting")]
    waiting = fault("kill", 1.0, "teller", after=CUT)
    played(world, tmp_path, said, waiting, waiting)
    assert [hit(world, number) for number in (0, 1)] == [{"slave": [f"broker-{n}"]} for n in (2, 3)]


def test_without_its_event_a_fault_does_not_happen(world: Any, tmp_path: Path) -> None:
    """It names the missing event, hits no node, and the plan continues."""
    said = [(7.0, "broker-2", "cutting")]
    waiting = fault("kill", 1.0, "master", after=CUT)
    played(
        world,
        tmp_path,
        said,
        waiting,
        fault("kill", 1.0, "controller-1", after="1 acks within 1 s"),
    )
    row = world.last(0)
    assert (row["state"], row["begin"], row["applied"]) == ("failed", 6 * S, None)
    assert json.loads(row["observation"]) == {
        "error": "no node reported the event cutting within 5 s"
    }
    assert row["heal"] == row["healed"] == 6 * S, "there is nothing to wait for"
    assert world.last(1)["state"] == "installed"
    assert world.sound


@pytest.mark.parametrize(
    ("until", "lasts_s"),
    [("event election", 1.0), ("event election + 0.5 s", 1.5), ("event truncate", 4.0)],
)
def test_a_fault_ends_with_its_event(
    world: Any, tmp_path: Path, until: str, lasts_s: float
) -> None:
    """Or so much later, or at the latest when its time is over."""
    said = [(0.5, "controller-1", "election"), (2.0, "controller-1", "election")]
    cut = fault("partition", 0.9, "master", for_s=4.0, params={"shape": "isolate"}, until=until)
    played(world, tmp_path, said, cut)
    row = world.last(0)
    assert row["heal"] == (2.0 * S + (lasts_s - 1.0) * S if lasts_s < 4 else row["applied"] + 4 * S)


def test_a_new_epoch_counts_only_with_a_master() -> None:
    """A higher epoch without a master is the end of a reign and not the next."""
    before, headless = ClusterState(epochs={"set-1": 1}), ClusterState(epochs={"set-1": 2})
    assert not _conditions.another_master(before, headless)
    reigning = replace(headless, masters={"set-1": "broker-2"})
    assert _conditions.another_master(before, reigning)


# ---------------------------------------------------------------------- the state of the cluster


def stood(
    world: Any, folder: Path, changes: dict[float, ClusterState], *faults: PlannedFault
) -> None:
    """Carry out faults while the cluster comes to stand so."""
    plan = _plan.load(_plan.dump(faults)).faults

    async def story(world: Any) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for at_s, standing in changes.items():
            loop.call_at(began_s + at_s, setattr, world, "standing", standing)
        began_ns = world.bed.now_ns()
        await carry_out(plan, world.bed, folder / "ledger", asyncio.Event(), Random(1), began_ns)

    world.run(story)


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("master changes", {"epochs": {"set-1": 2}}),
        ("controller-leader changes", {"controller_leader": "controller-3"}),
        ("set shrinks", {"in_set": ("broker-1",)}),
        ("master is gone", {"masters": {}}),
    ],
)
def test_a_fault_waits_for_the_cluster_to_stand_otherwise(
    world: Any, tmp_path: Path, word: str, change: dict[str, Any]
) -> None:
    """Than when the previous fault was aimed: on every kind of hosts, without events."""
    changes = {4.0: replace(world.standing, **change)}
    first = fault("partition", 1.0, "broker-3", for_s=30.0, until=f"{word} + 1 s")
    second = fault("kill", 1.0, "controller-1", after=f"{word} + 0.5 s within 20 s")
    stood(world, tmp_path, changes, first, second)
    cut, kill = world.last(0), world.last(1)
    assert kill["begin"] == pytest.approx(4.5 * S, abs=0.1 * S)
    assert cut["heal"] == pytest.approx(5 * S, abs=0.1 * S)
    assert (cut["state"], kill["state"]) == ("installed", "installed")


def test_a_fault_waits_until_sends_are_held(world: Any, tmp_path: Path) -> None:
    """For a state, which may have begun before."""
    changes = {2.0: replace(world.standing, holding=("set-1",))}
    first = fault("pause", 1.0, "broker-3", for_s=9.0)
    second = fault("kill", 3.0, "broker-2", after="sends are held within 3 s")
    stood(world, tmp_path, changes, first, second)
    assert world.last(1)["begin"] == pytest.approx(3 * S, abs=0.1 * S)
    assert world.last(1)["state"] == "installed"


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        ("allack-min2", "profile allack-min2: it lacks masters that hold sends"),
        ("", "never happens with flotilla: it lacks masters that hold sends"),
        ("zk-ha", ""),
    ],
)
def test_sends_are_held_only_where_masters_do_so(profile: str, why: str) -> None:
    """Another condition could not come true, so the plan is refused."""
    trial = Trial(profile=profile, hosts="simulated", short_faults=True)
    limits = PlanLimits.of(trial)
    plan = (fault("kill", 3.0, "broker-2", after="sends are held within 3 s"),)
    with pytest.raises(Unsupported, match=why) if why else nullcontext():
        _plan.check(plan, trial, limits.detection_s, limits.nodes, limits.can)


def test_a_change_that_does_not_come_is_not_made_up(world: Any, tmp_path: Path) -> None:
    """The fault is recorded as failed, with its condition, and no node is hit."""
    first = fault("pause", 1.0, "broker-3")
    second = fault("kill", 1.0, "broker-2", after="master changes within 3 s")
    stood(world, tmp_path, {}, first, second)
    assert world.last(1)["state"] == "failed"
    assert "waited 3 s in vain for this: master changes" in world.last(1)["observation"]
    assert world.last(1)["applied"] is None
    assert world.log == []


def test_a_fault_waits_for_the_one_before_it(world: Any, tmp_path: Path) -> None:
    """Until that is seen healed, and with `cluster is whole` until every set is complete."""
    whole, torn = world.standing, replace(world.standing, redundant=False)
    healed = fault("kill", 1.0, "broker-3", after="previous is healed within 30 s")
    last = fault("kill", 1.0, "broker-2", after="cluster is whole within 30 s")
    changes = {1.5: torn, 9.0: whole}
    stood(world, tmp_path, changes, fault("pause", 1.0, "broker-3"), healed, last)
    rows = [world.last(number) for number in range(3)]
    assert rows[0]["healed"] <= rows[1]["begin"] < 4 * S
    assert 9 * S <= rows[2]["begin"] < 9.2 * S
    assert [row["state"] for row in rows] == ["installed"] * 3
