"""Membership changes of Flotilla's controllers and brokers while the cluster runs.

They are what an operator does, but sent through agents, so that no partition prevents them.

A new controller is started without peers and waits. It becomes a learner first; the leader makes it
a voter by itself when it holds the whole log.

A broker that has ended is removed (`cleanBrokerData`), with its place in the SyncStateSet. When it
is started again it registers by itself: with an empty disk under a new id, else under its old one.

A broker set is converted to another haMode by the steps of
`clusters.flotilla.conversion.coordinator`.

A broker inside a container is removed and added while the container runs. It is named by its set,
of which a container has one broker at most.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from clusters.flotilla.conversion.coordinator import BrokerMode, Conversion, ConversionRefused
from clusters.flotilla.net.wire import HEADER, Json, Op, Status, frame, from_json, to_json
from clusters.systems.flotilla.cluster_state import BrokerSetLayout
from clusters.systems.flotilla.layout import PORTS, address
from clusters.systems.flotilla.modes import BROKER, CONTAINER, CONTROLLER
from harness.contracts import ClusterState, Node, TestBed
from harness.errors import BedFailed

ROLES = (CONTROLLER, BROKER)
STOPPED_FIRST = (BROKER,)
AGREE_WITHIN_S = 15.0
ANSWER_WITHIN_S = 2.0
DRILLED_WITHIN_S = 5.0  # it waits for the new master to catch up, and then for the election
ZONE_DRILLED_WITHIN_S = 10.0  # some masters, one after the other
REFUSED_WITHIN_S = 1.0  # the set may be about to change
ASK_AGAIN_S = 0.1
INNER_WITHIN_S = 5.0  # a broker is stopped or started meanwhile
SERVING_WITHIN_S = 0.5
STEP_WITHIN_S = 1.0  # beside convertTimeout, for which a master waits until all logs are equal
ORDER_WITHIN_S = 2.0
PAUSE_S = 0.1
MASTER = "master"
CLUSTER = "flotilla"  # the default of clusterName
INTRUDER = "set-of-another"  # the name of a broker that must be refused
ALONE = "there is no other member in the SyncStateSet of"
_REPLY_HEAD = HEADER.size - 4  # the agent removes the length


async def change_controllers(bed: TestBed, change: Mapping[str, Any]) -> None:
    """Change the controllers' members, and wait until that is committed. Raises BedFailed on
    timeout."""
    deadline_ns, why = bed.now_ns() + AGREE_WITHIN_S * 1e9, "no controller answers"
    while True:
        async for answer in _answers(bed, Op.CHANGE_CONTROLLERS, change):
            if answer.get("code") == Status.SUCCESS:
                return
            why = str(answer.get("remark") or why)
        if bed.now_ns() >= deadline_ns:
            raise BedFailed(f"the controllers did not change their members: {why}")
        await bed.sleep(ASK_AGAIN_S)


async def is_voter(bed: TestBed, node: str) -> bool:
    """Return whether the leader counts this controller as a voter; False while there is no
    leader."""
    async for answer in _answers(bed, Op.CONTROLLER_METADATA, {}):
        if answer.get("isLeader"):
            return node in answer["peers"]
    return False


async def remove_broker(bed: TestBed, broker: Node, broker_set: str) -> None:
    """Remove a broker that has ended from its set, and wait until that is committed.

    Raises BedFailed on timeout; and soon if the SyncStateSet has no other member, because then no
    other broker holds everything that was acknowledged, and none will while this one is down.
    """
    began_ns = bed.now_ns()
    while why := await _try_remove(bed, broker, broker_set):
        within_s = REFUSED_WITHIN_S if why.startswith(ALONE) else AGREE_WITHIN_S
        if bed.now_ns() >= began_ns + within_s * 1e9:
            raise BedFailed(f"the controllers did not remove {broker.name}: {why}")
        await bed.sleep(ASK_AGAIN_S)


async def _try_remove(bed: TestBed, broker: Node, broker_set: str) -> str:
    """Try once. Return why the broker is still a member, or an empty string."""
    info = await _replica_info(bed, broker_set)
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


async def hand_over(bed: TestBed, broker_set: str) -> str:
    """Have the leading controller hand over the mastership. Return why it did not, or an empty
    string."""
    why = "no controller answers"
    order = {"brokerName": broker_set, "to": None}
    async for answer in _answers(bed, Op.DRILL, order, DRILLED_WITHIN_S):
        if answer.get("code") == Status.SUCCESS:
            return ""
        if answer.get("code") != Status.NOT_LEADER or why == "no controller answers":
            why = str(answer.get("remark") or why)
    return why


async def drill_zone(bed: TestBed, zone: str) -> str:
    """Have all masters leave a zone. Return why some did not, or an empty string. Raises BedFailed
    if it is refused."""
    why = "no controller answers"
    async for answer in _answers(bed, Op.DRILL_ZONE, {"zone": zone}, ZONE_DRILLED_WITHIN_S):
        if answer.get("code") == Status.SUCCESS:
            return "; ".join(f"{name}: {why}" for name, why in answer["left"].items())
        if answer.get("code") != Status.NOT_LEADER or why == "no controller answers":
            why = str(answer.get("remark") or why)
    raise BedFailed(f"the controllers did not empty zone {zone}: {why}")


async def return_zone(bed: TestBed, zone: str) -> None:
    """Let masters be in a zone again, and wait until that is committed. Raises BedFailed on
    timeout."""
    deadline_ns, why = bed.now_ns() + AGREE_WITHIN_S * 1e9, "no controller answers"
    while True:
        async for answer in _answers(bed, Op.RETURN_ZONE, {"zone": zone}):
            if answer.get("code") == Status.SUCCESS:
                return
            why = str(answer.get("remark") or why)
        if bed.now_ns() >= deadline_ns:
            raise BedFailed(f"the controllers did not return zone {zone}: {why}")
        await bed.sleep(ASK_AGAIN_S)


async def is_replica(bed: TestBed, broker: Node, broker_set: str) -> bool:
    """Return whether the leader counts this broker as a live member; False while there is no
    leader."""
    info = await _replica_info(bed, broker_set)
    return info is not None and any(
        member["alive"] for i, member in info["members"].items() if int(i) in _ids(info, broker)
    )


async def _replica_info(bed: TestBed, broker_set: str) -> Mapping[str, Any] | None:
    """Return the state of the broker set; of several answers the latest."""
    answers = _answers(bed, Op.REPLICA_INFO, {"brokerName": broker_set})
    successes = [answer async for answer in answers if answer.get("code") == Status.SUCCESS]
    return max(successes, key=lambda info: (info["masterEpoch"], info["setEpoch"]), default=None)


def _ids(info: Mapping[str, Any], broker: Node) -> set[int]:
    """Return the ids of this broker, found by its address: an earlier process may have left one."""
    return {int(i) for i, m in info["members"].items() if m["addr"] == address(broker)}


async def _answers(
    bed: TestBed, op: Op, fields: Mapping[str, Any], within_s: float = ANSWER_WITHIN_S
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the answers of the controllers that answer."""
    request = frame(op, 1, to_json(dict(fields)))
    for node in bed.of_role(CONTROLLER):
        try:
            answer = await bed.agents[node.name].ask(PORTS[CONTROLLER], request, within_s)
            yield from_json(answer[_REPLY_HEAD:])
        except (BedFailed, ConnectionError, ValueError):
            continue


