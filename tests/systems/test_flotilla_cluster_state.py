"""Who is master, from what nodes say: the latest election wins, whoever reports it."""

from collections.abc import Mapping
from typing import Any

import pytest

from clusters.systems.flotilla.cluster_state import (
    BrokerSetLayout,
    cluster_state,
    missing_redundancy,
)
from harness.contracts import ClusterState

NODES = ("broker-1", "broker-2", "broker-3")
SET = BrokerSetLayout("set-1", NODES, {f"a{n}:1": f"broker-{n}" for n in (1, 2, 3)})
Said = Mapping[str, Any] | None


def broker(number: int, role: str, epoch: int, members: list[int], set_epoch: int = 1) -> Said:
    return {
        "role": role,
        "node": f"broker-{number}",
        "controllerBrokerId": number,
        "masterEpoch": epoch,
        "set": members,
        "setEpoch": set_epoch,
    }


def controller(
    master: int | None, epoch: int, members: list[int], set_epoch: int = 1, **said: Any
) -> Said:
    return {
        "role": "controller",
        "state": "follower",
        "term": 1,
        "sets": {
            "set-1": {
                "masterId": master,
                "masterEpoch": epoch,
                "set": members,
                "setEpoch": set_epoch,
                "members": {str(n): {"addr": f"a{n}:1"} for n in (1, 2, 3)},
            }
        },
        **said,
    }


def look(**said: Said) -> ClusterState:
    return cluster_state({name.replace("_", "-"): s for name, s in said.items()}, [SET])


WHOLE: dict[str, Said] = {
    "broker_1": broker(1, "master", 3, [1, 2, 3]),
    "broker_2": broker(2, "slave", 3, [1, 2, 3]),
    "broker_3": broker(3, "slave", 3, [1, 2, 3]),
    "controller_1": controller(1, 3, [1, 2, 3], state="leader"),
}


def test_a_whole_cluster_is_redundant() -> None:
    now = look(**WHOLE)
    assert now.masters == {"set-1": "broker-1"}
    assert now.slaves == ("broker-2", "broker-3")
    assert now.in_set == NODES
    assert now.out_of_set == ()
    assert now.controller_leader == "controller-1"
    assert now.epochs == {"set-1": 3}
    assert now.redundant
    assert missing_redundancy(now, [SET]) == ""


@pytest.mark.parametrize(("members", "set_epoch"), [([1, 2, 3], 2), ([1, 2], 1)])
def test_who_says_nothing_stays_in_the_set(members: list[int], set_epoch: int) -> None:
    """A paused or dead slave, as long as nobody has taken it out: the master knows its number only,
    and the controllers whose number it is, be they behind or not."""
    said = {
        "broker_1": broker(1, "master", 3, [1, 2, 3], 2),
        "controller_1": controller(1, 3, members, set_epoch, state="leader"),
        "broker_3": None,
    }
    now = look(**WHOLE | said)
    assert (now.in_set, now.out_of_set) == (NODES, ())
    assert not now.redundant


def test_of_two_masters_the_later_epoch_is_master() -> None:
    """There is no lease: a deposed master that nobody told still says that it is one."""
    now = look(
        **WHOLE | {"broker_2": broker(2, "master", 4, [2]), "controller_1": controller(1, 3, [1])}
    )
    assert now.masters == {"set-1": "broker-2"}
    assert now.in_set == ("broker-2",)
    assert not now.redundant


def test_controllers_tell_of_a_master_that_is_silent() -> None:
    """A paused master answers nobody, and is still the one to aim at."""
    now = look(**WHOLE | {"broker_1": None})
    assert now.masters == {"set-1": "broker-1"}
    assert now.in_set == NODES
    assert not now.redundant
    assert missing_redundancy(now, [SET]) == "broker-1 did not answer"


def test_an_election_that_no_broker_has_heard_of_counts() -> None:
    now = look(**WHOLE | {"controller_1": controller(3, 4, [3], 5)})
    assert now.masters == {"set-1": "broker-3"}
    assert now.epochs == {"set-1": 4}


def test_a_set_without_a_master_says_so() -> None:
    now = look(
        broker_2=broker(2, "fenced", 0, []),
        controller_1=controller(None, 5, [1, 2], state="leader"),
    )
    assert now.masters == {}
    assert now.in_set == ("broker-1", "broker-2")
    assert missing_redundancy(now, [SET]) == "set-1 has no master"


def test_the_later_set_of_an_epoch_counts() -> None:
    """The master installs a set before followers of the controllers have applied it."""
    now = look(**WHOLE | {"broker_1": broker(1, "master", 3, [1, 2], 2)})
    assert now.out_of_set == ("broker-3",)
    assert "broker-3 is not in the SyncStateSet" in missing_redundancy(now, [SET])


@pytest.mark.parametrize(
    "late",
    [broker(3, "slave", 2, []), broker(3, "fenced", 3, []), broker(3, "master", 2, [3])],
)
def test_a_broker_that_does_not_follow_is_not_redundancy(late: Said) -> None:
    assert not look(**WHOLE | {"broker_3": late}).redundant


def test_of_two_leaders_the_later_term_leads() -> None:
    now = look(
        controller_1=controller(1, 1, [1], state="leader", term=3),
        controller_2=controller(1, 1, [1], state="leader", term=4),
    )
    assert now.controller_leader == "controller-2"


def test_nobody_says_anything() -> None:
    now = look(broker_1=None, controller_1=None)
    assert now == ClusterState(
        slaves=NODES, out_of_set=NODES, epochs={"set-1": 0}, detail=now.detail
    )


def test_a_semi_synchronous_set_is_whole_with_its_designated_slave() -> None:
    """The third broker follows too, but is no member, and nothing is missing (the 2-3 write)."""
    semi = BrokerSetLayout("set-1", NODES, SET.addresses, full_size=2)
    said = {
        "broker-1": broker(1, "master", 3, [1, 3]),
        "broker-2": broker(2, "slave", 3, [1, 3]),
        "broker-3": broker(3, "slave", 3, [1, 3]),
        "controller-1": controller(1, 3, [1, 3], state="leader"),
    }
    now = cluster_state(said, [semi])
    assert now.redundant
    assert missing_redundancy(now, [semi]) == ""
    assert not cluster_state(said, [SET]).redundant
    alone = cluster_state({**said, "broker-1": broker(1, "master", 3, [1], 2)}, [semi])
    assert not alone.redundant
    assert "not in the SyncStateSet" in missing_redundancy(alone, [semi])


@pytest.mark.parametrize(("phase", "holding"), [("SEMI", ("set-1",)), ("SYNC", ())])
def test_sends_are_held_in_semi(phase: str, holding: tuple[str, ...]) -> None:
    """By the HA controller that knows the latest state."""
    late = controller(1, 3, [1], 6, role="hacontroller")
    latest = controller(1, 3, [1], 7, role="hacontroller")
    assert late is not None
    assert latest is not None
    late["sets"]["set-1"]["state"] = "ASYNC"
    latest["sets"]["set-1"]["state"] = phase
    assert look(**{**WHOLE, "ha_1": late, "ha_2": latest}).holding == holding
