"""The driver's place in the simulated world: the only process in it that may reach the real one.

A trial is told by the same coroutine everywhere. Here it runs on a loop of this world, so that its
waits and its clock are virtual, while its journals, its ledger and its words to the command are as
real as ever. What comes from the real world (an order on standard input, a signal) is looked for
between events, every few of them: a run that nobody interrupts is a function
of its seed, and one that somebody does ends early at a time that only he knows.
"""

import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from .loop import Factory, SimLoop
from .network import Network
from .process import Host, Main, Process
from .world import World

NAME, ADDRESS = "driver", "198.18.0.1"
PORTION_BYTES = 1 << 16


class DriverLoop(SimLoop):
    """A simulated loop with one window to the real world."""

    real = True  # for the border, and for the console

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._orders: asyncio.Protocol | None = None
        self._pipe: Any = None
        self._arrived: list[int] = []  # signals

    async def connect_read_pipe(self, protocol_factory: Factory, pipe: Any) -> Any:
        """A real pipe; its bytes arrive when the world looks."""
        self._pipe = pipe
        self._orders = orders = protocol_factory()  # type: ignore[assignment]
        self._look_on()
        return pipe, orders

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        super().add_signal_handler(sig, callback, *args)
        signal.signal(sig, lambda number, _frame: self._arrived.append(number))
        self._look_on()

    def _look_on(self) -> None:
        self.world.pause = self._look

    def _look(self) -> None:
        """Outside of every process: what has the real world to say?"""
        if self.dead:
            return
        while self._arrived:
            self.signalled(self._arrived.pop(0))
        if self._orders and select.select([self._pipe], [], [], 0)[0]:
            self._read(self._orders)

    def _read(self, orders: asyncio.Protocol) -> None:
        data = os.read(self._pipe.fileno(), PORTION_BYTES)
        if data:
            self.enter(orders.data_received, data)
        else:
            self._orders = None
            self.enter(orders.connection_lost, None)


class Driver(Process):
    """The driver's process. What it prints is really printed."""

    def __init__(self, world: World, network: Network) -> None:
        super().__init__(Host(world, network, NAME, ADDRESS), NAME, 1, 1)
        self.loop = DriverLoop(world, self.host.clock, self.host.stack, self)  # type: ignore[abstract]

    def sail(self, main: Main) -> int:
        """Let the world go on until the driver has ended; its exit code."""
        self.on_exit(lambda code: self.world.stop())
        self.begin(main)
        self.world.run()
        return self.code or 0

    def complain(self, text: str) -> None:
        print(text.rstrip("\n"), file=sys.stderr, flush=True)
