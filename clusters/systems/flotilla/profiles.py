"""Flotilla's profiles, and the settings of a trial.

A profile is data in `profiles.toml`; the trial's own settings override it. Flotilla's configuration
reader checks the result before anything is started.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from clusters.flotilla.client.outcomes import overall
from clusters.flotilla.client.settings import KEYS as CLIENT_KEYS
from clusters.flotilla.client.settings import ZONE_MODE, check_value
from clusters.flotilla.config import Config, ConfigError, loads
from clusters.flotilla.net.wire import MAX_FRAME
from clusters.flotilla_mutants import MUTANTS, Mutant
from clusters.systems.flotilla.modes import MODES, Mode
from harness.errors import BadRequest, UnknownName
from harness.trial import Trial

# keys that the driver sets for each node
_DRIVER_KEYS = frozenset(
    {
        "role", "nodeName", "listenHost", "listenPort", "haListenPort", "storePath",
        "eventLogPath", "brokerName", "namesrvAddr", "controllerAddr", "controllerDLegerSelfId",
        "controllerDLegerPeers", "topics", "totalReplicas", "seed", "enableControllerInNamesrv",
        "zone", "rack", "nodeResources", "brokerId", "clientPort", "coordinatorPeers",
        "zkServers", "brokerConfigPaths", "inContainer", "dLegerSelfId", "dLegerPeers",
        "modeGeneration", "modeMaster", "modeEpoch",
    }
)  # fmt: skip
_NODE_KEYS = frozenset(f.metadata["key"] for f in fields(Config)) - _DRIVER_KEYS
_ANY_SIZE = 1_000_000  # the size of the set is not known yet
BROKER_SETS = "brokerSets"
RETRIES = ("retryTimesWhenSendFailed", "retryTimesWhenSendAsyncFailed")
CONTROL_ZONES = "controlZones"  # where no broker may be
RACKS = "racks"  # broker -> its rack in its zone
LEARNERS = "learners"  # brokers of each set that are never elected
CONTAINER_LAYOUT, CROSS = "containerLayout", "cross"  # where the brokers of containers are
COORDINATORS, COORDINATOR_KINDS = "coordinators", ("flotilla", "zookeeper")  # what they run
# ticks after which servers of ZooKeeper leave a leader that is silent
ZK_SYNC_LIMIT, USUAL_SYNC_LIMIT = "zkSyncLimit", 3
MUTANT = "mutant"  # the known-bad variant that all nodes run; unset: none
_OWN_KEYS = {
    *(BROKER_SETS, LEARNERS, CONTAINER_LAYOUT, COORDINATORS, ZK_SYNC_LIMIT, CONTROL_ZONES),
    *(MUTANT, RACKS),
}
KEYS = _NODE_KEYS | CLIENT_KEYS | _OWN_KEYS


@dataclass(frozen=True)
class FlotillaProfile:
    """A named configuration.

    expected: plan -> verdict, or the code of the finding that makes it invalid claims: kind of
    fault -> extent that it survives (harness.judge.claims)
    """

    name: str
    about: str
    settings: Mapping[str, Any]
    expected: Mapping[str, str]
    claims: Mapping[str, str]


@dataclass(frozen=True)
class FlotillaSettings:
    """The configuration of a trial's cluster: RocketMQ's keys, milliseconds at timeScale 1."""

    values: Mapping[str, Any]

    @property
    def node(self) -> dict[str, Any]:
        return {key: value for key, value in self.values.items() if key in _NODE_KEYS}

    @property
    def client(self) -> dict[str, Any]:
        wanted = CLIENT_KEYS | {"timeScale"}
        return {key: value for key, value in self.values.items() if key in wanted}

    @property
    def client_mutant(self) -> str:
        """The mutant whose flaw is in clients, or an empty string."""
        name = str(self.values.get(MUTANT, ""))
        return name if name and MUTANTS[name].overall is not overall else ""

    def without_retries(self) -> "FlotillaSettings":
        """Return the same settings with clients that never send twice."""
        return FlotillaSettings({**self.values, **dict.fromkeys(RETRIES, 0)})

    @property
    def mode(self) -> Mode:
        mode = MODES[str(self.values.get("haMode", "controller"))]
        if self.convertible:
            mode = mode.convertible()
        elif self.in_containers:
            return mode.in_containers()
        return mode.for_sets(self.broker_sets)

    @property
    def zone_mode(self) -> bool:
        """Whether clients send to the broker sets in their own zone."""
        return bool(self.values.get(ZONE_MODE, False))

    @property
    def convertible(self) -> bool:
        """Whether the sets may be converted to another haMode while they run."""
        return bool(self.values.get("convertible", False))

    @property
    def in_containers(self) -> bool:
        """Whether brokers share processes."""
        return bool(self.values.get(CONTAINER_LAYOUT))

    @property
    def broker_sets(self) -> int:
        return int(self.values.get(BROKER_SETS, 1))

    @property
    def learners(self) -> int:
        return int(self.values.get(LEARNERS, 0))

    @property
    def lease_ms(self) -> float:
        """How long the controllers wait for the lease of a silent master, 0 without leases."""
        key = "controllerLeaseMillis"
        ms = float(self.values.get(key, _DEFAULTS[key]))
        return ms if self.values.get("enableMasterLease", False) else 0.0

    @property
    def in_ensemble(self) -> bool:
        """Whether the coordinators are servers of ZooKeeper."""
        return self.values.get(COORDINATORS) == "zookeeper"

    @property
    def zk_tick_ms(self) -> int:
        return self._scaled_ms("zkTickTime")

    @property
    def zk_sync_limit(self) -> int:
        return int(self.values.get(ZK_SYNC_LIMIT, USUAL_SYNC_LIMIT))

    @property
    def zk_session_ms(self) -> int:
        return self._scaled_ms("zkSessionTimeout")

    def _scaled_ms(self, key: str) -> int:
        values = {**_DEFAULTS, **self.values}
        return max(1, round(float(values[key]) * float(values["timeScale"])))

    def full_set_size(self, size: int) -> int:
        """Return the size of the full SyncStateSet of a set with so many brokers."""
        electable = size - self.learners
        return min(2, electable) if self.values.get("enableSemiSync", False) else electable

    @property
    def program(self) -> tuple[str, ...]:
        """The module that a node runs, and the arguments before the path of its configuration."""
        mutant = self.values.get(MUTANT)
        return ("clusters.flotilla_mutants", mutant) if mutant else ("clusters.flotilla",)


@cache
def _file() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def profiles() -> Mapping[str, FlotillaProfile]:
    """Return all profiles by name."""
    return {
        name: FlotillaProfile(
            name,
            table["about"],
            table["settings"],
            table.get("expected", {}),
            {**_file()["claims"], **table.get("claims", {})},
        )
        for name, table in _file()["profiles"].items()
    }


def mutants() -> Mapping[str, Mutant]:
    """Return all known-bad variants by name."""
    return MUTANTS


def settings(trial: Trial) -> FlotillaSettings:
    """Return the profile's settings with the trial's over them. Raises UnknownName, or BadRequest
    that names the key."""
    all_profiles = profiles()
    name = trial.profile or _file()["default"]
    if name not in all_profiles:
        raise UnknownName("profile", name, all_profiles)
    for key in trial.settings:
        if key not in KEYS:
            raise UnknownName("setting", key, KEYS)
    values = {**_file()["common"], **all_profiles[name].settings, **trial.settings}
    _check(values)
    return FlotillaSettings(values)


def claims(trial: Trial) -> Mapping[str, str]:
    """Return the faults that the trial's profile claims to survive. Raises UnknownName."""
    all_profiles = profiles()
    name = trial.profile or _file()["default"]
    if name not in all_profiles:
        raise UnknownName("profile", name, all_profiles)
    return all_profiles[name].claims


