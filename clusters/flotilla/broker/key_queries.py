"""The desk of queries by key: a topic's messages that carry a key, wherever they are in the log."""

from ..net.connection import Connection, refusal
from ..net.wire import Json, Op, Status
from ..store.message_store import Found
from .handler import Desk, Table, not_master

MOST = 64  # as many as the original gives at most
_MOST_BYTES = 1024 * 1024


class KeyQueries:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def table(self) -> Table:
        return {Op.QUERY_BY_KEY: self._query}

    async def _query(self, connection: Connection, fields: Json) -> Json:
        if not self._desk.is_master():
            return not_master()
        try:
            key, most = bytes.fromhex(fields["key"]), int(fields.get("maxNum", MOST))
        except ValueError:
            return refusal(Status.INVALID_REQUEST, "the key must be hex")
        found = await self._desk.replica.store.find(
            str(fields["topic"]).encode(), key, max(1, min(most, MOST))
        )
        return {"messages": [_row(one) for one in _that_fit(found)]}


def _that_fit(found: list[Found]) -> list[Found]:
    """The first ones, at least one, whose bodies fit into an answer."""
    room, fit = _MOST_BYTES, list[Found]()
    for one in found:
        room -= len(one.payload.body)
        if fit and room < 0:
            break
        fit.append(one)
    return fit


def _row(found: Found) -> Json:
    entry, payload = found
    return {
        "queueId": entry.queue,
        "queueOffset": entry.queue_offset,
        "physicalOffset": entry.offset,
        "epoch": entry.epoch,
        "body": payload.body.hex(),
    }
