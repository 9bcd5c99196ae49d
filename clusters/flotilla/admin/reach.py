"""How a command reaches the cluster: the clients it needs, made when it asks for them.

A status that is no SUCCESS becomes `Refused`, so a command reads as if everything went well.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from clusters.flotilla.client import Client, Settings
from clusters.flotilla.client.admin import Admin
from clusters.flotilla.client.calls import Refused
from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.net.wire import Json, Op, Status

NODE_SHARE = 0.3  # of the time: one node that hangs must not use up all of it
LOST = (Unreachable, ConnectionLost, CallTimeout)


class Reach:
    """What a command asks with."""

    def __init__(
        self, controllers: tuple[str, ...], nameservers: tuple[str, ...], timeout_s: float
    ) -> None:
        self.controllers, self.nameservers = controllers, nameservers
        self.timeout_s = timeout_s
        self.admin = Admin(controllers, NODE_SHARE * timeout_s, 0.9 * timeout_s)
        self._client: Client | None = None

    @classmethod
    @asynccontextmanager
    async def of(
        cls, controllers: tuple[str, ...], nameservers: tuple[str, ...], timeout_s: float
    ) -> AsyncIterator["Reach"]:
        """Whatever was connected is closed at the end."""
        reach = cls(controllers, nameservers, timeout_s)
        try:
            yield reach
        finally:
            reach.admin.close()
            if reach._client is not None:
                reach._client.close()

    @property
    def client(self) -> Client:
        """The client library, by the nameservers."""
        if self._client is None:
            most_ms = round(900 * self.timeout_s)
            fields = {"namesrvAddr": list(self.nameservers), "requestTimeoutMillis": most_ms}
            self._client = Client(Settings.of(fields))
            self._client.start()
        return self._client

    async def order(self, op: Op, fields: Json, *also: Status) -> Json:
        """The leading controller's answer. Refused, unless its status is SUCCESS or one of these.

        Unreachable, ConnectionLost, CallTimeout.
        """
        return settled(await self.admin.order(op, fields), *also)

    async def of_any_nameserver(self, op: Op, fields: Json) -> Json:
        """The answer of the first nameserver that gives one."""
        why = "no nameservers are named"
        for address in self.nameservers:
            try:
                return settled(await self.admin.ask(address, op, fields))
            except LOST as e:
                why = str(e)
        raise Unreachable(why)

    async def broker_set(self, name: str) -> dict[str, str]:
        """The addresses of a set's brokers by their ids, of the controllers or the nameservers."""
        if self.controllers:
            fields = {"brokerNames": [name]}
            row = (await self.order(Op.SYNC_STATE_DATA, fields))["sets"].get(name)
            found = {i: str(member["addr"]) for i, member in row["members"].items()} if row else {}
        else:
            reply = await self.of_any_nameserver(Op.MEMBER_GROUP, {"brokerName": name})
            found = dict(reply["members"])
        if not found:
            raise unknown_set(name)
        return found

    async def described(self, addresses: Mapping[str, str]) -> dict[str, Json | None]:
        """What each of these nodes says of itself; None: it does not answer."""
        said = await asyncio.gather(*(self._described(a) for a in addresses.values()))
        if addresses and not any(said):
            raise Unreachable(f"none of {', '.join(addresses.values())} answers")
        return dict(zip(addresses, said, strict=True))

    async def _described(self, address: str) -> Json | None:
        try:
            return await self.admin.describe(address)
        except LOST:
            return None


def settled(reply: Json, *also: Status) -> Json:
    status = Status(reply["code"])
    if status is not Status.SUCCESS and status not in also:
        raise Refused("", status, str(reply.get("remark", "")))
    return reply


def unknown_set(name: str) -> Refused:
    return Refused("", Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
