"""A fault counts only for what it did itself."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers import coverage
from checkers._run.fault_effects import idle_disks, idle_links
from harness.history.faults_and_events import FaultInterval

Sketch = Any  # tests/checkers/conftest.py
NODES = ("a", "b", "c")
LINKS = [(a, b) for a in NODES for b in NODES if a != b]
END = 12


def link_fault(
    number: int, begin: int, heal: int | None, links: Any, drop: float = 1.0, **how: Any
) -> FaultInterval:
    cut: dict[str, list[str]] = {}
    for source, sink in links:
        cut.setdefault(sink, []).append(source)
    kind, params = ("loss", {"probability": drop}) if drop < 1 else ("partition", {})
    effect = {"effect": {"cut": cut}}
    how = {"state": "installed"} | how
    return FaultInterval(number, kind, params, applied=begin, heal=heal, observation=effect, **how)


def silence(number: int, begin: int, heal: int | None, node: str, **how: Any) -> FaultInterval:
    targets, how = {"broker": (node,)}, {"state": "installed"} | how
    return FaultInterval(number, "pause", targets=targets, applied=begin, heal=heal, **how)


@st.composite
def runs(draw: Any) -> list[FaultInterval]:
    faults = []
    for number in range(draw(st.integers(1, 7))):
        begin = draw(st.integers(0, 8))
        heal = draw(st.one_of(st.none(), st.integers(begin + 1, 11)))
        state = draw(st.sampled_from(["installed"] * 4 + ["partial"]))
        if draw(st.integers(0, 3)) == 0:
            node = draw(st.sampled_from(NODES))
            faults.append(silence(number, begin, heal, node, state=state))
        else:
            links = draw(st.lists(st.sampled_from(LINKS), min_size=1, max_size=3, unique=True))
            drop = draw(st.sampled_from([0.2, 0.8, 1.0, 1.0]))
            faults.append(link_fault(number, begin, heal, links, drop, state=state))
    return faults


def naive(faults: list[FaultInterval]) -> set[int]:
    """Every fault, every link, every moment, every other fault."""

    def lasts(fault: FaultInterval) -> range:
        assert fault.applied is not None
        return range(fault.applied, END if fault.heal is None else fault.heal)

    def links(fault: FaultInterval) -> set[tuple[str, str]]:
        cut = fault.observation.get("effect", {}).get("cut", {})
        return {(source, sink) for sink, sources in cut.items() for source in sources}

    def drop(fault: FaultInterval) -> float:
        return float(fault.params.get("probability", 1.0))

    def covers(other: FaultInterval, fault: FaultInterval, link: tuple[str, str], t: int) -> bool:
        if other is fault or other.state != "installed" or t not in lasts(other):
            return False
        if other.kind == "pause":
            return other.names[0] in link
        if link not in links(other) or drop(other) < drop(fault):
            return False
        same = drop(other) == drop(fault) and other.applied == fault.applied
        return not same or other.id < fault.id

    return {
        fault.id
        for fault in faults
        if fault.state == "installed"
        and links(fault)
        and all(
            any(covers(other, fault, link, t) for other in faults)
            for link in links(fault)
            for t in lasts(fault)
        )
    }


@given(faults=runs())
def test_as_somebody_would_say_who_looks_at_every_moment(faults: list[FaultInterval]) -> None:
    """Idle are those that were nowhere and never the one that made the difference."""
    assert idle_links(faults, END) == naive(faults)


def test_what_covers_a_fault() -> None:
    """One that cuts the same, two in turn, a silent end; a worse loss, and no lesser one."""
    link, other = ("a", "b"), ("b", "c")
    cut = link_fault(1, 2, 8, [link])
    assert idle_links([cut], END) == set()
    assert idle_links([link_fault(0, 0, 9, [link]), cut], END) == {1}
    assert idle_links([link_fault(0, 0, 7, [link]), cut], END) == set()
    assert idle_links([link_fault(0, 0, 5, [link]), silence(2, 5, 9, "b"), cut], END) == {1}
    assert idle_links([link_fault(0, 0, 9, [link]), link_fault(1, 2, 8, [link, other])], 9) == set()
    assert idle_links([silence(0, 0, None, "a"), link_fault(1, 2, None, [link])], END) == {1}
    assert idle_links([silence(0, 0, 9, "c"), cut], END) == set()
    assert idle_links([silence(0, 1, 1, "a"), cut], END) == set(), "one of no length has an end"
    losses = [link_fault(0, 0, 9, [link], 0.5), link_fault(1, 2, 8, [link], 0.8)]
    assert idle_links(losses, END) == set()
    assert idle_links([losses[0], link_fault(1, 2, 8, [link], 0.2)], END) == {1}
    twins = [link_fault(0, 2, 8, [link]), cut]
    assert idle_links(twins, END) == {1}, "the first of two counts"


def test_a_fault_without_an_effect_of_its_own_does_not_count(sound: Sketch) -> None:
    """Cutting off a machine that is dead all the while adds no fault to the evidence."""
    effect = {"effect": {"cut": {"broker-1": ["controller-1"]}}}
    sound.fault("partition", 11, 15, observation=effect)
    sound.fault("partition", 20, 22, observation=effect)
    assert coverage.judge(sound.facts()).stats["effective"] == {"kill": 1, "partition": 1}


def paced(number: int, begin: int, heal: int | None, links: Any, **params: Any) -> FaultInterval:
    told: dict[str, list[str]] = {}
    for source, sink in links:
        told.setdefault(sink, []).append(source)
    kind = "delay" if "bytes_per_s" not in params else "bandwidth"
    effect = {"effect": {"paced": told}}
    at = {"applied": begin, "heal": heal, "state": "installed"}
    return FaultInterval(number, kind, params, observation=effect, **at)


def test_what_hides_a_delay_or_a_narrow_link() -> None:
    """A cut, a silent end, more of the same; not another harm, nor a part of the time."""
    link = ("a", "b")
    late = paced(1, 2, 8, [link], delay_s=0.1, jitter_s=0.0)
    narrow = paced(2, 2, 8, [link], bytes_per_s=1e5, per="link")
    assert idle_links([late, narrow], END) == set()
    assert idle_links([link_fault(0, 0, 9, [link]), late, narrow], END) == {1, 2}
    assert idle_links([silence(0, 0, 9, "b"), late, narrow], END) == {1, 2}
    assert idle_links([link_fault(0, 0, 7, [link]), late, narrow], END) == set()
    assert idle_links([link_fault(0, 0, 9, [link], 0.9), late, narrow], END) == set()
    assert idle_links([link_fault(0, 3, 7, [link]), late, narrow], END) == set()
    longer, wider = paced(3, 0, 9, [link], delay_s=0.2), paced(4, 0, 9, [link], bytes_per_s=1e6)
    assert idle_links([longer, wider, late, narrow], END) == {1}
    uneven = paced(5, 2, 8, [link], delay_s=0.1, jitter_s=0.1)
    assert idle_links([longer, uneven], END) == set(), "the other delays all packets alike"
    card = paced(6, 2, 8, [link], bytes_per_s=1e4, per="node")
    assert idle_links([narrow, card], END) == set()


def test_one_that_comes_and_goes_hides_nothing() -> None:
    """While it is gone the others are there; it is hidden as others are."""
    link = ("a", "b")
    flapping = replace(link_fault(0, 0, 9, [link]), params={"on_s": 1.0, "off_s": 1.0})
    others = [link_fault(1, 2, 8, [link]), paced(2, 2, 8, [link], delay_s=0.1)]
    for other in others:
        assert idle_links([flapping, other], END) == set()
    assert idle_links([link_fault(1, 0, 9, [link]), replace(flapping, id=2)], END) == {2}


def disk(number: int, begin: int, heal: int | None, *nodes: str, **how: Any) -> FaultInterval:
    how = {"kind": "disk-full", "state": "installed"} | how
    return FaultInterval(number, targets={"broker": nodes}, applied=begin, heal=heal, **how)


@given(
    begin=st.integers(0, 8),
    lasts=st.integers(1, 6),
    nodes=st.lists(st.sampled_from(NODES), min_size=1, unique=True),
    others=st.lists(
        st.tuples(st.integers(0, 11), st.integers(1, 11), st.sampled_from(NODES)), max_size=6
    ),
)
def test_a_disk_matters_to_a_process_that_runs(
    begin: int, lasts: int, nodes: list[str], others: list[tuple[int, int, str]]
) -> None:
    """Idle are those whose victims were all silent at every moment."""
    silences = [silence(n, at, at + long, node) for n, (at, long, node) in enumerate(others)]
    spoilt = disk(99, begin, begin + lasts, *nodes)

    def silent(node: str, t: int) -> bool:
        return any(at <= t < at + long and other == node for at, long, other in others)

    idle = all(silent(node, t) for node in nodes for t in range(begin, begin + lasts))
    assert idle_disks([*silences, spoilt], 30) == ({99} if idle else set())


def test_what_a_spoilt_disk_needs() -> None:
    """Its own deeds take nothing from it, nor does what was not seen; other kinds are not asked."""
    dead = silence(0, 0, 9, "a")
    assert idle_disks([dead, disk(1, 2, 8, "a")], END) == {1}
    assert idle_disks([dead, disk(1, 2, None, "a")], END) == set(), "it came back meanwhile"
    assert idle_disks([dead, disk(1, 2, 8, "a", "b")], END) == set()
    assert idle_disks([disk(1, 2, 8, "a", kind="fsync", params={"how": "fail"})], END) == set()
    assert idle_disks([silence(0, 0, 9, "a", state="partial"), disk(1, 2, 8, "a")], END) == set()
    assert idle_disks([dead, disk(1, 2, 8, "a", kind="clock")], END) == set()


def test_a_disk_of_a_dead_node_does_not_count(sound: Sketch) -> None:
    """It was seen by a prober, and no process met it."""
    targets = {"broker": ["broker-1"]}
    sound.fault("disk-full", 11, 15, targets=targets)
    assert coverage.judge(sound.facts()).stats["effective"] == {"kill": 1}
    sound.fault("disk-full", 20, 22, targets=targets)
    assert coverage.judge(sound.facts()).stats["effective"] == {"disk-full": 1, "kill": 1}


def test_faults_that_one_hides_are_told_and_prove_nothing(sound: Sketch) -> None:
    """All on a node that is dead meanwhile; that is no reason to doubt what the others showed."""
    links = {"broker-1": ["controller-1"]}
    hit = {"broker": ("broker-1",)}
    sound.fault("disk-full", 11, 15, targets=hit)
    late = {"delay_s": 0.1}
    sound.fault("delay", 11, 15, targets=hit, params=late, observation={"effect": {"paced": links}})
    sound.fault("partition", 11, 15, targets=hit, observation={"effect": {"cut": links}})
    result = coverage.judge(sound.facts())
    assert not result.reasons
    assert (result.stats["counted"], result.stats["planned"]) == (1, 4)
    assert set(result.stats["worth"].values()) == {"counts", "was hidden by another fault"}
    proved = "1 of 4 planned faults took effect, 3 were hidden by another fault"
    assert result.stats["proved"] == proved
    sound.fault("delay", 20, 22, params=late, observation={"effect": {"paced": links}})
    assert coverage.judge(sound.facts()).stats["counted_by_kind"] == {"delay": 1, "kill": 1}


@pytest.mark.parametrize(
    ("kind", "effect", "reasons"),
    [
        ("loss", {"links": 4, "links_hidden_by_others": 4, "odd": []}, set()),
        ("loss", {"links": 4, "links_hidden_by_others": 3, "odd": []}, {"FAULT_NOT_OBSERVED"}),
        ("loss", {"links": 4, "links_hidden_by_others": 4, "odd": [{}]}, {"FAULT_NOT_OBSERVED"}),
        ("loss", {"links": 0, "links_hidden_by_others": 0, "odd": []}, {"FAULT_NOT_OBSERVED"}),
        ("fsync", {"hidden_by_worse": ["broker-1"]}, set()),
        ("fsync", {"hidden_by_worse": []}, {"FAULT_NOT_OBSERVED"}),
        ("fsync", {}, {"FAULT_NOT_OBSERVED"}),
    ],
)
def test_what_was_not_seen_because_it_was_hidden_is_no_reason_for_doubt(
    sound: Sketch, kind: str, effect: dict[str, Any], reasons: set[str]
) -> None:
    """Everywhere, by worse ones that were seen: a plan in which faults meet proves no less."""
    hit = {"broker": ("broker-1",)}
    sound.fault(kind, 20, 22, state="failed", targets=hit, observation={"effect": effect})
    result = coverage.judge(sound.facts())
    assert {reason.code for reason in result.reasons} == reasons
    assert result.stats["effective"] == {"kill": 1}


def test_who_was_hidden_does_not_make_up_for_who_was_not_seen(sound: Sketch) -> None:
    """Too few were seen, whatever others hid; and nobody saw one of that kind."""
    sound.fault("disk-full", 11, 15, targets={"broker": ("broker-1",)})
    sound.fault("pause", 20, 22, state="failed")
    reasons = coverage.judge(sound.facts()).reasons
    assert [reason.code for reason in reasons] == ["FAULT_NOT_OBSERVED"]
