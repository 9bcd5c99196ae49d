"""Serves GET_CONFIG and UPDATE_CONFIG (RocketMQ's getBrokerConfig, updateBrokerConfig).

Only keys on which no guarantee depends may change while a node runs: rates, retention, priorities.
Keys on which the nodes of a set must agree, or on which a guarantee to clients depends, are changed
by a restart, and refused here by name. An update applies all values or none, is written to the
event log, and lasts until the process ends; the node's file stays as it is.
"""

from collections.abc import Awaitable, Callable, Mapping

from .. import config as configuration
from ..config import Config, ConfigError
from ..events import EventLog
from ..net.connection import FrameConnection, refusal
from ..net.wire import Json, Op, Status


class ConfigHandler:
    """`live`: key that may change -> function that applies the changed configuration."""

    def __init__(
        self, config: Config, live: Mapping[str, Callable[[Config], object]], events: EventLog
    ) -> None:
        self.config = config  # the present one
        self._live, self._events = live, events

    def table(self) -> dict[int, Callable[[FrameConnection, Json], Awaitable[Json]]]:
        return {Op.GET_CONFIG: self._get, Op.UPDATE_CONFIG: self._update}

    async def _get(self, connection: FrameConnection, fields: Json) -> Json:
        return {"config": configuration.table_of(self.config), "live": sorted(self._live)}

    async def _update(self, connection: FrameConnection, fields: Json) -> Json:
        values: Json = dict(fields["values"])
        try:
            changed = configuration.changed(self.config, values)
        except ConfigError as e:
            return refusal(Status.INVALID_REQUEST, str(e))
        for key in values:
            if key not in self._live:
                return refusal(Status.INVALID_REQUEST, self._refusal(key))
        self.config = changed
        for key in values:
            self._live[key](changed)
        self._events.write("config", changed=values)
        return await self._get(connection, {})

    def _refusal(self, key: str) -> str:
        keys = ", ".join(sorted(self._live)) or "none"
        return f"{key} cannot change while a {self.config.role} runs; these can: {keys}"
