"""Random sizes and settings of a Flotilla cluster for one seed of a campaign.

They open rare paths (swarm testing, Groce et al. 2012). A send with a short timeout is answered
before its copies exist, and one with a long timeout still waits when the master loses its role. But
a master whose timeout is shorter than the network's delay would acknowledge nothing, and rightly
so. Controllers that write snapshots very often send followers snapshots instead of entries.

The number of brokers and the number of broker sets depend on each other: what the trial sets of one
limits what may be drawn for the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from clusters.flotilla.client.faults import AVOIDANCES
from clusters.flotilla.config import CONTROLLER_TYPES
from clusters.systems.flotilla.layout import MAX_CONTAINERS, MIN_CONTAINERS, cluster_nodes
from clusters.systems.flotilla.modes import BROKER, CONTAINER, CONTROLLER
from clusters.systems.flotilla.profiles import BROKER_SETS, LEARNERS, FlotillaSettings, settings
from harness.registry import load
from harness.trial import Trial

PROFILE = "sync-flush"  # campaigns cut power, which this profile survives
SETS = (1, 1, 1, 1, 2, 3)
BROKERS_ALONE = (2, 3, 3, 3, 4)  # if there is one set
BROKERS_EACH = (2, 2, 3)  # in each of several sets, which bounds the total
SEGMENT_BYTES = (1 << 16, 1 << 18, 1 << 20)  # small, so that logs roll over and memory suffices
BATCH_BYTES = (1 << 10, 1 << 12, 1 << 15)  # of replication
PATIENCE_MS = (2000, 3000, 10_000)  # of a send; enough for slow wires at timeScale 0.1
CLIENTS_LEASE, BROKERS_LEASE = "clientLockMaxLiveTime", "rebalanceLockMaxLiveTime"
LEASE_MS = (3000, 10_000, 30_000)
LEASE_KEPT = (1.2, 2.0)  # brokers keep a lock so many times as long as clients
SNAPSHOT_ENTRIES = (1, 3, 20, 1000)  # of the controllers' log
BREAKER_FAILURES = (1, 3, 10)
BREAKER_SILENCE_MS = (60, 1000)  # shorter: a master that waits for its slaves would count as silent
IN_MEMORY_BYTES = 1 << 12  # what a master keeps in memory; readers that lag more read from slaves
LOSES_DISKS = {"wipe", "corrupt"}  # of faults, which a set of one broker does not survive
OF_CONTROLLERS = {"controllerType", "raftSnapshotEntries", LEARNERS}  # settings
NOT_IN_CONTAINERS = {BROKER_SETS, LEARNERS}  # settings; there is a set for each container
NOT_CONVERTIBLE = {LEARNERS, "enableSemiSync"}  # settings; all brokers of a set have all its modes
# settings that contradict an election by votes
NOT_WITH_VOTES = {"strictMetadata", "enableSemiSync", "minInSyncReplicas", "slaveTimeout"}
VOTERS = (3, 3, 3, 5)  # brokers of one set that elects its master
BEATS_MS = (1000, 2000)  # shorter: a slow network would end each term
FLOW_BYTES = (1 << 18, 1 << 20)  # per second, to each slave


def swarm(random: Random, trial: Trial, planned: bool) -> Mapping[str, Any]:
    """Return random sizes and settings that fit what the trial sets. Raises BadRequest if none fit.

    planned: there is a plan, and plans are written for one broker set unless the trial sets more
    """
    in_containers = _chosen(trial).in_containers
    if in_containers:
        brokers, sets = _containers(random, trial)
    else:
        brokers, sets = _sizes(random, trial, SETS[:1] if planned else SETS)
    nodes = {
        "controller": random.choice((3, 3, 3, 5)),
        "broker": brokers,
        "client": random.choice((1, 2)),
        "nameserver": random.choice((1, 1, 2)),
    }
    drawn = {
        "mappedFileSizeCommitLog": random.choice(SEGMENT_BYTES),
        "haTransferBatchSize": random.choice(BATCH_BYTES),
        "slaveTimeout": random.choice(PATIENCE_MS),
        "syncFlushTimeout": random.choice(PATIENCE_MS),
        "liteHeartBeat": random.choice((True, True, False)),
        "controllerType": random.choice(CONTROLLER_TYPES),
        "raftSnapshotEntries": random.choice(SNAPSHOT_ENTRIES),
        BROKER_SETS: sets,
        **_strictness(random, trial),
    }
    drawn |= _rare_settings(random, trial, brokers // sets, planned)
    drawn |= _selection(random)
    mode = _chosen(trial).mode
    if not mode.has_controllers:
        nodes = {role: count for role, count in nodes.items() if role != CONTROLLER}
        drawn = {key: value for key, value in drawn.items() if key not in OF_CONTROLLERS}
        drawn.pop("enableSemiSync", None)  # who is waited for is not the controllers' to decide
    if _chosen(trial).convertible:
        drawn = {key: value for key, value in drawn.items() if key not in NOT_CONVERTIBLE}
    if in_containers:
        nodes = {CONTAINER if role == BROKER else role: count for role, count in nodes.items()}
        nodes[CONTAINER] //= sets
        drawn = {key: value for key, value in drawn.items() if key not in NOT_IN_CONTAINERS}
    if mode.votes:
        drawn = {key: value for key, value in drawn.items() if key not in NOT_WITH_VOTES}
        drawn["maxWaitAckTimeMs"] = random.choice(PATIENCE_MS)
        drawn["heartBeatTimeIntervalMs"] = random.choice(BEATS_MS)
    return {"profile": PROFILE, "nodes": nodes, "settings": drawn}


def _chosen(trial: Trial) -> FlotillaSettings:
    """Return the settings of the trial's profile, or of the one that campaigns have."""
    return settings(replace(trial, profile=trial.profile or PROFILE))


