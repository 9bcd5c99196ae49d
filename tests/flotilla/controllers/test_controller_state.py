"""The state of broker sets, and the leader's answers ("Controllers" and "Election" in
docs/flotilla-design.md)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from clusters.flotilla.controllers.controller_requests import (
    Decision,
    DecisionContext,
    alter_sync_state_set,
    apply_broker_id,
    clean_broker_data,
    elect_master,
    get_replica_info,
    guard_last_member,
    next_broker_id,
    register,
    replace_master,
    sync_state_data,
)
from clusters.flotilla.controllers.controller_state import (
    AlterSyncStateSet,
    ApplyBrokerId,
    BrokerSets,
    BrokerSetState,
    CleanBrokerData,
    ElectMaster,
    Event,
    SetMember,
    UpdateBrokerAddress,
    apply,
    apply_all,
    decode,
    encode,
)
from clusters.flotilla.controllers.elect import BrokerStatus, Candidate
from clusters.flotilla.net.wire import Status
from clusters.flotilla.rules import RULES

ALIVE, DEAD, UNKNOWN = BrokerStatus.ALIVE, BrokerStatus.DEAD, BrokerStatus.UNKNOWN
IDENTITY = {"cluster": "f", "brokerName": "b", "addr": "ip:1", "haAddr": "ip:2"}


def members(*ids: int) -> Mapping[int, SetMember]:
    return {i: SetMember(f"ip:{i}", f"ha:{i}", f"code{i}") for i in ids}


def state(master: int | None = 1, sync_set: tuple[int, ...] = (1, 2, 3)) -> BrokerSets:
    """One set of three brokers in master epoch 4 and set epoch 7."""
    return {"b": BrokerSetState("f", 4, members(1, 2, 3), master, 4, sync_set, 7)}


APPLIED: list[Event] = [ApplyBrokerId("f", "b", i, "a", "h", f"c{i}") for i in (1, 2, 3)]


def context(
    at: BrokerSets,
    *,
    unclean: bool = False,
    policy: str = "water-level",
    **statuses: BrokerStatus,
) -> DecisionContext:
    """All brokers are alive except as given (`b2=DEAD`); a greater id has a longer log."""

    def candidate(name: str, broker_id: int) -> Candidate:
        status = statuses.get(f"b{broker_id}", ALIVE)
        return Candidate(broker_id, status, epoch=4, max_offset=broker_id)

    return DecisionContext(at, candidate, RULES, unclean, policy)


def me(broker_id: int) -> dict[str, Any]:
    """A registration request."""
    return {**IDENTITY, "brokerId": broker_id, "checkCode": f"code{broker_id}"}


def code(decision: Decision) -> Status:
    return Status(decision.reply.get("code", Status.SUCCESS))


# the state machine


@pytest.mark.parametrize(
    "event",
    [
        AlterSyncStateSet("b", (1, 2)),
        ApplyBrokerId("f", "b", 1, "ip:1", "ha:1", "code"),
        ElectMaster("b", 2, "expired"),
        ElectMaster("b", None, "scan"),
        UpdateBrokerAddress("b", 1, "ip:9", "ha:9"),
        CleanBrokerData("b", ()),
    ],
)
def test_an_event_survives_the_log(event: Event) -> None:
    """Decoding is the inverse of encoding."""
    assert decode(encode([event, event])) == [event, event]


def test_an_election_leaves_the_winner_alone_in_the_set() -> None:
    """Master and set change together, and both epochs rise by one."""
    row = apply(state(), ElectMaster("b", 2, "expired"))["b"]
    assert (row.master_id, row.master_epoch, row.sync_set, row.set_epoch) == (2, 5, (2,), 8)


def test_members_keep_the_time_at_which_they_came() -> None:
    """For electPolicy join-time: a member that stays is older than one that returns."""
    row = apply_all({}, [*APPLIED, ElectMaster("b", 1, ""), AlterSyncStateSet("b", (1, 2))])["b"]
    assert row.joined == {1: 1, 2: 2}
    changes = [AlterSyncStateSet("b", (1, 2, 3)), AlterSyncStateSet("b", (1, 3))]
    row = apply_all({"b": row}, changes)["b"]
    assert row.joined == {1: 1, 3: 3}
    row = apply({"b": row}, AlterSyncStateSet("b", (1, 2, 3)))["b"]
    assert row.joined == {1: 1, 2: 5, 3: 3}
    longest = replace_master(context({"b": row}, policy="join-time", b1=DEAD), "b", "expired")
    assert longest.events == (ElectMaster("b", 3, "expired"),)


def test_a_learner_is_not_the_first_master() -> None:
    """A learner is not elected as the first master of a set (apache/rocketmq#10013)."""
    fresh: BrokerSets = {"b": BrokerSetState("f", 4, members(1, 2, 3))}
    at = context(fresh)
    learns = replace(at, candidate=lambda n, i: Candidate(i, ALIVE, learner=i == 1))
    fields = {"brokerName": "b", "designate": False}
    assert code(elect_master(learns, {**fields, "brokerId": 1})) is Status.ELECT_MASTER_FAILED
    assert elect_master(learns, {**fields, "brokerId": 2}).events
    unheard = elect_master(context(fresh, b1=UNKNOWN), {**fields, "brokerId": 1})
    assert code(unheard) is Status.ELECT_MASTER_FAILED, "what it is, only its heartbeats say"


def test_an_election_in_place_of_a_master_that_is_gone_is_fenced() -> None:
    """Planned handover: another master may have been elected between its two steps."""
    fields = {"brokerName": "b", "brokerId": 2, "designate": True, "masterEpoch": 4}
    assert elect_master(context(state()), fields).events == (ElectMaster("b", 2, "drill"),)
    late = elect_master(context(state()), {**fields, "masterEpoch": 3})
    assert (code(late), late.events) == (Status.FENCED_MASTER_EPOCH, ())
    left = elect_master(context(state(sync_set=(1, 3)), unclean=True), fields)
    assert left.events == (), "the successor has left the set, and the old master lives"


def test_an_election_without_winner_keeps_the_set() -> None:
    """A former member that returns may still be elected."""
    row = apply(state(), ElectMaster("b", None, "expired"))["b"]
    assert (row.master_id, row.master_epoch, row.sync_set, row.set_epoch) == (None, 5, (1, 2, 3), 7)


def test_ids_are_never_given_twice() -> None:
    """The next id is greater than every id ever granted, including removed ones."""
    events: list[Event] = [ApplyBrokerId("f", "b", i, "a", "h", f"c{i}") for i in (1, 2)]
    events.append(CleanBrokerData("b", (2,)))
    row = apply_all({}, events)["b"]
    assert (row.next_id, sorted(row.members)) == (3, [1])
    assert apply({"b": row}, events[0])["b"] == row


def test_cleaning_a_member_takes_it_out_of_everything() -> None:
    """Out of members and set; a removed master is no master; without members there is no set."""
    row = apply(state(), CleanBrokerData("b", (1,)))["b"]
    assert (row.master_id, row.master_epoch, row.sync_set) == (None, 5, (2, 3))
    for ids in ((1, 2, 3), ()):
        assert not context(apply(state(), CleanBrokerData("b", ids))).broker_set("b")


def test_a_set_that_begins_again_uses_no_id_and_no_epoch_twice() -> None:
    """A broker of the removed set may return with its disk, and must differ from the new ones in
    its id and in the epochs of its log."""
    at = apply(state(), CleanBrokerData("b", ()))
    assert get_replica_info(context(at), IDENTITY).reply["code"] == Status.BROKER_METADATA_NOT_EXIST
    assert sync_state_data(context(at), {}).reply == {"sets": {}}
    assert replace_master(context(at), "b", "scan").events == ()
    assert next_broker_id(context(at), IDENTITY).reply == {"brokerId": 4}
    claim = {**IDENTITY, "brokerId": 4, "checkCode": "new"}
    at = apply_all(at, apply_broker_id(context(at), claim).events)
    former = register(context(at), me(1))
    assert code(former) is Status.BROKER_NEED_TO_BE_REGISTERED
    first = elect_master(context(at), {"brokerName": "b", "brokerId": 4})
    row = apply_all(at, first.events)["b"]
    assert (row.master_id, row.master_epoch, row.sync_set, row.set_epoch) == (4, 6, (4,), 9)
    gone = replace_master(context({"b": row}, b4=DEAD), "b", "expired")
    assert gone.events == (ElectMaster("b", None, "expired"),)


def test_events_about_nobody_change_nothing() -> None:
    """Events about an unknown set are ignored."""
    for event in (AlterSyncStateSet("x", (1,)), ElectMaster("x", 1, ""), CleanBrokerData("x", ())):
        assert apply(state(), event) == state()


# identity


def test_the_first_id_is_one_and_the_next_is_free() -> None:
    """getNextBrokerId."""
    assert next_broker_id(context({}), IDENTITY).reply == {"brokerId": 1}
    assert next_broker_id(context(state()), IDENTITY).reply == {"brokerId": 4}


@pytest.mark.parametrize(
    ("at", "broker_id", "check", "events", "expected"),
    [
        ({}, 1, "c", 1, Status.SUCCESS),
        ({}, 2, "c", 0, Status.BROKER_ID_INVALID),
        (state(), 4, "c", 1, Status.SUCCESS),
        (state(), 2, "code2", 0, Status.SUCCESS),  # asked again after a lost answer
        (state(), 2, "other", 0, Status.BROKER_ID_INVALID),
        (state(), 0, "c", 0, Status.BROKER_ID_INVALID),
    ],
)
def test_an_id_belongs_to_who_holds_its_check_code(
    at: BrokerSets, broker_id: int, check: str, events: int, expected: Status
) -> None:
    """applyBrokerId."""
    fields = {**IDENTITY, "brokerId": broker_id, "checkCode": check}
    decision = apply_broker_id(context(at), fields)
    assert (code(decision), len(decision.events)) == (expected, events)


# registration


def test_who_is_unknown_must_get_an_id_first() -> None:
    """registerBroker: 2010."""
    for at, broker_id in (({}, 1), (state(), 9)):
        decision = register(context(at), me(broker_id))
        assert code(decision) is Status.BROKER_NEED_TO_BE_REGISTERED


def test_nobody_registers_under_another_brokers_id() -> None:
    """The disk of a removed broker has the id, but not its check code; it gets no role, and the
    address of the broker with that id does not change."""
    taken = register(context(state()), {**me(1), "checkCode": "of the forgotten one"})
    assert (code(taken), taken.events) == (Status.BROKER_ID_INVALID, ())


def test_a_slave_learns_the_living_master_and_where_to_replicate_from() -> None:
    """The HA address comes with the controllers' answer, not from a nameserver."""
    decision = register(context(state()), me(2))
    assert decision.reply["masterHaAddr"] == "ha:1"
    assert decision.events == (UpdateBrokerAddress("b", 2, "ip:1", "ip:2"),)
    assert decision.reply["members"]["2"]["addr"] == "ip:1"


def test_a_dead_master_is_not_named() -> None:
    """Without a living master in the answer the new broker requests an election. A master that may
    be alive is in the answer."""
    decision = register(context(state(), b1=DEAD), me(2))
    assert decision.reply["masterId"] is None
    decision = register(context(state(), b1=UNKNOWN), me(2))
    assert decision.reply["masterId"] == 1


def test_a_master_that_starts_again_is_a_new_process_and_needs_a_new_epoch() -> None:
    """What its former process did not sync may be lost; one epoch must not stand for two
    histories."""
    decision = register(context(state()), me(1))
    assert (decision.reply["masterId"], decision.reply["masterEpoch"]) == (3, 5)
    alone = register(context(state(sync_set=(1,))), me(1))
    assert (alone.reply["masterId"], alone.reply["masterEpoch"]) == (None, 5)
    assert alone.reply["set"] == [1]
    unclean = register(context(state(sync_set=(1,)), unclean=True), me(1))
    assert unclean.reply["masterId"] is None


# alterSyncStateSet


def alter(
    at: BrokerSets, statuses: Mapping[str, BrokerStatus] | None = None, **fields: Any
) -> Decision:
    defaults = {"brokerName": "b", "masterId": 1, "masterEpoch": 4, "set": [1, 2], "setEpoch": 7}
    return alter_sync_state_set(context(at, **(statuses or {})), {**defaults, **fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Status.SUCCESS),
        ({"brokerName": "x"}, Status.ALTER_SYNC_STATE_SET_FAILED),
        ({"masterId": 2}, Status.INVALID_MASTER),
        ({"masterEpoch": 3}, Status.FENCED_MASTER_EPOCH),
        ({"setEpoch": 6}, Status.FENCED_SYNC_STATE_SET_EPOCH),
        ({"set": [1, 9]}, Status.INVALID_REPLICAS),
        ({"set": [2, 3]}, Status.ALTER_SYNC_STATE_SET_FAILED),
    ],
)
def test_a_set_is_altered_by_its_master_at_the_right_epochs(
    fields: dict[str, Any], expected: Status
) -> None:
    """alterSyncStateSet: each check has its code; a refusal logs nothing."""
    decision = alter(state(), **fields)
    assert code(decision) is expected
    assert len(decision.events) == (expected is Status.SUCCESS)


