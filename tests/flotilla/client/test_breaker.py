"""The circuit breaker: closed, open, half-open."""

from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.client.breaker import Breaker, BreakerLimits, BreakerState

FUSE = BreakerLimits(failures=3, silence_s=0.05, open_s=2.0)


def opened(at: float = 0.0) -> Breaker:
    it = Breaker(FUSE)
    for _ in range(3):
        it.record_call(at)
        it.record_failure(at)
    return it


def test_failures_in_a_row_open_it() -> None:
    it = Breaker(FUSE)
    for answered in (False, False, True, False, False):
        it.record_call(0)
        (it.record_answer if answered else it.record_failure)(0)
        assert it.state(0) is BreakerState.CLOSED
    it.record_call(0)
    it.record_failure(0)
    assert it.state(0) is BreakerState.OPEN
    assert not it.allows(0)


def test_silence_while_answers_are_due_opens_it() -> None:
    """A hung broker is noticed in milliseconds, long before its calls time out."""
    it = Breaker(FUSE)
    it.record_call(1.0)
    it.record_call(1.03)
    assert it.allows(1.04)
    it.record_answer(1.04)
    assert it.allows(1.08)
    assert not it.allows(1.1)


def test_silence_without_a_question_is_no_fault() -> None:
    it = Breaker(FUSE)
    it.record_call(1.0)
    it.record_answer(1.01)
    assert it.allows(100.0)
    it.record_call(100.0)
    assert it.allows(100.01)


def test_half_open_lets_one_call_through() -> None:
    """Its success closes the breaker, its failure opens it for as long again."""
    it = opened()
    assert it.state(1.9) is BreakerState.OPEN
    assert it.state(2.0) is BreakerState.HALF_OPEN
    it.record_call(2.0)
    assert not it.allows(2.0)
    it.record_failure(2.5)
    assert it.state(4.4) is BreakerState.OPEN
    it.record_call(4.5)
    it.record_answer(4.6)
    assert it.state(4.6) is BreakerState.CLOSED


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["call", "answer", "fail"]))))
def test_it_never_closes_without_an_answer(steps: list[tuple[float, str]]) -> None:
    """An open breaker becomes half-open after its time."""
    it, now, in_flight, was_open = Breaker(FUSE), 0.0, 0, False
    for wait_s, what in steps:
        now += wait_s
        was_open = it.state(now) is not BreakerState.CLOSED
        if what == "call" and it.allows(now):
            it.record_call(now)
            in_flight += 1
        elif in_flight and what != "call":
            in_flight -= 1
            (it.record_answer if what == "answer" else it.record_failure)(now)
            if what == "answer":
                assert it.state(now) is BreakerState.CLOSED
                continue
        if was_open:
            assert it.state(now) is not BreakerState.CLOSED
    while in_flight:
        in_flight -= 1
        it.record_failure(now)
    assert it.allows(now + FUSE.open_s + 0.001)


def test_each_time_that_it_opens_is_counted() -> None:
    """Once for failures in a row, once for a silence; a call that fails while it is open does not
    count."""
    it = opened()
    assert it.openings == 1
    it.record_call(2.5)
    it.record_failure(2.5)
    assert (it.openings, it.state(2.6)) == (1, BreakerState.OPEN)
    it.record_call(5.0)
    it.record_answer(5.0)
    it.record_call(6.0)
    assert it.state(6.1) is BreakerState.OPEN
    assert it.openings == 2