# ------------------------------------------------------------------------------------ containers

Table = Mapping[str, Any]  # a configuration


def inner_broker(
    now: ClusterState, sets: Sequence[BrokerSetLayout], node: str, which: str
) -> BrokerSetLayout | None:
    """Return the set of this container's broker that is a master or a slave; None if there is
    none."""
    inside = [of for of in sets if of.inner_port and node in of.nodes]
    masters = [of for of in inside if now.masters.get(of.name) == node]
    wanted = masters if which == MASTER else [of for of in inside if of not in masters]
    return next((of for of in wanted if now.detail.get(of.replica(node))), None)


async def remove_inner(bed: TestBed, node: str, config: Table) -> None:
    """Remove the broker. Raises BedFailed with the reason if it is refused."""
    fields = {
        "cluster": config.get("clusterName", CLUSTER),
        "brokerName": config["brokerName"],
        "brokerId": config.get("brokerId", 0),
    }
    await _order_inner(bed, node, Op.REMOVE_INNER, fields)


async def add_inner(bed: TestBed, node: str, config: Table) -> None:
    """Add the broker. Raises BedFailed with the reason if it is refused."""
    await _order_inner(bed, node, Op.ADD_INNER, {"config": config})


async def add_by_mistake(bed: TestBed, node: str, config: Table) -> None:
    """Add two brokers that must be refused: one with the store of a broker that is there, and the
    given one with the container's own port for replication.

    Raises BedFailed if the container does not answer. It is the cluster's laws that judge an
    accepted one, which is removed again.
    """
    there = await _inner_answer(bed, node, Op.LIST_INNER, {})
    used = next((broker["storePath"] for broker in there["brokers"]), "")
    ports = {"listenPort": config["listenPort"] + 5, "haListenPort": config["haListenPort"] + 5}
    await _try_inner(bed, node, {**config, **ports, "brokerName": INTRUDER, "storePath": used})
    await _try_inner(bed, node, {**config, "haListenPort": PORTS[CONTAINER]})