def test_only_the_living_may_enter_the_set() -> None:
    """alterSyncStateSet, 2006; a controller that has not heard of a broker yet does not object."""
    alone = state(sync_set=(1,))
    assert code(alter(alone, {"b2": DEAD})) is Status.BROKER_NOT_ALIVE
    assert code(alter(alone, {"b2": UNKNOWN})) is Status.SUCCESS


def test_who_is_in_the_set_may_stay_unheard() -> None:
    """Otherwise no member could be removed while another one is heard by the master only."""
    assert code(alter(state(), {"b2": DEAD, "b3": DEAD})) is Status.SUCCESS
    assert code(alter(state(sync_set=(1, 3)), {"b2": DEAD})) is Status.BROKER_NOT_ALIVE


def test_nobody_masters_a_set_without_master() -> None:
    """alterSyncStateSet, 2002."""
    assert code(alter(state(master=None))) is Status.INVALID_MASTER


def test_asking_again_for_the_same_change_gives_the_same_answer() -> None:
    """The first answer may have been lost."""
    first = alter(state())
    again = alter(apply_all(state(), first.events))
    assert again.reply == first.reply == {"set": [1, 2], "setEpoch": 8}
    assert again.events == ()


# elections


def elect(at: BrokerSets, broker_id: int, designate: bool = False, **statuses: Any) -> Decision:
    fields = {"brokerName": "b", "brokerId": broker_id, "designate": designate}
    return elect_master(context(at, **statuses), fields)


