"""A node's configuration: RocketMQ's key names in TOML, seconds in the code.

Times are written in milliseconds, as RocketMQ writes them, and every one of them is multiplied by
`timeScale` when it is read: 0.1 makes a cluster that detects, elects and gives up ten times sooner,
so that dozens of faults fit in minutes. Defaults are RocketMQ's (spec 13) unless the comment says.

`load` refuses unknown keys and wrong types with one sentence that names the key.
"""

import math
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


class ConfigError(Exception):
    """The configuration file makes no sense; the text says which key and why."""


def _key(name: str, default: Any = MISSING, *, ms: bool = False) -> Any:
    """A field read from the TOML key `name`; `ms`: milliseconds there, scaled seconds here."""
    metadata = {"key": name, "ms": ms}
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
    port: int = _key("listenPort", 10911)
    ha_port: int = _key("haListenPort", 10912)
    store: str = _key("storePath")
    event_log: str = _key("eventLogPath", "")
    cluster: str = _key("clusterName", "flotilla")
    broker_name: str = _key("brokerName", "")
    nameservers: tuple[str, ...] = _key("namesrvAddr", ())  # ["ip:port", ...]
    controllers: tuple[str, ...] = _key("controllerAddr", ())
    controller_id: str = _key("controllerDLegerSelfId", "")  # the original's spelling
    controller_peers: dict[str, str] = _key("controllerDLegerPeers", {})  # {id: "ip:port"}
    topics: dict[str, int] = _key("topics", {})  # {name: number of queues}, made at start
    time_scale: float = _key("timeScale", 1.0)
    seed: int = _key("seed", -1)  # -1: from the system

    # replication and acknowledgement
    total_replicas: int = _key("totalReplicas", 1)
    in_sync_replicas: int = _key("inSyncReplicas", 1)
    min_in_sync_replicas: int = _key("minInSyncReplicas", 1)
    all_ack_in_sync_state_set: bool = _key("allAckInSyncStateSet", False)
    slave_timeout_s: float = _key("slaveTimeout", 3000, ms=True)
    ha_max_time_slave_not_catchup_s: float = _key("haMaxTimeSlaveNotCatchup", 15000, ms=True)
    ha_send_heartbeat_interval_s: float = _key("haSendHeartbeatInterval", 5000, ms=True)
    ha_housekeeping_interval_s: float = _key("haHousekeepingInterval", 20000, ms=True)
    ha_reconnect_s: float = _key("haReconnectInterval", 1000, ms=True)  # original: 5000, fixed
    ha_transfer_batch_size: int = _key("haTransferBatchSize", 256 * 1024)  # original: 32 KiB
    ha_epoch_fencing: bool = _key("haEpochFencing", True)  # false: as the original, none
    sync_slave_metadata_s: float = _key("syncSlaveMetadataPeriod", 1000, ms=True)  # original: 10000
    check_sync_state_set_s: float = _key("checkSyncStateSetPeriod", 5000, ms=True)

    # storage
    flush_disk_type: str = _key("flushDiskType", "ASYNC_FLUSH")  # or SYNC_FLUSH
    flush_interval_s: float = _key("flushIntervalCommitLog", 500, ms=True)
    sync_flush_timeout_s: float = _key("syncFlushTimeout", 5000, ms=True)
    segment_size: int = _key("mappedFileSizeCommitLog", 64 * 1024 * 1024)  # original: 1 GiB
    flush_consumer_offset_s: float = _key(
        "flushConsumerOffsetInterval", 1000, ms=True
    )  # original: 5000
    max_message_size: int = _key("maxMessageSize", 4 * 1024 * 1024)

    # broker and controllers
    broker_heartbeat_interval_s: float = _key("brokerHeartbeatInterval", 1000, ms=True)
    heartbeat_rpc_timeout_s: float = _key("sendHeartbeatTimeoutMillis", 1000, ms=True)
    heartbeat_timeout_s: float = _key("controllerHeartBeatTimeoutMills", 10000, ms=True)
    sync_broker_metadata_s: float = _key("syncBrokerMetadataPeriod", 5000, ms=True)
    sync_controller_metadata_s: float = _key("syncControllerMetadataPeriod", 10000, ms=True)
    controller_rpc_timeout_s: float = _key("controllerRequestTimeout", 3000, ms=True)
    register_nameserver_s: float = _key("registerNameServerPeriod", 30000, ms=True)
    nameserver_timeout_s: float = _key("brokerNotActiveTimeoutMillis", 10000, ms=True)
    election_priority: int = _key("brokerElectionPriority", 2**31 - 1)  # smaller wins

    # controllers
    scan_not_active_broker_s: float = _key("scanNotActiveBrokerInterval", 5000, ms=True)
    scan_inactive_master_s: float = _key("scanInactiveMasterInterval", 5000, ms=True)
    elect_unclean_master: bool = _key("enableElectUncleanMaster", False)
    elect_master_max_retry: int = _key("electMasterMaxRetryCount", 3)
    notify_role_changed: bool = _key("notifyBrokerRoleChanged", True)
    raft_heartbeat_s: float = _key("raftHeartbeatInterval", 500, ms=True)
    raft_election_timeout_s: float = _key("raftElectionTimeout", 2000, ms=True)
    raft_write_timeout_s: float = _key("raftWriteTimeout", 5000, ms=True)

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


def loads(text: str) -> Config:
    """A configuration from TOML text. ConfigError: which key is wrong and why."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"the node's configuration is not TOML: {e}") from e
    unknown = sorted(set(table) - set(_BY_KEY))
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]}; known: {', '.join(sorted(_BY_KEY))}")
    scale = _scale(table.get("timeScale", 1.0))
    values = {f.name: _value(f, table, scale) for f in fields(Config) if _wanted(f, table)}
    config = Config(**values)
    if config.role not in ROLES:
        raise ConfigError(f"role is {config.role!r}; it must be one of {', '.join(ROLES)}")
    if config.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        raise ConfigError(f"flushDiskType is {config.flush_disk_type!r}; ASYNC_FLUSH or SYNC_FLUSH")
    return config


def _scale(raw: Any) -> float:
    if not _is_positive(raw):
        raise ConfigError(f"timeScale must be a positive number, not {raw!r}")
    return float(raw)


def _is_positive(raw: Any) -> bool:
    return type(raw) in (int, float) and 0 < raw < math.inf


def _wanted(f: Any, table: dict[str, Any]) -> bool:
    """Times are always computed, since their defaults are scaled too."""
    if f.metadata["key"] not in table and f.default is MISSING and f.default_factory is MISSING:
        raise ConfigError(f"the key {f.metadata['key']} is missing")
    return f.metadata["key"] in table or f.metadata["ms"]


def _value(f: Any, table: dict[str, Any], scale: float) -> Any:
    key, raw = f.metadata["key"], table.get(f.metadata["key"])
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
    return raw
