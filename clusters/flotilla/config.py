"""A node's configuration: RocketMQ's key names in TOML, seconds in the code.

Times are written in milliseconds, as in RocketMQ, and multiplied by `timeScale` when they are read:
0.1 makes a cluster that detects, elects and gives up ten times sooner, so that dozens of faults fit
into minutes. Defaults are RocketMQ's unless a comment says otherwise; "ours" marks keys that
RocketMQ does not have. Unknown keys and wrong types are refused with the name of the key.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, get_args

from .broker import topic_limits
from .controllers.elect import POLICIES
from .net.schemas import MAX_COUNT, MAX_MS, is_address, is_integer, is_number
from .net.wire import MAX_FRAME
from .store.retention import ALWAYS, hours_of

MIN_SCALE, MAX_SCALE = 0.0001, 1000
MAX_BYTES = 1 << 50
MAX_HOURS = 10_000_000  # for so long a log is kept: for good


class ConfigError(Exception):
    """The configuration is invalid; the text names the key and the reason."""


def _key(
    name: str,
    default: Any = MISSING,
    *,
    ms: bool = False,
    minimum: int | None = None,
    maximum: int | None = None,
) -> Any:
    """Return a field for the TOML key `name`. `ms`: milliseconds there, scaled seconds here."""
    metadata = {"key": name, "ms": ms, "minimum": minimum, "maximum": maximum}
    if default is MISSING:
        return field(metadata=metadata)
    if isinstance(default, tuple | dict):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default / 1000 if ms else default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """One node's settings. Fields that end in `_s` are scaled seconds."""

    # identity and addresses
    role: str = _key("role")  # one of ROLES
    node: str = _key("nodeName")
    host: str = _key("listenHost")
    port: int = _key("listenPort", 10911, minimum=0, maximum=65535)
    ha_port: int = _key("haListenPort", 10912, minimum=0, maximum=65535)
    store: str = _key("storePath")
    event_log: str = _key("eventLogPath", "")
    cluster: str = _key("clusterName", "flotilla")
    broker_name: str = _key("brokerName", "")
    nameservers: tuple[str, ...] = _key("namesrvAddr", ())  # ["ip:port", ...]
    controllers: tuple[str, ...] = _key("controllerAddr", ())
    controller_id: str = _key("controllerDLegerSelfId", "")  # RocketMQ's spelling
    # {id: "ip:port"} of a new group; empty: this controller waits until it is added to a group
    controller_peers: dict[str, str] = _key("controllerDLegerPeers", {})
    topics: dict[str, int] = _key("topics", {})  # {name: number of queues}, created at start
    time_scale: float = _key("timeScale", 1.0)
    seed: int = _key("seed", -1)  # -1: from the operating system

    # who decides the role: see steering/steering.py
    ha_mode: str = _key("haMode", "controller")  # ours; or one of HA_MODES
    # of switchless brokers; in RocketMQ ASYNC_MASTER is the default, and a slave has SLAVE
    broker_role: str = _key("brokerRole", "SYNC_MASTER")
    broker_id: int = _key("brokerId", 0, minimum=0, maximum=1000)  # 0: the master
    sync_broker_member_group_s: float = _key("syncBrokerMemberGroupPeriod", 1000, ms=True)
    slave_acting_master: bool = _key("enableSlaveActingMaster", False)
    remote_escape: bool = _key("enableRemoteEscape", False)  # of an acting master
    skip_pre_online: bool = _key("skipPreOnline", False)
    support_acting_master: bool = _key("supportActingMaster", False)  # of a nameserver
    switchless_epochs: bool = _key("switchlessEpochs", True)  # ours; false: none, as in RocketMQ

    # of sets that may be converted to another haMode, all ours: see docs/flotilla-conversion.md
    convertible: bool = _key("convertible", False)
    convert_timeout_s: float = _key("convertTimeout", 3000, ms=True)  # until all logs are equal
    # set by the broker from its mode.json: the generation of its set, the id of the broker that
    # leads it first (0: as configured), and the last epoch before it
    generation: int = _key("modeGeneration", 0, minimum=0)
    first_master: int = _key("modeMaster", 0, minimum=0)
    epoch_before: int = _key("modeEpoch", 0, minimum=0)

    # several brokers in one process: see container/container.py
    broker_config_paths: tuple[str, ...] = _key("brokerConfigPaths", ())  # of a container
    container_remembers: bool = _key("containerRemembers", True)  # ours; in RocketMQ it does not
    container_isolates_faults: bool = _key("containerIsolatesFaults", False)  # ours
    in_container: bool = _key("inContainer", False)  # ours: set by the container for its brokers

    # of raft-log brokers: see steering/ballot_role.py; DLedger's names and values
    dleger_self_id: str = _key("dLegerSelfId", "")  # "n0", "n1" ...
    dleger_peers: dict[str, str] = _key("dLegerPeers", {})  # {id: "ip:port"}, this broker included
    ballot_heartbeat_s: float = _key("heartBeatTimeIntervalMs", 2000, ms=True)
    # so many heartbeats without an answer end a reign, or make a slave ask for votes
    max_heartbeat_leak: int = _key("maxHeartBeatLeak", 3, minimum=2, maximum=1000)
    min_vote_interval_s: float = _key("minVoteIntervalMs", 300, ms=True)
    max_vote_interval_s: float = _key("maxVoteIntervalMs", 1000, ms=True)
    max_wait_ack_s: float = _key("maxWaitAckTimeMs", 2500, ms=True)

    # replication and acknowledgement
    total_replicas: int = _key("totalReplicas", 1, minimum=1, maximum=MAX_COUNT)
    in_sync_replicas: int = _key("inSyncReplicas", 1, minimum=1, maximum=MAX_COUNT)
    min_in_sync_replicas: int = _key("minInSyncReplicas", 1, minimum=1, maximum=MAX_COUNT)
    all_ack_in_sync_state_set: bool = _key("allAckInSyncStateSet", False)
    auto_in_sync_replicas: bool = _key("enableAutoInSyncReplicas", False)
    ha_max_gap_not_in_sync: int = _key(
        "haMaxGapNotInSync", 256 * 1024, maximum=MAX_BYTES
    )  # as in RIP-34; RocketMQ: 256 MiB
    ack_zones: int = _key(
        "ackZones", 1, minimum=1, maximum=MAX_COUNT
    )  # ours: copies in so many zones
    semi_sync: bool = _key("enableSemiSync", False)  # ours
    semi_sync_lag_s: float = _key("haMaxTimeSemiSyncLag", 1000, ms=True)  # ours
    sync_flush_when_alone: bool = _key("forceSyncFlushWhenAlone", False)  # ours
    slave_timeout_s: float = _key("slaveTimeout", 3000, ms=True)
    ha_max_time_slave_not_catchup_s: float = _key("haMaxTimeSlaveNotCatchup", 15000, ms=True)
    ha_send_heartbeat_interval_s: float = _key("haSendHeartbeatInterval", 5000, ms=True)
    ha_housekeeping_interval_s: float = _key("haHousekeepingInterval", 20000, ms=True)
    ha_reconnect_s: float = _key("haReconnectInterval", 1000, ms=True)  # RocketMQ: 5000, fixed
    ha_transfer_batch_size: int = _key(
        "haTransferBatchSize", 256 * 1024, minimum=1024, maximum=MAX_FRAME // 2
    )  # RocketMQ: 32 KiB
    ha_flow_control: bool = _key("haFlowControlEnable", False)
    ha_flow_bytes_per_s: int = _key(
        "maxHaTransferByteInSecond", 100 * 1024 * 1024, minimum=1024, maximum=MAX_BYTES
    )  # to each slave
    async_learner: bool = _key("asyncLearner", False)  # a copy that is neither counted nor elected
    sync_from_last_file: bool = _key(
        "syncFromLastFile", False
    )  # a new copy begins at the last segment
    ha_epoch_fencing: bool = _key("haEpochFencing", True)  # false: none, as in RocketMQ
    sync_slave_metadata_s: float = _key("syncSlaveMetadataPeriod", 1000, ms=True)  # RocketMQ: 10000
    strict_metadata: bool = _key("strictMetadata", False)  # ours: changes wait for the SyncStateSet
    slave_read_enable: bool = _key("slaveReadEnable", False)
    in_memory_max_ratio: int = _key(
        "accessMessageInMemoryMaxRatio", 40, minimum=0, maximum=100
    )  # percent
    in_memory_bytes: int = _key(
        "accessMessageInMemoryBytes", 1 << 30, minimum=1, maximum=MAX_BYTES
    )  # RocketMQ: the machine's memory
    lock_in_strict_mode: bool = _key("lockInStrictMode", False)
    lock_max_live_s: float = _key("rebalanceLockMaxLiveTime", 60000, ms=True)
    check_sync_state_set_s: float = _key("checkSyncStateSetPeriod", 5000, ms=True)

    # special messages: see special/delay.py and special/halves.py
    strict_special: bool = _key(
        "strictSpecialMessages", True
    )  # ours: progress and decisions wait for the set
    timer_retry_until_success: bool = _key(
        "timerEnableRetryUntilSuccess", True
    )  # RocketMQ: false, which drops a message after three failures
    timer_max_delay_s: int = _key(
        "timerMaxDelaySec", 3 * 24 * 3600, minimum=1, maximum=MAX_MS // 1000
    )  # not scaled
    delay_scan_s: float = _key("delayScanInterval", 100, ms=True)  # RocketMQ: fixed
    flush_delay_offset_s: float = _key("flushDelayOffsetInterval", 1000, ms=True)  # RocketMQ: 10000

    transaction_timeout_s: float = _key("transactionTimeOut", 6000, ms=True)
    transaction_check_s: float = _key("transactionCheckInterval", 30000, ms=True)
    transaction_check_max: int = _key("transactionCheckMax", 15, minimum=1, maximum=MAX_COUNT)
    transaction_op_batch_s: float = _key("transactionOpBatchInterval", 3000, ms=True)

    # storage
    flush_disk_type: str = _key("flushDiskType", "ASYNC_FLUSH")  # or SYNC_FLUSH
    flush_interval_s: float = _key("flushIntervalCommitLog", 500, ms=True)
    sync_flush_timeout_s: float = _key("syncFlushTimeout", 5000, ms=True)
    segment_size: int = _key(
        "mappedFileSizeCommitLog", 64 * 1024 * 1024, minimum=64, maximum=MAX_BYTES
    )  # RocketMQ: 1 GiB
    flush_consumer_offset_s: float = _key(
        "flushConsumerOffsetInterval", 1000, ms=True
    )  # RocketMQ: 5000
    max_message_size: int = _key("maxMessageSize", 4 * 1024 * 1024, minimum=1, maximum=MAX_BYTES)
    flush_least_pages: int = _key("flushCommitLogLeastPages", 4, maximum=MAX_COUNT)
    flush_thorough_s: float = _key("flushCommitLogThoroughInterval", 10000, ms=True)
    transient_store_pool: bool = _key("transientStorePoolEnable", False)
    commit_interval_s: float = _key("commitIntervalCommitLog", 200, ms=True)
    file_reserved_h: float = _key("fileReservedTime", 72.0, maximum=MAX_HOURS)  # hours, not scaled
    delete_when: str = _key("deleteWhen", "04")  # "04;16": hours of the day (UTC); or "always"
    clean_resource_s: float = _key("cleanResourceInterval", 10000, ms=True)
    disk_max_used_ratio: int = _key("diskMaxUsedSpaceRatio", 75)  # percent, like the next ones
    disk_clean_forcibly_ratio: int = _key("diskSpaceCleanForciblyRatio", 85)
    clean_file_forcibly: bool = _key("cleanFileForciblyEnable", True)
    disk_warning_level_ratio: int = _key("diskSpaceWarningLevelRatio", 90)

    # broker and controllers
    broker_heartbeat_interval_s: float = _key("brokerHeartbeatInterval", 1000, ms=True)
    heartbeat_rpc_timeout_s: float = _key("sendHeartbeatTimeoutMillis", 1000, ms=True)
    heartbeat_timeout_s: float = _key("controllerHeartBeatTimeoutMills", 10000, ms=True)
    sync_broker_metadata_s: float = _key("syncBrokerMetadataPeriod", 5000, ms=True)
    controller_rpc_timeout_s: float = _key("controllerRequestTimeout", 3000, ms=True)
    register_nameserver_s: float = _key("registerNameServerPeriod", 30000, ms=True)
    lite_heartbeat: bool = _key("liteHeartBeat", True)  # light heartbeats to nameservers
    nameserver_timeout_s: float = _key(
        "brokerNotActiveTimeoutMillis", 5000, ms=True
    )  # RocketMQ: 10000
    channel_expired_s: float = _key("brokerChannelExpiredTime", 120000, ms=True)  # RocketMQ: fixed
    notify_min_broker_id_changed: bool = _key("notifyMinBrokerIdChanged", True)  # RocketMQ: false
    election_priority: int = _key("brokerElectionPriority", 2**31 - 1)  # smaller wins
    zone: str = _key("zone", "")  # for electPolicy = "zone", and ackZones
    rack: str = _key("rack", "")  # for electPolicy = "zone": where the broker is in its zone
    node_resources: int = _key("nodeResources", 0)  # for electPolicy = "node-resources"

    # the return of the mastership, all ours: see controllers/preferred.py
    preferred_masters: tuple[str, ...] = _key("preferredMaster", ())  # the best one first
    preferred_stable_s: float = _key("preferredStable", 30000, ms=True)
    preferred_pause_s: float = _key("preferredPause", 300000, ms=True)

    # leases of masters, all ours: see controllers/master_lease.py
    master_lease: bool = _key("enableMasterLease", False)
    controller_lease_s: float = _key("controllerLeaseMillis", 20000, ms=True)
    lease_clock_margin_s: float = _key("leaseClockMargin", 2000, ms=True)

    # controllers
    scan_not_active_broker_s: float = _key("scanNotActiveBrokerInterval", 5000, ms=True)
    scan_inactive_master_s: float = _key("scanInactiveMasterInterval", 5000, ms=True)
    elect_unclean_master: bool = _key("enableElectUncleanMaster", False)
    elect_policy: str = _key("electPolicy", "water-level")  # see elect.py
    controller_type: str = _key("controllerType", "dledger")  # or jraft
    controller_in_nameserver: bool = _key("enableControllerInNamesrv", False)
    drill_timeout_s: float = _key(
        "drillTimeout", 1000, ms=True
    )  # ours: time limit of a planned handover
    notify_role_changed: bool = _key("notifyBrokerRoleChanged", True)
    raft_heartbeat_s: float = _key("raftHeartbeatInterval", 500, ms=True)
    raft_election_timeout_s: float = _key("raftElectionTimeout", 2000, ms=True)
    raft_write_timeout_s: float = _key("raftWriteTimeout", 5000, ms=True)
    raft_snapshot_entries: int = _key(
        "raftSnapshotEntries", 1000, minimum=1, maximum=1_000_000_000
    )  # RocketMQ: every 3600 s

    # brokers and HA controllers with a ZooKeeper ensemble or coordinators: all ours
    zk_servers: tuple[str, ...] = _key("zkServers", ())  # ["ip:port", ...], for sessions
    zk_session_timeout_s: float = _key("zkSessionTimeout", 4000, ms=True)
    zk_report_interval_s: float = _key("zkReportInterval", 200, ms=True)
    zk_near_gap: int = _key(
        "zkNearGap", 64 * 1024, minimum=0, maximum=MAX_BYTES
    )  # bytes behind, before sends are held
    zk_hold_max_s: float = _key("zkHoldMax", 1000, ms=True)
    zk_sync_lag_s: float = _key("zkSyncLag", 3000, ms=True)  # out of step for so long ends SYNC

    # coordinators, which speak ZooKeeper's protocol: zk/server.py
    client_port: int = _key("clientPort", 2181, minimum=0, maximum=65535)  # for sessions
    coordinator_peers: dict[str, str] = _key("coordinatorPeers", {})  # ours: {nodeName: "ip:port"}
    zk_tick_s: float = _key("zkTickTime", 1000, ms=True)  # zoo.cfg's tickTime

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def ha_address(self) -> str:
        return f"{self.host}:{self.ha_port}"

    @property
    def switchless(self) -> bool:
        return self.ha_mode == "switchless"

    @property
    def zookeeper(self) -> bool:
        return self.ha_mode == "zookeeper"

    @property
    def raft_log(self) -> bool:
        return self.ha_mode == "raft-log"

    @property
    def copies(self) -> int:
        """How many replicas must have a message, where not all members of the set must."""
        waits = not self.switchless or self.broker_role == "SYNC_MASTER"
        return self.in_sync_replicas if waits else 1

    @property
    def ack_timeout_s(self) -> float:
        """How long a send waits for copies."""
        return self.max_wait_ack_s if self.raft_log else self.slave_timeout_s

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"


