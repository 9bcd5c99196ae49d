"""The fields of each JSON request, checked before the request is served.

A handler that reads a missing field raises KeyError, and TypeError for one of another type; a bug
of this node raises the same. So requests are checked first: an error after that is a bug, and a
node with a bug stops.

A name that ends in "?" may be absent. Fields that are not listed are ignored, since later editions
may send them; so are operations that are not listed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from .wire import Json, Op

Check = Callable[[Any], bool]
Schema = Mapping[str, Check]
_BITS = 64
MAX_MS = 365 * 24 * 3600 * 1000  # the longest time that a setting may name
MAX_COUNT = 1_000_000  # of what a setting counts: members, tries, checks
_MAX_SHOWN = 60  # characters of a value in a sentence


def is_integer(value: Any) -> bool:
    return type(value) is int and value.bit_length() <= _BITS


def is_number(value: Any) -> bool:
    return is_integer(value) or (type(value) is float and math.isfinite(value))


def is_text(value: Any) -> bool:
    """Return whether a value is text that can be encoded; JSON allows lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_address(value: Any) -> bool:
    """Return whether a value is host:port."""
    return is_text(value) and _is_host_and_port(value)


@lru_cache(maxsize=1024)  # heartbeats repeat the same addresses
def _is_host_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_valid = 0 < len(host) < 256 and port.isascii() and port.isdecimal() and len(port) < 6
    return is_valid and 0 < int(port) < 65536 and _can_be_looked_up(host)


def _can_be_looked_up(host: str) -> bool:
    """Return whether the resolver accepts it: labels of 1 to 63 characters and no NUL."""
    try:
        return b"\0" not in host.encode("idna")
    except UnicodeError:
        return False


def is_flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def is_table(value: Any) -> bool:
    return isinstance(value, dict)


def is_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(is_text(k) and is_integer(v) for k, v in value.items())


def or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def is_version(value: Any) -> bool:
    return list_of(is_integer)(value) and len(value) == 2


_QUEUE: Schema = {"topic": is_text, "queueId": is_integer}
_GROUP: Schema = {"group": is_text, **_QUEUE}
_OFFSET: Schema = {**_GROUP, "offset": is_integer}
_LOCK: Schema = {**_GROUP, "client": is_text, "askedAt?": is_integer}
_BROKER: Schema = {"brokerName": is_text, "brokerId": is_integer}
_ADDRESSES: Schema = {"cluster": is_text, **_BROKER, "addr": is_address, "haAddr": is_address}
_SIGN: Schema = {**_BROKER, "addr": is_address, "life": is_integer, "beat": is_integer}
_KEY: Schema = {"namespace": is_text, "key": is_text}

