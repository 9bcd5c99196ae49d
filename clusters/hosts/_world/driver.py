"""The driver's process in the simulated world, the only one that may use the real world.

A trial is the same coroutine on all kinds of hosts. Here it runs on a loop of the simulated world,
so that its waits and its clock are virtual, while its journals, its ledger and its output are real.
Input from the real world (an order on standard input, a signal) is polled between events, every few
of them: a run that is not interrupted is a function of its seed, and an interrupted one ends early,
at a time that depends on the interruption.
"""

import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from clusters.hosts._world.loop import Factory, SimLoop
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.process import Main, SimHost, SimProcess
from clusters.hosts._world.world import World

NAME, ADDRESS = "driver", "198.18.0.1"
PORTION_BYTES = 1 << 16


class DriverLoop(SimLoop):
    """A simulated loop with access to the real world."""

    real = True  # for the guards and the console

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._orders: asyncio.Protocol | None = None
        self._pipe: Any = None
        self._arrived: list[int] = []  # signals

    async def connect_read_pipe(self, protocol_factory: Factory, pipe: Any) -> Any:
        """Read a real pipe, whenever the world polls it."""
        self._pipe = pipe
        self._orders = orders = protocol_factory()  # type: ignore[assignment]
        self._start_polling()
        return pipe, orders

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        super().add_signal_handler(sig, callback, *args)
        signal.signal(sig, lambda number, _frame: self._arrived.append(number))
        self._start_polling()

    def _start_polling(self) -> None:
        self.world.pause = self._poll_real_world

    def _poll_real_world(self) -> None:
        """Poll the real world, outside of every process."""
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


class Driver(SimProcess):
    """The driver's process, whose output is really printed."""

    def __init__(self, world: World, network: SimNetwork) -> None:
        super().__init__(SimHost(world, network, NAME, ADDRESS), NAME, 1, 1)
        self.loop = DriverLoop(world, self.host.clock, self.host.stack, self)  # type: ignore[abstract]

    def run_world(self, main: Main) -> int:
        """Run the world until the driver has ended; return its exit code."""
        self.on_exit(lambda code: self.world.stop())
        self.begin(main)
        self.world.run()
        return self.code or 0

    def print_error(self, text: str) -> None:
        print(text.rstrip("\n"), file=sys.stderr, flush=True)
