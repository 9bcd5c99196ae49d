"""Each fault on real nodes, shown by witnesses that know nothing of agents, rules or signals.

One scene (bed_scene.py) carries out every fault on seven nodes whose beacons shout at each other.
What they hear of each other must be what the fault is for, and all of it again after healing.
"""

import json
import signal
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from fault_stage import seen_by

from clusters.hosts.local.hosts import LocalHosts
from harness import registry
from harness.contracts.membership import REJOIN

pytestmark = pytest.mark.bed

SCENE = Path(__file__).with_name("bed_scene.py")
CONTROLLERS = ("controller-1", "controller-2", "controller-3")
# test_disk_faults_on_nodes.py, and tests/harness/test_runner.py, which has clients
ELSEWHERE = {"disk-full", "read-only", "fsync", "unsynced", "wipe", "corrupt", "crash"}
BROKERS = ("broker-1", "broker-2", "broker-3")
SERVERS = (*CONTROLLERS, *BROKERS)
EVERYBODY = (*SERVERS, "client-1")
Link = tuple[str, str]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was seen of every fault."""
    return seen_by(SCENE, tmp_path_factory.mktemp("bed"))


def links(hearing: dict[str, Any]) -> Iterator[tuple[Link, int, int]]:
    """Every link with how many datagrams arrived and about how many were sent."""
    for name, (arrived, sent) in hearing["links"].items():
        source, sink = name.split(">")
        yield (source, sink), arrived, sent


def both_ways(a: tuple[str, ...], b: tuple[str, ...]) -> set[Link]:
    return {link for x in a for y in b for link in ((x, y), (y, x)) if x != y}


def assert_cut(seen: dict[str, Any], cut: set[Link]) -> None:
    """Nothing passes on these links, most passes on all the others, and all after healing."""
    assert {link for link, arrived, _ in links(seen["during"]) if not arrived} == cut
    for link, arrived, sent in links(seen["during"]):
        assert link in cut or arrived >= sent / 2, link
    assert_sound(seen)


def assert_sound(seen: dict[str, Any]) -> None:
    """The nemesis observed the fault too, and after healing all nodes hear each other."""
    assert seen["row"]["state"] == "installed"
    assert seen["row"]["healed"] is not None
    assert seen["after"]["silent"] == []
    for link, arrived, sent in links(seen["after"]):
        assert arrived >= sent / 2, link


def test_before_any_fault_all_nodes_hear_each_other(scene: dict[str, Any]) -> None:
    """The witnesses work: 42 links, all open."""
    shares = list(links(scene["before"]))
    assert len(shares) == 42
    assert all(arrived >= sent / 2 for _, arrived, sent in shares)


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("isolate", both_ways(("broker-1",), SERVERS)),
        ("isolate from slaves", both_ways(("broker-1",), ("broker-2", "broker-3"))),
        ("isolate with clients", both_ways(("broker-1",), EVERYBODY)),
        ("one-way out", {("broker-2", sink) for sink in SERVERS if sink != "broker-2"}),
        ("one-way in", {(source, "broker-2") for source in SERVERS if source != "broker-2"}),
        ("roles", both_ways(BROKERS, CONTROLLERS)),
    ],
)
def test_partition_stops_what_it_names_and_nothing_else(
    scene: dict[str, Any], name: str, cut: set[Link]
) -> None:
    """Packets really stop on the links of the shape, one way or both, and pass on the others."""
    assert_cut(scene[name], cut)


@pytest.mark.parametrize(("name", "count"), [("halves", 18), ("ring", 6), ("bridge", 2)])
def test_random_partition(scene: dict[str, Any], name: str, count: int) -> None:
    """Shapes drawn by lot cut the links that the record says, as many as the shape has."""
    seen = scene[name]
    recorded = json.loads(seen["row"]["observation"])["effect"]["cut"]
    cut = {(source, sink) for sink, sources in recorded.items() for source in sources}
    assert len(cut) == count
    assert not any("client-1" in link for link in cut), "clients reach all nodes"
    assert_cut(seen, cut)


@pytest.mark.parametrize(
    ("name", "probability", "lossy"),
    [
        ("loss", 0.8, {(source, "broker-3") for source in EVERYBODY if source != "broker-3"}),
        ("light loss", 0.2, both_ways(CONTROLLERS, SERVERS)),
    ],
)
def test_loss_is_near_its_probability(
    scene: dict[str, Any], name: str, probability: float, lossy: set[Link]
) -> None:
    """Over all its links the share lost is near p, and no other link loses much."""
    shares = {link: (arrived, sent) for link, arrived, sent in links(scene[name]["during"])}
    arrived = sum(shares[link][0] for link in lossy)
    sent = sum(shares[link][1] for link in lossy)
    sigma = sqrt(sent * probability * (1 - probability))
    slack = 4 * len(lossy)  # the two ends of a link are asked a moment apart
    assert abs(arrived - sent * (1 - probability)) < 5 * sigma + slack
    others = [shares[link] for link in shares.keys() - lossy]
    assert sum(arrived for arrived, _ in others) > 0.93 * sum(sent for _, sent in others)
    assert_sound(scene[name])


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("answers", {("broker-1", "client-1")}),
        ("one link", {("broker-1", "broker-2")}),
        ("clients", both_ways(BROKERS, ("client-1",))),
    ],
)
def test_partition_of_a_few_links(scene: dict[str, Any], name: str, cut: set[Link]) -> None:
    """Requests arrive and answers do not; one link, one way; all clients from all brokers."""
    assert_cut(scene[name], cut)


def test_a_flapping_partition_comes_back(scene: dict[str, Any]) -> None:
    """It was seen the first time, came again and was seen, and let packets through meanwhile."""
    seen = scene["flapping"]
    healing = json.loads(seen["row"]["observation"])["healing"]
    assert seen["row"]["state"] == "installed", "it was kept up"
    assert healing["came"] >= healing["seen"] >= 2
    shares = {link: (arrived, sent) for link, arrived, sent in links(seen["during"])}
    assert any(arrived for link, (arrived, _) in shares.items() if "broker-1" in link)
    assert_sound(seen)


def test_delay_makes_its_links_late_and_no_others(scene: dict[str, Any]) -> None:
    """All that the victim receives is late, the client's words too; all others are in time."""
    seen = scene["late"]
    late_s = {tuple(name.split(">")): late for name, late in seen["during"]["late"].items()}
    slow = {link for link, least_s in late_s.items() if least_s >= 0.3}
    assert slow >= {(source, "broker-2") for source in EVERYBODY if source != "broker-2"}
    assert all(late < 0.15 for late in seen["after"]["late"].values())
    told = json.loads(seen["row"]["observation"])["effect"]
    assert told["links"] == told["links_as_laid"] == 6
    assert told["added_ms"][0] >= 0.75 * 300
    assert_sound(seen)


