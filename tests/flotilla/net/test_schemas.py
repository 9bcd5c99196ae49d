"""Requests whose fields do not make sense are told from those that we fail to serve."""

import asyncio

import pytest
from hostile import JSON_OPS

from clusters.flotilla.net.connection import RejectingHandler, Unreachable, dial
from clusters.flotilla.net.schemas import SCHEMAS, is_address, schema_error
from clusters.flotilla.net.wire import Op, ProtocolError, SendRequest, decode, from_json

SOUND = {
    Op.REGISTER_BROKER: {
        "cluster": "c",
        "brokerName": "b",
        "brokerId": 1,
        "addr": "10.0.0.1:10911",
        "haAddr": "h:1",
        "stateVersion": 2**64 - 1,
        "timeoutMs": 1.5,
        "topics": {"t": 4},
    },
    Op.ALTER_SYNC_STATE_SET: {
        "brokerName": "b",
        "masterId": 1,
        "masterEpoch": 1,
        "set": [1, 2],
        "setEpoch": 3,
    },
    Op.KV_CAS: {"namespace": "n", "key": "k", "expected": None, "value": "ü"},
    Op.METADATA_SYNC: {},
    Op.HAND_OVER: {"masterEpoch": 1, "to": 2, "timeoutMs": 3000},
    Op.DRILL: {"brokerName": "b", "to": None, "of a later edition": [[]]},
}


def test_every_operation_with_fields_has_a_shape() -> None:
    assert set(SCHEMAS) == set(JSON_OPS)


@pytest.mark.parametrize("op", SOUND)
def test_sound_requests(op: Op) -> None:
    assert schema_error(op, SOUND[op]) == ""


@pytest.mark.parametrize(
    ("op", "name", "value"),
    [
        (Op.REGISTER_BROKER, "brokerId", True),
        (Op.REGISTER_BROKER, "brokerId", "1"),
        (Op.REGISTER_BROKER, "stateVersion", 2**64),
        (Op.REGISTER_BROKER, "timeoutMs", float("inf")),
        (Op.REGISTER_BROKER, "topics", {"t": None}),
        (Op.REGISTER_BROKER, "topics", ["t"]),
        (Op.REGISTER_BROKER, "addr", "nowhere"),
        (Op.REGISTER_BROKER, "haAddr", "h:0"),
        (Op.REGISTER_BROKER, "life", None),
        (Op.REGISTER_BROKER, "cluster", "\ud800"),
        (Op.ALTER_SYNC_STATE_SET, "set", [1, None]),
        (Op.KV_CAS, "expected", 3),
        (Op.METADATA_SYNC, "version", [1]),
        (Op.DRILL, "to", "2"),
        (Op.HAND_OVER, "timeoutMs", float("nan")),
    ],
)
def test_a_field_of_another_kind(op: Op, name: str, value: object) -> None:
    assert schema_error(op, {**SOUND[op], name: value}).startswith(f"{name} cannot be ")


NOBODYS = [
    "a..b:80",
    f"{'x' * 64}:80",
    "a\0b:80",
    "ü..:80",
    "..:1",
    "127.0.0.1:65536",
    "127.0.0.1:x",
    "nowhere",
]


@pytest.mark.parametrize("value", NOBODYS)
def test_an_address_that_nobody_can_have(value: str) -> None:
    """It is refused; one in an older log is unreachable, and stops no node."""
    assert not is_address(value)

    async def call() -> None:
        with pytest.raises(Unreachable):
            await dial(value, RejectingHandler(), 5)

    asyncio.run(call())


@pytest.mark.parametrize("value", ["10.0.0.1:1", "b-1.example.:80", "bücher.example:80", "::1:80"])
def test_an_address_that_somebody_may_have(value: str) -> None:
    assert is_address(value)


def test_a_field_that_is_missing() -> None:
    fields = dict(SOUND[Op.KV_CAS])
    del fields["expected"]
    assert schema_error(Op.KV_CAS, fields) == "expected is missing"


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff{}", b"[" * 5000])
def test_bodies_that_say_nothing(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(from_json, body)
    with pytest.raises(ProtocolError):
        decode(SendRequest.unpack, body[:4])