SCHEMAS: Mapping[int, Schema] = {
    Op.QUEUE_RANGE: _QUEUE,
    Op.OFFSET_QUERY: _GROUP,
    Op.OFFSET_COMMIT: _OFFSET,
    Op.OFFSET_RESET: _OFFSET,
    Op.TOPIC_CREATE: {"topic": is_text, "queues": is_integer},
    Op.TOPIC_DELETE: {"topic": is_text},
    Op.GROUP_HEARTBEAT: {"group": is_text, "client": is_text, "topics": list_of(is_text)},
    Op.GROUP_LEAVE: {"group": is_text, "client": is_text},
    Op.LOCK_QUEUE: _LOCK,
    Op.UNLOCK_QUEUE: _LOCK,
    Op.LOCK_PEER: _LOCK,
    Op.METADATA: {},
    Op.METADATA_SYNC: {
        "brokerId?": is_integer,
        "addr?": is_address,
        "version?": is_version,
        "waitMs?": is_number,
    },
    Op.METADATA_NEWS: {},
    Op.QUERY_BY_KEY: {"topic": is_text, "key": is_text, "maxNum?": is_integer},
    Op.REGISTER_BROKER: {
        **_ADDRESSES,
        "stateVersion": is_integer,
        "timeoutMs": is_number,
        "topics": is_counts,
        "life?": is_integer,
        "beat?": is_integer,
        "acts?": is_flag,
        "zone?": is_text,
        "generation?": is_integer,
    },
    Op.NAMESERVER_HEARTBEAT: _SIGN,
    Op.ROUTE: {
        "topic?": or_null(is_text),
        "part?": is_integer,
        "zoneMode?": is_flag,
        "zoneName?": is_text,
    },
    Op.MEMBER_GROUP: {"brokerName": is_text},
    Op.NOTIFY_MIN_BROKER_ID: {},
    Op.REVERSE_SYNC: {"brokerName": is_text},
    Op.VOTE: {
        "brokerName": is_text,
        "from": is_text,
        "term": is_integer,
        "lastEpoch": is_integer,
        "maxOffset": is_integer,
        "pre": is_flag,
        "generation?": is_integer,
    },
    Op.BEAT: {
        "brokerName": is_text,
        "from": is_text,
        "haAddr": is_address,
        "term": is_integer,
        "commit": is_integer,
        "generation?": is_integer,
    },
    Op.CONTROLLER_METADATA: {},
    Op.NEXT_BROKER_ID: {"brokerName": is_text},
    Op.APPLY_BROKER_ID: {**_ADDRESSES, "checkCode": is_text},
    Op.REGISTER_TO_CONTROLLER: {
        **_ADDRESSES,
        "checkCode?": is_text,
        "generation?": is_integer,
    },
    Op.BROKER_HEARTBEAT: {
        **_BROKER,
        "addr": is_address,
        "timeoutMs": is_number,
        "epoch": is_integer,
        "maxOffset": is_integer,
        "confirmOffset": is_integer,
        "priority": is_integer,
        "life?": is_integer,
        "beat?": is_integer,
        "zone?": is_text,
        "resources?": is_integer,
        "learner?": is_flag,
        "rack?": is_text,
    },
    Op.ALTER_SYNC_STATE_SET: {
        "brokerName": is_text,
        "masterId": is_integer,
        "masterEpoch": is_integer,
        "set": list_of(is_integer),
        "setEpoch": is_integer,
    },
    Op.ELECT_MASTER: {
        **_BROKER,
        "designate?": is_flag,
        "masterEpoch?": or_null(is_integer),
        "preferred?": is_flag,
        "generation?": is_integer,
    },
    Op.REPLICA_INFO: {"brokerName": is_text},
    Op.SYNC_STATE_DATA: {"brokerNames?": or_null(list_of(is_text))},
    Op.CLEAN_BROKER_DATA: {
        "brokerName": is_text,
        "brokerIds?": or_null(list_of(is_integer)),
        "cleanLiving?": is_flag,
    },
    Op.NOTIFY_ROLE: {
        "brokerName?": is_text,
        "masterEpoch": is_integer,
        "masterId": or_null(is_integer),
        "masterAddr": or_null(is_address),
        "masterHaAddr": or_null(is_address),
        "set": list_of(is_integer),
        "setEpoch": is_integer,
    },
    Op.DRILL: {"brokerName": is_text, "to?": or_null(is_integer)},
    Op.DRILL_ZONE: {"zone": is_text},
    Op.RETURN_ZONE: {"zone": is_text},
    Op.CONVERT: {
        "brokerName": is_text,
        "step": is_text,
        **dict.fromkeys(("attempt?", "number?", "master?", "epoch?", "end?"), is_integer),
        "mode?": is_text,
    },
    Op.CONVERT_SET: {
        "brokerName": is_text,
        "cluster": is_text,
        "mode": is_text,
        **dict.fromkeys(("generation", "attempt", "master", "epoch"), is_integer),
    },
    Op.KV_GET: _KEY,
    Op.KV_PUT: {**_KEY, "value": or_null(is_text)},
    Op.KV_CAS: {**_KEY, "expected": or_null(is_text), "value": or_null(is_text)},
    Op.CHANGE_CONTROLLERS: {},  # add or remove; checked by its handler
    Op.ADD_INNER: {"config": is_table},
    Op.REMOVE_INNER: {"cluster": is_text, **_BROKER},
    Op.LIST_INNER: {},
    Op.HAND_OVER: {"masterEpoch": is_integer, "to": is_integer, "timeoutMs": is_number},
    Op.RESUME: {"masterEpoch": is_integer},
    Op.DESCRIBE: {},
    Op.PING: {},
    Op.GET_CONFIG: {},
    Op.UPDATE_CONFIG: {"values": is_table},
}

_CHECKS: Mapping[int, Sequence[tuple[str, bool, Check]]] = {  # name, whether it is required, check
    op: [(name.removesuffix("?"), not name.endswith("?"), check) for name, check in schema.items()]
    for op, schema in SCHEMAS.items()
}


def schema_error(op: int, fields: Json) -> str:
    """Return what is wrong with the fields of an operation, "" if they are valid."""
    for name, required, check in _CHECKS.get(op, ()):
        if name not in fields:
            if required:
                return f"{name} is missing"
        elif not check(fields[name]):
            return f"{name} cannot be {str(fields[name])[:_MAX_SHOWN]!r}"
    return ""
