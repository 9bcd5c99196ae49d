"""The nameserver's route table."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.client.route_cache import RouteSnapshot
from clusters.flotilla.nameserver.route_table import (
    LightHeartbeat,
    Registration,
    RouteTable,
    StaleRegistration,
    displaces,
    is_deaf,
)

LEGACY_S = 120


def empty() -> RouteTable:
    return RouteTable(displaces, is_deaf, LEGACY_S)


def broker(
    broker_id: int, addr: str, version: int = 1, name: str = "b", life: int = 1, beat: int = 1
) -> Registration:
    topics = {"t": 4}
    return Registration("f", name, broker_id, addr, f"ha-{addr}", version, 10, topics, life, beat)


def sign(broker_id: int, addr: str, beat: int, name: str = "b", life: int = 1) -> LightHeartbeat:
    return LightHeartbeat(name, broker_id, addr, life, beat)


def addresses(table: RouteTable, name: str = "b") -> dict[str, str]:
    found: dict[str, str] = table.route(None)["brokers"].get(name, {}).get("addrs", {})
    return found


def test_a_topic_leads_to_its_brokers() -> None:
    """The table maps topics to queues and broker names to addresses by id."""
    table = empty()
    table.register(broker(0, "m"), "c1", 0)
    table.register(broker(0, "other", name="z"), "c2", 0)
    master = table.register(broker(2, "s"), "c3", 0)
    assert master
    assert (master.addr, master.ha_addr) == ("m", "ha-m")
    route = table.route("t")
    assert route["topics"] == {
        "t": [{"brokerName": "b", "queues": 4}, {"brokerName": "z", "queues": 4}]
    }
    assert route["brokers"]["b"] == {
        "cluster": "f",
        "addrs": {"0": "m", "2": "s"},
        "stateVersion": 1,
    }
    assert table.route("nothing") == {"topics": {}, "brokers": {}}


def test_the_master_of_the_greater_epoch_wins_whoever_comes_last() -> None:
    """An old master that has not learned of the election must not take the route back
    (apache/rocketmq#6316)."""
    table = empty()
    table.register(broker(0, "old", 1), "c1", 0)
    table.register(broker(0, "new", 2), "c2", 0)
    assert addresses(table) == {"0": "new"}
    with pytest.raises(StaleRegistration):
        table.register(broker(0, "old", 1), "c1", 1)
    assert addresses(table) == {"0": "new"}


def test_the_old_master_does_not_return_while_the_new_one_is_away() -> None:
    """Bug 15 in slow motion: the greatest epoch is remembered with the set."""
    table = empty()
    table.register(broker(2, "s"), "c3", 0)
    table.register(broker(0, "new", 2), "c2", 0)
    assert table.unregister("b", 0, "new")
    with pytest.raises(StaleRegistration):
        table.register(broker(0, "old", 1), "c1", 1)
    assert addresses(table) == {"2": "s"}


def test_the_old_master_does_not_return_when_the_whole_set_is_away() -> None:
    """Cut off from its controllers it goes on registering; writes to it can only be refused or
    lost. The next master is accepted."""
    table = empty()
    table.register(broker(0, "new", 7), "c1", 0)
    table.unregister("b", 0, "new")
    with pytest.raises(StaleRegistration, match="restart this nameserver"):
        table.register(broker(0, "old", 6), "c2", 1)
    assert table.route("t") == {"topics": {}, "brokers": {}}
    table.register(broker(0, "next", 8), "c3", 2)
    assert addresses(table) == {"0": "next"}


def test_who_is_refused_changes_no_topics() -> None:
    """Or each registration of an old master made all clients fetch all topics again."""
    table = empty()
    table.register(broker(0, "new", 7), "c1", 0)
    table.unregister("b", 0, "new")
    before = table.topics_version
    with pytest.raises(StaleRegistration):
        table.register(broker(0, "old", 6), "c2", 1)
    assert table.topics_version == before
    table.register(broker(0, "next", 8), "c3", 2)
    assert table.topics_version > before


def test_a_set_that_comes_back_without_its_master_has_none() -> None:
    """Its version is the one that it had: an older one would be an old story to clients, and they
    would go on sending to the master that is dead (client/routes)."""
    table = empty()
    table.register(broker(0, "m", 7), "c1", 0)
    client = RouteSnapshot().updated(table.route(None))
    assert client.masters == {"b": "m"}
    table.unregister("b", 0, "m")
    table.register(broker(2, "s", 7), "c2", 1)
    assert table.version("b") == 7
    assert addresses(table) == {"2": "s"}
    assert client.updated(table.route(None)).masters == {}


def test_slaves_of_a_set_that_is_new_here_speak_for_no_master() -> None:
    """Version 0 is older than any epoch: a nameserver that has restarted takes no master from
    clients that know one (client/routes)."""
    known, table = empty(), empty()
    known.register(broker(0, "m", 7), "c1", 0)
    client = RouteSnapshot().updated(known.route(None))
    table.register(broker(2, "s", 7), "c2", 1)
    assert table.version("b") == 0
    assert client.updated(table.route(None)).masters == {"b": "m"}


def test_slaves_register_with_the_newest_epoch() -> None:
    """A nameserver that has restarted gets the slaves' registrations first, then that of an old
    master that has not learned of the election."""
    table = empty()
    table.register(broker(2, "s", 7), "c1", 0)
    with pytest.raises(StaleRegistration, match="epoch 7"):
        table.register(broker(0, "old", 6), "c2", 1)
    assert addresses(table) == {"2": "s"}
    table.register(broker(3, "late", 5), "c3", 2)  # it does not know the latest epochs
    table.register(broker(0, "new", 7), "c4", 3)
    assert addresses(table) == {"0": "new", "2": "s", "3": "late"}
    table.register(broker(2, "s", 8), "c1", 4)
    assert addresses(table)["0"] == "new", "which may have been elected again"
    assert table.version("b") == 7


def test_a_broker_that_changes_its_role_changes_its_place() -> None:
    """Another id with the same address is removed."""
    table = empty()
    table.register(broker(2, "a", 1), "c1", 0)
    table.register(broker(0, "a", 2), "c1", 0)
    assert addresses(table) == {"0": "a"}
    table.register(broker(2, "a", 3), "c1", 0)
    assert addresses(table) == {"2": "a"}


def test_a_late_farewell_does_not_remove_the_successor() -> None:
    """Who leaves is named with its address."""
    table = empty()
    table.register(broker(0, "new", 2), "c2", 0)
    assert not table.unregister("b", 0, "old")
    assert addresses(table) == {"0": "new"}


def test_the_silent_expire_and_signs_of_life_count() -> None:
    """A broker expires after the timeout that it sent with its registration."""
    table = empty()
    table.register(broker(0, "m"), "c1", 0)
    table.register(broker(2, "s"), "c2", 0)
    assert table.record_heartbeat(sign(0, "m", 2), "c3", 6)
    assert [r.addr for r in table.expired(10.1)] == ["s"]
    assert [r.addr for r in table.registered_by("c2")] == ["s"]
    assert [r.addr for r in table.registered_by("c3")] == ["m"]


def test_who_is_not_known_is_told_so() -> None:
    """A nameserver that started again, or has another role in mind, is registered with at once."""
    table = empty()
    assert not table.record_heartbeat(sign(0, "m", 1), "c1", 0)
    table.register(broker(2, "m", beat=2), "c1", 0)
    assert not table.record_heartbeat(sign(0, "m", 3), "c1", 0)
    assert table.record_heartbeat(sign(2, "m", 4), "c1", 0)


def test_what_was_sent_before_is_not_news() -> None:
    """Frames of a connection that its process has given up come late; the newest is the truth."""
    table = empty()
    table.register(broker(0, "a", 1, beat=5), "new", 0)
    with pytest.raises(StaleRegistration):
        table.register(broker(2, "a", 1, beat=4), "old", 1)
    assert table.record_heartbeat(sign(0, "a", 3), "old", 9)
    assert addresses(table) == {"0": "a"}
    assert [r.addr for r in table.registered_by("new")] == ["a"]
    table.unregister("b", 0, "a")
    with pytest.raises(StaleRegistration):
        table.register(broker(0, "a", 1, beat=4), "old", 1)
    assert addresses(table) == {}


def test_another_life_counts_from_one() -> None:
    """A broker that started again is not late because its former life counted further."""
    table = empty()
    table.register(broker(0, "a", 1, life=7, beat=900), "c1", 0)
    table.register(broker(2, "a", 1, life=8, beat=1), "c2", 1)
    assert addresses(table) == {"2": "a"}


def fleet(count: int) -> RouteTable:
    """Broker sets s0, s1 ... of one broker each, all heard at 0."""
    table = empty()
    for i in range(count):
        table.register(broker(0, f"m{i}", name=f"s{i}"), f"c{i}", 0)
    return table


def all_heard(table: RouteTable, numbers: range, at: float) -> None:
    for i in numbers:
        table.record_heartbeat(sign(0, f"m{i}", int(10 * at), f"s{i}"), f"c{i}", at)


def test_who_falls_silent_among_the_living_is_isolated() -> None:
    """The article: a silent broker is removed in seconds. Half of them may go at once."""
    table = fleet(4)
    all_heard(table, range(2, 4), 9)
    assert [r.name for r in table.expired(10.1)] == ["s0", "s1"]


def test_when_nearly_all_fall_silent_nobody_is_removed() -> None:
    """The article: a jitter of the nameserver's own network must not empty the table. Those who
    were quiet for a moment less count as well."""
    table = fleet(4)
    all_heard(table, range(3, 4), 9)
    assert table.expired(10.1) == []
    table = fleet(4)
    all_heard(table, range(1, 4), 2)
    assert table.expired(10.1) == []


def test_silence_of_all_counts_in_the_end() -> None:
    """The legacy time holds, however many are silent."""
    table = fleet(4)
    assert table.expired(LEGACY_S - 1) == []
    assert len(table.expired(LEGACY_S + 1)) == 4


def test_after_a_jitter_everybody_has_its_time_again() -> None:
    """The dead among the silent go, the slow to return do not."""
    table = fleet(4)
    assert table.expired(30) == []
    all_heard(table, range(2), 31)
    assert table.expired(32) == []  # half is heard again; the other half may be on its way
    all_heard(table, range(3), 39)
    assert table.expired(39.9) == []
    assert [r.name for r in table.expired(40.1)] == ["s3"]


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(1, 120))))
def test_deafness_is_a_majority_of_the_quiet(silences: list[tuple[float, float]]) -> None:
    """Nobody silent: not deaf. One more voice never makes it deaf."""
    if is_deaf([*silences, (0.0, 10.0)]):
        assert is_deaf(silences)
    assert not is_deaf([(0.0, most) for _, most in silences])


