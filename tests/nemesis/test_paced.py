"""Links that are late, narrow, or flap, in a world in memory and virtual time."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.contracts import CUT, LinkEffect, LinkRule, PlannedFault, TimedDatagram
from harness.errors import BadRequest
from nemesis import carry_out, unsupported_reason
from nemesis._network.latency_probe import LinkMeasurement, throughput
from nemesis._plan import plan as _plan
from nemesis.bandwidth import HEADERS_BYTES, probe_bytes, probe_count
from nemesis.delay import in_time, is_late

S = 1_000_000_000
MS = 1_000_000
LINK = ("a", "b")
DELAY = PlannedFault("delay", 1.0, 5.0, "broker-1", {"delay_s": 0.2})
NARROW = PlannedFault("bandwidth", 1.0, 5.0, "broker-1", {"bytes_per_s": 20_000.0})
FLAPPING = PlannedFault("partition", 1.0, 5.0, "broker-1", {"on_s": 0.5, "off_s": 0.25})


def carried_out(
    world: Any,
    folder: Path,
    *faults: PlannedFault,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> None:
    plan = _plan.load(_plan.dump(faults)).faults

    async def story(world: Any) -> None:
        other = asyncio.ensure_future(meanwhile()) if meanwhile else None
        await carry_out(plan, world.bed, folder / "ledger", asyncio.Event(), Random(1), 0)
        if other:
            await other

    world.run(story)


def effect_of(world: Any, number: int) -> dict[str, Any]:
    effect: dict[str, Any] = json.loads(world.last(number)["observation"])["effect"]
    return effect


@pytest.mark.parametrize(
    "one",
    [
        DELAY,
        replace(DELAY, params={"delay_s": 0.05, "reorder": 0.5, "direction": "both"}),
        replace(DELAY, params={"delay_s": 0.05, "jitter_s": 0.02, "clients": True}),
        NARROW,
        replace(NARROW, params={"bytes_per_s": 1e6, "direction": "out", "from": "controller"}),
        FLAPPING,
        replace(FLAPPING, params={**FLAPPING.params, "shape": "answers"}),
        PlannedFault("partition", 1.0, 5.0, "", {"shape": "link", "a": "master", "b": "slave"}),
        PlannedFault("partition", 1.0, 5.0, "", {"shape": "clients"}),
    ],
    ids=lambda one: f"{one.kind} {one.params}",
)
def test_it_passes_all_stages(world: Any, tmp_path: Path, one: PlannedFault) -> None:
    """Applied, seen at work, healed, seen healed, and nothing of it is left."""
    carried_out(world, tmp_path, one)
    row = world.last(0)
    assert row["state"] == "installed", row["observation"]
    assert row["begin"] < row["applied"] <= row["observed"] < row["heal"] < row["healed"]
    assert world.sound


def test_the_added_delay_is_recorded(world: Any, tmp_path: Path) -> None:
    """200 ms on each of the six links, and the nodes, so that the fault can be repeated."""
    carried_out(world, tmp_path, DELAY)
    told = effect_of(world, 0)
    assert told["added_ms"] == pytest.approx([200] * 3, abs=1)
    assert told["links"] == told["links_as_laid"] == 6
    assert len(told["paced"]["broker-1"]) == 6
    assert "200 ms added on 6 links" in world.last(0)["observation"]


def test_the_throughput_is_recorded(world: Any, tmp_path: Path) -> None:
    """Never more than the rate."""
    carried_out(world, tmp_path, NARROW)
    least, most = effect_of(world, 0)["bytes_per_s"]
    assert 0 < least <= most <= 1.1 * 20_000


@pytest.mark.parametrize("one", [DELAY, NARROW], ids=lambda one: one.kind)
def test_one_that_does_nothing_is_not_installed(
    world: Any, tmp_path: Path, one: PlannedFault
) -> None:
    """Rules that are accepted and not kept are found out."""
    agent = world.agents["broker-1"]
    links = agent.links

    async def nothing(_rules: Any) -> None:
        await links(())

    agent.links = nothing
    carried_out(world, tmp_path, one)
    assert world.last(0)["state"] == "failed"


@pytest.mark.parametrize("one", [DELAY, NARROW], ids=lambda one: one.kind)
def test_one_that_stays_is_not_healed(world: Any, tmp_path: Path, one: PlannedFault) -> None:
    """The rules are reported to be gone, and are not."""
    agent = world.agents["broker-1"]
    links = agent.links

    async def sticky(rules: Any) -> None:
        if rules:
            await links(rules)

    agent.links = sticky
    carried_out(world, tmp_path, one)
    assert world.last(0)["state"] == "installed"
    assert world.last(0)["healed"] is None
    assert world.alarms[0].startswith("NOT HEALED: fault 0")


def test_a_delay_of_some_links_is_partial(world: Any, tmp_path: Path) -> None:
    """One link of six is as quick as before."""
    agent = world.agents["broker-1"]
    links = agent.links

    async def too_few(rules: Any) -> None:
        await links(rules[1:])

    agent.links = too_few
    carried_out(world, tmp_path, DELAY)
    assert world.last(0)["state"] == "partial"
    assert len(effect_of(world, 0)["odd"]) == 1


def test_links_may_be_seen_one_after_the_other(world: Any, tmp_path: Path) -> None:
    """On a busy machine hardly ever all of them are in time in one look, and each is in some."""
    agent, looks = world.agents["broker-1"], []
    land = agent.land

    def busy(source: str, token: str, number: int, size: int) -> None:
        if number == 0:
            looks.append(source)
        land(source, token, number, size)
        if looks.count(source) % 3 != sorted(set(looks)).index(source) % 3:
            last = agent.flights[token].pop()
            agent.flights[token].append(last._replace(arrived_ns=last.arrived_ns + 300 * MS))

    async def become_busy() -> None:
        await asyncio.sleep(4.0)
        agent.land = busy

    carried_out(world, tmp_path, DELAY, meanwhile=become_busy)
    assert world.last(0)["healed"]
    assert len(looks) > 6


def test_overlapping_effects_are_all_in_force(world: Any, tmp_path: Path) -> None:
    """Of delays the longer, of rates the lower; what one leaves the other keeps; each that is not
    hidden by its like is seen, and all are seen healed, though the other stays."""
    short = replace(DELAY, at_s=2.0, for_s=2.0, params={"delay_s": 0.05})
    loss = PlannedFault("loss", 2.0, 2.0, "broker-1", {"probability": 0.5})
    narrow = replace(NARROW, at_s=2.0, for_s=9.0)
    seen: dict[float, LinkRule] = {}

    async def look() -> None:
        for at_s in (1.8, 3.8, 5.0, 7.5):
            await asyncio.sleep(at_s - world.bed.now_ns() / S)
            rules = world.agents["broker-1"].rules
            seen[at_s] = next(rule for rule in rules if rule.source == "10.0.2.2")

    carried_out(world, tmp_path, DELAY, short, loss, narrow, meanwhile=look)
    source = "10.0.2.2"
    assert seen[1.8] == LinkRule(source, 0.0, 0.2)
    assert seen[3.8] == LinkRule(source, 0.5, 0.2, bytes_per_s=20_000)
    assert seen[5.0] == LinkRule(source, 0.0, 0.2, bytes_per_s=20_000)
    assert seen[7.5] == LinkRule(source, 0.0, bytes_per_s=20_000)
    assert all(world.last(number)["healed"] for number in range(4))
    states = [world.last(number)["state"] for number in range(4)]
    assert states == ["installed", "failed", "installed", "installed"], "the shorter was hidden"
    assert world.sound


@pytest.mark.parametrize(
    ("one", "more", "state"),
    [
        (DELAY, {"delay_s": 0.3}, "failed"),
        (DELAY, {"delay_s": 0.1}, "installed"),
        (replace(DELAY, params={"delay_s": 0.1, "jitter_s": 0.1}), {"delay_s": 0.3}, "installed"),
        (NARROW, {"bytes_per_s": 10_000.0}, "failed"),
        (NARROW, {"bytes_per_s": 40_000.0}, "installed"),
    ],
)
def test_one_that_a_worse_one_hides_was_not_seen(
    world: Any, tmp_path: Path, one: PlannedFault, more: dict[str, float], state: str
) -> None:
    """A longer delay, a lower rate: packets go as they would without it. Something of its own, such
    as an uneven delay, can be seen."""
    other = replace(one, at_s=0.5, for_s=12.0, params=more)
    carried_out(world, tmp_path, other, one)
    assert [world.last(number)["state"] for number in (0, 1)] == ["installed", state]
    assert all(world.last(number)["healed"] for number in (0, 1))


@pytest.mark.parametrize("one", [DELAY, NARROW], ids=lambda one: one.kind)
def test_silence_is_no_evidence_of_a_delay(world: Any, tmp_path: Path, one: PlannedFault) -> None:
    """It cannot be observed under a cut; its healing is observed when the cut is over."""
    cut = PlannedFault("partition", 0.5, 9.0, "broker-1", {"shape": "isolate"})
    carried_out(world, tmp_path, cut, one)
    assert [world.last(number)["state"] for number in (0, 1)] == ["installed", "failed"]
    assert effect_of(world, 1)["links_hidden_by_others"] == 6
    assert world.last(1)["heal"] < world.last(0)["heal"] <= world.last(1)["healed"]


def test_a_delay_is_seen_where_links_are_not_cut(world: Any, tmp_path: Path) -> None:
    """What could be measured was late."""
    params = {"shape": "isolate", "from": "broker-2"}
    carried_out(world, tmp_path, PlannedFault("partition", 0.5, 9.0, "broker-1", params), DELAY)
    assert world.last(1)["state"] == "installed"
    effect = effect_of(world, 1)
    assert (effect["links_as_laid"], effect["links_hidden_by_others"]) == (5, 1)


def test_healing_under_a_cut_is_not_believed(world: Any, tmp_path: Path) -> None:
    """The delay is still there when the cut is over."""
    agent = world.agents["broker-1"]
    links = agent.links

    async def sticky(rules: Any) -> None:
        late = {source: LinkRule(source, 0.0, 0.2) for source in ("10.0.2.2", "10.0.2.3")}
        await links(list({**late, **{rule.source: rule for rule in rules}}.values()))

    async def begin() -> None:
        await asyncio.sleep(5.0)
        agent.links = sticky

    cut = PlannedFault("partition", 4.0, 9.0, "broker-1", {"shape": "isolate"})
    carried_out(world, tmp_path, DELAY, cut, meanwhile=begin)
    assert world.last(0)["state"] == "installed"
    assert world.last(0)["healed"] is None


def test_jitter_needs_a_spread(world: Any, tmp_path: Path) -> None:
    """Packets that are all as late as each other have none."""
    agent = world.agents["broker-1"]
    links = agent.links

    async def evenly(rules: Any) -> None:
        await links([rule._replace(jitter_s=0.0) for rule in rules])

    agent.links = evenly
    uneven = replace(DELAY, params={"delay_s": 0.05, "jitter_s": 0.1})
    carried_out(world, tmp_path, uneven)
    assert world.last(0)["state"] == "failed"


def test_a_delay_that_begins_under_a_cut_and_a_delay_is_seen_healed(
    world: Any, tmp_path: Path
) -> None:
    """Nothing passes when it looks what the way is like; that the other's delay is over by the time
    of its healing makes the way no longer than it is."""
    longer = replace(DELAY, at_s=0.5, for_s=2.0, params={"delay_s": 0.5})
    cut = PlannedFault("partition", 0.7, 3.0, "broker-1", {"shape": "isolate"})
    carried_out(world, tmp_path, longer, cut, DELAY)
    assert world.last(1)["state"] == "installed"
    assert all(world.last(number)["healed"] for number in range(3))


def test_flapping_lasts_until_it_was_seen_and_comes_back(world: Any, tmp_path: Path) -> None:
    """Cut for half a second, away for a quarter; each time is looked at."""
    was_cut: list[bool] = []

    async def look() -> None:
        await asyncio.sleep(1.2)
        for _ in range(60):
            was_cut.append(bool(world.agents["broker-2"].rules))
            await asyncio.sleep(0.05)

    carried_out(world, tmp_path, FLAPPING, meanwhile=look)
    healing = json.loads(world.last(0)["observation"])["healing"]
    assert 6 <= healing["came"] <= 8
    assert healing["seen"] >= healing["came"] - 1  # the last may be healed before it was looked at
    changes = sum(one != other for one, other in pairwise(was_cut))
    assert changes >= 6
    assert 0.5 < sum(was_cut) / len(was_cut) < 0.8
    assert world.sound


def test_flapping_that_breaks_off_is_partial(world: Any, tmp_path: Path) -> None:
    """The agent fails in the middle: that is no full fault. The rest is healed."""

    async def fail() -> None:
        await asyncio.sleep(2.0)
        world.agents["broker-3"].broken.add("links")
        await asyncio.sleep(2.0)
        world.agents["broker-3"].broken.clear()

    carried_out(world, tmp_path, FLAPPING, meanwhile=fail)
    assert world.last(0)["state"] == "partial"
    assert world.last(0)["healed"]
    assert "agent of broker-3 is gone" in json.loads(world.last(0)["observation"])["broke_off"]
    assert world.sound


def test_what_breaks_off_without_a_word_has_broken_off(world: Any, tmp_path: Path) -> None:
    """An error without a message is reported by its type."""
    agent = world.agents["broker-3"]
    links = agent.links

    async def fail(rules: Any) -> None:
        if 2 * S < world.bed.now_ns() < 3 * S:
            raise TimeoutError
        await links(rules)

    agent.links = fail
    carried_out(world, tmp_path, FLAPPING)
    assert world.last(0)["state"] == "partial"
    assert json.loads(world.last(0)["observation"])["broke_off"] == "TimeoutError"
    assert world.sound


def test_flapping_that_is_seldom_seen_is_partial(world: Any, tmp_path: Path) -> None:
    """It came back as an order, and not in the world."""
    agent = world.agents["broker-3"]
    links = agent.links

    async def only_once(rules: Any) -> None:
        await links(rules if world.bed.now_ns() < 1.1 * S else ())

    agent.links = only_once
    carried_out(world, tmp_path, FLAPPING)
    assert world.last(0)["state"] == "partial"
    assert "times" in json.loads(world.last(0)["observation"])["broke_off"]


def test_nodes_that_can_not_hold_packets_back_are_named(world: Any) -> None:
    """Before the load, in a sentence; and only when the plan asks for it."""

    async def lacks(_ability: str) -> str:
        return "broker-2: its kernel has no queue"

    world.agents["broker-2"].lacks = lacks
    kill = PlannedFault("kill", 1.0, 5.0, "broker-1")

    async def story(world: Any) -> list[str]:
        return [
            await unsupported_reason(plan, world.bed)
            for plan in ((kill, DELAY), (NARROW,), (kill,))
        ]

    late, narrow, none = world.run(story)
    assert late == (
        "delay cannot be done: broker-2: its kernel has no queue; "
        "choose other faults or other hosts"
    )
    assert narrow.startswith("bandwidth cannot be done")
    assert none == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('kind = "delay"', "needs a target"),
        ('kind = "bandwidth"', "needs a target"),
        ('kind = "delay"\ntarget = "master"\nparams = {delay_s = 0}', "between 0.002 and 10"),
        ('kind = "delay"\ntarget = "master"\nparams = {reorder = 1.0}', "between 0 and 0.9"),
        ('kind = "bandwidth"\ntarget = "master"\nparams = {bytes_per_s = 9}', "between 10000"),
        (
            'kind = "bandwidth"\ntarget = "master"\nparams = {per = "node", direction = "out"}',
            "omit `direction`",
        ),
        ('kind = "partition"\nparams = {shape = "answers"}', "needs a target"),
        ('kind = "partition"\nparams = {shape = "link", a = "master"}', "needs the parameter 'b'"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, says: str) -> None:
    """With the line of the plan."""
    with pytest.raises(BadRequest, match=r"line \d") as refused:
        _plan.load(f"[[fault]]\nat_s = 1\nfor_s = 5\n{text}\n")
    assert says in str(refused.value)


def measured(wanted: LinkEffect, *late_ms: float, order: tuple[int, ...] = ()) -> LinkMeasurement:
    """Flights that were so late, on a link with a natural way of 3 ms."""
    numbers = order or tuple(range(len(late_ms)))
    flights = [
        TimedDatagram(number, 0, round((3 + ms) * MS))
        for number, ms in zip(numbers, late_ms, strict=True)
    ]
    return LinkMeasurement(LINK, wanted, 3.0 * MS, len(late_ms), 972, flights)


def test_a_link_is_late_when_all_of_it_is() -> None:
    """One quick packet is one too many, unless some are to overtake."""
    wanted = LinkEffect(delay_s=0.1)
    assert is_late(measured(wanted, 100, 101, 150))
    assert is_late(measured(wanted, 900, 901)), "a busy machine makes it later, never quicker"
    assert not is_late(measured(wanted, 100, 2, 150))
    assert not is_late(measured(wanted))
    assert not is_late(measured(CUT))
    uneven = LinkEffect(delay_s=0.1, jitter_s=0.1)
    assert is_late(measured(uneven, 101, 130, 199))
    assert not is_late(measured(uneven, 101, 102, 103))
    overtaking = LinkEffect(delay_s=0.1, reorder=0.5)
    assert is_late(measured(overtaking, 1, 1, 100, order=(1, 2, 0)))
    assert not is_late(measured(overtaking, 100, 100, 100))
    assert not is_late(measured(overtaking, 1, 1, 1, order=(1, 2, 0)))


def test_a_link_is_in_time_again_when_some_of_it_is() -> None:
    """Unless another fault wants it to be late."""
    was = LinkEffect(delay_s=0.1)
    assert in_time(measured(LinkEffect(), 80, 2), was)
    assert not in_time(measured(LinkEffect(), 100, 101), was)
    assert not in_time(measured(LinkEffect()), was)
    assert in_time(measured(LinkEffect(delay_s=0.2), 200), was)
    assert not in_time(measured(LinkEffect(delay_s=0.2), 1), was)
    assert in_time(measured(LinkEffect(bytes_per_s=20_000), 900), was), "it may wait for its turn"


def test_bytes_a_second_are_of_all_that_arrived() -> None:
    """From the first one's sending to the last one's arrival, without what the way takes."""
    assert throughput([measured(LinkEffect(), 10, 20)]) == pytest.approx(
        2 * (972 + HEADERS_BYTES) / 0.02
    )
    together = [measured(LinkEffect(), 10, 20), measured(LinkEffect(), 20, 40)]
    assert throughput(together) == pytest.approx(4 * 1000 / 0.04)
    assert throughput([measured(LinkEffect(delay_s=0.1), 110, 120)]) == pytest.approx(
        2 * 1000 / 0.02
    )
    assert throughput([measured(LinkEffect())]) == 0


@pytest.mark.parametrize("rate", [10_000.0, 123_456.0, 1e6, 10e6])
def test_a_rate_is_probed_with_what_a_link_has_room_for(rate: float) -> None:
    """Enough datagrams to see it, and no more than may wait."""
    count, size = probe_count(rate), probe_bytes(rate)
    assert 20 <= count <= 400
    assert count * (size + HEADERS_BYTES) < max(rate, 16_384)