def test_the_first_who_asks_is_the_first_master() -> None:
    """electMaster: in a set that never had a master, logs are not compared."""
    fresh: BrokerSets = {"b": BrokerSetState("f", 4, members(1, 2, 3))}
    decision = elect(fresh, 1)
    assert decision.events == (ElectMaster("b", 1, "broker"),)
    assert (decision.reply["masterId"], decision.reply["masterEpoch"]) == (1, 1)
    assert (decision.reply["set"], decision.reply["setEpoch"]) == ([1], 1)


def test_who_asks_while_the_master_lives_is_told_so() -> None:
    """electMaster: 2011 with the present info, also while the master may be alive."""
    for status in (ALIVE, UNKNOWN):
        decision = elect(state(), 2, b1=status)
        assert code(decision) is Status.MASTER_STILL_EXIST
        assert (decision.reply["masterId"], decision.events) == (1, ())


def test_who_asks_need_not_be_who_wins() -> None:
    """electMaster: the request starts the election, and the policy decides it."""
    decision = elect(state(), 2, b1=DEAD)
    assert decision.events == (ElectMaster("b", 3, "broker"),)


def test_nobody_to_elect_is_not_logged_for_a_broker() -> None:
    """electMaster: 2012."""
    decision = elect(state(sync_set=(1,)), 2, b1=DEAD)
    assert (code(decision), decision.events) == (Status.ELECT_MASTER_FAILED, ())


