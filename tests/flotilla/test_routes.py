"""The nameserver's table (spec 10.1)."""

import pytest

from clusters.flotilla.routes import Registration, RouteTable, Stale, displaces


def broker(broker_id: int, addr: str, version: int = 1, name: str = "b") -> Registration:
    return Registration("f", name, broker_id, addr, f"ha-{addr}", version, 10, {"t": 4})


def addresses(table: RouteTable, name: str = "b") -> dict[str, str]:
    found: dict[str, str] = table.route(None)["brokers"].get(name, {}).get("addrs", {})
    return found


def test_a_topic_leads_to_its_brokers() -> None:
    """Spec 2: topic to queues, broker name to addresses by id."""
    table = RouteTable(displaces)
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
    """Spec 12, bug 15: an old master that nobody told must not take the route back."""
    table = RouteTable(displaces)
    table.register(broker(0, "old", 1), "c1", 0)
    table.register(broker(0, "new", 2), "c2", 0)
    assert addresses(table) == {"0": "new"}
    with pytest.raises(Stale):
        table.register(broker(0, "old", 1), "c1", 1)
    assert addresses(table) == {"0": "new"}


def test_the_old_master_does_not_return_while_the_new_one_is_away() -> None:
    """Bug 15 in slow motion: the greatest epoch is remembered with the set."""
    table = RouteTable(displaces)
    table.register(broker(2, "s"), "c3", 0)
    table.register(broker(0, "new", 2), "c2", 0)
    assert table.unregister("b", 0, "new")
    with pytest.raises(Stale):
        table.register(broker(0, "old", 1), "c1", 1)
    assert addresses(table) == {"2": "s"}


def test_a_set_without_brokers_is_forgotten() -> None:
    """Its controllers may have been wiped, and count epochs from 1 again."""
    table = RouteTable(displaces)
    table.register(broker(0, "m", 7), "c1", 0)
    table.unregister("b", 0, "m")
    table.register(broker(0, "m", 1), "c1", 0)
    assert addresses(table) == {"0": "m"}


def test_a_broker_that_changes_its_role_changes_its_place() -> None:
    """Spec 10.1: another id with the same address is removed."""
    table = RouteTable(displaces)
    table.register(broker(2, "a", 1), "c1", 0)
    table.register(broker(0, "a", 2), "c1", 0)
    assert addresses(table) == {"0": "a"}
    table.register(broker(2, "a", 3), "c1", 0)
    assert addresses(table) == {"2": "a"}


def test_a_late_farewell_does_not_remove_the_successor() -> None:
    """Who leaves is named with its address."""
    table = RouteTable(displaces)
    table.register(broker(0, "new", 2), "c2", 0)
    assert not table.unregister("b", 0, "old")
    assert addresses(table) == {"0": "new"}


def test_the_silent_expire_and_signs_of_life_count() -> None:
    """Spec 10.1: by the timeout sent at registration."""
    table = RouteTable(displaces)
    table.register(broker(0, "m"), "c1", 0)
    table.register(broker(2, "s"), "c2", 0)
    table.heard("c1", 6)
    assert [r.addr for r in table.expired(10.1)] == ["s"]
    assert [r.addr for r in table.registered_by("c2")] == ["s"]


def test_only_the_master_speaks_for_the_topics() -> None:
    """Spec 10.1: a slave's topics count only while there is nobody better."""
    table = RouteTable(displaces)
    table.register(broker(2, "s"), "c2", 0)
    assert table.route(None)["topics"]["t"][0]["queues"] == 4
    table.register(Registration("f", "b", 0, "m", "h", 1, 10, {"t": 8}), "c1", 0)
    table.register(broker(2, "s"), "c2", 0)
    assert table.route(None)["topics"]["t"][0]["queues"] == 8
