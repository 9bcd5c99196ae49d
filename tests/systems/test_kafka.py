"""What Kafka's answers mean: frames that a broker (4.3.1) sent, outcomes of errors, batches of
records, segments of replicas, and who leads."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusters.kit import View
from clusters.kit.roles import with_quorum
from clusters.systems.kafka import shares, transactions, wire
from clusters.systems.kafka.driver import broker_view
from clusters.systems.kafka.kafka_client import KafkaClient, error_of
from clusters.systems.kafka.records import (
    Producer,
    committed_in,
    crc32c,
    encode_batch,
    entries_in,
    read_varint,
    varint,
)
from clusters.systems.kafka.wire import KafkaError, PartitionState
from harness.contracts import ClusterState
from harness.contracts.calls import Refused

RECORDED = Path(__file__).parent / "kafka_recorded/answers.txt"
# the answers of a broker, without their lengths; all to request 1
FRAMES = dict(line.split(": ") for line in RECORDED.read_text().splitlines())
SEGMENT = bytes.fromhex(
    "00000000000000000000004500000000023f6a6c42000000000001ffffffffffffffffffffffffffffffffffffffffff"
    "ffffffffffffffffff000000021200000001066f6e650012000002010674776f00"
)
CODE_AT = 24  # of an error, in the answer to a produce request


def answer(name: str, kind: int = wire.PRODUCE) -> wire.AnswerReader:
    return wire.answer(kind, 1, bytes.fromhex(FRAMES[name]), compact=name == "quorum")


def produced_with(code: int, name: str = "produced") -> wire.AnswerReader:
    frame = bytearray.fromhex(FRAMES[name])
    frame[CODE_AT : CODE_AT + 2] = code.to_bytes(2, signed=True)
    return wire.answer(wire.PRODUCE, 1, bytes(frame))


def code_of(read: Any, name: str) -> int:
    with pytest.raises(KafkaError) as caught:
        read(answer(name))
    return caught.value.code


def test_answers_of_a_broker_are_understood() -> None:
    known = wire.metadata_in(answer("metadata", wire.METADATA))
    assert known.brokers == {101: "127.0.0.1"}
    assert known.partitions == {("orders", 0): PartitionState(101, 0, (101,), (101,))}
    assert not wire.metadata_in(answer("no topic", wire.METADATA)).partitions
    wire.created_topic(answer("created"))
    assert wire.produced(answer("produced")) == 0
    assert wire.listed_offset(answer("end")) == 2
    end, records = wire.fetched(answer("fetched"))
    assert (end, records) == (2, SEGMENT)
    assert wire.coordinator(answer("coordinator")) == "127.0.0.1"
    wire.committed_offset(answer("committed"))
    assert wire.fetched_offset(answer("offset")) == 7
    assert wire.fetched_offset(answer("no offset")) == -1
    assert wire.quorum_leader(answer("quorum")) == (1, 1)


def test_errors_of_a_broker_are_raised() -> None:
    assert code_of(wire.created_topic, "created again") == 36
    assert code_of(wire.fetched, "out of range") == 1
    assert code_of(wire.coordinator, "no coordinator") == 15
    assert code_of(wire.produced, "no partition") == 3
    assert code_of(wire.produced, "corrupt") == 2


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        *((code, True) for code in (2, 3, 5, 6, 9, 10, 19, 29, 37, 74, 87)),
        *((code, False) for code in (-1, 7, 13, 20, 56, 999)),
    ],
)
def test_an_error_is_fail_only_if_nothing_was_appended(code: int, refused: bool) -> None:
    """What a broker answers with the offset of the record was appended before it failed: a leader
    that is replaced while it waits for its replicas answers NOT_LEADER_OR_FOLLOWER, too."""
    for name, is_refused in (("corrupt", refused), ("produced", False)):
        with pytest.raises(KafkaError) as caught:
            wire.produced(produced_with(code, name))
        found = error_of(caught.value, "broker-1")
        assert isinstance(found, Refused) == is_refused, (name, found)


def test_an_answer_to_another_request_is_none() -> None:
    with pytest.raises(ConnectionError):
        wire.answer(wire.PRODUCE, 2, bytes.fromhex(FRAMES["produced"]))


def test_nothing_is_sent_while_no_broker_answers() -> None:
    """A closed port: every call is refused, and the client tries the next broker."""

    async def refuse() -> None:
        values = {"acks": "all"}
        settings: Mapping[str, Any] = {"servers": ["127.0.0.2"], "settings": values, "nodes": []}
        client = KafkaClient(settings, 0)
        with pytest.raises(Refused):
            await client.append("orders-0", b"one")
        with pytest.raises(Refused):
            await client.write("offsets/g/orders-0", 7)

    asyncio.run(refuse())


def test_answers_about_share_groups_are_understood() -> None:
    shares.altered(answer("altered"))
    assert shares.begins_at_first(answer("begins at first"))
    assert not shares.begins_at_first(answer("begins at last"))
    assert shares.heartbeat_epoch(answer("joined", wire.SHARE_HEARTBEAT)) == 2
    records = shares.acquired(answer("acquired", wire.SHARE_FETCH))
    assert records == [(0, b"00000000"), (1, b"00000001")]
    shares.acknowledged(answer("acknowledged", wire.SHARE_ACKNOWLEDGE))
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        shares.heartbeat_epoch(answer("no member", wire.SHARE_HEARTBEAT))
    with pytest.raises(KafkaError, match="SHARE_SESSION_NOT_FOUND"):
        shares.acquired(answer("no session", wire.SHARE_FETCH))


# transactions


def test_answers_about_transactions_are_understood() -> None:
    assert transactions.producer_in(answer("producer")) == Producer(0, 0, 0)
    transactions.added_partitions(answer("partitions added"))
    transactions.ended_transaction(answer("ended"))
    assert code_of(transactions.added_partitions, "still ending") == 51
    assert code_of(transactions.ended_transaction, "fenced") == 90


def test_readers_do_not_see_what_was_aborted() -> None:
    """Of four transactions of one producer the first and the last were aborted: the first by the
    coordinator, when the producer began again, the last on purpose."""
    end, aborted, records = wire.fetched_transactions(answer("transactions"))
    assert (end, aborted) == (41, [(1, 32), (1, 40)])
    assert [entry.offset for entry in entries_in(records)] == [32, 33, 36, 38]
    seen = [(33, b"set-0 101"), (36, b"set-0 200"), (38, b"set-0 201")]
    committed, after = committed_in(records, aborted)
    assert ([(entry.offset, entry.value) for entry in committed], after) == (seen, 40)


def test_a_batch_of_a_transaction_is_the_one_that_a_broker_sends() -> None:
    _, _, records = wire.fetched_transactions(answer("transactions"))
    offset, epoch = records[:8], records[12:16]
    sent = encode_batch([b"set-0 100"], Producer(1, 0, 0))
    assert offset + sent[8:12] + epoch + sent[16:] == records[: len(sent)]


@pytest.mark.parametrize(
    ("fails", "answer_of", "refused"),
    [
        (wire.INIT_PRODUCER, KafkaError(14), True),
        (wire.ADD_PARTITIONS, TimeoutError(), True),
        (wire.PRODUCE, TimeoutError(), True),
        (wire.PRODUCE, KafkaError(7), True),
        (wire.END_TRANSACTION, TimeoutError(), False),
        (wire.END_TRANSACTION, KafkaError(16), False),
        (wire.END_TRANSACTION, KafkaError(48), True),
        (wire.END_TRANSACTION, KafkaError(90), True),
    ],
)
def test_an_element_is_in_doubt_only_if_its_commit_is(
    fails: int, answer_of: Exception, refused: bool
) -> None:
    """A transaction whose commit was not asked for is never committed."""

    class Answered(transactions.TransactionalClient):
        async def _reach(self, kind: int) -> Any:
            if kind == fails:
                raise answer_of
            return Producer(1, 0, 0)

        async def _coordinate(self, kind: int, body: bytes, read: Any) -> Any:
            return await self._reach(kind)

        async def _produce(self, number: int, batch: bytes) -> None:
            await self._reach(wire.PRODUCE)

    values = {"isolation.level": "read_committed"}
    settings: Mapping[str, Any] = {"servers": ["127.0.0.2"], "settings": values, "nodes": []}
    with pytest.raises(Exception) as caught:  # noqa: PT011
        asyncio.run(Answered(settings, 0).add("set-0", 1))
    assert isinstance(caught.value, Refused) == refused


# record batches


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_checksums_are_those_of_the_standard(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@pytest.mark.parametrize("number", [0, -1, 1, -64, 64, 300, 2**31 - 1, -(2**63), 2**63 - 1])
def test_varints_come_back(number: int) -> None:
    encoded = varint(number)
    assert read_varint(b"." + encoded + b".", 1) == (number, 1 + len(encoded))


def test_a_batch_is_the_one_that_a_broker_stores() -> None:
    """A broker adds the base offset and its epoch, here 0 and 0, which no checksum covers."""
    batch = encode_batch([b"one", b"two"])
    assert batch[16:] == SEGMENT[16:]
    assert [each.value for each in entries_in(batch)] == [b"one", b"two"]


def test_a_segment_has_offsets_epochs_and_values() -> None:
    later = (2).to_bytes(8) + SEGMENT[8:12] + (5).to_bytes(4) + SEGMENT[16:]
    found = [(each.offset, each.epoch, each.value) for each in entries_in(SEGMENT + later)]
    assert found == [(0, 0, b"one"), (1, 0, b"two"), (2, 5, b"one"), (3, 5, b"two")]


def test_a_segment_ends_with_its_last_whole_batch() -> None:
    """After a loss of power: half a batch, zeros, or a batch with a wrong bit."""
    wrong = bytearray(SEGMENT)
    wrong[70] ^= 1
    for tail in (SEGMENT[:40], SEGMENT[:-1], bytes(100), bytes(wrong)):
        assert len(entries_in(SEGMENT + tail)) == 2


def test_control_batches_have_no_entries() -> None:
    control = bytearray(SEGMENT)
    control[22] |= 0x20
    control[17:21] = crc32c(bytes(control[21:])).to_bytes(4)
    assert len(entries_in(bytes(control) + SEGMENT)) == 2


# who leads


def test_a_broker_names_the_partitions_that_it_leads() -> None:
    state = PartitionState(101, 4, (101, 102), (101, 102))
    partitions = {
        ("orders", 0): state,
        ("orders", 1): state._replace(leader=102, in_sync=(102,)),
        ("__consumer_offsets", 0): state,
    }
    known = wire.Metadata({101: "a", 102: "b"}, partitions, {})
    assert broker_view("broker-1", 101, known) == View(
        "broker-1", -1, "broker-1", False, {"orders-0": 4}
    )
    assert broker_view("broker-2", 102, known).ready
    assert not broker_view("broker-2", 102, known._replace(brokers={101: "a"})).ready


def state_of(*brokers: View | None, leader: str = "controller-1") -> ClusterState:
    voters: dict[str, View | None] = {
        f"controller-{n}": View(leader, 3, f"controller-{n}") for n in (1, 2, 3)
    }
    views = {f"broker-{n}": view for n, view in enumerate(brokers, 1)}
    return with_quorum("kafka", {**voters, **views}, voters)


def test_the_highest_epoch_leads_and_controllers_lead_each_other() -> None:
    one = View("broker-1", -1, "broker-1", True, {"orders-0": 4})
    two = View("broker-2", -1, "broker-2", True, {"orders-0": 5, "orders-1": 1})
    now = state_of(one, two, View("broker-3", -1, "broker-3"))
    assert (now.masters, now.epochs) == (
        {"orders-0": "broker-2", "orders-1": "broker-2"},
        {"orders-0": 5, "orders-1": 1},
    )
    assert now.detail == {"stale_leaders": ["broker-1"]}
    assert (now.controller_leader, now.in_set) == ("controller-1", ("broker-2", "broker-3"))
    assert not now.redundant


def test_a_cluster_is_whole_if_all_are_in_sync_and_the_controllers_agree() -> None:
    brokers = [View(f"broker-{n}", -1, f"broker-{n}") for n in (1, 2, 3)]
    assert state_of(*brokers).redundant
    assert state_of(*brokers).slaves == ("broker-1", "broker-2", "broker-3")
    assert not state_of(*brokers, leader="").redundant
    assert not state_of(*brokers[:2], None).redundant
    assert not state_of(*brokers[:2], brokers[2]._replace(ready=False)).redundant
