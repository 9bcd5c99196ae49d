"""Changing who the controllers are, one at a time (thesis 4; see raft/membership).

    CHANGE_CONTROLLERS   add: {id: "ip:port"} or remove: id -> voters, learners

The leader answers once the change is committed. A newcomer is a learner then; the leader makes it a
voter by itself when it holds everything, which CONTROLLER_METADATA shows. To ask for what is there
already is no mistake, so whoever got no answer asks again.

`controllerDLegerPeers` is the first configuration alone. A controller that is to join is started
with an empty one and waits; one that was removed may be stopped.
"""

import asyncio
from collections.abc import Callable

from ..net.connection import refusal
from ..net.schemas import address, text
from ..net.wire import Json, Senseless, Status
from ..raft.membership import Add, Change, ChangeMustWait, ChangeRefused, Configuration, Remove
from ..raft.node import Indeterminate, NotLeader, RaftNode

MAX_NAME_BYTES = 255  # Raft's messages have one byte for a name's length


async def change_controllers(
    raft: RaftNode, fields: Json, timeout_s: float, not_leader: Callable[[], Json]
) -> Json:
    """The answer. Senseless: the request makes no sense."""
    try:
        async with asyncio.timeout(timeout_s):
            await raft.change(change_of(fields))
    except ChangeRefused as e:
        return refusal(Status.INVALID_REQUEST, str(e))
    except ChangeMustWait as e:
        return refusal(Status.SYSTEM_BUSY, f"not tried: {e}")
    except NotLeader:
        return not_leader()
    except Indeterminate:
        return refusal(Status.SYSTEM_ERROR, "leadership was lost: the outcome is unknown")
    except TimeoutError:
        return refusal(Status.SYSTEM_ERROR, "no majority in time: the outcome is unknown")
    return members_fields(raft.members)


def members_fields(members: Configuration) -> Json:
    return {"voters": dict(members.voters), "learners": dict(members.learners)}


def change_of(fields: Json) -> Change:
    """Senseless: one sentence."""
    added, removed = fields.get("add"), fields.get("remove")
    if isinstance(added, dict) and len(added) == 1 and removed is None:
        [(member, place)] = added.items()
        _check(member, place)
        return Add(member, place)
    if isinstance(removed, str) and text(removed) and added is None:
        return Remove(removed)
    raise Senseless('either add: {id: "ip:port"}, one controller, or remove: its id')


def _check(member: str, place: object) -> None:
    if not text(member) or not 0 < len(member.encode()) <= MAX_NAME_BYTES:
        raise Senseless(f"a controller's id has 1 to {MOST_NAME_BYTES} bytes")
    if not address(place):
        raise Senseless(f"a controller's address is ip:port, not {str(place)[:80]!r}")