def _strictness(random: Random, trial: Trial) -> Mapping[str, Any]:
    """Return settings of metadata and locks that survive a failover: always on if the workload
    demands them. Leases are short where they are used, and brokers keep a lock longer than its
    holder believes."""
    demanded = load("workload", trial.workload)(trial).client_settings().get("strict", ())
    drawn: dict[str, Any] = {
        key: random.choice((True, False, False)) or what in demanded
        for key, what in (("strictMetadata", "metadata"), ("lockInStrictMode", "locks"))
    }
    lease_ms = random.choice(LEASE_MS)
    if "locks" in demanded and not {CLIENTS_LEASE, BROKERS_LEASE} & trial.settings.keys():
        drawn[CLIENTS_LEASE] = lease_ms
        drawn[BROKERS_LEASE] = round(lease_ms * random.choice(LEASE_KEPT))
    return drawn


def _selection(random: Random) -> Mapping[str, Any]:
    """Return how clients select queues and when they retry, unless the load decides that."""
    return {
        "sendLatencyEnable": random.choice((True, False)),
        "sendLatencyTable": random.choice(tuple(AVOIDANCES)),
        "startDetectorEnable": random.choice((True, False)),
        "breakerFailures": random.choice(BREAKER_FAILURES),
        "breakerSilenceMillis": random.choice(BREAKER_SILENCE_MS),
        "retryAnotherBrokerWhenNotStoreOK": random.choice((True, False)),
    }


def _rare_settings(random: Random, trial: Trial, size: int, planned: bool) -> Mapping[str, Any]:
    """Return settings that most clusters do not use, each of them for one seed in four.

    `size`: the brokers of a set. Settings that change who may be in a SyncStateSet are not drawn
    for a trial with a plan, since plans are written for a certain SyncStateSet.
    """
    slaves, flow, semi, learner, alone = (random.randrange(4) == 0 for _ in range(5))
    chosen = _chosen(trial).values
    drawn: dict[str, Any] = {}
    if slaves:
        drawn |= {"slaveReadEnable": True, "accessMessageInMemoryBytes": IN_MEMORY_BYTES}
    if flow:
        bytes_a_second = random.choice(FLOW_BYTES)
        drawn |= {"haFlowControlEnable": True, "maxHaTransferByteInSecond": bytes_a_second}
    if planned:
        return drawn
    if semi and chosen.get("allAckInSyncStateSet") and _copies_needed(chosen) <= 2:
        drawn["enableSemiSync"] = True
    if learner and size > _copies_needed(chosen):
        drawn[LEARNERS] = 1
    if alone and not (trial.profile or LOSES_DISKS & set(trial.faults)):
        drawn["minInSyncReplicas"] = 1  # a master goes on when all slaves have left
    return drawn


def _sizes(random: Random, trial: Trial, some: Sequence[int]) -> tuple[int, int]:
    """Return the number of brokers and of sets, with as many brokers in each as acknowledgements
    need."""
    chosen = _chosen(trial)
    cluster_nodes(trial.nodes, chosen.mode)
    least = _copies_needed(chosen.values)
    total = trial.nodes.get(BROKER)
    if size := chosen.mode.set_size:
        sets = chosen.broker_sets if BROKER_SETS in trial.settings else random.choice(some)
        return (sets * size, sets) if total is None else (total, total // size)
    if BROKER_SETS in trial.settings:
        sets = chosen.broker_sets
    else:
        sets = random.choice([n for n in some if total is None or _divides(total, n, least)])
    sizes: tuple[int, ...] = BROKERS_EACH
    if sets == 1:
        sizes = VOTERS if chosen.mode.votes else BROKERS_ALONE
    each = random.choice([size for size in sizes if size >= least] or [least])
    return (sets * each if total is None else total), sets


def _containers(random: Random, trial: Trial) -> tuple[int, int]:
    """Return the number of brokers and of sets in containers: each has a broker of every set."""
    least = max(MIN_CONTAINERS, _copies_needed(_chosen(trial).values))
    sets = trial.nodes.get(CONTAINER) or random.choice((least, least, MAX_CONTAINERS))
    return sets * sets, sets


def _divides(brokers: int, sets: int, least: int) -> bool:
    """Return whether the brokers can be divided among the sets; one set takes any number."""
    return sets == 1 or (brokers % sets == 0 and brokers // sets >= max(least, 2))


def _copies_needed(values: Mapping[str, Any]) -> int:
    """Return how many brokers of a set must hold a message."""
    waited_for = 1 if values.get("allAckInSyncStateSet") else values.get("inSyncReplicas", 1)
    return max(int(waited_for), int(values.get("minInSyncReplicas", 1)))