def test_some_packets_overtake_others(scene: dict[str, Any]) -> None:
    """By what was counted on each of the victim's links."""
    told = json.loads(scene["overtaken"]["row"]["observation"])["effect"]
    assert told["links"] == told["links_as_laid"] == 5
    assert told["overtaken"] >= 5
    assert_sound(scene["overtaken"])


@pytest.mark.parametrize(
    ("name", "sources", "rate"),
    [("narrow", CONTROLLERS, 10_000), ("narrow door", SERVERS, 30_000)],
)
def test_bandwidth_lets_only_so_much_through(
    scene: dict[str, Any], name: str, sources: tuple[str, ...], rate: int
) -> None:
    """Each beacon says 50,000 bytes a second, more than there is room for; what is lost is of
    those links alone."""
    seen = scene[name]
    told = json.loads(seen["row"]["observation"])["effect"]
    assert 0 < max(told["bytes_per_s"]) <= 1.1 * rate
    narrow = {(source, "broker-3") for source in sources if source != "broker-3"}
    for link, arrived, sent in links(seen["during"]):
        assert link in narrow or arrived >= sent / 2, link
    assert_sound(seen)


def test_pause_really_stops_the_processes(scene: dict[str, Any]) -> None:
    """Two of three brokers neither answer nor shout; afterwards they go on, the same processes."""
    seen = scene["pause"]
    paused = seen["during"]["silent"]
    assert len(paused) == 2
    assert set(paused) <= set(BROKERS)
    targets = json.loads(seen["row"]["targets"])
    assert sorted(name for names in targets.values() for name in names) == paused
    assert silent_sources(seen["during"]) == set(paused)
    assert seen["new_pids"] == []
    assert_sound(seen)


