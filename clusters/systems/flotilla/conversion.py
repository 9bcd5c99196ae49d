"""Conversion of a broker set to another haMode, as the operator's command does it.

The steps are those of `clusters.flotilla.conversion.coordinator`. They are sent through agents, so
that no partition prevents them.
"""

from clusters.flotilla.conversion.coordinator import BrokerMode, Conversion, ConversionRefused
from clusters.flotilla.net.wire import HEADER, Json, Op, Status, frame, from_json, to_json
from clusters.systems.flotilla.cluster_state import BrokerSetLayout
from clusters.systems.flotilla.layout import PORTS
from clusters.systems.flotilla.modes import BROKER, CONTROLLER
from harness.contracts import TestBed
from harness.errors import BedFailed

STEP_WITHIN_S = 1.0  # beside convertTimeout, for which a master waits until all logs are equal
ORDER_WITHIN_S = 2.0
PAUSE_S = 0.1
_REPLY_HEAD = HEADER.size - 4  # the agent removes the length


async def convert(bed: TestBed, broker_set: BrokerSetLayout, mode: str, waits_s: float) -> str:
    """Convert the set, or end a conversion that was interrupted. Return why it is not in this mode
    now, or an empty string. `waits_s`: convertTimeout."""

    async def ask(node: str, op: Op, fields: Json) -> Json | None:
        return await _ask(bed, node, PORTS[BROKER], op, fields, waits_s + STEP_WITHIN_S)

    async def order(op: Op, fields: Json) -> Json:
        reply: Json = {"code": Status.NOT_LEADER, "remark": "no controller answers"}
        for node in bed.of_role(CONTROLLER):
            answer = await _ask(bed, node.name, PORTS[CONTROLLER], op, fields, ORDER_WITHIN_S)
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
        reply = await _ask(bed, node, PORTS[BROKER], Op.CONVERT, fields, ORDER_WITHIN_S)
        if reply is not None and reply["code"] == Status.SUCCESS:
            found.append(BrokerMode.of(node, reply))
    return found


async def _ask(
    bed: TestBed, node: str, port: int, op: Op, fields: Json, within_s: float
) -> Json | None:
    """Return the node's answer, None if there is none in time."""
    request = frame(op, 1, to_json(fields))
    try:
        answer = await bed.agents[node].ask(port, request, within_s)
        return from_json(answer[_REPLY_HEAD:])
    except (BedFailed, ConnectionError, TimeoutError, ValueError):
        return None
