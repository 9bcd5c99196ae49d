"""Limits, queues that fail fast, degradation and the offline window (spec 10.5, 10.7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.capacity.concurrency import has_place
from clusters.flotilla.capacity.fast_fail_queue import FastFailQueue
from clusters.flotilla.capacity.leaky_bucket import LeakyBucket
from clusters.flotilla.capacity.qos import Qos, class_of
from clusters.flotilla.capacity.window import Window
from clusters.flotilla.config import ConfigError, loads

SOUND = 'role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "s"\n'
classes = st.sampled_from(list(Qos))
gaps_s = st.floats(0, 0.05, allow_subnormal=False)


@given(st.lists(gaps_s, max_size=80))
def test_a_leaky_bucket_drains_at_its_rate(gaps: list[float]) -> None:
    """However it is poured: never more than the rate's worth and what a late timer makes up for."""
    bucket, now, left = LeakyBucket(per_s=100), 0.0, 0
    for gap_s in gaps:
        now += gap_s
        while not bucket.wait_s(now):
            bucket.drop(now)
            left += 1
    assert left <= now * 100 + 0.01 * 100 + 1


def test_a_pause_is_no_burst() -> None:
    bucket = LeakyBucket(per_s=1000)
    bucket.drop(0.0)
    now, left = 60.0, 0
    while not bucket.wait_s(now):
        bucket.drop(now)
        left += 1
    assert left == 11  # of ten milliseconds, and the one whose turn it is


def filled(*rows: Qos, most: int = 100, patience_s: float = 10.0) -> FastFailQueue[str]:
    queue = FastFailQueue[str](most, per_s=10, patience_s=patience_s)
    for number, qos in enumerate(rows):
        assert queue.offer(f"{qos.name}-{number}", qos, 0.0, 0.0) == []
    return queue


def drained(queue: FastFailQueue[str]) -> list[str]:
    return [one for _ in range(len(queue)) if (one := queue.pop())]


def test_dear_classes_go_first_and_each_in_its_order() -> None:
    queue = filled(Qos.LOW, Qos.CORE, Qos.NORMAL, Qos.LOW, Qos.CORE)
    assert drained(queue) == ["CORE-1", "CORE-4", "NORMAL-2", "LOW-0", "LOW-3"]


def test_who_would_wait_too_long_is_refused_at_once() -> None:
    """A slow request is one whose waiting plus service time passes the threshold."""
    queue = filled(*[Qos.NORMAL] * 5, patience_s=0.5)
    assert queue.offer("sixth", Qos.NORMAL, 0.01, 0.0) == ["sixth"]
    assert queue.offer("sixth", Qos.NORMAL, 0.0, 0.0) == []
    assert queue.offer("core", Qos.CORE, 0.4, 0.0) == [], "what is behind it does not count"
    assert queue.offer("slow", Qos.CORE, 0.41, 0.0) == ["slow"], "waiting and service together"


def test_who_has_waited_too_long_is_cleaned_out() -> None:
    """The original's scan: [TIMEOUT_CLEAN_QUEUE] after waitTimeMillsInSendQueue."""
    queue = filled(Qos.LOW, patience_s=0.2)
    queue.offer("later", Qos.LOW, 0.0, 0.1)
    assert queue.overdue(0.2) == []
    assert queue.overdue(0.25) == ["LOW-0"]
    assert drained(queue) == ["later"]


def test_a_full_queue_sheds_its_cheapest() -> None:
    queue = filled(Qos.LOW, Qos.NORMAL, Qos.LOW, most=3)
    assert queue.offer("dear", Qos.CORE, 0.0, 0.0) == ["LOW-2"]
    assert queue.offer("cheap", Qos.LOW, 0.0, 0.0) == ["cheap"]
    assert queue.offer("dear too", Qos.CORE, 0.0, 0.0) == ["LOW-0"]
    assert drained(queue) == ["dear", "dear too", "NORMAL-1"]


@given(st.lists(st.tuples(st.sampled_from(["offer", "pop", "scan"]), classes, gaps_s)))
def test_everybody_is_served_or_refused_exactly_once(
    steps: list[tuple[str, Qos, float]],
) -> None:
    """And a dear one is never refused for a cheap one when the queue is full."""
    queue, now, offered, gone = FastFailQueue[int](4, 10, 0.3), 0.0, 0, list[int]()
    rows: dict[int, Qos] = {}
    for what, qos, gap_s in steps:
        now += gap_s
        if what == "offer":
            rows[offered] = qos
            refused = queue.offer(offered, qos, 0.0, now)
            assert all(rows[one] >= qos for one in refused)
            gone += refused
            offered += 1
        elif what == "pop":
            one = queue.pop()
            gone += [] if one is None else [one]
        else:
            gone += queue.overdue(now)
        assert len(queue) <= 4
    while (one := queue.pop()) is not None:
        gone.append(one)
    assert sorted(gone) == list(range(offered))


@given(st.integers(0, 30_000), st.integers(1, 20_000))
def test_the_cheap_run_out_of_places_first(under_way: int, most: int) -> None:
    """Where low may begin, normal may; where normal may, core may; nobody's share is unbounded."""
    core, normal, low = (has_place(under_way, most, qos) for qos in Qos)
    assert core or not normal
    assert normal or not low
    assert normal == (under_way < most)
    assert not has_place(most * 2, most, Qos.CORE)


def test_topics_are_normal_unless_somebody_says_otherwise() -> None:
    config = loads(SOUND + 'topicQos = { pay = "core", trace = "low" }')
    chosen = [class_of(topic, config.topic_qos) for topic in ("pay", "other", "trace")]
    assert chosen == [Qos.CORE, Qos.NORMAL, Qos.LOW]


def test_an_unknown_class_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="topicQos: pay must be one of core, normal, low"):
        loads(SOUND + 'topicQos = { pay = "gold" }')


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans())))
def test_an_offline_window_stays_within_its_bounds(pulls: list[tuple[float, bool]]) -> None:
    """It collapses when pulls are slow or fail, opens when they are quick, and never closes."""
    window = Window(most=32, slow_s=0.1, pause_most_s=2.0)
    for took_s, failed in pulls:
        after = window.after(took_s, failed)
        bad = failed or took_s > 0.1
        assert after.size <= window.size if bad else after.size >= window.size
        assert after.pause_s >= window.pause_s if bad else after.pause_s <= window.pause_s
        window = after
        assert 1 <= window.size <= 32
        assert 0 <= window.pause_s <= 2.0


def test_an_offline_window_goes_faster_than_it_comes_back() -> None:
    window = Window(most=32, slow_s=0.1, pause_most_s=2.0)
    for _ in range(5):
        window = window.after(1.0)
    assert window.size == 8
    steps = 0
    while window.share < 1.0:
        window, steps = window.after(0.01), steps + 1
    assert steps > 10
