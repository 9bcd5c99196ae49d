"""Who rings at the door of a peer whose connection closed, and what it concludes."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from loopback import free_port
from played_node import PlayedNode

from clusters.flotilla.net.connection import FrameConnection, Tasks
from clusters.flotilla.net.peer_liveness import PeerLiveness
from clusters.flotilla.net.wire import Json, Op


@contextmanager
def starved() -> Iterator[None]:
    """This process gets no more file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def rings(address: str, timeout_s: float) -> int:
    """How often the peer was said to be gone, once all was tried."""
    gone: list[str] = []
    bell = PeerLiveness(Tasks(), timeout_s)
    bell.watch(address, cares=lambda: True, gone=lambda: gone.append(address))
    trying = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(trying) == 1
    await asyncio.wait(trying)
    return len(gone)


def test_nobody_is_there() -> None:
    """The machine refuses the connection: the process is gone."""
    assert asyncio.run(rings(f"127.0.0.1:{free_port()}", 5.0)) == 1


@pytest.mark.parametrize("why", ["no descriptors", "no time"])
def test_what_keeps_us_from_ringing_is_no_end_of_theirs(why: str) -> None:
    """Who can not dial knows nothing of who lives: heartbeats will tell."""

    async def scenario() -> int:
        async def answer(connection: FrameConnection, fields: Json) -> Json:
            return {}

        living = PlayedNode({Op.PING: answer})
        await living.listen()
        try:
            if why == "no time":
                return await rings(living.address, 0.0)
            with starved():
                return await rings(living.address, 5.0)
        finally:
            living.leave()

    assert asyncio.run(scenario()) == 0