_BY_KEY = {f.metadata["key"]: f for f in fields(Config)}
ROLES = ("nameserver", "controller", "broker", "coordinator", "hacontroller", "container")
CONTROLLER_TYPES = ("dledger", "jraft")
HA_MODES = ("controller", "switchless", "raft-log", "zookeeper")
MAX_ZONE_BYTES = 255
BROKER_ROLES = ("SYNC_MASTER", "ASYNC_MASTER")


@lru_cache(maxsize=64)  # read again at every start of a node; simulated nodes share a process
def loads(text: str) -> Config:
    """Parse TOML text. Raises ConfigError."""
    return of_table(table_in(text))


def table_in(text: str) -> dict[str, Any]:
    """Parse TOML text into a table of keys, which are not checked. Raises ConfigError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"the node's configuration is not TOML: {e}") from e


def of_table(table: dict[str, Any]) -> Config:
    """Return the configuration that a table of keys describes. Raises ConfigError."""
    _refuse_unknown(table)
    scale = _scale(table.get("timeScale", 1.0))
    values = {f.name: _value(f, table, scale) for f in fields(Config) if _is_computed(f, table)}
    config = Config(**values)
    _refuse_invalid(config, "totalReplicas" in table)
    if config.convertible:
        _refuse_unconvertible(config)
    if config.lock_in_strict_mode and config.role == "broker" and "totalReplicas" not in table:
        raise ConfigError("lockInStrictMode needs totalReplicas, a majority of which grants a lock")
    return config


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the configuration with some keys changed. Raises ConfigError."""
    table = dict(values)
    _refuse_unknown(table)
    new = {_BY_KEY[key].name: _value(_BY_KEY[key], table, config.time_scale) for key in table}
    after = replace(config, **new)
    _refuse_invalid(after, sized=False)
    return after


