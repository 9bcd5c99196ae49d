"""The circuit breaker: closed, open, half-open (spec 10.7)."""

from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.capacity.breaker import Breaker, Fuse, State

FUSE = Fuse(failures=3, silence_s=0.05, open_s=2.0)


def opened(at: float = 0.0) -> Breaker:
    it = Breaker(FUSE)
    for _ in range(3):
        it.called(at)
        it.failed(at)
    return it


def test_failures_in_a_row_open_it() -> None:
    it = Breaker(FUSE)
    for answered in (False, False, True, False, False):
        it.called(0)
        (it.answered if answered else it.failed)(0)
        assert it.state(0) is State.CLOSED
    it.called(0)
    it.failed(0)
    assert it.state(0) is State.OPEN
    assert not it.allows(0)


def test_silence_while_answers_are_due_opens_it() -> None:
    """A hung broker is noticed in milliseconds, long before its calls time out."""
    it = Breaker(FUSE)
    it.called(1.0)
    it.called(1.03)
    assert it.allows(1.04)
    it.answered(1.04)
    assert it.allows(1.08)
    assert not it.allows(1.1)


def test_silence_without_a_question_is_no_fault() -> None:
    it = Breaker(FUSE)
    it.called(1.0)
    it.answered(1.01)
    assert it.allows(100.0)
    it.called(100.0)
    assert it.allows(100.01)


def test_half_open_lets_one_call_through() -> None:
    """Its success closes the breaker, its failure opens it for as long again."""
    it = opened()
    assert it.state(1.9) is State.OPEN
    assert it.state(2.0) is State.HALF_OPEN
    it.called(2.0)
    assert not it.allows(2.0)
    it.failed(2.5)
    assert it.state(4.4) is State.OPEN
    it.called(4.5)
    it.answered(4.6)
    assert it.state(4.6) is State.CLOSED


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["call", "answer", "fail"]))))
def test_it_never_closes_without_an_answer(steps: list[tuple[float, str]]) -> None:
    """And never stays open for ever: after its time it asks."""
    it, now, in_flight, was_open = Breaker(FUSE), 0.0, 0, False
    for wait_s, what in steps:
        now += wait_s
        was_open = it.state(now) is not State.CLOSED
        if what == "call" and it.allows(now):
            it.called(now)
            in_flight += 1
        elif in_flight and what != "call":
            in_flight -= 1
            (it.answered if what == "answer" else it.failed)(now)
            if what == "answer":
                assert it.state(now) is State.CLOSED
                continue
        if was_open:
            assert it.state(now) is not State.CLOSED
    while in_flight:
        in_flight -= 1
        it.failed(now)
    assert it.allows(now + FUSE.open_s + 0.001)


def test_each_time_that_it_opens_is_counted() -> None:
    """Once for failures in a row, once for a silence; a call that fails while it is open does not
    count."""
    it = opened()
    assert it.openings == 1
    it.called(2.5)
    it.failed(2.5)
    assert (it.openings, it.state(2.6)) == (1, State.OPEN)
    it.called(5.0)
    it.answered(5.0)
    it.called(6.0)
    assert it.state(6.1) is State.OPEN
    assert it.openings == 2
