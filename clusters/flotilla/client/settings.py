"""A client's settings: RocketMQ's key names and milliseconds outside, scaled seconds inside.

`timeScale` multiplies every time, as it does in a node's configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusters.flotilla.capacity.breaker import Fuse

from .faults import AVOIDANCES, Avoidance

_TIMES = {  # key -> (field, milliseconds by default)
    "pollNameServerInterval": ("poll_nameserver_s", 30000),
    "sendMsgTimeout": ("send_timeout_s", 3000),  # for all tries of one send together
    "requestTimeoutMillis": ("request_timeout_s", 3000),
    "connectTimeoutMillis": ("connect_timeout_s", 3000),
    "retryBackoffMillis": ("retry_backoff_s", 100),  # original: none
    # original: 30000, and 20000 to rebalance
    "heartbeatBrokerInterval": ("group_heartbeat_s", 1000),
    "clientLockMaxLiveTime": ("lock_lease_s", 30000),
    "rebalanceLockInterval": ("lock_interval_s", 20000),
    "offlineSlowMillis": ("offline_slow_s", 100),  # a pull that lasts longer is slow
    "offlinePauseMillis": ("offline_pause_s", 1000),  # the longest between two pulls
    "detectTimeout": ("detect_timeout_s", 200),
    "detectInterval": ("detect_interval_s", 2000),
    "detectRoundInterval": ("detect_round_s", 3000),  # original: fixed
}
_FUSE = {  # the circuit breaker's times; the original has none
    "breakerSilenceMillis": ("silence_s", 60),
    "breakerOpenMillis": ("open_s", 2000),
}
_COUNTS = ("retryTimesWhenSendFailed", "retryTimesWhenSendAsyncFailed")
_FAILURES = "breakerFailures"
_BATCH = "offlinePullBatchSize"
_SWITCHES = (
    "sendLatencyFaultEnable",  # the seed article's spelling
    "sendLatencyEnable",  # RocketMQ 5's
    "startDetectorEnable",
    "retryAnotherBrokerWhenNotStoreOK",
)
_TABLE = "sendLatencyTable"
KEYS = frozenset({*_TIMES, *_FUSE, *_COUNTS, *_SWITCHES, _FAILURES, _BATCH, _TABLE})


def why_not(key: str, value: Any) -> str:
    """What is wrong with the value of a key; empty: nothing."""
    if key in _SWITCHES:
        return "" if isinstance(value, bool) else f"{key} must be true or false, not {value!r}"
    if key == _TABLE:
        known = ", ".join(AVOIDANCES)
        return "" if value in AVOIDANCES else f"{key} must be one of {known}, not {value!r}"
    least = 0 if key in _COUNTS else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        return f"{key} must be a whole number from {least}, not {value!r}"
    return ""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a client finds its cluster and how patient it is. `avoidance`: None, no fault tolerance;
    `retries_async`: of sends that nobody waits for."""

    nameservers: tuple[str, ...]
    poll_nameserver_s: float
    send_timeout_s: float
    request_timeout_s: float
    connect_timeout_s: float
    retry_backoff_s: float
    group_heartbeat_s: float
    lock_lease_s: float
    lock_interval_s: float
    detect_timeout_s: float
    detect_interval_s: float
    detect_round_s: float
    retries: int
    retries_async: int
    retry_not_stored: bool
    avoidance: Avoidance | None
    detects: bool
    offline_batch: int
    offline_slow_s: float
    offline_pause_s: float
    fuse: Fuse

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Settings":
        """From RocketMQ's keys; other keys are left alone."""
        scale = float(fields.get("timeScale", 1.0))
        avoids = any(fields.get(key, False) for key in _SWITCHES[:2])
        table = AVOIDANCES[fields.get(_TABLE, "current")].scaled(scale)
        retries = int(fields.get(_COUNTS[0], 2))
        return cls(
            nameservers=tuple(fields["namesrvAddr"]),
            retries=retries,
            retries_async=int(fields.get(_COUNTS[1], retries)),
            retry_not_stored=bool(fields.get("retryAnotherBrokerWhenNotStoreOK", False)),
            avoidance=table if avoids else None,
            detects=bool(fields.get("startDetectorEnable", False)),
            offline_batch=int(fields.get(_BATCH, 32)),
            fuse=Fuse(int(fields.get(_FAILURES, 3)), **_seconds(_FUSE, fields, scale)),
            **_seconds(_TIMES, fields, scale),
        )


def _seconds(
    times: Mapping[str, tuple[str, int]], fields: Mapping[str, Any], scale: float
) -> dict[str, float]:
    return {
        name: float(fields.get(key, default_ms)) / 1000 * scale
        for key, (name, default_ms) in times.items()
    }
