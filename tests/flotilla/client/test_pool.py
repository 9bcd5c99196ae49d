"""Connections that are dialled on demand, and askers that go away meanwhile."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest
from played_node import PlayedNode

from clusters.flotilla.net import connection as net
from clusters.flotilla.net.connection import FrameConnection, Pool, RejectingHandler
from clusters.flotilla.net.wire import Json, Op, Status
from clusters.flotilla.world.ports import KEEPALIVE


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def ping(connection: FrameConnection, fields: Json) -> Json:
    return {}


PINGED = {Op.PING: ping}


async def answers(pool: Pool, node: PlayedNode) -> bool:
    reply = await pool.ask(node.address, Op.PING, {}, 1)
    return bool(reply["code"] == Status.SUCCESS)


async def asked_in_vain(pool: Pool, node: PlayedNode) -> None:
    """Somebody asks and goes away while it is dialled; the dial ends, however it does."""
    asking = asyncio.ensure_future(answers(pool, node))
    await asyncio.sleep(0)
    asking.cancel()
    here = asyncio.current_task()
    await asyncio.wait([task for task in asyncio.all_tasks() if task is not here])


def test_a_failure_that_nobody_waited_for_is_not_told_to_the_next() -> None:
    """Who asks later hears what is so then."""

    async def scenario() -> None:
        pool, node = Pool(1), PlayedNode(PINGED)
        await node.listen()
        node.leave()
        await asked_in_vain(pool, node)
        await node.listen()
        assert await answers(pool, node)
        pool.close()
        node.leave()

    run(scenario())


def test_a_connection_that_nobody_waited_for_may_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node has restarted: the pool connects again."""

    async def scenario() -> None:
        ended = asyncio.Event()
        monkeypatch.setattr(RejectingHandler, "closed", lambda self, connection, why: ended.set())
        pool, node = Pool(1), PlayedNode(PINGED)
        await node.listen()
        await asked_in_vain(pool, node)
        node.leave()
        await ended.wait()
        await node.listen()
        assert await answers(pool, node)
        pool.close()
        node.leave()

    run(scenario())


def test_who_asks_meanwhile_shares_the_dial() -> None:
    """One connection for all, also when the first asker has gone."""

    async def scenario() -> None:
        pool, node = Pool(1), PlayedNode(PINGED)
        await node.listen()
        first = asyncio.ensure_future(pool.get(node.address))
        others = [asyncio.ensure_future(pool.get(node.address)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        one, *more = await asyncio.gather(*others)
        assert more == [one, one]
        assert await pool.get(node.address) is one
        pool.close()
        node.leave()

    run(scenario())


def test_the_kernel_finds_out_who_vanished() -> None:
    """Most connections only wait for requests, so a peer that lost power would go unnoticed."""

    async def scenario() -> None:
        let_in: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()

        class Door(RejectingHandler):
            def opened(self, connection: FrameConnection) -> None:
                assert connection._transport
                let_in.put_nowait(connection._transport)

        server = await net.serve("127.0.0.1", 0, Door())
        address = "{}:{}".format(*server.sockets[0].getsockname())
        caller = await net.dial(address, RejectingHandler(), 1)
        accepted = (await let_in.get()).get_extra_info("socket")
        told = [accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
        told += [
            accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, option)) for option in KEEPALIVE
        ]
        assert told == [1, *KEEPALIVE.values()]
        caller.close()
        server.close()

    run(scenario())
