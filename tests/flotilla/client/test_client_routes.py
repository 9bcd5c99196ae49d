"""The route table: which answer of which nameserver is believed."""

from typing import Any

import pytest

from clusters.flotilla.client.route_cache import QueueLocation, RouteSnapshot


def answer(version: int, master: str | None, queues: int = 2) -> dict[str, Any]:
    """A nameserver's answer about one broker set, `set-1`, and one topic on it."""
    addrs = {"2": "b:1"} | ({"0": master} if master else {})
    return {
        "code": 0,
        "topics": {"orders": [{"brokerName": "set-1", "queues": queues}]},
        "brokers": {"set-1": {"cluster": "c", "addrs": addrs, "stateVersion": version}},
    }


def test_an_old_story_is_not_believed() -> None:
    """stateVersion is the master's epoch: a lower one is from before the election."""
    table = RouteSnapshot().updated(answer(3, "new:1")).updated(answer(2, "old:1"))
    assert table.masters == {"set-1": "new:1"}


def test_a_newer_master_replaces_the_older() -> None:
    table = RouteSnapshot().updated(answer(2, "old:1")).updated(answer(3, "new:1"))
    assert table.masters == {"set-1": "new:1"}


def test_a_master_that_left_the_route_is_gone() -> None:
    """The nameserver saw the master end: there is none until another registers."""
    table = RouteSnapshot().updated(answer(2, "a:1")).updated(answer(2, None))
    assert table.places() == {}


def test_what_a_nameserver_does_not_speak_of_stays_as_it_was() -> None:
    """It has just started, or is cut off from the brokers: that is no news of them."""
    empty = {"code": 0, "topics": {}, "brokers": {}}
    table = RouteSnapshot().updated(answer(2, "a:1")).updated(empty)
    assert (table.masters, table.slaves) == ({"set-1": "a:1"}, {"set-1": {2: "b:1"}})
    assert not table.complete
    assert not RouteSnapshot().updated(empty).complete
    assert table.updated(answer(3, None)).places() == {}


def test_an_answer_is_complete_if_it_tells_a_master_of_every_set_and_none_from_before() -> None:
    """Whoever is cut off from a master alone tells of the set without it, or of its former one."""
    assert RouteSnapshot().updated(answer(2, "a:1")).complete
    assert not RouteSnapshot().updated(answer(2, None)).complete
    assert not RouteSnapshot().updated(answer(3, "b:1")).updated(answer(2, "a:1")).complete


def test_of_two_answers_in_one_round_the_one_with_a_master_counts() -> None:
    """Whichever came first; but an election that only one of them has heard of is no opinion."""
    told = RouteSnapshot().updated(answer(2, "a:1"))
    assert told.confirmed == {"set-1"}
    assert told.updated(answer(2, None), told.confirmed).masters == {"set-1": "a:1"}
    assert told.updated(answer(3, None), told.confirmed).masters == {}
    headless = RouteSnapshot().updated(answer(2, None))
    assert headless.updated(answer(2, "a:1"), headless.confirmed).masters == {"set-1": "a:1"}


def test_the_same_topics_of_another_nameserver_are_not_computed_again() -> None:
    """There may be many. They mean the same only if they are told of the same broker sets."""
    told = RouteSnapshot().updated(answer(2, "a:1"))
    assert told.updated(answer(3, "b:1")).topics is told.topics
    wider = answer(3, "b:1")
    wider["brokers"]["set-2"] = {"addrs": {"0": "c:1"}, "stateVersion": 1}
    wider["topics"]["orders"].append({"brokerName": "set-2", "queues": 2})
    both = (
        RouteSnapshot().updated(wider).updated(answer(3, "b:1"))
    )  # set-2 is not spoken of, and stays
    assert both.topics == {"orders": (("set-1", 2), ("set-2", 2))}
    gone = answer(3, "b:1")
    gone["brokers"]["set-2"] = wider["brokers"]["set-2"]
    assert both.updated(gone).topics == {"orders": (("set-1", 2),)}


