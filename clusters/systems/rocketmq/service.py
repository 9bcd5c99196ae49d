"""RocketMQ's nodes: nameservers, controllers and brokers, which controllers elect a master of.

Controllers agree by Raft (DLedger, or JRaft) on the master of the brokers, its epoch, and the
SyncStateSet: the brokers whose copies count. All settings have RocketMQ's own names; times are
shorter than its defaults, so that faults are noticed within seconds.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from clusters.kit import Copy, Event, NodeAccess, Profile, Service, View, plugin, time_of_line
from clusters.kit.java import FLAGS, JAVA
from clusters.supply import MavenJars, Program
from clusters.systems.rocketmq.client import (
    BROKER,
    BROKER_PORT,
    NAMES_PORT,
    NAMESERVER,
    RocketClient,
    master_of,
)
from clusters.systems.rocketmq.commit_log import TRANSACTION, terms_in
from clusters.systems.rocketmq.remoting import (
    CLUSTER,
    CONTROLLERS,
    EPOCHS,
    HA_STATUS,
    LOG_METADATA,
    LOG_SUCCESS,
    RUNTIME,
    SUCCESS,
    SYNC_STATE,
    Answer,
    decode,
    request,
)
from harness.contracts import Node

CONTROLLER = "controller"
CONTROLLER_PORT, RAFT_PORT, HA_PORT, LOG_PORT = 9878, 9880, 10912, 40911
SET, GROUP = "rocketmq", "controllers"  # names of the broker set and of the controllers' group
PROGRAM = Program(
    name="rocketmq",
    sources=(
        MavenJars(
            coordinates=(
                "org.apache.rocketmq:rocketmq-namesrv",
                "org.apache.rocketmq:rocketmq-controller",
                "org.apache.rocketmq:rocketmq-broker",
                "org.apache.rocketmq:rocketmq-container",
            )
        ),
    ),
    version="5.4.0",
    version_argv=(),
    by_hand="unpack a binary release of apache/rocketmq and name its folder as supply",
)
MAIN = {
    NAMESERVER: "org.apache.rocketmq.namesrv.NamesrvStartup",
    CONTROLLER: "org.apache.rocketmq.controller.ControllerStartup",
    BROKER: "org.apache.rocketmq.broker.BrokerStartup",
}
CONTAINER_MAIN = "org.apache.rocketmq.container.BrokerContainerStartup"
CONTROLLER_TYPES = {"dledger": "DLedger", "jraft": "jRaft"}  # Flotilla's name -> RocketMQ's
CONTROLLED = ("controller", "container")  # modes in which controllers elect the master
FOR_GOOD = ("master-slave", "acting")  # modes in which the first broker is the master for good
RAFT_NOTICES_S = 7.0  # DLedger's own: three heartbeats of 2 s, and up to 1 s before a vote
HEAP = {NAMESERVER: "namesrv_heap_mb", CONTROLLER: "controller_heap_mb", BROKER: "broker_heap_mb"}
OF_BROKERS = (
    *("allAckInSyncStateSet", "minInSyncReplicas", "inSyncReplicas", "flushDiskType"),
    *("enableAutoInSyncReplicas", "syncFlushTimeout", "haSendHeartbeatInterval"),
    *("haHousekeepingInterval", "haMaxTimeSlaveNotCatchup", "controllerHeartBeatTimeoutMills"),
    *("brokerHeartbeatInterval", "syncBrokerMetadataPeriod", "checkSyncStateSetPeriod"),
    *("syncControllerMetadataPeriod", "registerNameServerPeriod", "mappedFileSizeCommitLog"),
    *("transientStorePoolEnable", "slaveReadEnable", "brokerNotActiveTimeoutMillis"),
)
QUOTELESS = re.compile(rb"([{,])(\d+):")
TIMES = {  # ms, by RocketMQ's own defaults
    "haSendHeartbeatInterval": 5000,
    "haHousekeepingInterval": 20_000,
    "haMaxTimeSlaveNotCatchup": 15_000,
    "controllerHeartBeatTimeoutMills": 10_000,
    "brokerHeartbeatInterval": 1000,
    "brokerNotActiveTimeoutMillis": 10_000,
    "scanNotActiveBrokerInterval": 5000,
    "syncBrokerMetadataPeriod": 5000,
    "checkSyncStateSetPeriod": 5000,
    "syncControllerMetadataPeriod": 10_000,
    "pollNameServerInterval": 3000,  # of the clients; RocketMQ's 30 s would be the failover time
}
OF_CONTROLLERS = ("enableElectUncleanMaster", "scanNotActiveBrokerInterval")
FIXED = {  # of brokers: small files, room on a disk, and what a machine of two cores can do
    "autoCreateTopicEnable": True,
    "autoCreateSubscriptionGroup": True,
    "mappedFileSizeConsumeQueue": 600_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "timerWheelEnable": False,
    "diskMaxUsedSpaceRatio": 95,
    "sendMessageThreadPoolNums": 4,
    "waitTimeMillsInSendQueue": 1000,
    "useEpollNativeSelector": False,
}

# By themselves nodes log to many files, to the second and at China's time.
LOGBACK = """<configuration>
  <statusListener class="org.apache.rocketmq.logging.ch.qos.logback.core.status.NopStatusListener"/>
  <appender name="output" class="org.apache.rocketmq.logging.ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{yyyy-MM-dd HH:mm:ss.SSS,UTC}Z %p %t - %m%n</pattern></encoder>
  </appender>
  <logger name="RocketmqStats" level="WARN"/>
  <logger name="RocketmqTraffic" level="WARN"/>
  <logger name="RocketmqWaterMark" level="WARN"/>
  <logger name="RocketmqRemoting" level="WARN"/>
  <logger name="ROOT" level="INFO"><appender-ref ref="output"/></logger>