def table_of(config: Config) -> dict[str, Any]:
    """Return the configuration as a table of keys; times are unscaled milliseconds."""
    return {key: _table_value(f, config) for key, f in sorted(_BY_KEY.items())}


def _table_value(f: Any, config: Config) -> Any:
    value = getattr(config, f.name)
    if f.metadata["ms"]:
        ms = round(value * 1000 / config.time_scale, 6)
        return int(ms) if ms.is_integer() else ms
    return list(value) if isinstance(value, tuple) else value


def _refuse_unknown(table: dict[str, Any]) -> None:
    unknown = sorted(set(table) - set(_BY_KEY))
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]}; known: {', '.join(sorted(_BY_KEY))}")


def _refuse_invalid(config: Config, sized: bool) -> None:
    """Refuse values that no cluster can work with. `sized`: totalReplicas was given."""
    if config.role not in ROLES:
        raise ConfigError(f"role is {config.role!r}; it must be one of {', '.join(ROLES)}")
    if config.controller_type not in CONTROLLER_TYPES:
        raise ConfigError(
            f"controllerType is {config.controller_type!r}; {' or '.join(CONTROLLER_TYPES)}"
        )
    if config.ha_mode not in HA_MODES:
        raise ConfigError(f"haMode is {config.ha_mode!r}; one of {', '.join(HA_MODES)}")
    if config.broker_role not in BROKER_ROLES:
        raise ConfigError(f"brokerRole is {config.broker_role!r}; {' or '.join(BROKER_ROLES)}")
    if config.elect_policy not in POLICIES:
        raise ConfigError(f"electPolicy is {config.elect_policy!r}; one of {', '.join(POLICIES)}")
    if config.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        raise ConfigError(f"flushDiskType is {config.flush_disk_type!r}; ASYNC_FLUSH or SYNC_FLUSH")
    _refuse_names(config)
    _refuse_contradictions(config, sized)
    if config.raft_log:
        _refuse_in_raft_log(config)
    _refuse_storage(config)


