"""A node's settings, to be read and, a few of them, changed while it runs (GET_CONFIG,
UPDATE_CONFIG; the original's getBrokerConfig, updateBrokerConfig).

Only such keys change on which no promise hangs: how fast, how long kept, who is preferred. What the
nodes of a set must agree on, and what was promised to clients, is changed by starting the node
again, and refused here by name. A change is taken whole or not at all, is told in the event log,
and lasts as long as the process: the file is the operator's and stays as it is.
"""

from collections.abc import Awaitable, Callable, Mapping

from .. import config as configuration
from ..config import Config, ConfigError
from ..events import EventLog
from ..net.connection import Connection, refusal
from ..net.wire import Json, Op, Status


class Tuning:
    """`live`: the keys that may change -> what puts a change into force."""

    def __init__(
        self, config: Config, live: Mapping[str, Callable[[Config], object]], events: EventLog
    ) -> None:
        self.config = config  # as it is now
        self._live, self._events = live, events

    def table(self) -> dict[int, Callable[[Connection, Json], Awaitable[Json]]]:
        return {Op.GET_CONFIG: self._get, Op.UPDATE_CONFIG: self._update}

    async def _get(self, connection: Connection, fields: Json) -> Json:
        return {"config": configuration.table_of(self.config), "live": sorted(self._live)}

    async def _update(self, connection: Connection, fields: Json) -> Json:
        values: Json = dict(fields["values"])
        try:
            changed = configuration.changed(self.config, values)
        except ConfigError as e:
            return refusal(Status.INVALID_REQUEST, str(e))
        for key in values:
            if key not in self._live:
                return refusal(Status.INVALID_REQUEST, self._why_not(key))
        self.config = changed
        for key in values:
            self._live[key](changed)
        self._events.write("config", changed=values)
        return await self._get(connection, {})

    def _why_not(self, key: str) -> str:
        keys = ", ".join(sorted(self._live)) or "none"
        return f"{key} cannot change while a {self.config.role} runs; these can: {keys}"
