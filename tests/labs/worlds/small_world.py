"""A small simulated world for tests: hosts by name, one-line processes, and what came of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from clusters.hosts._world.network import SimNetwork, Wire
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.tcp import Kernel
from clusters.hosts._world.world import SECOND, World

CALM = Wire(latency_ns=1_000_000, jitter_ns=0, split=0, join=0)
PORT = 7000


class SmallWorld:
    """`a`, `b`, `c`, `d` and `driver`, at 10.0.0.1 and so on."""

    _open: ClassVar[list["SmallWorld"]] = []

    def __init__(
        self, seed: int | str = 1, wire: Wire = CALM, kernel: Kernel | None = None, **more: Any
    ) -> None:
        self.world = World(seed, **more)
        self._open.append(self)
        self.network = SimNetwork(self.world, wire, kernel)
        self.hosts = {
            name: SimHost(self.world, self.network, name, f"10.0.0.{number}")
            for number, name in enumerate(("a", "b", "c", "d", "driver"), start=1)
        }

    @property
    def now_s(self) -> float:
        return self.world.now_ns / SECOND

    def address(self, host: str) -> str:
        return self.hosts[host].address

    def start(
        self, host: str, main: Callable[[], Awaitable[Any]], name: str = "main"
    ) -> SimProcess:
        """A process whose main needs nothing but the loop."""

        async def run(_process: SimProcess) -> int | None:
            result = await main()
            return result if isinstance(result, int) else None

        return self.hosts[host].start(name, run)

    def server(self, host: str = "b") -> list["Ear"]:
        """Starts a server; the ears of its connections."""
        ears: list[Ear] = []
        self.start(host, serving(ears, self.address(host)), "server")
        return ears

    def play(self, main: Callable[[], Awaitable[Any]], host: str = "a") -> Any:
        """Run a process to its end; its result, or its exception."""
        came: list[tuple[Any, Exception | None]] = []

        async def run() -> None:
            try:
                came.append((await main(), None))
            except Exception as e:
                came.append((None, e))

        process = self.start(host, run, "play")
        process.on_exit(lambda _: self.world.stop())
        self.world.run()
        assert came, f"it never ended; code {process.code}, {process.error_lines}"
        result, error = came[0]
        if error is not None:
            raise error
        return result

    def cut(self, source: str, target: str) -> None:
        self.network.cut(self.address(source), self.address(target))

    def heal(self, source: str, target: str) -> None:
        self.network.heal(self.address(source), self.address(target))

    def at(self, at_s: float, call: Callable[[], object]) -> None:
        self.world.at(round(at_s * SECOND), call)

    @classmethod
    def close_all(cls) -> None:
        """Release what the tests' worlds left."""
        while cls._open:
            cls._open.pop().world.close()


class Ear(asyncio.Protocol):
    """Remembers what a protocol is told; may answer."""

    def __init__(self, answer: Callable[[bytes], bytes] | None = None) -> None:
        self.heard: list[str] = []
        self.data = bytearray()
        self.pieces = 0
        self._answer = answer
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport
        self.heard.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1
        if self._answer:
            self.transport.write(self._answer(data))

    def eof_received(self) -> None:
        self.heard.append("ended")

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append(f"lost {exc!r}")
        if not self.lost.done():
            self.lost.set_result(exc)


def serving(
    ears: list[Ear], host: str, answer: Callable[[bytes], bytes] | None = None, port: int = PORT
) -> Callable[[], Awaitable[None]]:
    """A main that listens for ever, and keeps its ears where the test can see them."""

    async def serve() -> None:
        def ear() -> Ear:
            ears.append(Ear(answer))
            return ears[-1]

        loop = asyncio.get_running_loop()
        await loop.create_server(ear, host, port)
        await loop.create_future()

    return serve


async def dial(host: str, port: int = PORT) -> Ear:
    _, ear = await asyncio.get_running_loop().create_connection(Ear, host, port)
    return ear


async def met(host: str, port: int = PORT) -> Ear:
    """A connection that the other side has accepted too."""
    ear = await dial(host, port)
    await asyncio.sleep(0.01)
    return ear