def test_an_operator_designates_a_living_member() -> None:
    """A designated broker replaces a living master, unless it is dead, or outside the set of a
    clean election."""
    assert elect(state(), 2, designate=True).events == (ElectMaster("b", 2, "operator"),)
    assert code(elect(state(), 1, designate=True)) is Status.MASTER_STILL_EXIST
    assert code(elect(state(), 2, designate=True, b2=DEAD)) is Status.ELECT_MASTER_FAILED
    outside = state(sync_set=(1, 3))
    assert code(elect(outside, 2, designate=True)) is Status.ELECT_MASTER_FAILED
    assert elect(outside, 2, designate=True, unclean=True).events


def test_unclean_election_is_a_last_resort() -> None:
    """A broker outside the set wins only if that is allowed and no member lives."""
    at = state(sync_set=(1, 2))
    assert elect(at, 3, unclean=True, b1=DEAD).events == (ElectMaster("b", 2, "broker"),)
    dead = {"b1": DEAD, "b2": DEAD}
    assert elect(at, 3, unclean=True, **dead).events == (ElectMaster("b", 3, "broker"),)
    assert elect(at, 3, **dead).events == ()


def test_a_dead_master_is_replaced_from_the_set() -> None:
    """The controllers' own election."""
    decision = replace_master(context(state(), b1=DEAD), "b", "expired")
    assert decision.events == (ElectMaster("b", 3, "expired"),)


