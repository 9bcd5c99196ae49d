"""A node's configuration: RocketMQ's key names in TOML, seconds in the code.

Times are written in milliseconds, as RocketMQ writes them, and every one of them is multiplied by
`timeScale` when it is read: 0.1 makes a cluster that detects, elects and gives up ten times sooner,
so that dozens of faults fit in minutes. Defaults are RocketMQ's (spec 13) unless the comment says.

`load` refuses unknown keys and wrong types with one sentence that names the key.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, get_args

from .broker import topic_limits
from .capacity import qos
from .controllers.elect import POLICIES
from .net.schemas import address as is_address
from .net.schemas import number, whole
from .net.wire import MAX_FRAME
from .store.retention import ALWAYS, hours_of


class ConfigError(Exception):
    """The configuration file makes no sense; the text says which key and why."""


def _key(
    name: str,
    default: Any = MISSING,
    *,
    ms: bool = False,
    least: int | None = None,
    most: int | None = None,
) -> Any:
    """A field read from the TOML key `name`; `ms`: milliseconds there, scaled seconds here."""
    metadata = {"key": name, "ms": ms, "least": least, "most": most}
    if default is MISSING:
        return field(metadata=metadata)
    if isinstance(default, tuple | dict):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default / 1000 if ms else default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """One node's settings. Fields ending in `_s` are seconds, already scaled."""

    # who and where
    role: str = _key("role")  # nameserver | controller | broker
    node: str = _key("nodeName")
    host: str = _key("listenHost")
    port: int = _key("listenPort", 10911, least=0, most=65535)
    ha_port: int = _key("haListenPort", 10912, least=0, most=65535)
    store: str = _key("storePath")
    event_log: str = _key("eventLogPath", "")
    cluster: str = _key("clusterName", "flotilla")
    broker_name: str = _key("brokerName", "")
    nameservers: tuple[str, ...] = _key("namesrvAddr", ())  # ["ip:port", ...]
    controllers: tuple[str, ...] = _key("controllerAddr", ())
    controller_id: str = _key("controllerDLegerSelfId", "")  # the original's spelling
    # {id: "ip:port"} of a new group; empty: this controller waits until it is added to one
    controller_peers: dict[str, str] = _key("controllerDLegerPeers", {})
    topics: dict[str, int] = _key("topics", {})  # {name: number of queues}, made at start
    time_scale: float = _key("timeScale", 1.0)
    seed: int = _key("seed", -1)  # -1: from the system

    # replication and acknowledgement
    total_replicas: int = _key("totalReplicas", 1, least=1)
    in_sync_replicas: int = _key("inSyncReplicas", 1, least=1)
    min_in_sync_replicas: int = _key("minInSyncReplicas", 1, least=1)
    all_ack_in_sync_state_set: bool = _key("allAckInSyncStateSet", False)
    auto_in_sync_replicas: bool = _key("enableAutoInSyncReplicas", False)
    ha_max_gap_not_in_sync: int = _key("haMaxGapNotInSync", 256 * 1024)  # RIP-34's; original: 256 M
    semi_sync: bool = _key("enableSemiSync", False)  # ours
    semi_sync_lag_s: float = _key("haMaxTimeSemiSyncLag", 1000, ms=True)  # ours
    sync_flush_when_alone: bool = _key("forceSyncFlushWhenAlone", False)  # ours
    slave_timeout_s: float = _key("slaveTimeout", 3000, ms=True)
    ha_max_time_slave_not_catchup_s: float = _key("haMaxTimeSlaveNotCatchup", 15000, ms=True)
    ha_send_heartbeat_interval_s: float = _key("haSendHeartbeatInterval", 5000, ms=True)
    ha_housekeeping_interval_s: float = _key("haHousekeepingInterval", 20000, ms=True)
    ha_reconnect_s: float = _key("haReconnectInterval", 1000, ms=True)  # original: 5000, fixed
    ha_transfer_batch_size: int = _key(
        "haTransferBatchSize", 256 * 1024, least=1024, most=MAX_FRAME // 2
    )  # original: 32 KiB
    ha_flow_control: bool = _key("haFlowControlEnable", False)
    ha_flow_bytes_per_s: int = _key(
        "maxHaTransferByteInSecond", 100 * 1024 * 1024, least=1024
    )  # to each slave
    async_learner: bool = _key("asyncLearner", False)  # a copy that is never counted nor elected
    sync_from_last_file: bool = _key("syncFromLastFile", False)  # a new copy begins there
    ha_epoch_fencing: bool = _key("haEpochFencing", True)  # false: as the original, none
    sync_slave_metadata_s: float = _key("syncSlaveMetadataPeriod", 1000, ms=True)  # original: 10000
    strict_metadata: bool = _key("strictMetadata", False)  # ours: changes wait for the set
    slave_read_enable: bool = _key("slaveReadEnable", False)
    in_memory_max_ratio: int = _key(
        "accessMessageInMemoryMaxRatio", 40, least=0, most=100
    )  # per cent
    in_memory_bytes: int = _key(
        "accessMessageInMemoryBytes", 1 << 30, least=1
    )  # original: the machine's
    lock_in_strict_mode: bool = _key("lockInStrictMode", False)
    lock_max_live_s: float = _key("rebalanceLockMaxLiveTime", 60000, ms=True)
    lock_rpc_timeout_s: float = _key("lockRequestTimeout", 1000, ms=True)  # original: fixed
    check_sync_state_set_s: float = _key("checkSyncStateSetPeriod", 5000, ms=True)

    # storage
    flush_disk_type: str = _key("flushDiskType", "ASYNC_FLUSH")  # or SYNC_FLUSH
    flush_interval_s: float = _key("flushIntervalCommitLog", 500, ms=True)
    sync_flush_timeout_s: float = _key("syncFlushTimeout", 5000, ms=True)
    segment_size: int = _key(
        "mappedFileSizeCommitLog", 64 * 1024 * 1024, least=64
    )  # original: 1 GiB
    flush_consumer_offset_s: float = _key(
        "flushConsumerOffsetInterval", 1000, ms=True
    )  # original: 5000
    max_message_size: int = _key("maxMessageSize", 4 * 1024 * 1024, least=1)
    flush_least_pages: int = _key("flushCommitLogLeastPages", 4)
    flush_thorough_s: float = _key("flushCommitLogThoroughInterval", 10000, ms=True)
    transient_store_pool: bool = _key("transientStorePoolEnable", False)
    commit_interval_s: float = _key("commitIntervalCommitLog", 200, ms=True)
    file_reserved_h: float = _key("fileReservedTime", 72.0)  # hours, not scaled
    delete_when: str = _key("deleteWhen", "04")  # "04;16": hours of the day (UTC); or "always"
    clean_resource_s: float = _key("cleanResourceInterval", 10000, ms=True)
    disk_max_used_ratio: int = _key("diskMaxUsedSpaceRatio", 75)  # percent, for these three
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
    lite_heartbeat: bool = _key("liteHeartBeat", True)  # to nameservers; the article's parameter
    nameserver_timeout_s: float = _key("brokerNotActiveTimeoutMillis", 5000, ms=True)  # orig. 10000
    channel_expired_s: float = _key("brokerChannelExpiredTime", 120000, ms=True)  # original: fixed
    notify_min_broker_id_changed: bool = _key("notifyMinBrokerIdChanged", True)  # original: false
    election_priority: int = _key("brokerElectionPriority", 2**31 - 1)  # smaller wins
    zone: str = _key("zone", "")  # for electPolicy = "zone"
    node_resources: int = _key("nodeResources", 0)  # for electPolicy = "node-resources"

    # capacity
    send_rate_limit: int = _key("sendRateLimit", 0, least=0)  # sends a second; 0: as many as come
    send_queue_capacity: int = _key("sendThreadPoolQueueCapacity", 10000, least=1)
    wait_in_send_queue_s: float = _key("waitTimeMillsInSendQueue", 200, ms=True)
    fast_failure: bool = _key("brokerFastFailureEnable", True)
    topic_qos: dict[str, str] = _key("topicQos", {})  # {topic: core | normal | low}

    # controllers
    scan_not_active_broker_s: float = _key("scanNotActiveBrokerInterval", 5000, ms=True)
    scan_inactive_master_s: float = _key("scanInactiveMasterInterval", 5000, ms=True)
    elect_unclean_master: bool = _key("enableElectUncleanMaster", False)
    elect_policy: str = _key("electPolicy", "water-level")  # see elect.py
    controller_type: str = _key("controllerType", "dledger")  # or jraft
    controller_in_nameserver: bool = _key("enableControllerInNamesrv", False)
    drill_timeout_s: float = _key("drillTimeout", 1000, ms=True)  # ours: of a planned handover
    notify_role_changed: bool = _key("notifyBrokerRoleChanged", True)
    raft_heartbeat_s: float = _key("raftHeartbeatInterval", 500, ms=True)
    raft_election_timeout_s: float = _key("raftElectionTimeout", 2000, ms=True)
    raft_write_timeout_s: float = _key("raftWriteTimeout", 5000, ms=True)
    raft_snapshot_entries: int = _key(
        "raftSnapshotEntries", 1000, least=1
    )  # original: every 3600 s

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def ha_address(self) -> str:
        return f"{self.host}:{self.ha_port}"

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"


