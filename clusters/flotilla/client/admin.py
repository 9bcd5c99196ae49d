"""The operator's client: describe a node, see the SyncStateSets, elect a master by name, hand over.

Only the leading controller answers, so it is looked for first, and the order is then given to it
once: what got no answer may have been carried out, and is not repeated here.
"""

import asyncio
from collections.abc import Mapping, Sequence

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Pool, Unreachable
from clusters.flotilla.net.wire import Json, Op, Status

LOOK_AGAIN_S = 0.1


class Admin:
    """Asks nodes and controllers. `timeout_s`: for a node's answer; `patience_s`: for the leader's,
    finding it included."""

    def __init__(
        self, controllers: Sequence[str], timeout_s: float = 3.0, patience_s: float = 10.0
    ) -> None:
        self._controllers = list(controllers)
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._pool = Pool(timeout_s)

    async def describe(self, address: str) -> Json:
        """What a node says of itself. Unreachable, ConnectionLost, CallTimeout."""
        return await self.ask(address, Op.DESCRIBE, {})

    async def sync_state_data(self, *broker_names: str) -> Json:
        """The broker sets as the controllers' leader knows them."""
        reply = await self.order(Op.SYNC_STATE_DATA, {"brokerNames": list(broker_names)})
        sets: Json = reply.get("sets", {})
        return sets

    async def elect_master(self, broker_name: str, broker_id: int) -> Json:
        """Elect this broker, if it is alive and in the set; the answer with its code."""
        fields = {"brokerName": broker_name, "brokerId": broker_id, "designate": True}
        return await self.order(Op.ELECT_MASTER, fields)

    async def member_group(self, nameserver: str, broker_name: str) -> dict[int, str]:
        """The addresses of a set's brokers by id, as one nameserver knows them; 0 is the master."""
        reply = await self.ask(nameserver, Op.MEMBER_GROUP, {"brokerName": broker_name})
        return {int(i): str(addr) for i, addr in reply.get("members", {}).items()}

    async def drill(self, broker_name: str, to: int | None = None) -> Json:
        """Hand the mastership over, to the best of the set or to this broker; no send fails."""
        return await self.order(Op.DRILL, {"brokerName": broker_name, "to": to})

    async def config(self, address: str) -> Json:
        """A node's settings, and which of them may change while it runs."""
        return await self.ask(address, Op.GET_CONFIG, {})

    async def update_config(self, address: str, values: Mapping[str, object]) -> Json:
        """Change settings until the node's process ends, all of them or none; as `config`."""
        return await self.ask(address, Op.UPDATE_CONFIG, {"values": dict(values)})

    async def order(self, op: Op, fields: Json) -> Json:
        """The leading controller's answer. Unreachable: nobody took the order; ConnectionLost and
        CallTimeout: it may have been carried out."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_s
        while True:
            leader, why = await self._leader()
            if leader is not None:
                left_s = max(until - loop.time(), self._timeout_s)
                try:
                    reply = await self._ask(leader, op, fields, left_s)
                except Unreachable as e:
                    why = str(e)
                else:
                    if reply.get("code") != Status.NOT_LEADER:
                        return reply
            if loop.time() >= until or not self._controllers:
                raise Unreachable(f"no controller leads: {why}")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def ask(self, address: str, op: Op, fields: Json) -> Json:
        """One node's answer. Unreachable, ConnectionLost, CallTimeout."""
        return await self._ask(address, op, fields, self._timeout_s)

    def close(self) -> None:
        self._pool.close()

    async def _ask(self, address: str, op: Op, fields: Json, timeout_s: float) -> Json:
        try:
            return await self._pool.ask(address, op, fields, timeout_s)
        except CallTimeout:
            self._pool.drop(address)  # it may have been cut off: dial anew next time
            raise

    async def _leader(self) -> tuple[str | None, str]:
        """The leader's address, or why there is none."""
        why = "no controllers are configured"
        waiting = list(self._controllers)
        tried: dict[str, None] = {}
        while waiting:
            address = waiting.pop(0)
            if address in tried:
                continue
            tried[address] = None
            try:
                told = await self.ask(address, Op.CONTROLLER_METADATA, {})
            except (Unreachable, ConnectionLost, CallTimeout) as e:
                why = str(e)
                continue
            if told.get("isLeader"):
                return address, ""
            why = f"{address} does not lead"
            if hint := told.get("leaderAddr"):
                waiting.insert(0, str(hint))
        return None, why
