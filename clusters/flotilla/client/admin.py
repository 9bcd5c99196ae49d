"""The operator's client: describe a node, see the SyncStateSets, elect a master by name.

Controllers answer only as leaders, so these calls go from one to the next, and to the leader that
a follower names.
"""

from collections.abc import Sequence

from clusters.flotilla.net import CallTimeout, ConnectionLost, Pool, Unreachable
from clusters.flotilla.wire import Json, Op, Status


class Admin:
    """Asks nodes and controllers; every call has its timeout."""

    def __init__(self, controllers: Sequence[str], timeout_s: float = 3.0) -> None:
        self._controllers = list(controllers)
        self._timeout_s = timeout_s
        self._pool = Pool(timeout_s)

    async def describe(self, address: str) -> Json:
        """What a node says of itself. Unreachable, ConnectionLost, CallTimeout."""
        return await self._pool.ask(address, Op.DESCRIBE, {}, self._timeout_s)

    async def sync_state_data(self, *broker_names: str) -> Json:
        """The broker sets as the controllers' leader knows them."""
        reply = await self._leader(Op.SYNC_STATE_DATA, {"brokerNames": list(broker_names)})
        sets: Json = reply.get("sets", {})
        return sets

    async def elect_master(self, broker_name: str, broker_id: int) -> Json:
        """Elect this broker, if it is alive and in the set; the answer with its code."""
        fields = {"brokerName": broker_name, "brokerId": broker_id, "designate": True}
        return await self._leader(Op.ELECT_MASTER, fields)

    def close(self) -> None:
        self._pool.close()

    async def _leader(self, op: Op, fields: Json) -> Json:
        """The leader's answer. Unreachable when no controller says that it leads."""
        why = "no controllers are configured"
        asked = list(self._controllers)
        tried: dict[str, None] = {}
        while asked:
            address = asked.pop(0)
            tried[address] = None
            try:
                reply = await self._pool.ask(address, op, fields, self._timeout_s)
            except (Unreachable, ConnectionLost, CallTimeout) as e:
                why = str(e)
                continue
            if reply.get("code") != Status.NOT_LEADER:
                return reply
            leader, why = reply.get("leaderAddr"), f"{address} does not lead"
            if leader and leader not in tried:
                asked.insert(0, leader)
        raise Unreachable(f"no controller leads: {why}")