def test_a_living_master_is_not_replaced() -> None:
    """It returned before its election's turn in the queue, or may still be alive."""
    for status in (ALIVE, UNKNOWN):
        assert replace_master(context(state(), b1=status), "b", "scan").events == ()


def test_a_dead_master_without_successor_is_struck_out_once() -> None:
    """ElectMaster without a winner is logged, and the next scan finds it so."""
    dead = {"b1": DEAD, "b2": DEAD, "b3": DEAD}
    decision = replace_master(context(state(), **dead), "b", "expired")
    assert decision.events == (ElectMaster("b", None, "expired"),)
    after = apply_all(state(), decision.events)
    again = replace_master(context(after, **dead), "b", "scan")
    assert again.events == ()


def test_a_headless_set_gets_a_master_when_a_member_returns() -> None:
    """The election is repeated, not only held when the master is lost (apache/rocketmq#5009)."""
    at = state(master=None, sync_set=(1, 2))
    decision = replace_master(context(at, b2=DEAD), "b", "scan")
    assert decision.events == (ElectMaster("b", 1, "scan"),)
    assert replace_master(context(at, b1=DEAD, b2=DEAD), "b", "scan").events == ()


def test_a_new_leader_does_not_give_up_on_whom_it_never_heard() -> None:
    """It waits for unknown brokers, but at once elects one that it knows to be alive
    (apache/rocketmq#5711)."""
    waits = replace_master(context(state(), b1=DEAD, b2=UNKNOWN, b3=UNKNOWN), "b", "scan")
    assert waits.events == ()
    elects = replace_master(context(state(), b1=DEAD, b2=ALIVE, b3=UNKNOWN), "b", "scan")
    assert elects.events == (ElectMaster("b", 2, "scan"),)


def test_controllers_do_not_start_the_first_election() -> None:
    """The winner would be arbitrary; a broker requests it."""
    fresh: BrokerSets = {"b": BrokerSetState("f", 4, members(1, 2, 3))}
    assert replace_master(context(fresh), "b", "scan").events == ()


# reading and cleaning