def in_force(trial: Trial) -> Mapping[str, Any]:
    """Return all settings of a trial's cluster, whether from the trial, its profile or a
    default."""
    return settings(trial).values


def _check(values: Mapping[str, Any]) -> None:
    """Check the type and range of every value. Raises BadRequest that names the key."""
    node = {key: value for key, value in values.items() if key in _NODE_KEYS}
    here = {"role": "broker", "nodeName": "n", "listenHost": "h", "storePath": "s"}
    sample = {**here, "totalReplicas": _ANY_SIZE, **node}
    try:
        loads(tomli_w.dumps(sample))
    except ConfigError as e:
        raise BadRequest(f"the trial's settings: {e}") from e
    for key in CLIENT_KEYS & set(values):
        if why := check_value(key, values[key]):
            raise BadRequest(f"the trial's settings: {why}")
    if values.get(CONTAINER_LAYOUT, CROSS) != CROSS:
        raise BadRequest(
            f"the trial's settings: {CONTAINER_LAYOUT} must be {CROSS!r}, "
            f"not {values[CONTAINER_LAYOUT]!r}"
        )
    control = values.get(CONTROL_ZONES, [])
    if not isinstance(control, list) or not all(isinstance(zone, str) for zone in control):
        raise BadRequest(
            f"the trial's settings: {CONTROL_ZONES} must be a list of zones, not {control!r}"
        )
    racks = values.get(RACKS, {})
    if not isinstance(racks, dict) or not all(isinstance(rack, str) for rack in racks.values()):
        raise BadRequest(
            f"the trial's settings: {RACKS} must be a table of nodes and their racks, not {racks!r}"
        )
    _check_whole(BROKER_SETS, values.get(BROKER_SETS, 1), 1)
    _check_whole(LEARNERS, values.get(LEARNERS, 0), 0)
    if values.get(LEARNERS) and not FlotillaSettings(values).mode.has_controllers:
        raise BadRequest(f'the trial\'s settings: {LEARNERS} are for haMode = "controller"')
    kind = values.get(COORDINATORS, COORDINATOR_KINDS[0])
    if kind not in COORDINATOR_KINDS:
        raise BadRequest(
            f"the trial's settings: {COORDINATORS} must be one of "
            f"{', '.join(COORDINATOR_KINDS)}, not {kind!r}"
        )
    if COORDINATORS in values and values.get("haMode") != "zookeeper":
        raise BadRequest(f'the trial\'s settings: {COORDINATORS} are for haMode = "zookeeper"')
    _check_ensemble(values)
    if values.get("convertible") and (values.get(LEARNERS) or values.get("enableSemiSync")):
        key = LEARNERS if values.get(LEARNERS) else "enableSemiSync"
        raise BadRequest(
            f"the trial's settings: {key} is not for sets that may be converted (convertible): in "
            "each of the modes all brokers belong to the set"
        )
    if MUTANT in values and values[MUTANT] not in MUTANTS:
        raise UnknownName("mutant", str(values[MUTANT]), MUTANTS)


