"""Capacity limits with whole clusters in a simulated world (spec 10.5, 10.7; seed 003)."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from simulated_fleet import TOPIC, Fleet, Sailor, eventually

from clusters.flotilla.client import Outcome, Result
from clusters.flotilla.client.calls import ERRORS
from clusters.hosts._world.world import SECOND

RATE = 100  # sends a second that a broker takes
OFFERED = {"pay": 40, "orders": 360, "trace": 600}  # a second: five times what two brokers take
CLASSES = {"pay": "core", "trace": "low"}
SETTINGS = {"timeScale": 1.0, "brokerSets": 2, "sendRateLimit": RATE, "topicQos": CLASSES}


@dataclass(frozen=True)
class Sent:
    topic: str
    began_s: float
    took_s: float
    result: Result


async def offer(sailor: Sailor, rates: Mapping[str, int], seconds: float) -> list[Sent]:
    """Send to each topic at its rate, to queues that the producer chooses."""
    sent: list[Sent] = []

    def ended(topic: str, began_s: float, result: Result) -> None:
        took_s = sailor.world.now_ns / SECOND - began_s
        sent.append(Sent(topic, began_s, took_s, result))

    async def one(topic: str, rate: int) -> None:
        for _ in range(round(seconds * rate)):
            began_s = sailor.world.now_ns / SECOND
            done = partial(ended, topic, began_s)
            sailor.client.producer.send(topic, None, b"", b"x" * 100, done)
            await asyncio.sleep(1 / rate)

    await asyncio.gather(*(one(topic, rate) for topic, rate in rates.items()))
    count = sum(round(seconds * rate) for rate in rates.values())

    async def all_ended() -> bool:
        return len(sent) == count

    await eventually(all_ended)
    return sent


def p99_s(sent: list[Sent], topic: str) -> float:
    took = sorted(one.took_s for one in sent if one.topic == topic)
    return took[len(took) * 99 // 100]


def share(sent: list[Sent], topic: str) -> float:
    """Return the share of a topic's sends that were acknowledged."""
    mine = [one.result.outcome for one in sent if one.topic == topic]
    return mine.count(Outcome.HAPPENED) / len(mine)


def test_the_core_class_keeps_its_p99_under_overload_with_a_dead_broker() -> None:
    """Five times the load, and one of two masters hangs: low is refused first, core hardly waits.

    A broker takes one send in ten milliseconds; core may wait for one of its own, no more.
    """
    topics = dict.fromkeys(OFFERED, 4)
    fleet = Fleet(1, "allack-min2", SETTINGS, nodes={"broker": 6}, topics=topics)

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        calm = await offer(sailor, {"pay": OFFERED["pay"]}, 4)
        assert share(calm, "pay") == 1.0
        hung = fleet.process(now.masters["set-1"])
        assert hung
        sailor.world.after(SECOND, hung.pause)
        storm = await offer(sailor, OFFERED, 8)
        assert share(storm, "pay") > 0.99
        assert p99_s(storm, "pay") < p99_s(calm, "pay") + 2 / RATE
        assert share(storm, "trace") < share(storm, "orders") < share(storm, "pay")
        outcomes = Counter(one.result.outcome for one in storm if one.topic == "trace")
        assert outcomes[Outcome.REFUSED] > outcomes[Outcome.UNKNOWN] * 20, "refusals are definite"

    fleet.sail(scenario)


def test_refused_sends_are_told_at_once_and_stored_nowhere() -> None:
    """[OVERLOAD] and [TIMEOUT_CLEAN_QUEUE] are definite: a refused send is in no queue."""
    settings = {**SETTINGS, "brokerSets": 1, "retryTimesWhenSendFailed": 0}
    fleet = Fleet(2, "allack-min2", settings, topics={TOPIC: 4})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        sent = await offer(sailor, {TOPIC: 10 * RATE}, 3)
        refused = [one for one in sent if one.result.outcome is Outcome.REFUSED]
        words = ("[OVERLOAD]", "[TIMEOUT_CLEAN_QUEUE]")
        assert all(any(word in one.result.error for word in words) for one in refused)
        assert max(one.took_s for one in refused) < 0.25
        stored = [one for one in sent if one.result.outcome is Outcome.HAPPENED]
        assert len(stored) + len(refused) == len(sent)
        assert len(await sailor.read_all()) == len(stored)
        assert 3 * RATE <= len(stored) <= 3.5 * RATE

    fleet.sail(scenario)


def test_a_patient_gate_refuses_nobody() -> None:
    """brokerFastFailureEnable = false: sends wait; the rate is the same."""
    settings = {**SETTINGS, "brokerSets": 1, "brokerFastFailureEnable": False}
    fleet = Fleet(3, "allack-min2", settings, topics={TOPIC: 4})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        sent = await offer(sailor, {TOPIC: 3 * RATE}, 1)
        assert {one.result.outcome for one in sent} == {Outcome.HAPPENED}
        assert 1.5 < max(one.took_s for one in sent) < 2.5

    fleet.sail(scenario)


def test_an_offline_reader_steps_back_from_a_slow_broker_and_returns() -> None:
    """Its window collapses while pulls fail or are slow, and opens again; nothing is skipped."""
    fleet = Fleet(4, "allack-min2", {"timeScale": 1.0, "requestTimeoutMillis": 500})

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters["set-1"]
        results = await sailor.send(400, every_s=0.002)
        hung = fleet.process(master)
        assert hung
        sailor.world.after(0, hung.pause)
        sailor.world.after(3 * SECOND, hung.resume)
        reader, at, read = sailor.client.offline, 0, 0
        narrowest = reader.window.size
        while read < len(results) / 4:
            with suppress(*ERRORS):
                pulled = await reader.pull(TOPIC, 0, at)
                at, read = pulled.next_offset, read + len(pulled.messages)
            narrowest = min(narrowest, reader.window.size)
        assert narrowest < 16
        assert reader.window.size > narrowest

    fleet.sail(scenario)
