"""The operator's client finds the leading controller from any controller."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from played_node import PlayedNode

from clusters.flotilla.client.admin import Admin
from clusters.flotilla.net.connection import CallTimeout, FrameConnection, Unreachable, refusal
from clusters.flotilla.net.wire import Json, Op, Status

NOBODY = "127.0.0.1:9"  # nothing listens there


class Controllers:
    """A leader and a follower that knows it."""

    def __init__(self) -> None:
        self.designated: list[Json] = []
        self.connections: set[FrameConnection] = set()
        self.hangs = self.deposed = False
        self._nodes = self._node(self._lead, leads=True), self._node(self._follow, leads=False)
        self.leader, self.follower = (node.address for node in self._nodes)

    async def start(self) -> None:
        for node in self._nodes:
            await node.listen()

    def stop(self) -> None:
        for node in self._nodes:
            node.leave()

    def _node(
        self, answer: Callable[[FrameConnection, Json], Awaitable[Json]], *, leads: bool
    ) -> PlayedNode:
        async def metadata(connection: FrameConnection, fields: Json) -> Json:
            return {"isLeader": leads, "leaderAddr": self.leader}

        table = dict.fromkeys((Op.ELECT_MASTER, Op.SYNC_STATE_DATA), answer)
        table[Op.CONTROLLER_METADATA] = metadata
        return PlayedNode(table)

    async def _lead(self, connection: FrameConnection, fields: Json) -> Json:
        self.designated.append(fields)
        self.connections.add(connection)
        if self.deposed:
            self.deposed = False
            return refusal(Status.NOT_LEADER, "not any more")
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return {"sets": {name: {"masterId": 1} for name in fields.get("brokerNames", [])}}

    async def _follow(self, connection: FrameConnection, fields: Json) -> Json:
        return refusal(Status.NOT_LEADER, "ask the leader") | {"leaderAddr": self.leader}


def with_admin(
    use: Callable[[Admin, Controllers], Awaitable[None]], known: str, timeout_s: float = 20.0
) -> None:
    """`known`: which controllers the client is told of."""

    async def played() -> None:
        controllers = Controllers()
        await controllers.start()
        at = {"leader": controllers.leader, "follower": controllers.follower, "nobody": NOBODY}
        admin = Admin(
            [at[name] for name in known.split()], timeout_s=timeout_s, patience_s=timeout_s
        )
        try:
            await use(admin, controllers)
        finally:
            admin.close()
            controllers.stop()

    asyncio.run(played())


@pytest.mark.parametrize("known", ["leader", "follower", "nobody follower", "follower leader"])
def test_the_leader_is_found(known: str) -> None:
    async def use(admin: Admin, controllers: Controllers) -> None:
        assert await admin.sync_state_data("set-1") == {"set-1": {"masterId": 1}}
        await admin.elect_master("set-1", 2)
        wanted = {"brokerName": "set-1", "brokerId": 2, "designate": True}
        assert controllers.designated[-1] == wanted

    with_admin(use, known)


@pytest.mark.parametrize("known", ["", "nobody"])
def test_no_leader_is_said(known: str) -> None:
    async def use(admin: Admin, controllers: Controllers) -> None:
        with pytest.raises(Unreachable, match="no controller leads"):
            await admin.elect_master("set-1", 2)

    with_admin(use, known, timeout_s=0.5)


def test_an_order_that_got_no_answer_is_not_given_twice() -> None:
    """It may have been carried out, so the caller must learn that."""

    async def use(admin: Admin, controllers: Controllers) -> None:
        controllers.hangs = True
        with pytest.raises(CallTimeout):
            await admin.elect_master("set-1", 2)
        assert len(controllers.designated) == 1
        controllers.hangs = False
        await admin.elect_master("set-1", 2)
        assert len(controllers.connections) == 2, "the silent connection was given up"

    with_admin(use, "follower leader", timeout_s=2.0)


def test_an_order_that_a_deposed_leader_did_not_take_is_given_to_the_next() -> None:
    """NOT_LEADER: the request was not carried out, so it may be repeated."""

    async def use(admin: Admin, controllers: Controllers) -> None:
        controllers.deposed = True
        assert (await admin.elect_master("set-1", 2))["code"] == Status.SUCCESS
        assert len(controllers.designated) == 2

    with_admin(use, "follower leader")