def _check_ensemble(values: Mapping[str, Any]) -> None:
    """Refuse a ZooKeeper ensemble whose leader could end sessions after a pause."""
    if values.get(COORDINATORS) != "zookeeper":
        if ZK_SYNC_LIMIT in values:
            raise BadRequest(
                f'the trial\'s settings: {ZK_SYNC_LIMIT} is for {COORDINATORS} = "zookeeper"'
            )
        return
    limit = values.get(ZK_SYNC_LIMIT, USUAL_SYNC_LIMIT)
    _check_whole(ZK_SYNC_LIMIT, limit, 1)
    every = {**_DEFAULTS, **values}
    tick_ms, session_ms = every["zkTickTime"], every["zkSessionTimeout"]
    if limit * tick_ms >= session_ms:
        raise BadRequest(
            f"the trial's settings: {ZK_SYNC_LIMIT} ({limit}) times zkTickTime ({tick_ms:g} ms) "
            f"must be less than zkSessionTimeout ({session_ms:g} ms), or a leader of ZooKeeper "
            "that was paused ends the sessions of living brokers before other servers replace it"
        )


def _check_whole(key: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadRequest(
            f"the trial's settings: {key} must be a whole number from {least}, not {value!r}"
        )


# ------------------------------------------------------------------------- impossible settings
#
# Whether a setting can work depends on the other settings, on the number of brokers in a set and on
# the size of messages. A cluster that refuses every send, or declares every broker dead, would be
# started, loaded and judged for minutes for nothing.

HEAD_BYTES = 512  # more than the header of a record
MIN_BATCH_BYTES = 1024  # the minimum of a node's own configuration
MIN_SEGMENT_BYTES = 64 * 1024  # brokers keep every segment open
MAX_SEGMENT_BYTES = 1 << 30  # RocketMQ's default; each broker allocates it at once
MAX_SENT_BYTES = MAX_FRAME // 2
SHORTER_THAN = (  # an interval, the timeout that must be longer, and what happens otherwise
    ("brokerHeartbeatInterval", "controllerHeartBeatTimeoutMills", "brokers are declared dead"),
    ("raftHeartbeatInterval", "raftElectionTimeout", "controllers depose every leader"),
    ("brokerHeartbeatInterval", "brokerNotActiveTimeoutMillis", "nameservers forget brokers"),
    ("registerNameServerPeriod", "brokerChannelExpiredTime", "nameservers forget brokers"),
    ("haSendHeartbeatInterval", "haHousekeepingInterval", "idle slaves are cut off"),
    ("zkReportInterval", "zkSessionTimeout", "sessions end before anything is decided"),
)
_DEFAULTS = {
    f.metadata["key"]: f.default * 1000 if f.metadata["ms"] else f.default
    for f in fields(Config)
    if f.default is not MISSING
}

Values = Mapping[str, Any]


def refuse_impossible(values: Values, brokers: int, body_bytes: int) -> None:
    """Raise BadRequest if a setting cannot work in broker sets of this size, for bodies of this
    size."""
    every = {**_DEFAULTS, **values}
    _check_copies("minInSyncReplicas", every, brokers)
    if not every["allAckInSyncStateSet"]:
        _check_copies("inSyncReplicas", every, brokers)
    least = max(MIN_SEGMENT_BYTES, body_bytes + HEAD_BYTES)
    _check_size("mappedFileSizeCommitLog", every, least, MAX_SEGMENT_BYTES)
    _check_size("haTransferBatchSize", every, MIN_BATCH_BYTES, MAX_SENT_BYTES)
    if "maxMessageSize" in values:
        most = min(every["mappedFileSizeCommitLog"], MAX_SENT_BYTES) - HEAD_BYTES
        _check_size("maxMessageSize", every, max(body_bytes, 1), most)
    _check_intervals(every)


def refuse_late_questions(values: Values, asked_within_s: float | None) -> None:
    """Raise BadRequest if brokers ask about an open transaction only after the time that the
    workload gives them. `asked_within_s`: None if the workload has no transactions."""
    every = {**_DEFAULTS, **values}
    timeout_s = every["transactionTimeOut"] / 1000 * every["timeScale"]
    if asked_within_s is not None and timeout_s >= asked_within_s:
        raise BadRequest(
            f"the trial's settings: transactionTimeOut ({every['transactionTimeOut']:g} ms, which "
            f"are {timeout_s:g} s at timeScale {every['timeScale']:g}) must be less than "
            f"load.asked_within_s ({asked_within_s:g} s), or brokers ask too late; lower it, or "
            "raise load.asked_within_s"
        )


def _check_copies(key: str, every: Values, brokers: int) -> None:
    if every[key] > brokers:
        raise BadRequest(
            f"the trial's settings: {key} is {every[key]}, but a broker set here has {brokers}, so "
            f"nothing could ever be acknowledged; lower it, or raise nodes.broker"
        )


def _check_size(key: str, every: Values, least: int, most: int) -> None:
    if not least <= every[key] <= most:
        raise BadRequest(
            f"the trial's settings: {key} must be from {least} to {most} bytes here, "
            f"not {every[key]}"
        )


def _check_intervals(every: Values) -> None:
    for often, limit, otherwise in SHORTER_THAN:
        if every[often] >= every[limit]:
            raise BadRequest(
                f"the trial's settings: {often} ({every[often]:g} ms) must be less than {limit} "
                f"({every[limit]:g} ms), or {otherwise}"
            )
