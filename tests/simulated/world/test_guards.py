"""No simulated process reaches the real world unnoticed; outside, nothing is different."""

import asyncio
import builtins
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clusters.hosts._world.guards import GUARDED
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import NotSimulated, World
from harness.history.journal import TableJournal, count_rows
from harness.history.row_stream import FLUSH_AFTER_S
from harness.operation import F, Type

HERE = Path(__file__).name


def run(main: Callable[[SimProcess], Awaitable[Any]]) -> World:
    world = World(1)

    async def whole(process: SimProcess) -> int:
        await main(process)
        return 0

    host = SimHost(world, SimNetwork(world), "a", "10.0.0.1")
    host.start("p", whole)
    try:
        world.run()
    finally:
        world.close()
    return world


REACHES: dict[str, Callable[[], Any]] = {
    "the wall clock": lambda: time.time(),
    "the monotonic clock": lambda: time.monotonic_ns(),
    "a nap": lambda: time.sleep(0.001),
    "the hidden dice": lambda: random.random(),
    "the system's dice": lambda: os.urandom(4),
    "a fresh name": lambda: uuid.uuid4(),
    "a file": lambda: builtins.open("/dev/null").close(),
    "a path": lambda: Path("/dev/null").read_bytes(),
    "a descriptor": lambda: os.open("/dev/null", os.O_RDONLY),
    "a folder": lambda: os.listdir("/"),
    "a socket": lambda: socket.socket(),
    "a name server": lambda: socket.getaddrinfo("localhost", 1),
    "a thread": lambda: threading.Thread(target=print).start(),
    "a child": lambda: subprocess.Popen(["true"]),
    "its own number": lambda: os.getpid(),
}


@pytest.mark.parametrize("what", REACHES)
def test_who_reaches_across_is_named(what: str) -> None:
    """NotSimulated with file and line, raised by `run`, even if the process catches it."""

    async def main(process: SimProcess) -> None:
        with suppress(Exception):
            REACHES[what]()

    with pytest.raises(NotSimulated, match=HERE):
        run(main)


def test_a_thread_pool_is_refused() -> None:
    """The loop refuses what goes through the loop."""

    async def main(process: SimProcess) -> None:
        with suppress(Exception):
            await asyncio.get_running_loop().run_in_executor(None, print)

    with pytest.raises(NotSimulated, match="run_in_executor"):
        run(main)


def test_what_a_process_may_do() -> None:
    """Import, use random numbers of its own, read its own clock."""
    sys.modules.pop("this", None)
    read: list[float] = []

    async def main(process: SimProcess) -> None:
        import colorsys  # noqa: F401

        random.Random(7).random()
        await asyncio.sleep(2)
        read.append(asyncio.get_running_loop().time())

    sys.modules.pop("colorsys", None)
    run(main)
    assert read == [2.0]


def test_a_simulated_client_writes_a_real_journal(tmp_path: Path) -> None:
    """The history is the harness's; only its timer is the simulated loop's."""
    row = (1, 2, 3, Type.INVOKE, F.SEND, 0, 7, -1, -1, -1, -1, -1, -1, -1)

    async def main(process: SimProcess) -> None:
        journal = TableJournal(tmp_path, "ops", "client-1")
        journal.append(row)
        await asyncio.sleep(2 * FLUSH_AFTER_S)
        process.world.after(0, lambda: flushed.append(count_rows([*tmp_path.glob("*.arrows")])))
        await asyncio.sleep(1)
        journal.close()

    flushed: list[int] = []
    run(main)
    assert flushed == [1]


def test_the_border_opens_again() -> None:
    """After a run, ended well or badly, every guarded name is what it was."""
    before = [vars(owner)[name] for owner, name in GUARDED]

    async def badly(process: SimProcess) -> None:
        time.time()

    with pytest.raises(NotSimulated):
        run(badly)
    assert [vars(owner)[name] for owner, name in GUARDED] == before
    assert time.time() > 0


def test_a_thread_beside_the_world_is_free() -> None:
    """The guard checks which loop runs in this thread."""
    told: list[float] = []
    inside, asked = threading.Event(), threading.Event()

    def ask() -> None:
        inside.wait(10)
        told.append(time.monotonic())
        asked.set()

    async def main(process: SimProcess) -> None:
        inside.set()
        asked.wait(10)

    thread = threading.Thread(target=ask)
    thread.start()
    run(main)
    thread.join()
    assert told