def _refuse_names(config: Config) -> None:
    """Refuse invalid topics and addresses."""
    for topic, queues in config.topics.items():
        if why := topic_limits.check_topic(topic, queues):
            raise ConfigError(f"topics: {topic[:80]!r}: {why}")
    if not is_address(f"{config.host}:1"):
        raise ConfigError(f"listenHost must be a host name or address, not {config.host!r}")
    addresses = {"namesrvAddr": config.nameservers, "controllerAddr": config.controllers}
    addresses["controllerDLegerPeers"] = tuple(config.controller_peers.values())
    addresses["zkServers"] = config.zk_servers
    addresses["coordinatorPeers"] = tuple(config.coordinator_peers.values())
    addresses["dLegerPeers"] = tuple(config.dleger_peers.values())
    for key, values in addresses.items():
        for address in values:
            if not is_address(address):
                raise ConfigError(f"{key} must have addresses ip:port, not {address!r}")


def _refuse_contradictions(config: Config, sized: bool) -> None:
    """Refuse combinations that are impossible. `sized`: totalReplicas was given."""
    limit = config.total_replicas if sized else math.inf
    wanted = 0 if config.all_ack_in_sync_state_set else config.in_sync_replicas
    demands = {"inSyncReplicas": wanted, "minInSyncReplicas": config.min_in_sync_replicas}
    for key, copies in demands.items():
        if copies > limit:
            raise ConfigError(f"{key} is {copies}, more than totalReplicas, which is {limit}")
    _refuse_zones(config, limit)
    _refuse_leases(config)
    if config.raft_heartbeat_s >= config.raft_election_timeout_s:
        raise ConfigError(
            "raftHeartbeatInterval must be less than raftElectionTimeout, or no leader stays"
        )
    if config.switchless and config.all_ack_in_sync_state_set:
        raise ConfigError(
            "allAckInSyncStateSet waits for a set that controllers keep; where haMode is "
            "switchless, set inSyncReplicas"
        )
    if config.slave_acting_master and not config.switchless:
        raise ConfigError('enableSlaveActingMaster is for haMode = "switchless"')
    if config.remote_escape and not config.slave_acting_master:
        raise ConfigError("enableRemoteEscape needs enableSlaveActingMaster")
    if not (config.switchless or config.switchless_epochs):
        raise ConfigError('switchlessEpochs = false is for haMode = "switchless"')
    if config.zookeeper and not config.all_ack_in_sync_state_set:
        raise ConfigError(
            "haMode = zookeeper needs allAckInSyncStateSet = true: the state of the pair says who "
            "must acknowledge"
        )
    if config.zookeeper and (config.semi_sync or config.min_in_sync_replicas > 1):
        key = "enableSemiSync" if config.semi_sync else "minInSyncReplicas above 1"
        raise ConfigError(f"haMode = zookeeper has no {key}: a single master acknowledges alone")
    if config.semi_sync and not config.all_ack_in_sync_state_set:
        raise ConfigError("enableSemiSync needs allAckInSyncStateSet = true")
    if config.semi_sync and config.min_in_sync_replicas > 2:
        raise ConfigError(
            f"minInSyncReplicas is {config.min_in_sync_replicas}, but with enableSemiSync the "
            "SyncStateSet has two members at most"
        )
    if config.ha_max_gap_not_in_sync < 0:
        raise ConfigError(
            f"haMaxGapNotInSync must be 0 or more bytes, not {config.ha_max_gap_not_in_sync}"
        )


