"""Settings with which no Flotilla cluster can do its work, found before anything is started: pure.

Each setting has its type and its range by itself; whether it can work depends on the others, on how
many brokers a set has and on how large the messages are. A cluster that refuses every send, or
takes every broker for dead, would be raised, loaded and judged for minutes to say nothing.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from clusters.flotilla.config import Config
from clusters.flotilla.net.wire import MAX_FRAME
from harness.errors import BadRequest

HEAD_BYTES = 512  # more than a record needs besides its body
LEAST_BATCH_BYTES = 1024  # what a node's own configuration demands
LEAST_SEGMENT_BYTES = 64 * 1024  # brokers keep every segment open
MOST_SEGMENT_BYTES = 1 << 30  # the original's; each broker allocates it at once
MOST_SENT_BYTES = MAX_FRAME // 2
FASTER = (  # what has to happen more often than its absence is noticed; else ...
    ("brokerHeartbeatInterval", "controllerHeartBeatTimeoutMills", "brokers are taken for dead"),
    ("raftHeartbeatInterval", "raftElectionTimeout", "controllers depose every leader"),
    ("brokerHeartbeatInterval", "brokerNotActiveTimeoutMillis", "nameservers forget brokers"),
    ("registerNameServerPeriod", "brokerChannelExpiredTime", "nameservers forget brokers"),
    ("haSendHeartbeatInterval", "haHousekeepingInterval", "idle slaves are cut off"),
)
_DEFAULTS = {
    f.metadata["key"]: f.default * 1000 if f.metadata["ms"] else f.default
    for f in fields(Config)
    if f.default is not MISSING
}

Values = Mapping[str, Any]


def refuse_impossible(values: Values, brokers: int, body_bytes: int) -> None:
    """BadRequest for a setting that can not work in broker sets of this size, for such bodies."""
    every = {**_DEFAULTS, **values}
    _refuse_copies("minInSyncReplicas", every, brokers)
    if not every["allAckInSyncStateSet"]:
        _refuse_copies("inSyncReplicas", every, brokers)
    least = max(LEAST_SEGMENT_BYTES, body_bytes + HEAD_BYTES)
    _refuse_size("mappedFileSizeCommitLog", every, least, MOST_SEGMENT_BYTES)
    _refuse_size("haTransferBatchSize", every, LEAST_BATCH_BYTES, MOST_SENT_BYTES)
    if "maxMessageSize" in values:
        most = min(every["mappedFileSizeCommitLog"], MOST_SENT_BYTES) - HEAD_BYTES
        _refuse_size("maxMessageSize", every, max(body_bytes, 1), most)
    _refuse_slower(every)


def _refuse_copies(key: str, every: Values, brokers: int) -> None:
    if every[key] > brokers:
        raise BadRequest(
            f"the trial's settings: {key} is {every[key]}, but a broker set here has {brokers}, so "
            f"nothing could ever be acknowledged; lower it, or raise nodes.broker"
        )


def _refuse_size(key: str, every: Values, least: int, most: int) -> None:
    if not least <= every[key] <= most:
        raise BadRequest(
            f"the trial's settings: {key} must be from {least} to {most} bytes here, "
            f"not {every[key]}"
        )


def _refuse_slower(every: Values) -> None:
    for often, limit, otherwise in FASTER:
        if every[often] >= every[limit]:
            raise BadRequest(
                f"the trial's settings: {often} ({every[often]:g} ms) must be less than {limit} "
                f"({every[limit]:g} ms), or {otherwise}"
            )