def test_kill_really_ends_the_process_and_heals_with_a_new_one(scene: dict[str, Any]) -> None:
    """The controllers' leader is gone, alone, and comes back as another process."""
    seen = scene["kill"]
    assert seen["during"]["silent"] == ["controller-2"]
    assert silent_sources(seen["during"]) == {"controller-2"}
    assert seen["new_pids"] == ["controller-2"]
    assert_sound(seen)


def silent_sources(hearing: dict[str, Any]) -> set[str]:
    """Nodes that no other node heard."""
    heard = {link[0]: 0 for link, _, _ in links(hearing)}
    for (source, _), arrived, _ in links(hearing):
        heard[source] += arrived
    return {source for source, arrived in heard.items() if not arrived}


def test_restart_ends_the_process_when_it_is_asked(scene: dict[str, Any]) -> None:
    """Down until it is healed, then another process."""
    seen = scene["restart"]
    assert seen["during"]["silent"] == ["broker-2"]
    assert seen["new_pids"] == ["broker-2"]
    told = json.loads(seen["row"]["observation"])["effect"]["processes"]["broker-2"]
    assert told["code"] == -signal.SIGTERM
    assert_sound(seen)


def test_a_rolling_restart_leaves_all_nodes_running(scene: dict[str, Any]) -> None:
    """Each of them is another process at the end, and no other node is."""
    seen = scene["rolling restart"]
    assert seen["during"]["silent"] == []
    assert seen["new_pids"] == list(BROKERS)
    told = json.loads(seen["row"]["observation"])["effect"]["processes"]
    assert sorted(told) == list(BROKERS)
    assert_sound(seen)


def test_a_clock_is_wrong_for_its_process_alone(scene: dict[str, Any]) -> None:
    """A thousand seconds behind, and gaining; correct afterwards; other clocks are right."""
    seen = scene["clock"]
    ahead = {node: told["ahead_s"] for node, told in seen["themselves"].items()}
    assert -1000 < ahead.pop("broker-2") < -900
    assert all(abs(ahead_s) < 60 for ahead_s in ahead.values())
    assert all(abs(told["ahead_s"]) < 60 for told in seen["themselves after"].values())
    assert seen["new_pids"] == []
    assert_sound(seen)


def test_a_starved_process_seldom_runs(scene: dict[str, Any]) -> None:
    """It shouts far less often than the others, and as often again after."""
    seen = scene["starved of cpu"]
    rounds = {link[0]: sent for link, _, sent in links(seen["during"])}
    own = rounds.pop("broker-3")
    assert 0 < own < 0.6 * sorted(rounds.values())[len(rounds) // 2]
    assert seen["new_pids"] == []
    assert_sound(seen)


def test_a_process_without_files_or_memory_is_refused_more(scene: dict[str, Any]) -> None:
    """It finds out for itself; the others have all they want, and so has it after."""
    for name, what, most in (("files", "files", 4), ("memory", "memory", False)):
        seen = scene[f"starved of {name}"]
        told = {node: own[what] for node, own in seen["themselves"].items()}
        assert told.pop("broker-2") <= most
        assert set(told.values()) == {10 if what == "files" else True}
        assert seen["themselves after"]["broker-2"][what] == (10 if what == "files" else True)
        assert seen["new_pids"] == []
        assert_sound(seen)


def test_every_fault_is_shown_here(scene: dict[str, Any], root: Path) -> None:
    """A new fault cannot be added without being shown on real nodes, if these can do it."""
    files = set(registry.names("fault"))
    can = LocalHosts.can | {REJOIN}  # the latter is an ability of systems
    possible = {name for name in files if can >= registry.fault(name).needs}
    shown = {seen["row"]["kind"] for name, seen in scene.items() if name != "before"}
    assert shown == possible - ELSEWHERE
    others = {
        "power",
        "membership",
        "handover",
        "upgrade",
        "downgrade",
        "inner-broker",
        "zone-drill",
        "convert",
        "consensus",
    }
    assert files - possible == others, "shown in simulated worlds: tests/simulated, tests/trials"