def _refuse_zones(config: Config, limit: float) -> None:
    """Refuse copies in zones where they cannot be. `limit`: the number of brokers in the set."""
    if config.ack_zones == 1:
        return
    if config.ack_zones > limit:
        raise ConfigError(
            f"ackZones is {config.ack_zones}, more than totalReplicas, which is {limit}"
        )
    if config.ha_mode != "controller":
        raise ConfigError('ackZones needs haMode = "controller"')
    if config.semi_sync:
        raise ConfigError(
            "ackZones and enableSemiSync exclude each other: the one slave of a semi-synchronous "
            "set is chosen by its speed, not by its zone"
        )
    if len(config.zone.encode()) > MAX_ZONE_BYTES:
        raise ConfigError(f"zone must have at most {MAX_ZONE_BYTES} bytes")


def _refuse_leases(config: Config) -> None:
    """Refuse leases that end before the next heartbeat can renew them."""
    if not config.master_lease:
        return
    if config.ha_mode != "controller":
        raise ConfigError('enableMasterLease needs haMode = "controller"')
    own_s = config.controller_lease_s - config.lease_clock_margin_s
    if own_s < 2 * config.broker_heartbeat_interval_s:
        raise ConfigError(
            "controllerLeaseMillis less leaseClockMargin must be at least twice "
            "brokerHeartbeatInterval, or masters lose their leases while nothing is wrong"
        )