def test_info_tells_all_of_a_set() -> None:
    """getReplicaInfo and getSyncStateData."""
    info = get_replica_info(context(state(), b2=DEAD), {"brokerName": "b"}).reply
    assert info["masterAddr"] == "ip:1"
    assert info["members"]["2"] == {"addr": "ip:2", "haAddr": "ha:2", "alive": False}
    unknown = get_replica_info(context(state()), {"brokerName": "x"})
    assert code(unknown) is Status.BROKER_METADATA_NOT_EXIST
    sets = sync_state_data(context(state(sync_set=(1, 3))), {"brokerNames": ["b", "x"]}).reply[
        "sets"
    ]
    assert list(sets) == ["b"]
    rows = {i: (m["inSync"], m["alive"], m["maxOffset"]) for i, m in sets["b"]["members"].items()}
    assert rows == {"1": (True, True, 1), "2": (False, True, 2), "3": (True, True, 3)}


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, False),
        ({"brokerIds": [2]}, False),
        ({"brokerIds": [3]}, True),
        ({"brokerIds": [2], "cleanLiving": True}, True),
        ({"cleanLiving": True}, False),
        ({"brokerIds": [1, 2, 3], "cleanLiving": True}, False),
        ({"brokerName": "x"}, False),
        ({"brokerIds": [9]}, False),
        ({"brokerIds": [3, 9]}, False),
    ],
)
def test_the_living_are_cleaned_only_on_purpose(fields: dict[str, Any], allowed: bool) -> None:
    """cleanBrokerData: 2009."""
    decision = clean_broker_data(context(state(), b3=DEAD), {"brokerName": "b", **fields})
    assert (code(decision) is Status.SUCCESS) is allowed
    assert bool(decision.events) is allowed


def test_a_set_is_cleaned_when_nobody_of_it_lives() -> None:
    """As a whole, and with its master only on purpose. A set that began again while a broker lives
    would use its epochs again."""
    dead = {"b1": DEAD, "b2": DEAD, "b3": DEAD}
    headless = context(state(master=None), **dead)
    assert clean_broker_data(headless, {"brokerName": "b"}).events
    fields = {"brokerName": "b", "cleanLiving": True}
    assert clean_broker_data(context(state(), **dead), fields).events
    assert not clean_broker_data(context(state(), b1=DEAD, b2=DEAD), fields).events


@pytest.mark.parametrize(
    ("sync_set", "ids", "unclean", "allowed"),
    [
        ((1,), [1], False, False),
        ((1,), [1], True, True),
        ((1,), [2, 3], False, True),
        ((1, 2), [1, 2], False, False),
        ((1, 2), [1], False, True),
        ((), [1], False, True),
        ((1,), [], False, True),
    ],
)
def test_a_leader_forgets_the_last_member_only_with_the_set(
    sync_set: tuple[int, ...], ids: list[int], unclean: bool, allowed: bool
) -> None:
    """None of the other brokers could ever be elected. Entries that are in a log already are
    applied."""
    dead = {"b1": DEAD, "b2": DEAD, "b3": DEAD}
    at = context(state(master=None, sync_set=sync_set), unclean=unclean, **dead)
    decision = clean_broker_data(at, {"brokerName": "b", "brokerIds": ids})
    assert decision.events
    assert (code(guard_last_member(at, decision)) is Status.SUCCESS) is allowed


def test_nobody_is_cleaned_on_ignorance() -> None:
    """A new leader has not heard any broker yet, and all of them may be alive."""
    unheard = {"b1": UNKNOWN, "b2": UNKNOWN, "b3": UNKNOWN}
    for ids in ([1, 2, 3], [1]):
        decision = clean_broker_data(
            context(state(), **unheard), {"brokerName": "b", "brokerIds": ids}
        )
        assert code(decision) is Status.INVALID_CLEAN_BROKER_METADATA
        assert decision.events == ()
    fields = {"brokerName": "b", "cleanLiving": True}
    assert not clean_broker_data(context(state(), b1=DEAD, b2=DEAD, b3=UNKNOWN), fields).events