def test_only_the_master_speaks_for_the_topics() -> None:
    """A slave's topics count only while there is no master and no slave of a lower id."""
    table = empty()
    table.register(broker(2, "s"), "c2", 0)
    assert table.route(None)["topics"]["t"][0]["queues"] == 4
    table.register(Registration("f", "b", 0, "m", "h", 1, 10, {"t": 8}), "c1", 0)
    table.register(broker(2, "s"), "c2", 0)
    assert table.route(None)["topics"]["t"][0]["queues"] == 8


def test_the_member_group_is_who_is_there() -> None:
    """Ids and addresses, the lowest first, with the master's version."""
    table = empty()
    table.register(broker(3, "s"), "c1", 0)
    table.register(broker(0, "m", 4), "c2", 0)
    assert list(table.members("b").items()) == [(0, "m"), (3, "s")]
    assert table.version("b") == 4
    assert table.members("nobody") == {}


@pytest.mark.parametrize(
    ("zones", "client", "shown"),
    [
        ({"x": "a", "y": "b"}, "a", {"x"}),
        ({"x": "a", "y": "b", "z": None}, "a", {"x", "z"}),  # slaves of z may serve
        ({"x": "a", "y": ""}, "a", {"x", "y"}),  # an older broker registers without its zone
        ({"x": "b", "y": "b"}, "a", {"x", "y"}),
        ({"x": None, "y": "b"}, "a", {"x", "y"}),
        ({"x": "a", "y": "b"}, "", {"x", "y"}),  # a client that asks for no zone
    ],
)
def test_a_client_gets_the_sets_near_it(
    zones: dict[str, str | None], client: str, shown: set[str]
) -> None:
    """And all sets if none has its master in the client's zone. The slaves' zones do not count,
    whichever broker registers last."""
    table = empty()
    for name, zone in zones.items():
        if zone is not None:
            table.register(replace(broker(0, f"m-{name}", name=name), zone=zone), "c", 0)
        table.register(replace(broker(2, f"s-{name}", name=name), zone="a"), "c", 0)
    route = table.route("t", zone=client)
    assert set(route["brokers"]) == shown
    assert len(route["topics"]["t"]) == len(zones), "the numbers of queues are the same for all"
    assert route.get("leftOut", []) == sorted(zones.keys() - shown)
