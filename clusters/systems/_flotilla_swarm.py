"""What a campaign's seed draws of a Flotilla: sizes, and settings that open rare paths.

A send that is not patient is answered before its copies are there, and one that is very patient
still waits when a reign ends: answers that an average cluster hardly ever gives. But a master whose
patience is shorter than the wires are long would acknowledge nothing, and rightly so. Controllers
that write snapshots all the time give followers snapshots where they usually give them entries.

How many brokers there are and how many sets they are dealt to belong together, and what is set of
the two decides what may be drawn of the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from clusters.flotilla.client.faults import AVOIDANCES
from clusters.flotilla.config import CONTROLLER_TYPES
from clusters.systems._flotilla_layout import BROKER, laid_out
from clusters.systems._flotilla_profiles import BROKER_SETS, settings
from harness.registry import load
from harness.trial import Trial

PROFILE = "sync-flush"  # powers are cut, and this is the one that survives it
SETS = (1, 1, 1, 1, 2, 3)
BROKERS_ALONE = (2, 3, 3, 3, 4)  # of the only set
BROKERS_EACH = (2, 2, 3)  # of several: what they cost in all is bounded
SEGMENT_BYTES = (1 << 16, 1 << 18, 1 << 20)  # small: logs roll over, and a world stays small
BATCH_BYTES = (1 << 10, 1 << 12, 1 << 15)  # of replication
PATIENCE_MS = (2000, 3000, 10_000)  # of a send; at timeScale 0.1 even slow wires bring an answer
CLIENTS_LEASE, BROKERS_LEASE = "clientLockMaxLiveTime", "rebalanceLockMaxLiveTime"
LEASE_MS = (3000, 10_000, 30_000)
LEASE_KEPT = (1.2, 2.0)  # by brokers, in leases of a client
SNAPSHOT_ENTRIES = (1, 3, 20, 1000)  # of the controllers' log
BREAKER_FAILURES = (1, 3, 10)
BREAKER_SILENCE_MS = (60, 1000)  # a master may wait for its slaves that long, and is not silent
IN_MEMORY_BYTES = 1 << 12  # what a master keeps for readers; those further behind read from slaves
FLOW_BYTES = (1 << 18, 1 << 20)  # a second, to each slave


def swarm(random: Random, trial: Trial, planned: bool) -> Mapping[str, Any]:
    """Sizes and settings by lot, such as go with what the trial sets. BadRequest: nothing does.

    `planned`: a plan is given, and plans are written for one broker set unless the trial says more.
    """
    brokers, sets = _brokers(random, trial, SETS[:1] if planned else SETS)
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
    drawn |= _rarer(random, trial, brokers // sets, planned)
    drawn |= _selection(random)
    return {"profile": PROFILE, "nodes": nodes, "settings": drawn}


def _strictness(random: Random, trial: Trial) -> Mapping[str, Any]:
    """Metadata and locks that outlive a failover: always where the workload demands them. Leases
    are short where they are used, and brokers keep a lock for longer than its holder believes."""
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
    """How clients select queues and when they try again, where the load leaves that to them."""
    return {
        "sendLatencyEnable": random.choice((True, False)),
        "sendLatencyTable": random.choice(tuple(AVOIDANCES)),
        "startDetectorEnable": random.choice((True, False)),
        "breakerFailures": random.choice(BREAKER_FAILURES),
        "breakerSilenceMillis": random.choice(BREAKER_SILENCE_MS),
        "retryAnotherBrokerWhenNotStoreOK": random.choice((True, False)),
    }


def _rarer(random: Random, trial: Trial, size: int, planned: bool) -> Mapping[str, Any]:
    """Settings that most clusters do not use, each of them for one seed in four.

    `size`: the brokers of a set. Those that change who may be in a SyncStateSet are not drawn
    beside a plan, which was written for some SyncStateSet.
    """
    slaves, flow, semi, learner = (random.randrange(4) == 0 for _ in range(4))
    chosen = settings(replace(trial, profile=trial.profile or PROFILE)).values
    drawn: dict[str, Any] = {}
    if slaves:
        drawn |= {"slaveReadEnable": True, "accessMessageInMemoryBytes": IN_MEMORY_BYTES}
    if flow:
        bytes_a_second = random.choice(FLOW_BYTES)
        drawn |= {"haFlowControlEnable": True, "maxHaTransferByteInSecond": bytes_a_second}
    if planned:
        return drawn
    if semi and chosen.get("allAckInSyncStateSet") and _copies(chosen) <= 2:
        drawn["enableSemiSync"] = True
    if learner and size > _copies(chosen):
        drawn["learners"] = 1
    return drawn


def _brokers(random: Random, trial: Trial, some: Sequence[int]) -> tuple[int, int]:
    """How many in all, and in how many sets: as many in each as acknowledgements need."""
    laid_out(trial.nodes)
    chosen = settings(replace(trial, profile=trial.profile or PROFILE))
    least = _copies(chosen.values)
    total = trial.nodes.get(BROKER)
    if BROKER_SETS in trial.settings:
        sets = chosen.broker_sets
    else:
        sets = random.choice([n for n in some if total is None or _may_deal(total, n, least)])
    sizes = BROKERS_ALONE if sets == 1 else BROKERS_EACH
    each = random.choice([size for size in sizes if size >= least] or [least])
    return (sets * each if total is None else total), sets


def _may_deal(brokers: int, sets: int, least: int) -> bool:
    """One set takes whatever there is."""
    return sets == 1 or (brokers % sets == 0 and brokers // sets >= max(least, 2))


def _copies(values: Mapping[str, Any]) -> int:
    """How many brokers of a set have to hold a message."""
    waited_for = 1 if values.get("allAckInSyncStateSet") else values.get("inSyncReplicas", 1)
    return max(int(waited_for), int(values.get("minInSyncReplicas", 1)))
