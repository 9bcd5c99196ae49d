"""What a broker says of itself, for operators and checkers; read-only and answered at any time."""

from dataclasses import dataclass

from ..config import Config
from ..net.wire import Json
from ..replication.ha_master import HaMaster, SlaveLink
from ..replication.ha_slave import HaSlave
from ..replication.replica import Replica
from ..rules import Rules
from .controller_link import Replicas
from .leader import Mastery


@dataclass(frozen=True)
class Parts:
    """What a description looks at."""

    config: Config
    rules: Rules
    replica: Replica
    replicas: Replicas
    mastery: Mastery | None
    ha: HaMaster
    slave: HaSlave


def describe(parts: Parts, now: float) -> Json:
    return {
        "node": parts.config.node,
        "brokerName": parts.config.broker_name,
        "controllerBrokerId": parts.replicas.id,
        **_role(parts),
        **_log(parts),
        "connected": parts.slave.state,
        "needsOperator": parts.slave.halted or None,
        "slaves": {str(i): _slave(parts, link, now) for i, link in sorted(parts.ha.links.items())},
        "queues": {
            f"{topic.decode()}-{queue}": [q.base, q.visible_end]
            for (topic, queue), q in sorted(parts.replica.store.queues().items())
        },
    }


def _role(parts: Parts) -> Json:
    standing, mastery = parts.replicas.standing, parts.mastery
    if mastery is not None:
        role = {"role": "master", "brokerId": 0, "synchronizing": mastery.synchronizing}
        members, set_epoch = mastery.state.members, mastery.state.epoch
    else:
        role = {"role": "slave" if standing.master_id else "fenced", "synchronizing": False}
        role["brokerId"] = parts.replicas.id
        members, set_epoch = standing.members, standing.set_epoch
    return {
        **role,
        "masterId": standing.master_id,
        "masterEpoch": standing.epoch,
        "set": list(members),
        "setEpoch": set_epoch,
    }


def _log(parts: Parts) -> Json:
    store = parts.replica.store
    return {
        "epochs": [list(entry) for entry in parts.replica.epochs.entries],
        "minOffset": store.log.min_offset,
        "maxOffset": store.log.max_offset,
        "confirmOffset": store.confirm_offset,
        "flushedOffset": store.log.flushed,
        "dispatchedOffset": store.index.dispatched,
        "metadataVersion": list(parts.replica.catalog.version),
    }


def _slave(parts: Parts, link: SlaveLink, now: float) -> Json:
    ack, caught_up_at = link.progress.ack, link.progress.caught_up_at
    return {
        "ack": ack,
        "learner": link.learner,
        "gap": None if ack is None else parts.replica.store.log.max_offset - ack,
        "bytesPerSecond": round(link.rate.value(now)),
        "caughtUpAgoS": None if caught_up_at is None else round(now - caught_up_at, 3),
    }
