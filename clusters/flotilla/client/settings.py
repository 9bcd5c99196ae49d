"""A client's settings: RocketMQ's key names and milliseconds outside, scaled seconds inside.

`timeScale` multiplies every time, as it does in a node's configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..net.schemas import MAX_COUNT, MAX_MS
from .breaker import BreakerLimits
from .faults import AVOIDANCES, Avoidance

_TIMES = {  # key -> (field, milliseconds by default)
    "pollNameServerInterval": ("poll_nameserver_s", 30000),
    "sendMsgTimeout": ("send_timeout_s", 3000),  # for all tries of one send together
    "requestTimeoutMillis": ("request_timeout_s", 3000),
    "connectTimeoutMillis": ("connect_timeout_s", 3000),
    "retryBackoffMillis": ("retry_backoff_s", 100),  # RocketMQ: none
    "heartbeatBrokerInterval": ("group_heartbeat_s", 1000),  # RocketMQ: 30000; rebalance 20000
    "clientLockMaxLiveTime": ("lock_lease_s", 30000),
    "detectTimeout": ("detect_timeout_s", 200),
    "detectInterval": ("detect_interval_s", 2000),
    "detectRoundInterval": ("detect_round_s", 3000),  # RocketMQ: fixed
}
_BREAKER_TIMES = {  # of the circuit breaker, which RocketMQ does not have
    "breakerSilenceMillis": ("silence_s", 60),
    "breakerOpenMillis": ("open_s", 2000),
}
_BREAKER_FAILURES = "breakerFailures"
_COUNTS = ("retryTimesWhenSendFailed", "retryTimesWhenSendAsyncFailed")
_SWITCHES = (
    "sendLatencyFaultEnable",  # RocketMQ 4's name
    "sendLatencyEnable",  # RocketMQ 5's name
    "startDetectorEnable",
    "retryAnotherBrokerWhenNotStoreOK",
)
_TABLE = "sendLatencyTable"
ZONE_MODE, ZONE_NAME = "zoneMode", "zoneName"  # RocketMQ's names
TOPICS = "topicQueues"  # given by the program that starts the client
KEYS = frozenset(
    {
        *_TIMES,
        *_BREAKER_TIMES,
        *_COUNTS,
        *_SWITCHES,
        _BREAKER_FAILURES,
        _TABLE,
        ZONE_MODE,
        ZONE_NAME,
    }
)


def check_value(key: str, value: Any) -> str:
    """Return what is wrong with the value of a key, "" if it is valid."""
    if key == ZONE_NAME:
        return "" if value and isinstance(value, str) else f"{key} must be a zone, not {value!r}"
    if key in (*_SWITCHES, ZONE_MODE):
        return "" if isinstance(value, bool) else f"{key} must be true or false, not {value!r}"
    if key == _TABLE:
        names = ", ".join(AVOIDANCES)
        return "" if value in AVOIDANCES else f"{key} must be one of {names}, not {value!r}"
    least = 0 if key in _COUNTS else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        return f"{key} must be a whole number from {least}, not {value!r}"
    most = MAX_COUNT if key in (*_COUNTS, _BREAKER_FAILURES) else MAX_MS
    if value > most:
        return f"{key} must be at most {most}, not {value!r}"
    return ""


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How a client finds its cluster, and its time limits and retries.

    `avoidance`: None means no fault avoidance; `retries_async`: of sends with a callback; `topics`:
    topic -> broker set -> queues, of topics that existed before the client did. It numbers a
    topic's queues through all sets, and would number them otherwise if the first answer of a
    nameserver lacked a set; `zone`: the producer sends to sets whose master is in this zone, as
    long as there is one; "" means to all.
    """

    nameservers: tuple[str, ...]
    poll_nameserver_s: float
    send_timeout_s: float
    request_timeout_s: float
    connect_timeout_s: float
    retry_backoff_s: float
    group_heartbeat_s: float
    lock_lease_s: float
    detect_timeout_s: float
    detect_interval_s: float
    detect_round_s: float
    retries: int
    retries_async: int
    retry_not_stored: bool
    avoidance: Avoidance | None
    detects: bool
    breaker: BreakerLimits
    topics: Mapping[str, tuple[tuple[str, int], ...]]
    zone: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "ClientSettings":
        """Read RocketMQ's keys; ignore other keys."""
        scale = float(fields.get("timeScale", 1.0))
        avoids = any(fields.get(key, False) for key in _SWITCHES[:2])
        table = AVOIDANCES[fields.get(_TABLE, "current")].scaled(scale)
        retries = int(fields.get(_COUNTS[0], 2))
        failures = int(fields.get(_BREAKER_FAILURES, 3))
        return cls(
            nameservers=tuple(fields["namesrvAddr"]),
            retries=retries,
            retries_async=int(fields.get(_COUNTS[1], retries)),
            retry_not_stored=bool(fields.get("retryAnotherBrokerWhenNotStoreOK", False)),
            avoidance=table if avoids else None,
            detects=bool(fields.get("startDetectorEnable", False)),
            breaker=BreakerLimits(failures, **_seconds(_BREAKER_TIMES, fields, scale)),
            topics={t: tuple(sorted(s.items())) for t, s in fields.get(TOPICS, {}).items()},
            zone=str(fields.get(ZONE_NAME, "")) if fields.get(ZONE_MODE, False) else "",
            **_seconds(_TIMES, fields, scale),
        )


def _seconds(
    times: Mapping[str, tuple[str, int]], fields: Mapping[str, Any], scale: float
) -> dict[str, float]:
    return {
        name: float(fields.get(key, default_ms)) / 1000 * scale
        for key, (name, default_ms) in times.items()
    }
