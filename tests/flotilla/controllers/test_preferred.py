"""Which broker the mastership returns to, and when."""

import pytest

from clusters.flotilla.controllers.elect import BrokerStatus, Candidate
from clusters.flotilla.controllers.preferred import PreferenceWatch, may_return, preferred_broker
from clusters.systems.flotilla.driver import system
from harness.errors import UnknownName
from harness.trial import Trial

ALIVE, DEAD = BrokerStatus.ALIVE, BrokerStatus.DEAD
ADDRESSES = {1: "a:1", 2: "b:1", 3: "c:1"}
STABLE_S, PAUSE_S = 30.0, 300.0


@pytest.mark.parametrize(
    ("preferred", "in_set", "expected"),
    [
        (["a:1"], {1: (ALIVE, 90), 3: (ALIVE, 100)}, 1),
        (["a:1"], {1: (ALIVE, 89), 3: (ALIVE, 100)}, None),  # too far behind
        (["a:1"], {1: (DEAD, 100), 3: (ALIVE, 100)}, None),
        (["a:1"], {3: (ALIVE, 100)}, None),  # not in the set
        (["b:1", "a:1"], {1: (ALIVE, 100), 3: (ALIVE, 100)}, 1),  # the best one is not there
        (["c:1", "a:1"], {1: (ALIVE, 100), 3: (ALIVE, 100)}, None),  # the master is preferred
        (["x:1"], {1: (ALIVE, 100), 3: (ALIVE, 100)}, None),
    ],
)
def test_the_first_that_is_ready_is_preferred(
    preferred: list[str], in_set: dict[int, tuple[BrokerStatus, int]], expected: int | None
) -> None:
    known = {i: Candidate(i, status, 1, end) for i, (status, end) in in_set.items()}
    assert preferred_broker(preferred, ADDRESSES, known, 3, 10) == expected


def test_it_waits_until_the_broker_is_stable_and_the_pause_is_over() -> None:
    """A gap starts its time again; so does another broker, and a new leader the pause."""
    watch = PreferenceWatch(STABLE_S, PAUSE_S, may_return)
    watch.on_leading(0.0)
    assert not watch.begin_return("s", 1, 280.0)
    assert not watch.begin_return("s", 1, 300.0)  # stable for 20 s
    assert not watch.begin_return("s", None, 305.0)
    assert not watch.begin_return("s", 1, 310.0)
    assert not watch.begin_return("s", 2, 340.0)
    assert watch.begin_return("s", 2, 370.0)
    assert not watch.begin_return("s", 2, 371.0)  # under way
    watch.end_return("s", 372.0)
    assert not watch.begin_return("s", 2, 371.0 + PAUSE_S)
    assert watch.begin_return("s", 2, 372.0 + PAUSE_S)
    watch.end_return("s", 1000.0)
    watch.on_leading(1000.0)
    assert not watch.begin_return("s", 2, 1000.0)
    assert not watch.begin_return("s", 2, 1000.0 + PAUSE_S - 1)
    assert watch.begin_return("s", 2, 1000.0 + PAUSE_S)


def test_a_preferred_broker_has_to_be_there() -> None:
    with pytest.raises(UnknownName, match="preferredMaster"):
        system(Trial(profile="preferred", settings={"preferredMaster": ["broker-9"]}))
