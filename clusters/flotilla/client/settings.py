"""A client's settings: RocketMQ's key names and milliseconds outside, scaled seconds inside.

`timeScale` multiplies every time, as it does in a node's configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIMES = {  # key -> (field, milliseconds by default)
    "pollNameServerInterval": ("poll_nameserver_s", 30000),
    "sendMsgTimeout": ("send_timeout_s", 3000),  # for all tries of one send together
    "requestTimeoutMillis": ("request_timeout_s", 3000),
    "connectTimeoutMillis": ("connect_timeout_s", 3000),
    "retryBackoffMillis": ("retry_backoff_s", 100),  # original: none
}
KEYS = frozenset(_TIMES) | {"retryTimesWhenSendFailed"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a client finds its cluster and how patient it is."""

    nameservers: tuple[str, ...]
    poll_nameserver_s: float
    send_timeout_s: float
    request_timeout_s: float
    connect_timeout_s: float
    retry_backoff_s: float
    retries: int

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Settings":
        """From RocketMQ's keys; other keys are left alone."""
        scale = float(fields.get("timeScale", 1.0))
        times = {
            name: float(fields.get(key, default_ms)) / 1000 * scale
            for key, (name, default_ms) in _TIMES.items()
        }
        return cls(
            nameservers=tuple(fields["namesrvAddr"]),
            retries=int(fields.get("retryTimesWhenSendFailed", 2)),
            **times,
        )