def test_queues_keep_their_numbers_when_a_broker_set_is_not_spoken_of() -> None:
    """Or a message for queue 3 would land in another one, on another set."""
    second = {"brokerName": "set-2", "queues": 2}
    row = {"set-2": {"addrs": {"0": "c:1"}, "stateVersion": 1}}
    both = answer(2, "a:1")
    both["topics"]["orders"].append(second)
    both["brokers"] |= row
    table = RouteSnapshot().updated(both)
    later = table.updated({"topics": {"orders": [second]}, "brokers": row})
    assert later.places() == table.places()
    assert not later.complete


def test_a_topic_outlives_its_master() -> None:
    """Queues keep their numbers while they have no master."""
    table = (
        RouteSnapshot().updated(answer(2, "a:1")).updated(answer(2, None)).updated(answer(3, "b:1"))
    )
    assert table.places()["orders", 1] == QueueLocation("set-1", "b:1", 1, 1)


def test_queues_are_numbered_through_the_broker_sets_by_name() -> None:
    reply = {
        "topics": {
            "t": [{"brokerName": "set-2", "queues": 2}, {"brokerName": "set-1", "queues": 1}]
        },
        "brokers": {
            "set-1": {"addrs": {"0": "a:1"}, "stateVersion": 1},
            "set-2": {"addrs": {"0": "b:1"}, "stateVersion": 1},
        },
    }
    assert RouteSnapshot().updated(reply).places() == {
        ("t", 0): QueueLocation("set-1", "a:1", 0, 0),
        ("t", 1): QueueLocation("set-2", "b:1", 0, 1),
        ("t", 2): QueueLocation("set-2", "b:1", 1, 2),
    }


@pytest.mark.parametrize("reply", [{}, {"brokers": {"s": {}}, "topics": {}}, {"brokers": 3}])
def test_nonsense_raises_what_the_caller_catches(reply: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        RouteSnapshot().updated(reply)


def near(version: int, master: str, *left_out: str) -> dict[str, Any]:
    return {**answer(version, master), "leftOut": list(left_out)}


def test_a_set_that_is_left_out_has_no_master_here() -> None:
    """Until an answer mentions it again; its version is kept."""
    far = answer(7, "far:1")
    far = {**far, "brokers": {"set-2": far["brokers"]["set-1"]}}
    table = RouteSnapshot().updated(far).updated(near(3, "a:1", "set-2"))
    assert (table.masters, table.complete) == ({"set-1": "a:1"}, True)
    assert table.versions["set-2"] == 7
    assert table.updated(far).masters == {"set-1": "a:1", "set-2": "far:1"}


def test_a_set_that_is_left_out_counts_in_the_numbers_of_queues() -> None:
    """Once, as the topic's rows list it."""
    both = [{"brokerName": name, "queues": 2} for name in ("set-1", "set-2")]
    far = {**answer(7, "far:1"), "topics": {"orders": both}}
    sets = {"set-1": far["brokers"]["set-1"], "set-2": answer(3, "a:1")["brokers"]["set-1"]}
    table = RouteSnapshot().updated({**far, "brokers": sets})
    for _ in range(2):
        only = {"set-2": sets["set-2"]}
        table = table.updated({**far, "brokers": only, "leftOut": ["set-1"]})
        assert [place.number for place in table.places().values()] == [2, 3]


def test_an_outdated_answer_leaves_nothing_out() -> None:
    """Its nameserver may not know that the near master was replaced by one elsewhere."""
    far = answer(7, "far:1")
    far = {**far, "brokers": {"set-2": far["brokers"]["set-1"]}}
    table = RouteSnapshot().updated(far).updated(answer(4, "b:1")).updated(near(3, "a:1", "set-2"))
    assert table.masters == {"set-1": "b:1", "set-2": "far:1"}