async def _try_inner(bed: TestBed, node: str, config: Table) -> None:
    answer = await _inner_answer(bed, node, Op.ADD_INNER, {"config": dict(config)})
    if answer["code"] == Status.SUCCESS:
        names = {key: answer[key] for key in ("cluster", "brokerName", "brokerId")}
        await _order_inner(bed, node, Op.REMOVE_INNER, names)


async def serves_inner(bed: TestBed, node: str, port: int) -> bool:
    """Return whether the broker that listens at this port answers."""
    try:
        await bed.agents[node].ask(port, frame(Op.PING, 1, b"{}"), SERVING_WITHIN_S)
    except (BedFailed, ConnectionError, TimeoutError):
        return False
    return True


async def _order_inner(bed: TestBed, node: str, op: Op, fields: Table) -> None:
    answer = await _inner_answer(bed, node, op, fields)
    if answer["code"] != Status.SUCCESS:
        raise BedFailed(f"{node} refused {op.name} {json.dumps(fields)}: {answer.get('remark')}")


async def _inner_answer(bed: TestBed, node: str, op: Op, fields: Table) -> Mapping[str, Any]:
    request = frame(op, 1, to_json(dict(fields)))
    try:
        answer = await bed.agents[node].ask(PORTS[CONTAINER], request, INNER_WITHIN_S)
        return from_json(answer[_REPLY_HEAD:])
    except (ConnectionError, TimeoutError, ValueError) as e:
        raise BedFailed(f"{node} did not answer {op.name}: {e or type(e).__name__}") from e


# ------------------------------------------------------------------------------------ conversion


async def convert(bed: TestBed, broker_set: BrokerSetLayout, mode: str, waits_s: float) -> str:
    """Convert the set, or end a conversion that was interrupted. Return why it is not in this mode
    now, or an empty string. `waits_s`: convertTimeout."""

    async def ask(node: str, op: Op, fields: Json) -> Json | None:
        return await _reply_of(bed, node, PORTS[BROKER], op, fields, waits_s + STEP_WITHIN_S)

    async def order(op: Op, fields: Json) -> Json:
        reply: Json = {"code": Status.NOT_LEADER, "remark": "no controller answers"}
        for node in bed.of_role(CONTROLLER):
            answer = await _reply_of(bed, node.name, PORTS[CONTROLLER], op, fields, ORDER_WITHIN_S)
            if answer is not None and answer["code"] != Status.NOT_LEADER:
                return answer
        return reply

    conversion = Conversion(
        broker_set.name, mode, broker_set.nodes, ask, order, lambda: bed.sleep(PAUSE_S)
    )
    try:
        await conversion.run()
    except ConversionRefused as e:
        return str(e)
    return ""


async def modes_of(bed: TestBed, broker_set: BrokerSetLayout) -> list[BrokerMode]:
    """Return the answers of those brokers of the set that answer."""
    fields = {"brokerName": broker_set.name, "step": "status"}
    found = []
    for node in broker_set.nodes:
        reply = await _reply_of(bed, node, PORTS[BROKER], Op.CONVERT, fields, ORDER_WITHIN_S)
        if reply is not None and reply["code"] == Status.SUCCESS:
            found.append(BrokerMode.of(node, reply))
    return found


async def _reply_of(
    bed: TestBed, node: str, port: int, op: Op, fields: Json, within_s: float
) -> Json | None:
    """Return the node's answer, None if there is none in time."""
    request = frame(op, 1, to_json(fields))
    try:
        answer = await bed.agents[node].ask(port, request, within_s)
        return from_json(answer[_REPLY_HEAD:])
    except (BedFailed, ConnectionError, TimeoutError, ValueError):
        return None
