"""Faults that would break again what is broken are refused, and no others."""

from dataclasses import replace

import pytest
from by_hand import NODES, kill

from harness.contracts import PlannedFault
from harness.errors import BadRequest
from harness.trial import Trial
from nemesis._plan import plan as _plan


def checked(*faults: PlannedFault, plan: str = "p.toml") -> None:
    explicit = _plan.load(_plan.dump(faults), "p.toml").faults
    _plan.check(explicit, Trial(plan=plan, short_faults=True), 1.5, NODES)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("broker-2", "broker-2"),
        ("broker", "broker-1"),
        ("broker-1, broker-3", "all broker"),
        ("3 broker", "broker-1"),
        ("one broker-2", "broker-2"),
    ],
)
def test_a_fault_that_overlaps_itself_is_refused(first: str, second: str) -> None:
    """On any node that both are sure to hit, in whatever order they are written."""
    sentence = r"fault 1 \(kill at 8 s\) breaks again what fault 0 has broken until 10 s"
    with pytest.raises(BadRequest, match=sentence):
        checked(kill(5.0, first), kill(8.0, second))
    with pytest.raises(BadRequest, match="fault 1"):
        checked(kill(8.0, first), kill(5.0, second))


def test_a_process_belongs_to_one_fault_of_a_kind() -> None:
    """A second wrong clock finds no node without one."""
    one, other = (
        PlannedFault("clock", at_s, 5.0, "broker-2", {"skew_s": skew_s})
        for at_s, skew_s in ((5.0, 60.0), (8.0, -60.0))
    )
    with pytest.raises(BadRequest, match="breaks again"):
        checked(one, other)


A_TO_B = PlannedFault("partition", 5.0, 5.0, "broker-1", {"from": "broker-2"})
B_TO_A = PlannedFault("partition", 8.0, 5.0, "broker-2", {"from": "broker-1"})


def between(a: str, b: str, shape: str = "between") -> PlannedFault:
    return PlannedFault("partition", 8.0, 5.0, "", {"shape": shape, "a": a, "b": b})


@pytest.mark.parametrize(
    "again",
    [
        B_TO_A,
        between("broker-1", "broker-2"),
        between("broker-2", "one broker-1"),
        PlannedFault(
            "partition",
            8.0,
            5.0,
            "",
            {"shape": "links", "cut": {"broker-1": ["broker-2"], "broker-2": ["broker-1"]}},
        ),
    ],
)
def test_links_that_are_cut_are_not_cut_again(again: PlannedFault) -> None:
    """In whatever words, from whichever end."""
    with pytest.raises(BadRequest, match="breaks again what fault 0 has broken until 10 s"):
        checked(A_TO_B, again)


@pytest.mark.parametrize(
    "more",
    [
        replace(A_TO_B, at_s=8.0, params={"from": "broker-3"}),
        replace(B_TO_A, params={"from": "one broker"}),
        replace(B_TO_A, params={"from": "master"}),
        replace(B_TO_A, at_s=10.0),
        between("broker-1", "broker-2", "link"),
        PlannedFault("partition", 8.0, 5.0, "broker", {"shape": "halves"}),
    ],
)
def test_cuts_of_other_links_may_overlap(more: PlannedFault) -> None:
    """One of more nodes, of fewer, or of nodes that are not known."""
    checked(A_TO_B, more)


@pytest.mark.parametrize("kind", ["pause", "clock", "starve-cpu", "wipe", "restart"])
def test_a_process_belongs_to_one_fault(kind: str) -> None:
    """The second would find no process while the first holds the node."""
    sentence = r"fault 1 .* needs a process that fault 0 \(kill\) has hold of until 10 s; let one"
    with pytest.raises(BadRequest, match=sentence):
        checked(kill(5.0, "broker-2"), PlannedFault(kind, 8.0, 1.0, "broker-2, broker-3"))


@pytest.mark.parametrize(
    "faults",
    [
        (kill(5.0, "broker-2"), kill(10.0, "broker-2")),
        (kill(5.0, "broker-2"), kill(8.0, "broker-3")),
        (kill(5.0, "one broker"), kill(8.0, "one broker")),
        (kill(5.0, "master"), kill(8.0, "master")),
        (kill(5.0, "broker-2", until="another-master"), kill(8.0, "broker-2")),
        (kill(5.0, "broker-2"), kill(5.0, "broker-2", after="9 acks within 9 s")),
        (kill(5.0, "broker-2"), PlannedFault("pause", 10.0, 5.0, "broker-2")),
        (kill(5.0, "broker-2"), PlannedFault("pause", 8.0, 5.0, "one broker")),
        (kill(5.0, "broker-2"), PlannedFault("pause", 8.0, 5.0, "master")),
        (kill(5.0, "broker-2"), PlannedFault("fsync", 8.0, 5.0, "broker-2")),
        (kill(5.0, "broker-2"), PlannedFault("partition", 8.0, 5.0, "broker-2")),
        (
            PlannedFault("loss", 5.0, 5.0, "broker-2", {"from": "broker-1"}),
            PlannedFault("loss", 8.0, 5.0, "broker-2", {"from": "broker-3"}),
        ),
    ],
)
def test_what_is_not_sure_to_overlap_is_not_refused(faults: tuple[PlannedFault, ...]) -> None:
    """Lots, parts and conditions are a matter of the moment; other kinds are other faults."""
    checked(*faults)


def test_drawn_plans_may_be_as_dense_as_they_are() -> None:
    """Those of a swarm, and their replays, spare what is held already."""
    checked(kill(5.0, "broker-2"), kill(8.0, "broker-2"), plan="")


def change(kind: str, at_s: float, target: str, to: str) -> PlannedFault:
    return PlannedFault(kind, at_s, 30.0, target, {"to": to})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (change("upgrade", 5.0, "all broker", "2.0"), change("upgrade", 8.0, "broker-1", "3.0")),
        (change("upgrade", 5.0, "broker-1", "2.0"), change("downgrade", 8.0, "all broker", "")),
    ],
)
def test_a_node_is_brought_to_one_version_at_a_time(
    first: PlannedFault, second: PlannedFault
) -> None:
    """Whichever came last would stay. One after the other, or on other nodes, is allowed."""
    sentence = (
        rf"fault 1 \({second.kind} at 8 s\) changes the version of nodes that fault 0 \(upgrade\) "
        "may change until 35 s; let one end before the other begins, or name other nodes"
    )
    with pytest.raises(BadRequest, match=sentence):
        checked(first, second)
    checked(replace(first, for_s=3.0), second)
    checked(change("upgrade", 5.0, "broker-2", "2.0"), replace(second, target="broker-1"))
