"""Administrative requests: to nodes and controllers (`Admin`), and on topics (`TopicAdmin`).

`Admin` looks for the leading controller and sends it the request once: a request without an answer
may have been carried out and is not repeated.

`TopicAdmin` creates and deletes topics on the masters of all broker sets, as soon as every known
set has a master. The queues are distributed among the sets (`share_of_sets`). If only some sets
carried out a request its outcome is unknown; repeating it completes it.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Pool, Unreachable
from clusters.flotilla.net.wire import Json, Op, Status

from .calls import CALL_ERRORS, CallRefused, Calls

RETRY_S = 0.1


class Admin:
    """Asks nodes and controllers. `timeout_s`: for a node's answer; `patience_s`: for finding the
    leader and for its answer."""

    def __init__(
        self, controllers: Sequence[str], timeout_s: float = 3.0, patience_s: float = 10.0
    ) -> None:
        self._controllers = list(controllers)
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._pool = Pool(timeout_s)

    async def describe(self, address: str) -> Json:
        """Return a node's answer to DESCRIBE. Raises Unreachable, ConnectionLost, CallTimeout."""
        return await self.ask(address, Op.DESCRIBE, {})

    async def sync_state_data(self, *broker_names: str) -> Json:
        """Return the broker sets as the controllers' leader knows them."""
        reply = await self.order(Op.SYNC_STATE_DATA, {"brokerNames": list(broker_names)})
        sets: Json = reply.get("sets", {})
        return sets

    async def elect_master(self, broker_name: str, broker_id: int) -> Json:
        """Elect this broker if it is alive and in the set; return the answer with its code."""
        fields = {"brokerName": broker_name, "brokerId": broker_id, "designate": True}
        return await self.order(Op.ELECT_MASTER, fields)

    async def member_group(self, nameserver: str, broker_name: str) -> dict[int, str]:
        """Return the addresses of a set's brokers by id, from a nameserver; 0 is the master."""
        reply = await self.ask(nameserver, Op.MEMBER_GROUP, {"brokerName": broker_name})
        return {int(i): str(addr) for i, addr in reply.get("members", {}).items()}

    async def drill(self, broker_name: str, to: int | None = None) -> Json:
        """Hand the mastership over to the best broker of the set or to this one; no send fails."""
        return await self.order(Op.DRILL, {"brokerName": broker_name, "to": to})

    async def drill_zone(self, zone: str) -> Json:
        """Close a zone for masters and hand over those in it; return the answer with its code."""
        return await self.order(Op.DRILL_ZONE, {"zone": zone})

    async def return_zone(self, zone: str) -> Json:
        """Open a zone for masters again; none is moved by that."""
        return await self.order(Op.RETURN_ZONE, {"zone": zone})

    async def config(self, address: str) -> Json:
        """Return a node's settings, and which of them may change while it runs."""
        return await self.ask(address, Op.GET_CONFIG, {})

    async def update_config(self, address: str, values: Mapping[str, object]) -> Json:
        """Change settings until the node's process ends, all or none; return them like `config`."""
        return await self.ask(address, Op.UPDATE_CONFIG, {"values": dict(values)})

    async def order(self, op: Op, fields: Json) -> Json:
        """Return the leading controller's answer.

        Raises Unreachable if no controller took the request; ConnectionLost or CallTimeout if it
        may have been carried out.
        """
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
            await asyncio.sleep(RETRY_S)

    async def ask(self, address: str, op: Op, fields: Json) -> Json:
        """Return one node's answer. Raises Unreachable, ConnectionLost, CallTimeout."""
        return await self._ask(address, op, fields, self._timeout_s)

    def close(self) -> None:
        self._pool.close()

    async def _ask(self, address: str, op: Op, fields: Json, timeout_s: float) -> Json:
        try:
            return await self._pool.ask(address, op, fields, timeout_s)
        except CallTimeout:
            self._pool.drop(address)  # it may be cut off: connect again next time
            raise

    async def _leader(self) -> tuple[str | None, str]:
        """Return the leader's address, or None and the reason."""
        why = "no controllers are configured"
        waiting = list(self._controllers)
        tried: dict[str, None] = {}
        while waiting:
            address = waiting.pop(0)
            if address in tried:
                continue
            tried[address] = None
            try:
                metadata = await self.ask(address, Op.CONTROLLER_METADATA, {})
            except (Unreachable, ConnectionLost, CallTimeout) as e:
                why = str(e)
                continue
            if metadata.get("isLeader"):
                return address, ""
            why = f"{address} does not lead"
            if hint := metadata.get("leaderAddr"):
                waiting.insert(0, str(hint))
        return None, why


class TopicAdmin:
    """Creates, deletes and lists topics."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create(self, topic: str, queues: int) -> None:
        masters = await self._calls.all_masters()
        shares = share_of_sets(queues, masters)
        fields = {name: {"topic": topic, "queues": share} for name, share in shares.items()}
        await self._change(masters, Op.TOPIC_CREATE, fields)

    async def delete(self, topic: str) -> None:
        """Delete a topic. Raises CallRefused with TOPIC_NOT_EXIST if no set has it."""
        masters = await self._calls.all_masters()
        await self._change(masters, Op.TOPIC_DELETE, {name: {"topic": topic} for name in masters})

    async def _change(
        self, masters: Mapping[str, str], op: Op, requests: Mapping[str, Json]
    ) -> None:
        done, absent = False, None
        for name, fields in requests.items():
            address = masters[name]
            try:
                await self._calls.ask(address, op, fields)
                done = True
            except CALL_ERRORS as e:
                if isinstance(e, CallRefused) and e.status == Status.TOPIC_NOT_EXIST:
                    absent = e
                elif done:
                    why = f"it is done on another set, but not here: {e}"
                    raise CallRefused(address, Status.SYSTEM_ERROR, why) from e
                else:
                    raise
        if absent and not done:
            raise absent

    async def list_queues(self) -> Mapping[str, int]:
        """Return topic -> number of queues on all sets that have a master."""
        found: dict[str, int] = {}
        for address in (await self._calls.masters()).values():
            reply = await self._calls.ask(address, Op.METADATA, {})
            for topic, queues in reply["topics"].items():
                found[topic] = found.get(topic, 0) + int(queues)
        return found


def share_of_sets(queues: int, sets: Iterable[str]) -> dict[str, int]:
    """Return how many of a topic's queues each set has: equally many, the first sets by name one
    more. A set is left out if there are fewer queues than sets. So the queues are as many as were
    asked for, and none is without a reader."""
    names = sorted(sets)
    each, more = divmod(queues, len(names))
    shares = {name: each + (at < more) for at, name in enumerate(names)}
    return {name: share for name, share in shares.items() if share}
