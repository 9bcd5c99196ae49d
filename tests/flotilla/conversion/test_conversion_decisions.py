"""The decisions of a conversion, and the file in which a broker keeps its mode."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from clusters.flotilla.config import ConfigError, convertible_modes, in_mode, loads
from clusters.flotilla.controllers.controller_requests import (
    DecisionContext,
    convert_set,
    elect_master,
    replace_master,
)
from clusters.flotilla.controllers.controller_state import (
    BrokerSets,
    BrokerSetState,
    SetMember,
    apply_all,
)
from clusters.flotilla.controllers.elect import BrokerStatus, Candidate
from clusters.flotilla.controllers.state_machine import ReplicatedState
from clusters.flotilla.conversion.coordinator import (
    Begin,
    BrokerMode,
    ConversionRefused,
    Done,
    Follow,
    Withdraw,
    next_step,
)
from clusters.flotilla.conversion.mode_file import Generation, ModeState
from clusters.flotilla.net.wire import Json, Status
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_protocol import HandshakeReply, HandshakeRequest
from clusters.flotilla.rules import RULES

OLD, NEW = Generation("controller"), Generation("raft-log", 1, 2, 7)
SHAPE = LogShape(0, 640, EpochTable(((7, 0),)))
BASE = 'role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "s"\nconvertible = true\n'


def broker(number: int, **more: object) -> BrokerMode:
    usual = BrokerMode(f"h:{number}", number, 3, "c", OLD, None, 4, number == 2, 7, True)
    return replace(usual, **more)  # type: ignore[arg-type]


def test_a_whole_set_begins_with_its_master_in_the_next_attempt() -> None:
    step = next_step([broker(1), broker(2), broker(3, attempt=6)], "raft-log")
    assert isinstance(step, Begin)
    assert (step.master.broker_id, [b.broker_id for b in step.slaves]) == (2, [1, 3])
    assert step.attempt == 7


@pytest.mark.parametrize("wanted", ["raft-log", "switchless", "controller"])
def test_a_broker_with_the_later_generation_is_followed(wanted: str) -> None:
    """Whatever the command wants: the set is converted already."""
    brokers = [broker(1, pending=NEW), broker(2, in_force=NEW), broker(3)]
    assert next_step(brokers, wanted) == Follow(NEW, [brokers[0], brokers[2]])


def test_promises_are_withdrawn_if_no_broker_was_converted() -> None:
    """The master of the attempt is asked first: its disk decides."""
    step = next_step([broker(1, pending=NEW), broker(2), broker(3)], "raft-log")
    assert isinstance(step, Withdraw)
    assert [b.broker_id for b in step.brokers] == [2, 1, 3]
    assert (step.number, step.attempt) == (1, 5)


def test_nothing_is_left_to_do() -> None:
    brokers = [broker(number, in_force=NEW) for number in (1, 2, 3)]
    assert next_step(brokers, "raft-log") == Done(NEW)


@pytest.mark.parametrize(
    ("brokers", "why"),
    [
        ([broker(1), broker(2)], "all 3 brokers"),
        ([broker(1, pending=NEW), broker(3, pending=NEW)], "all 3 brokers"),
        ([broker(1), broker(2, is_master=False), broker(3)], "no master"),
    ],
)
def test_nothing_is_guessed(brokers: Sequence[BrokerMode], why: str) -> None:
    with pytest.raises(ConversionRefused, match=why):
        next_step(brokers, "switchless")


def test_the_file_keeps_everything_and_shows_damage() -> None:
    state = ModeState(OLD, 3, NEW)
    packed = state.pack()
    assert ModeState.unpack(packed) == state
    assert ModeState.unpack(ModeState(NEW).pack()) == ModeState(NEW)
    for damaged in (packed.replace(b"raft-log", b"raft-lot"), packed[:-9], b"[]", b'{"crc":1}'):
        with pytest.raises(ValueError, match=r"no mode|checksum"):
            ModeState.unpack(damaged)


def test_a_handshake_names_the_generation() -> None:
    """Of a set that was never converted it is what earlier editions know."""
    for generation in (0, 9):
        for zone, last_file in (("", None), ("a", 512)):
            request = HandshakeRequest(2, 7, 64, SHAPE, zone=zone, generation=generation)
            assert HandshakeRequest.unpack(request.pack()) == request
            reply = HandshakeReply(Status.SUCCESS, 7, 64, SHAPE, last_file, generation)
            reply = replace(reply, last_file=last_file and 512)
            assert HandshakeReply.unpack(reply.pack()) == reply
    plain = HandshakeRequest(2, 7, 64, SHAPE)
    assert len(replace(plain, generation=1).pack()) == len(plain.pack()) + 5


# the controllers


def row(**more: object) -> BrokerSetState:
    members = {i: SetMember(f"h:{i}", f"h:{i}1", "") for i in (1, 2, 3)}
    usual = BrokerSetState("c", 4, members, 2, 7, (1, 2, 3), 5)
    return replace(usual, **more)  # type: ignore[arg-type]


def context(state: BrokerSets) -> DecisionContext:
    def candidate(name: str, i: int) -> Candidate:
        return Candidate(i, BrokerStatus.ALIVE, 7, 640, 1)

    return DecisionContext(state, candidate, RULES, unclean=False)


def noted(state: BrokerSets, mode: str, generation: int, **more: int) -> tuple[Json, BrokerSets]:
    fields = {"brokerName": "s", "cluster": "c", "mode": mode, "generation": generation}
    numbers = {"master": 2, "epoch": 7, "attempt": generation, **more}
    decision = convert_set(context(state), fields | numbers)
    return decision.reply, apply_all(state, decision.events)


def elected(state: BrokerSets, broker_id: int, generation: int) -> tuple[Json, BrokerSets]:
    fields = {"brokerName": "s", "brokerId": broker_id, "generation": generation}
    decision = elect_master(context(state), fields)
    return decision.reply, apply_all(state, decision.events)


def test_controllers_elect_no_master_of_a_set_that_left_them() -> None:
    _, away = noted({"s": row()}, "raft-log", 1)
    assert not replace_master(context(away), "s", "scan").events
    reply, after = elected(away, 2, 1)
    assert reply["code"] == Status.ELECT_MASTER_FAILED
    assert after == away


def test_a_set_that_returns_is_led_first_by_its_master() -> None:
    """From an epoch on that is later than each that it had meanwhile."""
    _, away = noted({"s": row()}, "raft-log", 1)
    _, back = noted(away, "controller", 2, epoch=30, master=3)
    assert elected(back, 2, 2)[0]["code"] == Status.ELECT_MASTER_FAILED
    assert elected(back, 3, 1)[0]["code"] == Status.ELECT_MASTER_FAILED
    reply, after = elected(back, 3, 2)
    assert (reply["masterId"], reply["masterEpoch"], reply["set"]) == (3, 31, [3])
    assert after["s"].elects


def test_a_late_request_to_convert_changes_nothing() -> None:
    _, away = noted({"s": row()}, "raft-log", 1)
    _, back = noted(away, "controller", 2)
    reply, after = noted(back, "raft-log", 1)
    assert reply["code"] == Status.INVALID_REQUEST
    assert after == back
    assert noted(back, "controller", 2) == ({"masterEpoch": 7}, back)  # repeated
    _, later = noted(elected(back, 2, 2)[1], "controller", 2, attempt=9)
    assert later["s"].master_id == 2  # nothing but the number of the attempt has changed
    assert noted(later, "raft-log", 3, attempt=8)[0]["code"] == Status.INVALID_REQUEST


def test_snapshots_of_sets_that_were_never_converted_are_those_of_earlier_editions() -> None:
    plain = ReplicatedState({"s": row()})
    assert b"generation" not in plain.pack()
    converted = ReplicatedState(noted({"s": row()}, "controller", 2)[1])
    for state in (plain, converted):
        assert ReplicatedState.unpack(state.pack()) == state


# configurations


def test_a_convertible_broker_has_the_settings_of_each_mode() -> None:
    config = loads(BASE + "allAckInSyncStateSet = true\nminInSyncReplicas = 2\n")
    assert not in_mode(config, "switchless").all_ack_in_sync_state_set
    raft_log = in_mode(config, "raft-log")
    assert (raft_log.min_in_sync_replicas, raft_log.raft_log) == (1, True)
    assert in_mode(config, "controller") == config
    alone = in_mode(config, "zookeeper")
    assert (alone.min_in_sync_replicas, alone.all_ack_in_sync_state_set) == (1, True)


def test_only_brokers_that_know_zookeeper_can_be_steered_through_it() -> None:
    assert convertible_modes(True) == (*convertible_modes(False), "zookeeper")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('haMode = "zookeeper"', "needs allAckInSyncStateSet"),
        ("inContainer = true", "brokers in containers"),
        ("asyncLearner = true", "the whole log"),
    ],
)
def test_a_broker_that_could_not_be_in_each_mode_is_refused(line: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        loads(BASE + line)
