"""Requests whose fields do not make sense are told from those that we fail to serve."""

import pytest
from hostile import JSON_OPS

from clusters.flotilla.shapes import SHAPES, misshapen
from clusters.flotilla.wire import Op, Send, Senseless, from_json, understood

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
    assert set(SHAPES) == set(JSON_OPS)


@pytest.mark.parametrize("op", SOUND)
def test_sound_requests(op: Op) -> None:
    assert misshapen(op, SOUND[op]) == ""


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
    assert misshapen(op, {**SOUND[op], name: value}).startswith(f"{name} can not be ")


def test_a_field_that_is_missing() -> None:
    fields = dict(SOUND[Op.KV_CAS])
    del fields["expected"]
    assert misshapen(Op.KV_CAS, fields) == "expected is missing"


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff{}", b"[" * 5000])
def test_bodies_that_say_nothing(body: bytes) -> None:
    with pytest.raises(Senseless):
        understood(from_json, body)
    with pytest.raises(Senseless):
        understood(Send.unpack, body[:4])
