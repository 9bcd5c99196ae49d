"""Many packets at once are treated as they would be one by one."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from clusters.hosts._world.network import SimLink, Wire


def link(cut: bool, loss: float, seed: int) -> SimLink:
    made = SimLink(Wire(), Random(seed).random)
    made.cut, made.loss = cut, loss
    return made


@given(cut=st.booleans(), loss=st.sampled_from([0.0, 0.3, 1.0]), count=st.integers(0, 300))
def test_many_packets_fare_as_one_by_one(cut: bool, loss: float, count: int) -> None:
    """With the same random numbers as many arrive, as many are counted as dropped, and the next is
    treated alike."""
    together, single = link(cut, loss, count), link(cut, loss, count)
    assert together.pass_all(count) == sum(single.passes() for _ in range(count))
    assert together.dropped == single.dropped
    assert [together.passes() for _ in range(20)] == [single.passes() for _ in range(20)]