_NOT_IN_RAFT_LOG = {  # field -> why a value other than the default is refused
    "in_sync_replicas": "a majority of dLegerPeers has each message",
    "min_in_sync_replicas": "a majority of dLegerPeers has each message",
    "all_ack_in_sync_state_set": "a majority of dLegerPeers has each message",
    "auto_in_sync_replicas": "the number of copies never falls",
    "semi_sync": "a majority of dLegerPeers has each message",
    "sync_flush_when_alone": "a master alone is no majority",
    "async_learner": "each of dLegerPeers votes",
    "sync_from_last_file": "a voter has the whole log",
    "ha_epoch_fencing": "a vote binds a slave to one master",
    "transient_store_pool": "a copy counts when it is in the log",
    "elect_unclean_master": "votes decide who is elected",
    "strict_metadata": "a majority votes for logs, and metadata is not in them",
}
_DEFAULTS = {f.name: f.default for f in fields(Config)}
CONVERTIBLE_MODES = ("controller", "switchless", "raft-log", "zookeeper")


def convertible_modes(zookeeper: bool) -> tuple[str, ...]:
    """Return the modes to which sets may be converted. `zookeeper`: they know where ZooKeeper
    is."""
    return tuple(mode for mode in CONVERTIBLE_MODES if zookeeper or mode != "zookeeper")