_BY_KEY = {f.metadata["key"]: f for f in fields(Config)}
ROLES = ("nameserver", "controller", "broker")
CONTROLLER_TYPES = ("dledger", "jraft")


def loads(text: str) -> Config:
    """A configuration from TOML text. ConfigError: which key is wrong and why."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"the node's configuration is not TOML: {e}") from e
    _refuse_unknown(table)
    scale = _scale(table.get("timeScale", 1.0))
    values = {f.name: _value(f, table, scale) for f in fields(Config) if _wanted(f, table)}
    config = Config(**values)
    _refuse_nonsense(config, "totalReplicas" in table)
    if config.lock_in_strict_mode and config.role == "broker" and "totalReplicas" not in table:
        raise ConfigError("lockInStrictMode needs totalReplicas, a majority of which grants a lock")
    return config


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """This configuration with other values for some keys, as TOML or JSON has them. ConfigError."""
    table = dict(values)
    _refuse_unknown(table)
    new = {_BY_KEY[key].name: _value(_BY_KEY[key], table, config.time_scale) for key in table}
    after = replace(config, **new)
    _refuse_nonsense(after, sized=False)
    return after


def table_of(config: Config) -> dict[str, Any]:
    """The configuration by its keys: milliseconds, and not scaled."""
    return {key: _written(f, config) for key, f in sorted(_BY_KEY.items())}


def _written(f: Any, config: Config) -> Any:
    value = getattr(config, f.name)
    if f.metadata["ms"]:
        ms = round(value * 1000 / config.time_scale, 6)
        return int(ms) if ms.is_integer() else ms
    return list(value) if isinstance(value, tuple) else value


def _refuse_unknown(table: dict[str, Any]) -> None:
    unknown = sorted(set(table) - set(_BY_KEY))
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]}; known: {', '.join(sorted(_BY_KEY))}")


def _refuse_nonsense(config: Config, sized: bool) -> None:
    """What no cluster can work with. `sized`: totalReplicas was given."""
    if config.role not in ROLES:
        raise ConfigError(f"role is {config.role!r}; it must be one of {', '.join(ROLES)}")
    if config.controller_type not in CONTROLLER_TYPES:
        raise ConfigError(
            f"controllerType is {config.controller_type!r}; {' or '.join(CONTROLLER_TYPES)}"
        )
    if config.elect_policy not in POLICIES:
        raise ConfigError(f"electPolicy is {config.elect_policy!r}; one of {', '.join(POLICIES)}")
    if config.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        raise ConfigError(f"flushDiskType is {config.flush_disk_type!r}; ASYNC_FLUSH or SYNC_FLUSH")
    _refuse_names(config)
    _refuse_contradictions(config, sized)
    _refuse_storage(config)


def _refuse_names(config: Config) -> None:
    """Topics and addresses that nobody could serve or dial."""
    for topic, queues in config.topics.items():
        if why := topic_limits.why_not(topic, queues):
            raise ConfigError(f"topics: {topic[:80]!r}: {why}")
    if not is_address(f"{config.host}:1"):
        raise ConfigError(f"listenHost must be a host that can be dialled, not {config.host!r}")
    addresses = {"namesrvAddr": config.nameservers, "controllerAddr": config.controllers}
    addresses["controllerDLegerPeers"] = tuple(config.controller_peers.values())
    for key, known in addresses.items():
        for address in known:
            if not is_address(address):
                raise ConfigError(f"{key} must have addresses ip:port, not {address!r}")


def _refuse_contradictions(config: Config, sized: bool) -> None:
    """Keys that are sound each and impossible together. `sized`: totalReplicas was given."""
    most = config.total_replicas if sized else math.inf
    wanted = 0 if config.all_ack_in_sync_state_set else config.in_sync_replicas
    demands = {"inSyncReplicas": wanted, "minInSyncReplicas": config.min_in_sync_replicas}
    for key, copies in demands.items():
        if copies > most:
            raise ConfigError(f"{key} is {copies}, more than totalReplicas, which is {most}")
    if config.raft_heartbeat_s >= config.raft_election_timeout_s:
        raise ConfigError(
            "raftHeartbeatInterval must be less than raftElectionTimeout, or no leader stays"
        )
    if config.semi_sync and not config.all_ack_in_sync_state_set:
        raise ConfigError("enableSemiSync needs allAckInSyncStateSet = true")
    if config.semi_sync and config.min_in_sync_replicas > 2:
        raise ConfigError(
            f"minInSyncReplicas is {config.min_in_sync_replicas}, but with enableSemiSync the "
            "SyncStateSet has two members at most"
        )
    if why := qos.why_not(config.topic_qos):
        raise ConfigError(f"topicQos: {why}")
    if config.ha_max_gap_not_in_sync < 0:
        raise ConfigError(
            f"haMaxGapNotInSync must be 0 or more bytes, not {config.ha_max_gap_not_in_sync}"
        )


def _refuse_storage(config: Config) -> None:
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
    old_enough = config.file_reserved_h >= 0  # which nan is not
    if not old_enough or config.flush_least_pages < 0:
        key = "fileReservedTime" if not old_enough else "flushCommitLogLeastPages"
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
    return float(raw)


def _is_positive(raw: Any) -> bool:
    return number(raw) and bool(raw > 0)


def _wanted(f: Any, table: dict[str, Any]) -> bool:
    """Times are always computed, since their defaults are scaled too."""
    if f.metadata["key"] not in table and f.default is MISSING and f.default_factory is MISSING:
        raise ConfigError(f"the key {f.metadata['key']} is missing")
    return f.metadata["key"] in table or f.metadata["ms"]


def _value(f: Any, table: dict[str, Any], scale: float) -> Any:
    key, raw = f.metadata["key"], table.get(f.metadata["key"])
    if type(raw) is int and not whole(raw):
        raise ConfigError(f"{key} must have 64 bits at most")
    if f.metadata["ms"]:
        if raw is None:
            return f.default * scale
        if not _is_positive(raw):
            raise ConfigError(f"{key} must be a positive number of milliseconds, not {raw!r}")
        return raw / 1000 * scale
    if f.type == tuple[str, ...]:
        if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
            raise ConfigError(f"{key} must be a list of strings, not {raw!r}")
        return tuple(raw)
    wanted = dict if str(f.type).startswith("dict") else f.type
    if wanted is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if not isinstance(raw, wanted) or (wanted is int and isinstance(raw, bool)):
        raise ConfigError(f"{key} must be of type {wanted.__name__}, not {raw!r}")
    if isinstance(raw, dict):
        _refuse_values(key, raw, get_args(f.type)[1])
    least = f.metadata["least"]
    if least is not None and raw < least:
        raise ConfigError(f"{key} must be at least {least}, not {raw}")
    most = f.metadata["most"]
    if most is not None and raw > most:
        raise ConfigError(f"{key} must be at most {most}, not {raw}")
    return raw


def _refuse_values(key: str, table: Mapping[str, Any], wanted: type) -> None:
    for name, value in table.items():
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ConfigError(f"{key}: {name} must be of type {wanted.__name__}, not {value!r}")
