"""Changing Flotilla's controllers while it runs, as an operator does, but asked over agents, so
that no partition keeps us from it.

A controller that is to join is started with nobody as its peers, and waits. It is a learner first;
the leader makes it a voter by itself when it holds everything.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from clusters.flotilla.wire import HEADER, Op, Status, frame, from_json, to_json
from clusters.systems._flotilla_layout import CONTROLLER, PORTS
from harness.contracts import Bed
from harness.errors import BedFailed

ROLES = (CONTROLLER,)
AGREE_WITHIN_S = 15.0
ANSWER_WITHIN_S = 2.0
ASK_AGAIN_S = 0.1
_REPLY_HEAD = HEADER.size - 4  # of an answer whose length was cut off


async def changed(bed: Bed, change: Mapping[str, Any]) -> None:
    """The change is committed. BedFailed when they do not agree in time."""
    deadline_ns, why = bed.now_ns() + AGREE_WITHIN_S * 1e9, "nobody answers"
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


async def _answers(bed: Bed, op: Op, fields: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    """What each controller says that answers."""
    asked = frame(op, 1, to_json(dict(fields)))
    for node in bed.of_role(CONTROLLER):
        try:
            answer = await bed.agents[node.name].ask(PORTS[CONTROLLER], asked, ANSWER_WITHIN_S)
            yield from_json(answer[_REPLY_HEAD:])
        except (BedFailed, ConnectionError, ValueError):
            continue