def in_mode(config: Config, mode: str) -> Config:
    """Return the configuration of a convertible broker whose set is in this mode: keys that do not
    apply there have their defaults."""
    values: dict[str, Any] = {"ha_mode": mode}
    if mode == "raft-log":
        values |= {name: _DEFAULTS[name] for name in _NOT_IN_RAFT_LOG}
    if mode == "switchless":
        values |= {"all_ack_in_sync_state_set": False, "semi_sync": False}
    else:
        values |= {"slave_acting_master": False, "remote_escape": False, "switchless_epochs": True}
    if mode != "controller":
        values |= {"ack_zones": 1, "master_lease": False}
    if mode == "zookeeper":
        values |= {"all_ack_in_sync_state_set": True, "min_in_sync_replicas": 1}
    return replace(config, **values)


def _refuse_unconvertible(config: Config) -> None:
    """Refuse a convertible broker that could not be in each of the modes."""
    if config.in_container:
        raise ConfigError("convertible does not apply to brokers in containers")
    left_out = (
        *(config.async_learner, config.sync_from_last_file),
        *(config.transient_store_pool, config.semi_sync),
    )
    if any(left_out):
        raise ConfigError(
            "convertible = true needs brokers that all have the whole log and may lead: no "
            "asyncLearner, syncFromLastFile, transientStorePoolEnable or enableSemiSync"
        )
    for mode in convertible_modes(bool(config.zk_servers) or config.zookeeper):
        _refuse_contradictions(in_mode(config, mode), sized=False)


def _refuse_in_raft_log(config: Config) -> None:
    """Refuse what contradicts an election by votes and copies on a majority."""
    for name, why in _NOT_IN_RAFT_LOG.items():
        if getattr(config, name) != _DEFAULTS[name]:
            key = next(key for key, f in _BY_KEY.items() if f.name == name)
            raise ConfigError(f"{key} does not apply where haMode is raft-log: {why}; leave it out")
    if config.min_vote_interval_s > config.max_vote_interval_s:
        raise ConfigError("minVoteIntervalMs must not be more than maxVoteIntervalMs")


