"""Several brokers in one process (RocketMQ's BrokerContainer, RIP-31).

Each broker has its own ports, HA port, store and role; they share the process, its event loop and
its event log, whose lines have the broker's name as `inner`. `brokerConfigPaths` lists the files
with their configurations. The container's own values of nodeName, listenHost, eventLogPath,
namesrvAddr, controllerAddr and timeScale apply to all of its brokers. It listens on its own port
for operators, who may add and remove brokers while it runs (ADD_INNER, REMOVE_INNER).

**An added broker survives a restart.** What was added and removed is on the disk (`container.json`
in the container's store) before it is answered. In RocketMQ, and with `containerRemembers = false`,
a restart goes back to the configuration files.

**A broker that does not start is taken out again**, with its ports (apache/rocketmq#5900), and
ADD_INNER is answered with the reason. One of `brokerConfigPaths` that does not start ends the
process at its start.

**Brokers of a container fail together.** A fatal error of one, such as a failed sync, ends the
process. With `containerIsolatesFaults = true` it ends that broker only. An error in the program, as
opposed to one that the broker reports itself, always ends the process.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .. import config as configuration
from ..broker import broker
from ..config import Config, ConfigError
from ..events import EventLog
from ..net import connection as net
from ..net.connection import FrameConnection, JsonHandler, refusal
from ..net.wire import DECODE_ERRORS, Json, Op, Status, from_json, to_json
from ..rules import Rules
from ..special.escape import Neighbour
from ..world.ports import Ports, is_out_of_space, retry_when_out_of_files
from .isolation import InnerExit, IsolatedFiles
from .placement import InnerChanges, InnerId, Table, id_of

SHARED_KEYS = (  # of which the container's value applies to its brokers
    *("nodeName", "listenHost", "eventLogPath", "namesrvAddr", "controllerAddr", "timeScale"),
)


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled, or until a broker fails whose faults are not isolated."""
    events = EventLog(config.event_log, config.node, ports)
    container = Container(config, ports, rules, events)
    server = await net.serve(config.host, config.port, container.handler)
    try:
        await container.start()
        ready(config.address)
        await container.failed
    finally:
        server.close()
        await container.close()