</configuration>
"""
# of ReplicasManager and DefaultMessageStore, the same from 5.1.1 to 5.5.0
NEW_ROLE = re.compile(
    r"Change broker \[id:(?P<id>\d+)\].* to (?P<role>\w+), newMasterBrokerId:(?P<master>\d+), "
    r".*newMasterEpoch:(?P<epoch>\d+)"
)
NEW_SET = re.compile(r"SyncStateSet changed from \[.*\] to \[(?P<ids>[\d, ]*)\]")
LOG_END = re.compile(r"local epoch entries is \[.*endOffset=(?P<end>\d+)\}\]")
CUT_TO = re.compile(r"truncate dirty files to (?P<point>\d+)")


class RocketMq(Service):
    """One nameserver, three controllers, and three brokers of one set by default."""

    name, programs, client = "rocketmq", (PROGRAM, JAVA), RocketClient
    roles: ClassVar = {NAMESERVER: 1, CONTROLLER: 3, BROKER: 3}
    data_role = BROKER
    arbiters: ClassVar = (NAMESERVER, CONTROLLER)
    own_leader: ClassVar = (CONTROLLER,)
    dated: ClassVar = (BROKER,)
    words: ClassVar = {
        "leader": "master",
        "follower": "slave",
        "term": "epoch",
        "server": "broker",
        "group": "broker set",
        "set": "SyncStateSet",
    }
    settings: ClassVar = {
        "mode": ("controller", "container", "dledger", "master-slave", "acting"),
        "controllerType": (*CONTROLLER_TYPES.values(), *CONTROLLER_TYPES),
        "allAckInSyncStateSet": True,
        "minInSyncReplicas": 2,
        "inSyncReplicas": 1,
        "enableAutoInSyncReplicas": False,
        "flushDiskType": ("SYNC_FLUSH", "ASYNC_FLUSH"),
        "enableElectUncleanMaster": False,
        "transientStorePoolEnable": False,
        "slaveReadEnable": False,
        "timeScale": 1.0,  # of the times in TIMES
        # ms
        "syncFlushTimeout": 2000,
        "haSendHeartbeatInterval": 1000,
        "haHousekeepingInterval": 3000,
        "haMaxTimeSlaveNotCatchup": 3000,
        "controllerHeartBeatTimeoutMills": 3000,
        "brokerHeartbeatInterval": 500,
        "brokerNotActiveTimeoutMillis": 3000,
        "scanNotActiveBrokerInterval": 1000,
        "syncBrokerMetadataPeriod": 1000,
        "checkSyncStateSetPeriod": 1000,
        "syncControllerMetadataPeriod": 2000,
        "registerNameServerPeriod": 10_000,
        "jRaftElectionTimeoutMs": 1000,
        "pollNameServerInterval": 1000,  # of the clients
        "mappedFileSizeCommitLog": 16 << 20,  # bytes
        "namesrv_heap_mb": 96,
        "controller_heap_mb": 128,
        "broker_heap_mb": 320,
    }
    smallest: ClassVar = {
        **dict.fromkeys(("minInSyncReplicas", "inSyncReplicas", *TIMES), 1),
        "timeScale": 0.01,
        "mappedFileSizeCommitLog": 1 << 20,
        **dict.fromkeys(HEAP.values(), 32),
    }
    profiles = (
        Profile(
            name="safe",
            about="a message is synced by all brokers of the SyncStateSet, which are at least two",
        ),
        Profile(
            name="jraft",
            about="the same, with controllers that agree by JRaft",
            settings={"controllerType": "jRaft"},
        ),
        Profile(
            name="async-flush",
            about="all brokers of the SyncStateSet have a message in memory",
            settings={"flushDiskType": "ASYNC_FLUSH"},
        ),
        Profile(
            name="defaults",
            about="RocketMQ's own defaults: the master alone acknowledges, from memory",
            settings={
                "allAckInSyncStateSet": False,
                "minInSyncReplicas": 1,
                "flushDiskType": "ASYNC_FLUSH",
            },
        ),
        Profile(
            name="published",
            about="as the published trial: all of the SyncStateSet, and RocketMQ's own times",
            settings={**TIMES, "minInSyncReplicas": 1, "flushDiskType": "ASYNC_FLUSH"},
        ),
        Profile(
            name="dledger",
            about="no controllers: Raft in the log, and a majority has a message in memory",
            settings={"mode": "dledger"},
        ),
        Profile(
            name="master-slave",
            about="no elections: the first broker is the master, and one slave has a message too",
            settings={"mode": "master-slave", "inSyncReplicas": 2},
        ),
        Profile(
            name="acting",
            about="the same, and a slave stands in for a master that is gone: for readers only",
            settings={"mode": "acting", "inSyncReplicas": 2},
        ),
        Profile(
            name="container",
            about="as safe, with each broker in a container of brokers",
            settings={"mode": "container"},
        ),
        Profile(
            name="unclean",
            about="a broker outside the SyncStateSet may become master",
            settings={"enableElectUncleanMaster": True, "minInSyncReplicas": 1},
        ),
    )
    claims: ClassVar = dict.fromkeys(
        ("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "crash"), "all"
    )
    start_s = 180.0

    @classmethod
    def detects_within_s(cls, values: Mapping[str, Any]) -> float:
        """Return how long controllers may need to notice a silent master, or with Raft in the log
        its peers."""
        if values["mode"] == "dledger":
            return RAFT_NOTICES_S
        waits = values["controllerHeartBeatTimeoutMills"] + values["scanNotActiveBrokerInterval"]
        return float(waits / 1000 * values["timeScale"])

    @classmethod
    def fails_over(cls, values: Mapping[str, Any]) -> bool:
        """Return whether there are elections: a slave that acts for a master serves readers."""
        return values["mode"] not in FOR_GOOD

    def _in_force(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return settings, with the times scaled."""
        scale = self.values["timeScale"]
        own = {key: self.values[key] for key in keys}
        return {key: max(round(v * scale), 1) if key in TIMES else v for key, v in own.items()}

    @classmethod
    def roles_in(cls, values: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the roles: not in each mode are there controllers."""
        return cls.roles if values["mode"] in CONTROLLED else {NAMESERVER: 1, BROKER: 3}

    def _of(self, role: str) -> list[Node]:
        return [node for node in self.nodes if node.role == role]

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> dict[str, str]:
        make = {NAMESERVER: self._nameserver, CONTROLLER: self._controller, BROKER: self._broker}
        found = {"node.conf": _lines(make[here.node.role](here)), "logback.xml": LOGBACK}
        if self._contained(here):
            container = {"brokerConfigPaths": f"{here.folder}/node.conf"}
            found["container.conf"] = _lines({**container, "namesrvAddr": self._nameservers()})
        return found

    def _contained(self, here: NodeAccess) -> bool:
        return here.node.role == BROKER and self.values["mode"] == "container"

    def _nameservers(self) -> str:
        return ";".join(f"{n.address}:{NAMES_PORT}" for n in self._of(NAMESERVER))

    def _nameserver(self, here: NodeAccess) -> dict[str, Any]:
        acting = self.values["mode"] == "acting"
        return {"listenPort": NAMES_PORT, "supportActingMaster": acting}

    def _controller(self, here: NodeAccess) -> dict[str, Any]:
        controllers, store = self._of(CONTROLLER), f"{here.folder}/{self.data}"
        kind = CONTROLLER_TYPES[self.values["controllerType"].lower()]
        n = controllers.index(here.node)
        common = {
            **self._in_force(OF_CONTROLLERS),
            "controllerType": kind,
            "controllerStorePath": store,
            "notifyBrokerRoleChanged": True,
        }
        if kind == "DLedger":
            peers = (f"n{i}-{c.address}:{CONTROLLER_PORT}" for i, c in enumerate(controllers))
            return {
                **common,
                "controllerDLegerGroup": GROUP,
                "controllerDLegerPeers": ";".join(peers),
                "controllerDLegerSelfId": f"n{n}",
                "mappedFileSize": 4 << 20,
                "listenPort": CONTROLLER_PORT + 1,  # of nothing that is asked
            }
        own = here.node.address
        return {
            **common,
            "jRaftGroupId": GROUP,
            "jRaftServerId": f"{own}:{RAFT_PORT}",
            "jRaftInitConf": ",".join(f"{c.address}:{RAFT_PORT}" for c in controllers),
            "jRaftControllerRPCAddr": ",".join(
                f"{c.address}:{CONTROLLER_PORT}" for c in controllers
            ),
            "jRaftElectionTimeoutMs": self.values["jRaftElectionTimeoutMs"],
            "listenPort": CONTROLLER_PORT,
        }

    def _broker(self, here: NodeAccess) -> dict[str, Any]:
        store, own = f"{here.folder}/{self.data}", here.node.address
        return {
            **FIXED,
            **self._in_force(OF_BROKERS),
            "brokerClusterName": "seatrial",
            "brokerName": SET,
            **self._of_mode(here),
            "brokerIP1": own,
            "brokerIP2": own,
            "listenPort": BROKER_PORT,
            "haListenPort": HA_PORT,
            "namesrvAddr": self._nameservers(),
            "storePathRootDir": store,
            "storePathCommitLog": f"{store}/commitlog",
            "storePathEpochFile": f"{store}/epochFileCheckpoint",
            "storePathBrokerIdentity": f"{store}/brokerIdentity",
        }

    def _of_mode(self, here: NodeAccess) -> dict[str, Any]:
        """Return how a broker finds its role: from controllers, by Raft in the log, or for good."""
        brokers = self._of(BROKER)
        number = brokers.index(here.node)
        if self.values["mode"] in CONTROLLED:
            controllers = (f"{n.address}:{CONTROLLER_PORT}" for n in self._of(CONTROLLER))
            found: dict[str, Any] = {}
            if self._contained(here):  # it refuses to wait for fewer than it demands
                fewest = max(self.values[key] for key in ("inSyncReplicas", "minInSyncReplicas"))
                found = {"totalReplicas": len(brokers), "inSyncReplicas": fewest}
            return {
                **found,
                "brokerId": -1,
                "brokerRole": "SLAVE",
                "enableControllerMode": True,
                "controllerAddr": ";".join(controllers),
            }
        if self.values["mode"] == "dledger":
            peers = (f"n{n}-{broker.address}:{LOG_PORT}" for n, broker in enumerate(brokers))
            return {
                "enableDLegerCommitLog": True,
                "dLegerGroup": SET,
                "dLegerSelfId": self._raft_id(here),
                "dLegerPeers": ";".join(peers),
            }
        acting = self.values["mode"] == "acting"
        return {
            "brokerId": number,
            "brokerRole": "SLAVE" if number else "SYNC_MASTER",
            "enableSlaveActingMaster": acting,
            "enableRemoteEscape": acting,
        }

    def _raft_id(self, here: NodeAccess) -> str:
        """Return what a broker's peers call it, where Raft is in the log."""
        return f"n{self._of(BROKER).index(here.node)}"

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> list[str]:
        role = here.node.role
        inside = self._contained(here)
        start = (CONTAINER_MAIN, "container.conf") if inside else (MAIN[role], "node.conf")
        return [
            *(here.program["java"], *FLAGS, f"-Xmx{self.values[HEAP[role]]}m", "-Xms32m"),
            *("-XX:MaxDirectMemorySize=256m", "-Dtls.server.mode=disabled"),
            *(f"-Djava.io.tmpdir={here.folder}", f"-Duser.home={here.folder}"),
            f"-Drmq.logback.configurationFile={here.folder}/logback.xml",
            *("-cp", f"{here.program['rocketmq']}/*", start[0], "-c", f"{here.folder}/{start[1]}"),
        ]

    def environment(self, here: NodeAccess) -> dict[str, str]:
        return {**super().environment(here), "ROCKETMQ_HOME": here.folder, "HOME": here.folder}

    @classmethod
    def dated_in(cls, values: Mapping[str, Any]) -> Sequence[str]:
        return cls.dated if cls.logs_roles(values) else ()

    @classmethod
    def logs_roles(cls, values: Mapping[str, Any]) -> bool:
        """Only brokers that controllers give roles log all of them."""
        return values["mode"] in CONTROLLED

    def events(self, log: str, node: str) -> Iterator[Event]:
        return broker_events(log, node, self.name)

    # asking nodes

    async def _asked(
        self, here: NodeAccess, port: int, code: int, body: bytes = b"", **fields: Any
    ) -> Answer:
        frame = await here.agent.ask(port, request(code, fields, body), 1.0)
        answer = decode(frame)[2]
        if answer.code not in (SUCCESS, LOG_SUCCESS):
            raise ConnectionError(f"code {answer.code}: {answer.remark[:200]}")
        return answer

    def _names(self) -> dict[str, str]:
        return {node.address: node.name for node in self._of(BROKER)}

    async def ask(self, here: NodeAccess) -> View:
        name = here.node.name
        if here.node.role == NAMESERVER:
            answer = await self._asked(here, NAMES_PORT, CLUSTER)
            view = nameserver_view(name, answered_object(answer.body), self._names())
            if self.values["mode"] == "dledger":  # brokers know more: the term
                view = View(None, -1, name, view.defers or bool(view.leader), defers=True)
            return view
        if here.node.role == CONTROLLER:
            asked = await self._asked(here, CONTROLLER_PORT, CONTROLLERS)
            if asked.fields.get("isLeader") != "true":
                led = bool(asked.fields.get("controllerLeaderAddress"))
                return View(None, -1, name, led, defers=led)
            names = json.dumps([SET]).encode()
            answer = await self._asked(here, CONTROLLER_PORT, SYNC_STATE, names)
            return controller_view(name, answered_object(answer.body), self._names())
        if self.values["mode"] == "dledger":
            own = self._raft_id(here)
            group = json.dumps({"group": SET, "remoteId": own}).encode()
            answer = await self._asked(here, LOG_PORT, LOG_METADATA, group)
            term = await here.agent.get(f"{here.folder}/{self.data}/dledger-{own}/currterm")
            return raft_view(name, answered_object(answer.body), term, self._of(BROKER))
        status = await self._asked(here, BROKER_PORT, HA_STATUS)
        if self.values["mode"] not in CONTROLLED:
            return broker_view(name, answered_object(status.body), {}, self._names())
        epochs = await self._asked(here, BROKER_PORT, EPOCHS)
        return broker_view(
            name, answered_object(status.body), answered_object(epochs.body), self._names()
        )

    async def rejoin(self, here: NodeAccess, others: Sequence[NodeAccess]) -> None:
        """Do nothing: a broker without data asks for another number, and copies all of the log."""

    async def copy(self, here: NodeAccess, keys: Sequence[str]) -> list[Copy]:
        """Return what a broker's log has of the queues, from its files up to where it says that
        the log ends: bytes behind that may be of a log that was cut."""
        table = answered_object((await self._asked(here, BROKER_PORT, RUNTIME)).body)["table"]
        first, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        begun = []  # place in the log, and the epoch that begins there
        if self.values["mode"] in CONTROLLED:
            epochs = answered_object((await self._asked(here, BROKER_PORT, EPOCHS)).body)
            begun = [(each["startOffset"], each["epoch"]) for each in epochs["epochList"]]
        raft = self.values["mode"] == "dledger"
        log = f"dledger-{self._raft_id(here)}/data" if raft else "commitlog"
        folder = f"{here.folder}/{self.data}/{log}"
        wanted, rows = set(keys), []
        size = self.values["mappedFileSizeCommitLog"]
        for begin in range(first - first % size, end, size):
            data = (await here.agent.get(f"{folder}/{begin:020d}"))[: end - begin]
            found = await asyncio.to_thread(list, terms_in(data, begun, raft=raft))
            for term, each in found:
                key = f"{each.topic}-{each.queue}"
                if key in wanted and not each.sysflag & TRANSACTION:
                    rows.append(Copy.of(key, each.offset, each.body, term))
        return rows


def broker_events(log: str, node: str, name: str) -> Iterator[Event]:
    """Yield the events of a broker's log, as `Service.events`; brokers have the ids that
    controllers gave them. An election is what the broker that won it tells, and its set has that
    broker alone. `name`: of the broker set."""
    master, end = False, 0
    for line in log.splitlines():
        if (t := time_of_line(line)) is None:
            continue
        if found := NEW_ROLE.search(line):
            own, epoch = int(found["id"]), int(found["epoch"])
            master = found["role"].endswith("MASTER")
            role = {"brokerName": name, "brokerId": own, "epoch": epoch}
            yield t, node, "role", {**role, "role": "master" if master else "slave"}
            if master:
                won = {"brokerName": name, "masterId": own, "epoch": epoch, "set": [own]}
                yield t, node, "election", won
        elif (found := NEW_SET.search(line)) and master:
            ids = sorted(int(number) for number in found["ids"].split(","))
            yield t, node, "set", {"brokerName": name, "set": ids}
        elif found := LOG_END.search(line):
            end = int(found["end"])
        elif (found := CUT_TO.search(line)) and (point := int(found["point"])) < end:
            yield t, node, "truncate", {"point": point, "before": end}


def nameserver_view(name: str, cluster: Mapping[str, Any], names: Mapping[str, str]) -> View:
    """Return the view of a nameserver from its table of brokers. `names`: address -> broker."""
    table = cluster.get("brokerAddrTable") or {}
    if not table:
        return View(None, -1, name, defers=True)
    return View(names.get(master_of({"brokerDatas": table.values()})), -1, name)


def controller_view(name: str, found: Mapping[str, Any], names: Mapping[str, str]) -> View:
    """Return the view of the controllers' leader, which knows the SyncStateSet."""
    if not (state := (found.get("replicasInfoTable") or {}).get(SET)):
        return View(None, -1, name, defers=True, leads_arbiters=True)
    members = [_named(each["brokerAddress"], names) for each in state["inSyncReplicas"]]
    master, epoch = _named(state.get("masterAddress"), names), state.get("masterEpoch")
    return View(master, int(epoch or -1), name, leads_arbiters=True, members=members)


def broker_view(
    name: str, ha: Mapping[str, Any], epochs: Mapping[str, Any], names: Mapping[str, str]
) -> View:
    """Return the view of a broker from its role, and from the epochs of its log."""
    begun = [each["epoch"] for each in epochs.get("epochList") or ()]
    term = begun[-1] if begun else -1
    if ha.get("master"):
        return View(name, term, name)
    own = ha.get("haClientRuntimeInfo") or {}
    return View(_named(own.get("masterAddr"), names), term, name)


def raft_view(name: str, found: Mapping[str, Any], stored: bytes, brokers: Sequence[Node]) -> View:
    """Return the view of a broker with Raft in its log: the leader from DLedger's metadata, `n0`
    for the first, and the term, which these do not have, from its file."""
    leader = str(found.get("leaderId") or "")
    names = {f"n{number}": broker.name for number, broker in enumerate(brokers)}
    term = re.search(rb"currTerm=(\d+)", stored)
    return View(names.get(leader, ""), int(term[1]) if term else -1, name)


def _named(address: str | None, names: Mapping[str, str]) -> str:
    """Return the name of the broker at `address:port`."""
    return names.get((address or "").rpartition(":")[0], "")


def _lines(fields: Mapping[str, Any]) -> str:
    """Return fields as a file of properties."""
    return "".join(f"{key}={_text(value)}\n" for key, value in fields.items())


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def answered_object(body: bytes) -> dict[str, Any]:
    """Return an object that a node answers; keys may be numbers without quotes. Raises
    ValueError."""
    found = json.loads(QUOTELESS.sub(rb'\1"\2":', body))
    if not isinstance(found, dict):
        raise ValueError("it answers no object")
    return found


PLUGIN = plugin(RocketMq)
