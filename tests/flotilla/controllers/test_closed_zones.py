"""Zones that an operator has closed for masters: which decisions heed them."""

import json

import pytest

from clusters.flotilla.controllers.controller_requests import (
    DecisionContext,
    HandoverPlan,
    drill_zone,
    elect_master,
    plan_handover,
    register,
    replace_master,
    return_zone,
)
from clusters.flotilla.controllers.controller_state import (
    BrokerSetState,
    ElectMaster,
    SetMember,
)
from clusters.flotilla.controllers.elect import BrokerStatus, Candidate
from clusters.flotilla.controllers.registers import PutValue
from clusters.flotilla.controllers.state_machine import ReplicatedState
from clusters.flotilla.net.wire import Status
from clusters.flotilla.rules import RULES

ZONES = {1: "a", 2: "b", 3: "a"}


def context(closed: str = "", dead: int = 0, master: int | None = 1) -> DecisionContext:
    members = {i: SetMember(f"h:{i}", f"h:{i + 100}", "") for i in ZONES}
    row = BrokerSetState("c", 4, members, master, 7, (1, 2, 3), 9)

    def candidate(name: str, i: int) -> Candidate:
        status = BrokerStatus.DEAD if i == dead else BrokerStatus.ALIVE
        return Candidate(i, status, 1, {1: 90, 2: 50, 3: 90}[i], zone=ZONES[i])

    registers = {"closedZones": dict.fromkeys(closed, "closed")}
    return DecisionContext({"s": row}, candidate, RULES, unclean=False, registers=registers)


def asks(broker: int, **more: object) -> dict[str, object]:
    return {"brokerName": "s", "brokerId": broker, "addr": "h:1", "haAddr": "h:101", **more}


def test_masters_are_elected_outside_closed_zones_only() -> None:
    """The longer log does not count; with no broker elsewhere there is no master."""
    assert replace_master(context(dead=1), "s", "x").events == (ElectMaster("s", 3, "x"),)
    assert replace_master(context("a", dead=1), "s", "x").events == (ElectMaster("s", 2, "x"),)
    assert replace_master(context("ab", dead=1), "s", "x").events == (ElectMaster("s", None, "x"),)


def test_neither_an_operator_nor_a_broker_is_elected_into_a_closed_zone() -> None:
    designated = asks(3, designate=True)
    assert elect_master(context(), designated).events == (ElectMaster("s", 3, "operator"),)
    refused = elect_master(context("a"), designated)
    assert (refused.reply["code"], refused.events) == (Status.ELECT_MASTER_FAILED, ())
    assert "returnZone: a" in refused.reply["remark"]
    assert not elect_master(context("ab", master=None), asks(1)).events
    [restarted] = register(context("a"), asks(1)).events
    assert restarted == ElectMaster("s", 2, "restarted")


def test_the_master_in_a_closed_zone_stays_until_it_hands_over() -> None:
    """A broker that asks for an election does not depose it."""
    assert elect_master(context("a"), asks(2)).reply["code"] == Status.MASTER_STILL_EXIST
    plan = plan_handover(context("a"), {"brokerName": "s"})
    assert isinstance(plan, HandoverPlan)
    assert plan.to == 2
    refused = plan_handover(context("ab"), {"brokerName": "s"})
    assert isinstance(refused, dict)
    assert "outside the closed zones (a, b)" in refused["remark"]


@pytest.mark.parametrize(("zone", "known"), [("a", True), ("b", True), ("c", False), ("", False)])
def test_only_zones_of_brokers_can_be_closed(zone: str, known: bool) -> None:
    """A word that is misspelt must not look like an empty room."""
    decision = drill_zone(context(), {"zone": zone})
    assert bool(decision.events) == known
    if known:
        assert return_zone(context(zone), {"zone": zone}).events
        assert not return_zone(context(), {"zone": zone}).events


def test_snapshots_keep_closed_zones() -> None:
    state = ReplicatedState().after([PutValue("closedZones", "a", "closed")])
    packed = state.pack(RULES.set_in_snapshot, RULES.registers_in_snapshot)
    assert ReplicatedState.unpack(packed) == state
    assert json.loads(packed)["registers"] == {"closedZones": {"a": "closed"}}