def _refuse_storage(config: Config) -> None:
    """Refuse contradictory settings of the store."""
    if config.transient_store_pool and config.sync_flush:
        raise ConfigError(
            "transientStorePoolEnable keeps messages in memory for a while, which "
            "flushDiskType = SYNC_FLUSH forbids; it needs ASYNC_FLUSH"
        )
    try:
        hours_of(config.delete_when)
    except ValueError:
        raise ConfigError(
            f"deleteWhen is {config.delete_when!r}; hours from 00 to 23 like 04;16, or {ALWAYS}"
        ) from None
    is_reserved_valid = config.file_reserved_h >= 0  # false for nan
    if not is_reserved_valid or config.flush_least_pages < 0:
        key = "fileReservedTime" if not is_reserved_valid else "flushCommitLogLeastPages"
        raise ConfigError(f"{key} must be 0 or more")
    ratios = (
        config.disk_max_used_ratio,
        config.disk_clean_forcibly_ratio,
        config.disk_warning_level_ratio,
    )
    if not 10 <= ratios[0] <= ratios[1] <= ratios[2] <= 100:
        raise ConfigError(
            "diskMaxUsedSpaceRatio, diskSpaceCleanForciblyRatio and diskSpaceWarningLevelRatio "
            f"must rise from at least 10 to at most 100, not {', '.join(map(str, ratios))}"
        )


def _scale(raw: Any) -> float:
    if not _is_positive(raw):
        raise ConfigError(f"timeScale must be a positive number of 64 bits at most, not {raw!r}")
    if not MIN_SCALE <= raw <= MAX_SCALE:
        raise ConfigError(f"timeScale must be from {MIN_SCALE} to {MAX_SCALE}, not {raw!r}")
    return float(raw)


def _is_positive(raw: Any) -> bool:
    return is_number(raw) and bool(raw > 0)


def _is_computed(f: Any, table: dict[str, Any]) -> bool:
    """Return whether the field has to be computed: times always, since defaults are scaled, too."""
    if f.metadata["key"] not in table and f.default is MISSING and f.default_factory is MISSING:
        raise ConfigError(f"the key {f.metadata['key']} is missing")
    return f.metadata["key"] in table or f.metadata["ms"]


def _value(f: Any, table: dict[str, Any], scale: float) -> Any:
    key, raw = f.metadata["key"], table.get(f.metadata["key"])
    if type(raw) is int and not is_integer(raw):
        raise ConfigError(f"{key} must have 64 bits at most")
    if f.metadata["ms"]:
        if raw is None:
            return f.default * scale
        if not _is_positive(raw):
            raise ConfigError(f"{key} must be a positive number of milliseconds, not {raw!r}")
        if raw > MAX_MS:
            raise ConfigError(f"{key} must be at most {MAX_MS} ms (365 days), not {raw!r}")
        return raw / 1000 * scale
    if f.type == tuple[str, ...]:
        if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
            raise ConfigError(f"{key} must be a list of strings, not {raw!r}")
        return tuple(raw)
    wanted = dict if str(f.type).startswith("dict") else f.type
    if wanted is float and isinstance(raw, int) and not isinstance(raw, bool):
        raw = float(raw)
    if not isinstance(raw, wanted) or (wanted is int and isinstance(raw, bool)):
        raise ConfigError(f"{key} must be of type {wanted.__name__}, not {raw!r}")
    if isinstance(raw, dict):
        _refuse_values(key, raw, get_args(f.type)[1])
    minimum = f.metadata["minimum"]
    if minimum is not None and raw < minimum:
        raise ConfigError(f"{key} must be at least {minimum}, not {raw}")
    maximum = f.metadata["maximum"]
    if maximum is not None and raw > maximum:
        raise ConfigError(f"{key} must be at most {maximum}, not {raw}")
    return raw


def _refuse_values(key: str, table: Mapping[str, Any], wanted: type) -> None:
    for name, value in table.items():
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ConfigError(f"{key}: {name} must be of type {wanted.__name__}, not {value!r}")
