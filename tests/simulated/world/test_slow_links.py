"""Delayed and narrow links in the simulated world, and TCP on them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from simulated_agents import play

from clusters.hosts._world.network import SimLink, Wire
from harness.contracts import Agent, LinkRule

CALM = Wire(latency_ns=1_000_000, jitter_ns=0, split=0, join=0)
MS = 1_000_000


def link() -> SimLink:
    return SimLink(CALM, lambda: 0.5)


def test_a_link_is_late_and_in_time_again() -> None:
    """By the delay and the jitter, and afterwards as before."""
    slow = link()
    slow.slow_down(100 * MS, 20 * MS, 0.0)
    assert slow.way_ns() == (1 + 100 + 10) * MS
    slow.slow_down(0, 0, 0.0)
    assert slow.way_ns() == 1 * MS


def test_what_overtakes_is_not_late() -> None:
    """It takes its usual time."""
    slow = link()
    slow.slow_down(100 * MS, 0, 0.6)
    assert slow.way_ns() == 1 * MS
    slow.slow_down(100 * MS, 0, 0.4)
    assert slow.way_ns() == 101 * MS


def test_narrow_stretches_come_one_after_the_other() -> None:
    """A link's own limit, and then the one that it shares."""
    one = SimLink(CALM, lambda: 0.5)
    other = SimLink(CALM, lambda: 0.5, one.host_bottleneck)
    one.bytes_per_s = 1_000_000
    one.host_bytes_per_s = other.host_bytes_per_s = 500_000
    assert one.queued_ns(0, 1000) == 3 * MS
    assert other.queued_ns(0, 1000) == 5 * MS
    one.bytes_per_s = one.host_bytes_per_s = 0
    assert not one.narrow
    assert other.narrow


def test_the_agents_rules_make_links_late_and_narrow(tmp_path: Path) -> None:
    """Flights report what happens on the link, on no other, and until it is healed."""

    async def scene(agents: Mapping[str, Agent], at: Mapping[str, str]) -> None:
        async def took_s(way: str, count: int = 10) -> list[float]:
            source, sink = way.split(">")
            await agents[source].send_timed(at[sink], f"{way} {count}", count, 972)
            flights = await agents[sink].timed_arrivals(f"{way} {count}")
            return [(flight.arrived_ns - flight.sent_ns) / 1e9 for flight in flights]

        late = LinkRule(at["a"], 0.0, delay_s=0.5, jitter_s=0.1)
        await agents["b"].links([late, LinkRule(at["c"], 0.0, bytes_per_s=10_000)])
        assert all(0.5 < late_s < 0.601 for late_s in await took_s("a>b"))
        assert max(await took_s("c>b")) == pytest.approx(1.0, abs=0.01)
        assert max(await took_s("b>a")) < 0.01
        await agents["b"].links([LinkRule(at["a"], 0.0, delay_s=0.5, reorder=0.5)])
        overtaking = await took_s("a>b", 40)
        assert min(overtaking) < 0.01
        assert max(overtaking) > 0.5
        assert max(await took_s("c>b", 5)) < 0.01
        await agents["b"].links([])
        assert max(await took_s("a>b", 7)) < 0.01
        assert await agents["b"].lacks("pace") == ""

    play(tmp_path, scene)


def test_a_question_waits_for_a_late_answer(tmp_path: Path) -> None:
    """TCP over a delayed link takes as much longer, for each delayed direction."""

    async def scene(agents: Mapping[str, Agent], at: Mapping[str, str]) -> None:
        hosts_loop = asyncio.get_running_loop()
        began_s = hosts_loop.time()
        await agents["a"].links([LinkRule(at["a"], 0.0, delay_s=0.5)])
        with pytest.raises(ConnectionError):
            await agents["a"].ask(7001, b"", 5.0)
        assert hosts_loop.time() - began_s > 0.9, "the dial and its refusal"

    play(tmp_path, scene)


def test_a_narrow_link_is_not_overwhelmed() -> None:
    """A sender has about a second's worth under way, so that the effect of a fault is soon over."""
    narrow = link()
    narrow.bytes_per_s = 200_000
    assert narrow.window_bytes == 200_000
    narrow.host_bytes_per_s = 10
    assert narrow.window_bytes == 16_384


def test_flights_do_not_clog_a_narrow_link() -> None:
    """One that finds too much waiting is lost, and takes no space."""
    narrow = link()
    narrow.bytes_per_s = 10_000
    assert 20 <= len(narrow.flights_ns(0, 1000, 1000)) <= 22
    assert narrow.queued_ns(0, 1000) < 3000 * MS


def test_flights_are_in_nobodys_way() -> None:
    """They wait for what is there and for each other, also on links that share a limit."""
    one = SimLink(CALM, lambda: 0.5)
    other = SimLink(CALM, lambda: 0.5, one.host_bottleneck)
    one.host_bytes_per_s = other.host_bytes_per_s = 10_000
    assert one.queued_ns(0, 1000) == 100 * MS
    assert one.flights_ns(0, 2, 1000) == [(201 * MS, 0), (301 * MS, 1)]
    assert other.flights_ns(0, 1, 1000) == [(401 * MS, 0)]
    assert other.flights_ns(10 * MS, 1, 1000) == [(201 * MS, 0)]
    assert other.queued_ns(10 * MS, 1000) == 190 * MS


def test_what_waits_goes_on_at_the_rate_in_force() -> None:
    """A backlog of a lower rate does not outlast it."""
    narrow = link()
    narrow.bytes_per_s = 10_000
    assert [narrow.queued_ns(0, 1000) for _ in range(10)][-1] == 1000 * MS
    narrow.bytes_per_s = 1_000_000
    assert narrow.flights_ns(0, 1, 1000) == [(12 * MS, 0)]
    assert narrow.queued_ns(0, 1000) == 11 * MS
    narrow.bytes_per_s = 10_000
    assert narrow.queued_ns(1 * MS, 1000) == 1100 * MS
