"""Which key lives in which broker set, as names.json tells it."""

import pytest

from checkers._run.run_facts import broker_sets
from checkers._run.timeline import NO_SET
from harness.contracts import Node
from harness.history.faults_and_events import ClusterEvent
from harness.run.broker_sets import (
    BrokerSetData,
    broker_sets_entry,
    broker_sets_in,
    data_nodes,
    replica_groups,
    voting_nodes,
)

A, B = (
    BrokerSetData(("broker-1",), 1, ("orders-0",)),
    BrokerSetData(("broker-2",), 1, ("orders-1",)),
)
ELECTION = ClusterEvent(1, "c", "election", {"brokerName": "a", "masterId": 1, "set": [1]})


class System:
    """One that knows its sets."""

    def broker_sets(self, nodes: object, keys: object) -> dict[str, BrokerSetData]:
        return {"a": A, "b": B}


def test_what_a_system_deals_is_read_again() -> None:
    """From names.json; a system that deals nothing writes nothing."""
    named = broker_sets_entry(System(), [Node("broker-1", "broker")], ["orders-0"])  # type: ignore[arg-type]
    assert broker_sets_in(named) == {"a": A, "b": B}
    assert broker_sets_entry(object(), (), ()) == {}  # type: ignore[arg-type]
    roles = {"broker-1": "broker", "controller-1": "controller", "broker-9": "broker"}
    roles |= {"nameserver-1": "nameserver", "client-1": "client"}
    assert replica_groups({"roles": roles, **named}) == {
        "broker-1": "a",
        "controller-1": "controller",
        "broker-9": "broker",
    }


@pytest.mark.parametrize(
    ("sets", "found"),
    [
        ({"a": A, "b": B}, (("a", "b"), (1, NO_SET, 0))),
        ({"a": A}, (("a",), ())),
        ({}, (("a",), ())),
    ],
    ids=["two sets", "one set", "only events tell"],
)
def test_keys_and_their_sets(sets: dict[str, BrokerSetData], found: object) -> None:
    """One set holds everything; a key that none holds, such as a register, is in none."""
    names = {"keys": ["orders-1", "register-0", "orders-0"]}
    told = {"sets": {name: vars(of) for name, of in sets.items()}}
    assert broker_sets(names | told, [ELECTION]) == found


@pytest.mark.parametrize(
    ("roles", "data", "voters"),
    [
        ({"b": "broker", "c": "controller", "n": "nameserver", "x": "client"}, {"b"}, {"c"}),
        ({"b": "broker", "x": "client"}, {"b"}, {"b"}),
        ({"s-1": "server", "s-2": "server", "x": "client"}, {"s-1", "s-2"}, {"s-1", "s-2"}),
        ({"m": "store", "w": "monitor", "x": "client"}, {"m"}, {"m"}),
    ],
)
def test_which_nodes_hold_the_data_and_which_elect(
    roles: dict[str, str], data: set[str], voters: set[str]
) -> None:
    """Brokers and controllers; without them, the nodes of the first role that a system names."""
    assert data_nodes(roles) == data
    assert voting_nodes(roles) == voters