class InnerRefused(Exception):
    """A broker was not added or removed; the text says why."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(why)
        self.status = status


class InnerBroker:
    """A broker of the container, from its start on."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        rules: Rules,
        isolates: bool,
        on_end: Callable[["InnerBroker"], None],
        neighbours: dict[str, Neighbour],
    ) -> None:
        """`neighbours`: the brokers that serve in this process, by brokerName."""
        self.config = config
        self.id = id_of(config)
        self._on_end = on_end
        self._end = InnerExit(str(self.id), ports.exit, isolates, self._failed)
        files = IsolatedFiles(ports.files, self._end) if isolates else ports.files
        own = replace(ports, exit=self._end, files=files)
        self._ready = asyncio.Event()
        rules = rules.inner_rules(rules, config.broker_name)
        self._task = asyncio.ensure_future(
            broker.main(config, own, rules, lambda address: self._ready.set(), neighbours)
        )

    @property
    def serving(self) -> bool:
        return self._ready.is_set() and not self._task.done() and not self._end.why

    async def started(self) -> str:
        """Wait until it serves; return why it does not, "" if it does."""
        waiting = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((self._task, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._task.done() or self._end.why:
            await self.stop()
            return self.why
        self._end.started = True
        self._task.add_done_callback(lambda task: self._on_end(self))
        return ""

    @property
    def why(self) -> str:
        """Why it has ended."""
        if self._end.why or self._task.cancelled() or not self._task.done():
            return self._end.why or "it was stopped"
        return str(self._task.exception())

    def error(self) -> BaseException | None:
        """Return the exception that ended it, None if it was stopped or failed by itself."""
        if self._task.cancelled() or self._end.why:
            return None
        return self._task.exception()

    async def stop(self) -> None:
        """Stop it in order: its sends are answered, its store is closed, its ports are free."""
        self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # it is known already

    def _failed(self, why: str) -> None:
        asyncio.get_running_loop().call_soon(self._task.cancel)

    def fields(self) -> Json:
        config = self.config
        return {
            **self.id.fields(),
            "addr": config.address,
            "haAddr": config.ha_address,
            "storePath": config.store,
            "serving": self.serving,
        }


class Container:
    """The brokers of one process, and the operator's requests."""

    def __init__(self, config: Config, ports: Ports, rules: Rules, events: EventLog) -> None:
        self._config, self._ports, self._rules, self._events = config, ports, rules, events
        self._path = f"{config.store}/container.json"
        self._brokers: dict[InnerId, InnerBroker] = {}
        self._neighbours: dict[str, Neighbour] = {}
        self._stopping: dict[InnerBroker, None] = {}
        self._changes = InnerChanges({})
        self._turn = asyncio.Lock()  # one change after the other
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handler = JsonHandler(
            {
                Op.ADD_INNER: self._serve_add,
                Op.REMOVE_INNER: self._serve_remove,
                Op.LIST_INNER: self._serve_list,
                Op.DESCRIBE: self._describe,
                Op.PING: self._ping,
            },
            on_protocol_error=events.protocol_error,
        )

    # from the process's start to its end

    async def start(self) -> None:
        """Start the brokers of brokerConfigPaths, and those that were added."""
        async with self._turn:
            self._changes = await self._stored_changes()
            names = [broker.broker_name for broker in self._changes.added]
            gone = [broker.broker_name for broker in self._changes.removed]
            remembers = self._config.container_remembers
            self._record("restored", None, brokers=names, gone=gone, remembers=remembers)
            for config in self._first():
                why = self._refusal(config) or await self._start(config)
                if why and not self._config.container_isolates_faults:
                    self._ports.exit.fatal(f"{id_of(config)} did not start: {why}")

    def _first(self) -> list[Config]:
        """Return the configurations with which this process starts. What was added takes precedence
        over a file with the same broker, which may have been removed before."""
        tables = [self._read(path) for path in self._config.broker_config_paths]
        configs = []
        for table in tables:
            try:
                configs.append(self._inner_config(table))
            except ConfigError as e:
                self._ports.exit.fatal(f"{self._config.node}: a broker's configuration: {e}")
        later = {*self._changes.removed, *self._changes.added}
        added = [self._inner_config(table) for table in self._changes.added.values()]
        return [*(config for config in configs if id_of(config) not in later), *added]

    def _read(self, path: str) -> Table:
        try:
            return configuration.table_in(self._ports.files.read(path).decode())
        except OSError as e:
            self._ports.exit.fatal(f"{path} cannot be read: {e.strerror}")
        except (ConfigError, UnicodeDecodeError) as e:
            self._ports.exit.fatal(f"{path}: {e}")

    async def _stored_changes(self) -> InnerChanges:
        files = self._ports.files
        if not self._config.container_remembers or not files.exists(self._path):
            return InnerChanges({})

        async def read() -> bytes:
            return files.read(self._path)

        try:
            fields = from_json(await retry_when_out_of_files(read))
            tables = [(id_of(self._inner_config(table)), table) for table in fields["added"]]
            removed = frozenset(InnerId(str(c), str(n), int(i)) for c, n, i in fields["removed"])
        except (ConfigError, *DECODE_ERRORS) as e:
            self._ports.exit.fatal(
                f"{self._path} is damaged: {e}; bring it back from a copy, or remove it: then only "
                "the brokers of brokerConfigPaths start"
            )
        return InnerChanges(dict(tables), removed)

    def _inner_config(self, table: Table) -> Config:
        """Return the configuration of a broker. Raises ConfigError."""
        own = configuration.table_of(self._config)
        shared = {key: own[key] for key in SHARED_KEYS}
        fixed = {"role": "broker", "inContainer": True, "seed": -1}
        return configuration.of_table({**table, **shared, **fixed})

    async def close(self) -> None:
        """Stop all brokers in order."""
        brokers = [*self._brokers.values(), *self._stopping]
        self._brokers.clear()
        await asyncio.gather(*(each.stop() for each in brokers))
        for connection in list(self.handler.connections):
            connection.close()

    # changes

    async def add(self, table: Table) -> InnerBroker:
        """Start a broker and remember it. Raises InnerRefused."""
        try:
            config = self._inner_config(table)
        except ConfigError as e:
            raise InnerRefused(Status.INVALID_REQUEST, str(e)) from e
        async with self._turn:
            if why := self._refusal(config):
                raise InnerRefused(Status.INVALID_REQUEST, why)
            if why := await self._start(config):
                raise InnerRefused(Status.SYSTEM_ERROR, f"it did not start: {why}")
            added = self._brokers[id_of(config)]
            try:
                await self._remember(self._changes.with_added(added.id, table))
            except InnerRefused:
                await self._stop(added)
                raise
            self._record("added", added.config)
            return added

    async def remove(self, broker: InnerId) -> None:
        """Stop a broker and forget it; its store stays. Raises InnerRefused."""
        async with self._turn:
            removed = self._brokers.get(broker)
            if removed is None:
                known = ", ".join(map(str, sorted(self._brokers))) or "none"
                why = f"{broker} is not in this container; its brokers: {known}"
                raise InnerRefused(Status.INVALID_REQUEST, why)
            self._record("removing", removed.config)
            await self._remember(self._changes.with_removed(broker))
            await self._stop(removed)
            self._record("removed", removed.config)

    def _refusal(self, config: Config) -> str:
        present = [each.config for each in self._brokers.values()]
        why = self._rules.inner_refusal(config, present)
        if not why:  # links are followed, too
            new, *others = (
                replace(each, store=self._ports.files.resolve(each.store))
                for each in (config, *present)
            )
            why = self._rules.inner_refusal(new, others)
        if why:
            self._record("refused", config, why=why)
        return why

    async def _start(self, config: Config) -> str:
        """Start a broker; return why it did not start, "" if it did."""
        self._record("starting", config)
        try:
            self._ports.files.makedirs(config.store)
        except OSError as e:
            why = f"storePath {config.store}: {e.strerror}"
            self._record("failed", config, why=why)
            return why
        isolates = self._config.container_isolates_faults
        new = InnerBroker(config, self._ports, self._rules, isolates, self._ended, self._neighbours)
        self._brokers[new.id] = new
        why = await new.started()
        if why and self._rules.failed_inner_is_taken_out:
            self._brokers.pop(new.id, None)
        self._record("failed" if why else "started", config, **({"why": why} if why else {}))
        return why

    async def _stop(self, which: InnerBroker) -> None:
        del self._brokers[which.id]
        self._stopping[which] = None
        if self._rules.removed_inner_is_stopped:
            await which.stop()
            del self._stopping[which]

    def _ended(self, ended: InnerBroker) -> None:
        """A broker that has started has ended: it was stopped, or it failed."""
        if self._brokers.get(ended.id) is not ended:
            return
        error = ended.error()
        if error is not None and not self._config.container_isolates_faults:
            if not self.failed.done():
                self.failed.set_exception(error)
            return
        del self._brokers[ended.id]
        self._record("failed", ended.config, why=ended.why)

    async def _remember(self, changes: InnerChanges) -> None:
        """Put the changes on the disk. Raises InnerRefused if there is no room."""
        if self._config.container_remembers:
            contents = to_json(self._rules.changes_to_store(changes).fields())
            try:
                await self._ports.files.replace(self._path, contents)
            except OSError as e:
                if not is_out_of_space(e):
                    self._ports.exit.fatal(f"{self._path} cannot be written: {e}")
                why = f"{self._path} cannot be written: {e.strerror}"
                raise InnerRefused(Status.SERVICE_NOT_AVAILABLE, why) from e
        self._changes = changes

    def _record(self, action: str, config: Config | None, **fields: Any) -> None:
        of: Mapping[str, Any] = {}
        if config is not None:
            of = {**id_of(config).fields(), "storePath": config.store}
        self._events.write("inner", action=action, **of, **fields)

    # requests

    async def _serve_add(self, connection: FrameConnection, fields: Json) -> Json:
        try:
            return (await self.add(fields["config"])).fields()
        except InnerRefused as e:
            return refusal(e.status, str(e))

    async def _serve_remove(self, connection: FrameConnection, fields: Json) -> Json:
        broker = InnerId(fields["cluster"], fields["brokerName"], fields["brokerId"])
        try:
            await self.remove(broker)
        except InnerRefused as e:
            return refusal(e.status, str(e))
        return {}

    async def _serve_list(self, connection: FrameConnection, fields: Json) -> Json:
        return {"brokers": [each.fields() for _, each in sorted(self._brokers.items())]}

    async def _describe(self, connection: FrameConnection, fields: Json) -> Json:
        listed = await self._serve_list(connection, fields)
        return {"node": self._config.node, "role": "container", **listed}

    async def _ping(self, connection: FrameConnection, fields: Json) -> Json:
        return {}
