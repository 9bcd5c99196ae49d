"""Changing Flotilla's controllers and brokers while it runs, as an operator does, but asked over
agents, so that no partition keeps us from it.

A controller that is to join is started with nobody as its peers, and waits. It is a learner first;
the leader makes it a voter by itself when it holds everything.

A broker that has ended is forgotten (`cleanBrokerData`), with its place in the SyncStateSet. When
it is started it registers by itself: on an empty disk under a new id, else under its old one.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from clusters.flotilla.net.wire import HEADER, Op, Status, frame, from_json, to_json
from clusters.systems._flotilla_layout import BROKER, CONTROLLER, PORTS, address
from harness.contracts import Bed, Node
from harness.errors import BedFailed

ROLES = (CONTROLLER, BROKER)
STOPPED_FIRST = (BROKER,)
AGREE_WITHIN_S = 15.0
ANSWER_WITHIN_S = 2.0
DRILLED_WITHIN_S = 5.0  # a drill waits for its successor, and then for the election
REFUSED_WITHIN_S = 1.0  # while the set may still be about to change
ASK_AGAIN_S = 0.1
ALONE = "nobody else is in the SyncStateSet of"
_REPLY_HEAD = HEADER.size - 4  # of an answer whose length was cut off


async def changed(bed: Bed, change: Mapping[str, Any]) -> None:
    """The change is committed. BedFailed when they do not agree in time."""
    deadline_ns, why = bed.now_ns() + AGREE_WITHIN_S * 1e9, "no controller answers"
    while True:
        async for answer in _answers(bed, Op.CHANGE_CONTROLLERS, change):
            if answer.get("code") == Status.SUCCESS:
                return
            why = str(answer.get("remark") or why)
        if bed.now_ns() >= deadline_ns:
            raise BedFailed(f"the controllers did not change their members: {why}")
        await bed.sleep(ASK_AGAIN_S)


async def is_voter(bed: Bed, node: str) -> bool:
    """As the leader has it; while nobody leads, nobody is."""
    async for answer in _answers(bed, Op.CONTROLLER_METADATA, {}):
        if answer.get("isLeader"):
            return node in answer["peers"]
    return False


async def forgotten(bed: Bed, broker: Node, broker_set: str) -> None:
    """The controllers have forgotten this broker, which has ended. BedFailed when they do not in
    time, or soon when nobody else is in the SyncStateSet: nobody else has all that was
    acknowledged, and nobody will while it is down."""
    began_ns = bed.now_ns()
    while why := await _not_forgotten(bed, broker, broker_set):
        within_s = REFUSED_WITHIN_S if why.startswith(ALONE) else AGREE_WITHIN_S
        if bed.now_ns() >= began_ns + within_s * 1e9:
            raise BedFailed(f"the controllers did not forget {broker.name}: {why}")
        await bed.sleep(ASK_AGAIN_S)


async def _not_forgotten(bed: Bed, broker: Node, broker_set: str) -> str:
    """One attempt: why the broker is a member still; empty: it is none."""
    info = await _latest(bed, broker_set)
    if info is None:
        return "they have no leader"
    ids = _ids(info, broker)
    if not ids:
        return ""
    if set(info["set"]) <= ids:
        return f"{ALONE} {broker_set}"
    why = "no controller answers"
    order = {"brokerName": broker_set, "brokerIds": sorted(ids), "cleanLiving": False}
    async for answer in _answers(bed, Op.CLEAN_BROKER_DATA, order):
        if answer.get("code") == Status.SUCCESS:
            return ""
        why = str(answer.get("remark") or why)
    return why


async def handed_over(bed: Bed, broker_set: str) -> str:
    """Have the leading controller carry out a drill. Return why there was none, or nothing."""
    why = "no controller answers"
    order = {"brokerName": broker_set, "to": None}
    async for answer in _answers(bed, Op.DRILL, order, DRILLED_WITHIN_S):
        if answer.get("code") == Status.SUCCESS:
            return ""
        if answer.get("code") != Status.NOT_LEADER or why == "no controller answers":
            why = str(answer.get("remark") or why)
    return why


async def is_replica(bed: Bed, broker: Node, broker_set: str) -> bool:
    """As the leader has it; while nobody leads, nobody is."""
    info = await _latest(bed, broker_set)
    return info is not None and any(
        member["alive"] for i, member in info["members"].items() if int(i) in _ids(info, broker)
    )


async def _latest(bed: Bed, broker_set: str) -> Mapping[str, Any] | None:
    """What is known of the broker set; of several answers the latest."""
    said = _answers(bed, Op.REPLICA_INFO, {"brokerName": broker_set})
    known = [answer async for answer in said if answer.get("code") == Status.SUCCESS]
    return max(known, key=lambda info: (info["masterEpoch"], info["setEpoch"]), default=None)


def _ids(info: Mapping[str, Any], broker: Node) -> set[int]:
    """The ids of this broker, by its address: an earlier life may have left one."""
    return {int(i) for i, m in info["members"].items() if m["addr"] == address(broker)}


async def _answers(
    bed: Bed, op: Op, fields: Mapping[str, Any], within_s: float = ANSWER_WITHIN_S
) -> AsyncIterator[Mapping[str, Any]]:
    """What each controller says that answers."""
    asked = frame(op, 1, to_json(dict(fields)))
    for node in bed.of_role(CONTROLLER):
        try:
            answer = await bed.agents[node.name].ask(PORTS[CONTROLLER], asked, within_s)
            yield from_json(answer[_REPLY_HEAD:])
        except (BedFailed, ConnectionError, ValueError):
            continue
