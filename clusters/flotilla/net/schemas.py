"""What fields a request has: one that makes no sense is told from one that we fail to serve.

A handler takes fields apart: a missing one is a KeyError there, one of another type a TypeError,
and so is a fault of our own. Nobody could tell the two apart afterwards. So requests are looked at
before they are served. What fails after that is our own fault, and a node with a fault stops aloud.

A name that ends in "?" may be absent. Fields that are not named are passed over, since a later
edition may send them; so are operations that are not named.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from .wire import Json, Op

Fits = Callable[[Any], bool]
Shape = Mapping[str, Fits]
_BITS = 64
_SHOWN = 60  # characters of a value in a sentence


def whole(value: Any) -> bool:
    return type(value) is int and value.bit_length() <= _BITS


def number(value: Any) -> bool:
    return whole(value) or (type(value) is float and math.isfinite(value))


def text(value: Any) -> bool:
    """That can be written: JSON has halves of characters, too."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def address(value: Any) -> bool:
    """ip:port, as somebody wrote it."""
    host, _, port = value.rpartition(":") if text(value) else ("", "", "")
    known = 0 < len(host) < 256 and port.isascii() and port.isdecimal() and len(port) < 6
    return known and 0 < int(port) < 65536 and _can_be_looked_up(host)


def _can_be_looked_up(host: str) -> bool:
    """Labels of 1 to 63 characters, and no NUL: what the system's resolver takes at all."""
    try:
        return b"\0" not in host.encode("idna")
    except UnicodeError:
        return False


def flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def table(value: Any) -> bool:
    return isinstance(value, dict)


def counts(value: Any) -> bool:
    return isinstance(value, dict) and all(text(k) and whole(v) for k, v in value.items())


def or_null(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def list_of(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def version(value: Any) -> bool:
    return list_of(whole)(value) and len(value) == 2


_QUEUE: Shape = {"topic": text, "queueId": whole}
_GROUP: Shape = {"group": text, **_QUEUE}
_OFFSET: Shape = {**_GROUP, "offset": whole}
_LOCK: Shape = {**_GROUP, "client": text}
_BROKER: Shape = {"brokerName": text, "brokerId": whole}
_ADDRESSES: Shape = {"cluster": text, **_BROKER, "addr": address, "haAddr": address}
_SIGN: Shape = {**_BROKER, "addr": address, "life": whole, "beat": whole}
_KEY: Shape = {"namespace": text, "key": text}

SHAPES: Mapping[int, Shape] = {
    Op.QUEUE_RANGE: _QUEUE,
    Op.OFFSET_QUERY: _GROUP,
    Op.OFFSET_COMMIT: _OFFSET,
    Op.OFFSET_RESET: _OFFSET,
    Op.TOPIC_CREATE: {"topic": text, "queues": whole},
    Op.TOPIC_DELETE: {"topic": text},
    Op.GROUP_HEARTBEAT: {"group": text, "client": text, "topics": list_of(text)},
    Op.GROUP_LEAVE: {"group": text, "client": text},
    Op.LOCK_QUEUE: _LOCK,
    Op.UNLOCK_QUEUE: _LOCK,
    Op.LOCK_PEER: _LOCK,
    Op.METADATA: {},
    Op.METADATA_SYNC: {
        "brokerId?": whole,
        "addr?": address,
        "version?": version,
        "waitMs?": number,
    },
    Op.METADATA_NEWS: {},
    Op.QUERY_BY_KEY: {"topic": text, "key": text, "maxNum?": whole},
    Op.REGISTER_BROKER: {
        **_ADDRESSES,
        "stateVersion": whole,
        "timeoutMs": number,
        "topics": counts,
        "life?": whole,
        "beat?": whole,
    },
    Op.NAMESERVER_HEARTBEAT: _SIGN,
    Op.ROUTE: {"topic?": or_null(text), "part?": whole},
    Op.MEMBER_GROUP: {"brokerName": text},
    Op.NOTIFY_MIN_BROKER_ID: {},
    Op.CONTROLLER_METADATA: {},
    Op.NEXT_BROKER_ID: {"brokerName": text},
    Op.APPLY_BROKER_ID: {**_ADDRESSES, "checkCode": text},
    Op.REGISTER_TO_CONTROLLER: {**_ADDRESSES, "checkCode?": text},
    Op.BROKER_HEARTBEAT: {
        **_BROKER,
        "addr": address,
        "timeoutMs": number,
        "epoch": whole,
        "maxOffset": whole,
        "confirmOffset": whole,
        "priority": whole,
        "life?": whole,
        "beat?": whole,
        "zone?": text,
        "resources?": whole,
        "learner?": flag,
    },
    Op.ALTER_SYNC_STATE_SET: {
        "brokerName": text,
        "masterId": whole,
        "masterEpoch": whole,
        "set": list_of(whole),
        "setEpoch": whole,
    },
    Op.ELECT_MASTER: {**_BROKER, "designate?": flag, "masterEpoch?": or_null(whole)},
    Op.REPLICA_INFO: {"brokerName": text},
    Op.SYNC_STATE_DATA: {"brokerNames?": or_null(list_of(text))},
    Op.CLEAN_BROKER_DATA: {
        "brokerName": text,
        "brokerIds?": or_null(list_of(whole)),
        "cleanLiving?": flag,
    },
    Op.NOTIFY_ROLE: {
        "brokerName?": text,
        "masterEpoch": whole,
        "masterId": or_null(whole),
        "masterAddr": or_null(address),
        "masterHaAddr": or_null(address),
        "set": list_of(whole),
        "setEpoch": whole,
    },
    Op.DRILL: {"brokerName": text, "to?": or_null(whole)},
    Op.KV_GET: _KEY,
    Op.KV_PUT: {**_KEY, "value": or_null(text)},
    Op.KV_CAS: {**_KEY, "expected": or_null(text), "value": or_null(text)},
    Op.CHANGE_CONTROLLERS: {},  # it says itself what it wants
    Op.HAND_OVER: {"masterEpoch": whole, "to": whole, "timeoutMs": number},
    Op.RESUME: {"masterEpoch": whole},
    Op.DESCRIBE: {},
    Op.PING: {},
    Op.GET_CONFIG: {},
    Op.UPDATE_CONFIG: {"values": table},
}


def misshapen(op: int, fields: Json) -> str:
    """Why these are no fields of that operation, in a sentence; empty: they are."""
    for named, fits in SHAPES.get(op, {}).items():
        name = named.removesuffix("?")
        if name not in fields:
            if name == named:
                return f"{name} is missing"
        elif not fits(fields[name]):
            return f"{name} cannot be {str(fields[name])[:_SHOWN]!r}"
    return ""
