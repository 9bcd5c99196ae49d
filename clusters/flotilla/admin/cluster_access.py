"""How a command reaches the cluster: the clients it needs, made on first use.

A status other than SUCCESS raises `CallRefused`, so commands contain no error handling.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from clusters.flotilla.client import ClientSettings, ClusterClient
from clusters.flotilla.client.admin import Admin
from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.net.wire import Json, Op, Status

NODE_SHARE = 0.3  # of the time limit, so that one node that hangs does not use up all of it
NETWORK_ERRORS = (Unreachable, ConnectionLost, CallTimeout)


class ClusterAccess:
    """Clients for a cluster that is known by some addresses."""

    def __init__(
        self, controllers: tuple[str, ...], nameservers: tuple[str, ...], timeout_s: float
    ) -> None:
        self.controllers, self.nameservers = controllers, nameservers
        self.timeout_s = timeout_s
        self.admin = Admin(controllers, NODE_SHARE * timeout_s, 0.9 * timeout_s)
        self._client: ClusterClient | None = None

    @classmethod
    @asynccontextmanager
    async def of(
        cls, controllers: tuple[str, ...], nameservers: tuple[str, ...], timeout_s: float
    ) -> AsyncIterator["ClusterAccess"]:
        """Close all connections at the end."""
        cluster = cls(controllers, nameservers, timeout_s)
        try:
            yield cluster
        finally:
            cluster.admin.close()
            if cluster._client is not None:
                cluster._client.close()

    @property
    def client(self) -> ClusterClient:
        """The client library, which finds the brokers through the nameservers."""
        if self._client is None:
            timeout_ms = round(900 * self.timeout_s)
            fields = {"namesrvAddr": list(self.nameservers), "requestTimeoutMillis": timeout_ms}
            self._client = ClusterClient(ClientSettings.of(fields))
            self._client.start()
        return self._client

    async def order(self, op: Op, fields: Json, *also: Status) -> Json:
        """Return the leading controller's answer.

        Raises CallRefused if its status is neither SUCCESS nor one of `also`; Unreachable,
        ConnectionLost, CallTimeout.
        """
        return require_success(await self.admin.order(op, fields), *also)

    async def ask_nameservers(self, op: Op, fields: Json) -> Json:
        """Return the answer of the first nameserver that gives one. Raises Unreachable."""
        why = "no nameservers are named"
        for address in self.nameservers:
            try:
                return require_success(await self.admin.ask(address, op, fields))
            except NETWORK_ERRORS as e:
                why = str(e)
        raise Unreachable(why)

    async def broker_set(self, name: str) -> dict[str, str]:
        """Return the addresses of a set's brokers by id, from the controllers or nameservers."""
        if self.controllers:
            fields = {"brokerNames": [name]}
            row = (await self.order(Op.SYNC_STATE_DATA, fields))["sets"].get(name)
            found = {i: str(member["addr"]) for i, member in row["members"].items()} if row else {}
        else:
            reply = await self.ask_nameservers(Op.MEMBER_GROUP, {"brokerName": name})
            found = dict(reply["members"])
        if not found:
            raise unknown_set(name)
        return found

    async def describe(self, addresses: Mapping[str, str]) -> dict[str, Json | None]:
        """Return each node's answer to DESCRIBE, None for a node that does not answer."""
        answers = await asyncio.gather(*(self._describe(a) for a in addresses.values()))
        if addresses and not any(answers):
            raise Unreachable(f"none of {', '.join(addresses.values())} answers")
        return dict(zip(addresses, answers, strict=True))

    async def _describe(self, address: str) -> Json | None:
        try:
            return await self.admin.describe(address)
        except NETWORK_ERRORS:
            return None


def require_success(reply: Json, *also: Status) -> Json:
    """Return the reply. Raises CallRefused unless its status is SUCCESS or one of `also`."""
    status = Status(reply["code"])
    if status is not Status.SUCCESS and status not in also:
        raise CallRefused("", status, str(reply.get("remark", "")))
    return reply


def unknown_set(name: str) -> CallRefused:
    return CallRefused("", Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
