"""Adding and removing brokers of a running container, as an operator does.

The requests are sent through agents, so that no partition prevents them. A broker is named by its
set, of which a container has one broker at most.
"""

import json
from collections.abc import Mapping
from typing import Any

from clusters.flotilla.net.wire import HEADER, Op, Status, frame, from_json, to_json
from clusters.systems.flotilla.cluster_state import BrokerSetLayout
from clusters.systems.flotilla.layout import PORTS
from clusters.systems.flotilla.modes import CONTAINER
from harness.contracts import ClusterState, TestBed
from harness.errors import BedFailed

ANSWER_WITHIN_S = 5.0  # a broker is stopped or started meanwhile
SERVING_WITHIN_S = 0.5
MASTER = "master"
CLUSTER = "flotilla"
INTRUDER = "set-of-another"  # the name of a broker that must be refused
_REPLY_HEAD = HEADER.size - 4  # the agent removes the length

Table = Mapping[str, Any]


def inner_broker(
    now: ClusterState, sets: list[BrokerSetLayout], node: str, which: str
) -> BrokerSetLayout | None:
    """Return the set of this container's broker that is a master or a slave; None if there is
    none."""
    inside = [of for of in sets if of.inner_port and node in of.nodes]
    masters = [of for of in inside if now.masters.get(of.name) == node]
    wanted = masters if which == MASTER else [of for of in inside if of not in masters]
    return next((of for of in wanted if now.detail.get(of.replica(node))), None)


async def remove(bed: TestBed, node: str, config: Table) -> None:
    """Remove the broker. Raises BedFailed with the reason if it is refused."""
    fields = {
        "cluster": config.get("clusterName", CLUSTER),
        "brokerName": config["brokerName"],
        "brokerId": config.get("brokerId", 0),
    }
    await _order(bed, node, Op.REMOVE_INNER, fields)


async def add(bed: TestBed, node: str, config: Table) -> None:
    """Add the broker. Raises BedFailed with the reason if it is refused."""
    await _order(bed, node, Op.ADD_INNER, {"config": config})


async def add_by_mistake(bed: TestBed, node: str, config: Table) -> None:
    """Add two brokers that must be refused: one with the store of a broker that is there, and the
    given one with the container's own port for replication.

    Raises BedFailed if the container does not answer. It is the cluster's laws that judge an
    accepted one, which is removed again.
    """
    there = await _answer(bed, node, Op.LIST_INNER, {})
    used = next((broker["storePath"] for broker in there["brokers"]), "")
    ports = {"listenPort": config["listenPort"] + 5, "haListenPort": config["haListenPort"] + 5}
    await _try(bed, node, {**config, **ports, "brokerName": INTRUDER, "storePath": used})
    await _try(bed, node, {**config, "haListenPort": PORTS[CONTAINER]})


async def _try(bed: TestBed, node: str, config: Table) -> None:
    answer = await _answer(bed, node, Op.ADD_INNER, {"config": dict(config)})
    if answer["code"] == Status.SUCCESS:
        names = {key: answer[key] for key in ("cluster", "brokerName", "brokerId")}
        await _order(bed, node, Op.REMOVE_INNER, names)


async def serves(bed: TestBed, node: str, port: int) -> bool:
    """Return whether the broker that listens at this port answers."""
    try:
        await bed.agents[node].ask(port, frame(Op.PING, 1, b"{}"), SERVING_WITHIN_S)
    except (BedFailed, ConnectionError, TimeoutError):
        return False
    return True


async def _order(bed: TestBed, node: str, op: Op, fields: Table) -> None:
    answer = await _answer(bed, node, op, fields)
    if answer["code"] != Status.SUCCESS:
        raise BedFailed(f"{node} refused {op.name} {json.dumps(fields)}: {answer.get('remark')}")


async def _answer(bed: TestBed, node: str, op: Op, fields: Table) -> Mapping[str, Any]:
    request = frame(op, 1, to_json(dict(fields)))
    try:
        answer = await bed.agents[node].ask(PORTS[CONTAINER], request, ANSWER_WITHIN_S)
        return from_json(answer[_REPLY_HEAD:])
    except (ConnectionError, TimeoutError, ValueError) as e:
        raise BedFailed(f"{node} did not answer {op.name}: {e or type(e).__name__}") from e
