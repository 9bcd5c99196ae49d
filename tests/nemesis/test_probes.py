"""What counts as having seen a link, a thread, a rule."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.contracts import CUT, LinkEffect, Node
from harness.errors import BedFailed
from nemesis._network import link_fault as _network
from nemesis._network.drop_probe import (
    LOSS_PROBES,
    ProbeResult,
    is_plausible,
    loss_probe_count,
    probe_links,
)
from nemesis._network.link_rules import LinkRules
from nemesis.pause import thread_states

LINK = ("a", "b")


@given(of=st.integers(1, 200), p=st.floats(0.01, 0.99), chance=st.floats(0.0001, 0.2))
def test_plausible_is_the_central_interval(of: int, p: float, chance: float) -> None:
    """Too few and too many are each missed with at most half the chance, by exact sums."""
    weights = [comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(of + 1)]
    for k in range(0, of + 1, max(1, of // 20)):
        below, above = sum(weights[: k + 1]), sum(weights[k:])
        margin = min(below, above) - chance / 2
        if abs(margin) > 1e-9:
            assert is_plausible(k, of, p, chance) == (margin > 0)


def test_a_sound_loss_is_hardly_ever_called_partial() -> None:
    """Of 50 faults over 24 links each, hardly one is doubted: the chance is shared out."""
    dice = Random(11)
    doubted = 0
    for _ in range(50):
        for _ in range(24):
            arrived = sum(dice.random() < 0.2 for _ in range(200))
            doubted += not ProbeResult(LINK, 0.8, 200, arrived, 200 - arrived).matches_rules(24)
    assert doubted <= 1


@pytest.mark.parametrize(
    ("drop", "arrived", "counted", "expected"),
    [
        (1.0, 0, 10, True),
        (1.0, 0, 9, False),  # silence, but the rule did not make all of it
        (1.0, 1, 10, False),
        (0.0, 10, 0, True),
        (0.0, 9, 0, False),
        (0.5, 5, 5, True),
        (0.5, 9, 1, True),
        (0.5, 9, 0, False),  # one did not come, but the rule had no part in that
        (0.05, 10, 0, False),  # no wonder that all came; but that is no loss
        (0.8, 9, 1, False),
    ],
)
def test_a_link_does_as_its_rules_say(
    drop: float, arrived: int, counted: int, expected: bool
) -> None:
    """Cut: nothing arrives and all of it is counted. Open: all arrives. Lossy: near its share."""
    assert ProbeResult(LINK, drop, 10, arrived, counted).matches_rules() == expected


@given(p=st.floats(0.01, 0.99))
def test_a_small_loss_is_asked_often_enough(p: float) -> None:
    """A link that loses nothing is never taken for one that loses a little, nor the other way."""
    count = loss_probe_count(p)
    assert (1 - p) ** count <= 5.1e-5
    assert not ProbeResult(LINK, p, count, count, 0).matches_rules()
    assert loss_probe_count(0.05) == 200, "no more than it takes"


class Lossy:
    """Both agents of a link that loses the first share of its probes, then the next, and so on."""

    def __init__(self, shares: Sequence[float]) -> None:
        self.shares = shares
        self.attempts: list[str] = []  # their tokens
        self.arrived: Counter[str] = Counter()
        self.lost = 0

    async def lacks(self, what: str) -> str:
        return ""

    async def dropped(self) -> Mapping[str, int]:
        return {"1.1.1.1": self.lost}

    async def probed(self, token: str) -> int:
        return self.arrived[token]

    async def probe(self, address: str, token: str, count: int) -> None:
        arrives = count
        if "fence" not in token:
            if token not in self.attempts:
                self.attempts.append(token)
            arrives -= round(count * self.shares[len(self.attempts) - 1])
        self.arrived[token] += arrives
        self.lost += count - arrives


@pytest.mark.parametrize(
    ("shares", "attempts", "seen"),
    [
        ([0.8], 1, True),
        ([0.4, 0.8], 2, True),  # the first by chance
        ([0.4, 1.0, 0.8], 3, True),
        ([0.4, 0.4, 0.4], 3, False),
        ([0.0, 0.0, 0.0], 3, False),
    ],
)
def test_a_lossy_link_that_deviates_is_probed_again(
    shares: list[float], attempts: int, seen: bool
) -> None:
    """At most twice: one that deviates each time is not as its rules say."""
    agent = Lossy(shares)
    address = {"a": "1.1.1.1", "b": "1.1.1.2"}
    bed = SimpleNamespace(
        omniscient=None,
        agents=dict.fromkeys(address, agent),
        node=lambda name: Node(name, "x", address[name]),
        now_ns=lambda: 0,
        sleep=asyncio.sleep,
    )
    links = SimpleNamespace(version=lambda sink: 1, effect=lambda link: LinkEffect(0.8))
    scene: Any = SimpleNamespace(bed=bed, links=links, random=Random(1))
    (result,) = asyncio.run(probe_links(scene, [LINK]))
    assert (len(agent.attempts), result.matches_rules()) == (attempts, seen)
    assert (result.sent, result.arrived + result.counted) == (LOSS_PROBES, LOSS_PROBES)


def test_threads_are_read_from_their_stat_lines() -> None:
    """Names may hold blanks and brackets; only the group that is asked for counts."""
    text = "7 (a b) c) T 1 7 7 0\n8 (py) S 7 7 7 0\n9 (other) R 1 9 9 0\ngarbage\n"
    assert thread_states(text, 7) == "TS"
    assert thread_states(text, 9) == "R"
    assert thread_states("", 7) == ""


class Slow:
    """An agent whose rules take effect late, the earlier the later."""

    def __init__(self) -> None:
        self.calls = 0
        self.rules: Mapping[str, float] = {}

    async def links(self, rules: Any) -> None:
        self.calls += 1
        for _ in range(20 - self.calls):
            await asyncio.sleep(0)
        self.rules = {rule.source: rule.drop for rule in rules}


class Lost(Slow):
    """An agent that cannot be reached."""

    async def links(self, rules: Any) -> None:
        raise BedFailed("no answer")


def test_the_last_merge_wins_whatever_is_slow() -> None:
    """Faults that come and go at once leave what the last of them wants."""
    nodes = [Node("a", "x", "1.1.1.1"), Node("b", "x", "1.1.1.2"), Node("c", "x", "1.1.1.3")]
    agents = {node.name: Slow() for node in nodes}

    async def story() -> None:
        fabric = LinkRules(nodes, agents)  # type: ignore[arg-type]
        await asyncio.gather(
            fabric.apply("one", {("a", "b"): CUT}),
            fabric.apply("two", {("a", "b"): LinkEffect(0.5), ("c", "b"): LinkEffect(0.2)}),
            fabric.remove("one"),
        )
        assert agents["b"].rules == {"1.1.1.1": 0.5, "1.1.1.3": 0.2}
        await fabric.remove("two")

    asyncio.run(story())
    assert agents["b"].rules == {}
    assert agents["a"].calls == agents["c"].calls == 0, "a node that no rule touches is left alone"


def test_what_was_not_lifted_to_its_end_is_lifted_by_the_next_attempt() -> None:
    """Interrupted before any node got the change, as by a stop at the moment of healing."""
    nodes = [Node("a", "x", "1.1.1.1"), Node("b", "x", "1.1.1.2")]
    agents = {node.name: Slow() for node in nodes}

    async def story() -> None:
        fabric = LinkRules(nodes, agents)  # type: ignore[arg-type]
        await fabric.apply("one", {("a", "b"): CUT})
        lifting = asyncio.create_task(fabric.remove("one"))
        await asyncio.sleep(0)
        lifting.cancel()
        await asyncio.gather(lifting, return_exceptions=True)
        await fabric.remove("one")

    asyncio.run(story())
    assert agents["b"].rules == {}


def test_an_unreachable_node_fails_its_own_faults_only() -> None:
    """Those of other nodes are laid and lifted all the same."""
    nodes = [Node("a", "x", "1.1.1.1"), Node("b", "x", "1.1.1.2")]
    agents = {"a": Slow(), "b": Lost()}

    async def story() -> None:
        fabric = LinkRules(nodes, agents)  # type: ignore[arg-type]
        with pytest.raises(BedFailed):
            await fabric.apply("one", {("a", "b"): CUT})
        await fabric.apply("two", {("b", "a"): CUT})
        assert agents["a"].rules == {"1.1.1.2": 1.0}
        await fabric.remove("two")
        with pytest.raises(BedFailed):
            await fabric.remove("one")

    asyncio.run(story())
    assert agents["a"].rules == {}


def test_no_link_is_not_seen_cut() -> None:
    """Where a fault has no link of its own there is nothing that it could have done."""
    assert _network.link_observation([], [], {}).state == "failed"
    others = [ProbeResult(("a", "b"), 0.0, 10, 10, 0)]
    assert _network.link_observation([], others, {}).state == "failed"
