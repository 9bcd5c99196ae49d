"""A body says its value and nothing else can pass for it."""

from hypothesis import assume, given
from hypothesis import strategies as st

from harness.operation import NONE
from harness.workloads._body import MIN_BYTES, body_of, claimed_value, value_in

values = st.integers(0, 2**63 - 1)
sizes = st.integers(MIN_BYTES, 300) | st.sampled_from([4096, 4097, 10_000])


@given(values, sizes)
def test_a_body_carries_its_value(value: int, size: int) -> None:
    body = body_of(value, size)
    assert len(body) == size
    assert value_in(body) == value


@given(values, sizes, st.data())
def test_a_flipped_bit_is_seen(value: int, size: int, data: st.DataObject) -> None:
    body = bytearray(body_of(value, size))
    body[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert value_in(bytes(body)) == NONE


@given(values, sizes, st.data())
def test_a_torn_body_is_seen(value: int, size: int, data: st.DataObject) -> None:
    """Cut short, or zeros from some point on: a torn write."""
    body = body_of(value, size)
    at = data.draw(st.integers(0, size - 1))
    assert value_in(body[:at]) == NONE
    zeroed = body[:at] + bytes(size - at)
    assume(zeroed != body)
    assert value_in(zeroed) == NONE


@given(values, values, sizes, st.data())
def test_a_mixture_of_two_messages_is_seen(
    one: int, other: int, size: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, size - 1))
    mixed = body_of(one, size)[:at] + body_of(other, size)[at:]
    assume(mixed not in (body_of(one, size), body_of(other, size)))
    assert value_in(mixed) == NONE


def test_what_a_damaged_body_claims_is_still_told() -> None:
    assert claimed_value(body_of(77, 64)[:20]) == 77
    assert claimed_value(b"short") == NONE
