"""Simulated machines and their processes: what can be done to them, and what remains.

    kill        no code of the process runs any more; its kernel continues, sends what it has taken,
                and closes the connections, or resets those with unread data
    pause       the process does nothing; its kernel accepts connections and bytes for it
    power cut   the machine is gone without a reset or a close; what its disk did not keep is lost.
                `power_on` gives an empty machine with the same address and disk

A process is a coroutine on a loop of its own (`loop.py`). It ends as with `asyncio.run`: when the
main coroutine has ended, the other tasks are cancelled and awaited. The exit code is the result of
the main coroutine, 1 after an exception, minus the signal's number after a kill.
"""

import asyncio
import signal
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from clusters.hosts._world.clock import HostClock
from clusters.hosts._world.console import LineWriter, StdinPipe
from clusters.hosts._world.loop import SimLoop, fires_on
from clusters.hosts._world.network import SimNetwork, Stack
from clusters.hosts._world.world import World

Main = Callable[["SimProcess"], Coroutine[Any, Any, int | None]]
FIRST_PID = 100
DEADLY = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGHUP})


class ProcessExit(SystemExit):
    """Unwinds a process that ends itself, as `os._exit` would end a real one."""


class SimHost:
    """A simulated machine. `on_power_cut` is called when it loses power, by its disk above all."""

    def __init__(self, world: World, network: SimNetwork, name: str, address: str) -> None:
        self.world, self.network = world, network
        self.name, self.address = name, address
        self.clock = HostClock(world)
        self.stack: Stack = network.attach(address)
        self.processes: dict[str, SimProcess] = {}  # the running ones
        self.on_power_cut: list[Callable[[], None]] = []
        self._next_pid = FIRST_PID
        self._boots: dict[str, int] = {}

    @property
    def up(self) -> bool:
        return self.stack.up

    def start(self, name: str, main: Main) -> "SimProcess":
        """Start a process; its main coroutine begins when the world goes on."""
        if not self.up:
            raise RuntimeError(f"{self.name} has no power")
        if name in self.processes:
            raise RuntimeError(f"{name} runs on {self.name} already")
        self._next_pid += 1
        boot = self._boots[name] = self._boots.get(name, 0) + 1
        process = SimProcess(self, name, self._next_pid, boot)
        self.processes[name] = process
        process.begin(main)
        return process

    def power_cut(self) -> None:
        if self.up:
            self.world.record(f"{self.name} loses power")
            self.stack.power_cut()
            for process in list(self.processes.values()):
                process.end(-signal.SIGKILL)
            for listener in self.on_power_cut:
                listener()

    def power_on(self) -> None:
        if not self.up:
            self.world.record(f"{self.name} has power")
            self.stack.power_on()

    def set_clock_rate(self, rate: float) -> None:
        """Change the length of the clock's seconds, and move the timers."""
        self.clock.set_rate(rate)
        self.world.replan(lambda event: fires_on(self.clock, event))


class SimProcess:
    """A process of a simulated machine. `code` is None while it runs."""

    def __init__(self, host: SimHost, name: str, pid: int, boot: int) -> None:
        self.host, self.name, self.pid, self.boot = host, name, pid, boot
        self.world = host.world
        self.code: int | None = None
        self.printed: list[str] = []
        self.error_lines: list[str] = []
        self.on_line: Callable[[str], None] | None = None  # called from outside the process
        self.on_error_line: Callable[[str], None] | None = None  # the same
        self.stdin = StdinPipe()
        self.stdout = LineWriter(self._printed_line)
        self.stderr = LineWriter(self._error_line)
        self.loop = SimLoop(host.world, host.clock, host.stack, self)  # type: ignore[abstract]
        self._on_exit: list[Callable[[int], object]] = []
        self._main: asyncio.Task[int | None] | None = None

    @property
    def identity(self) -> str:
        return f"{self.name} on {self.host.name}, boot {self.boot}"

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def paused(self) -> bool:
        return self.loop.paused and self.alive

    def begin(self, main: Main) -> None:
        self.world.record(f"{self._label} starts")
        self.loop.post(self._begin, main)

    # actions on the process

    def kill(self) -> None:
        """SIGKILL."""
        self.end(-signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP."""
        if self.alive:
            self.world.record(f"{self._label} is paused")
            self.loop.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.alive and self.loop.paused:
            self.world.record(f"{self._label} goes on")
            self.loop.resume()

    def signal(self, number: int) -> None:
        """Deliver a signal: to the handler, if there is one, else with its default effect."""
        if number == signal.SIGSTOP:
            self.pause()
        elif number == signal.SIGCONT:
            self.resume()
        elif number in DEADLY and (number == signal.SIGKILL or not self.loop.signalled(number)):
            self.end(-number)

    def exit(self, code: int) -> NoReturn:
        """End the process from its own code. Nothing that it does afterwards has an effect."""
        self.end(code)
        raise ProcessExit(code)

    def on_exit(self, tell: Callable[[int], object]) -> None:
        """Call with the exit code when the process has ended; at once if it has."""
        if self.code is None:
            self._on_exit.append(tell)
        else:
            self.world.after(0, tell, self.code)

    # calls of the loop

    def end(self, code: int) -> None:
        """The process has ended; its kernel closes what it had open."""
        if self.code is not None:
            return
        self.code = code
        self.world.record(f"{self._label} ends with {code}")
        self.loop.kill()
        self.host.stack.abandon(self.loop)
        self.host.processes.pop(self.name, None)
        for listener in self._on_exit:
            self.world.after(0, listener, code)

    def print_error(self, text: str) -> None:
        self.stderr.write(text.rstrip("\n") + "\n")

    # internals

    @property
    def _label(self) -> str:
        return f"{self.name} on {self.host.name}"

    def _begin(self, main: Main) -> None:
        self._main = self.loop.create_task(main(self))  # asyncio itself holds no task
        self._main.add_done_callback(self._main_done)

    def _main_done(self, main: "asyncio.Task[int | None]") -> None:
        """Cancel the remaining tasks, as `asyncio.run` does, and end."""
        others = list(self.loop.tasks())
        for task in others:
            task.cancel()
        code = self._code_of(main)
        if others:
            ended = asyncio.gather(*others, return_exceptions=True)
            ended.add_done_callback(lambda _: self._last_done(others, code))
        else:
            self.end(code)

    def _last_done(self, others: "list[asyncio.Task[Any]]", code: int) -> None:
        for task in others:
            if not task.cancelled() and (error := task.exception()):
                message = "unhandled exception during the end of the process"
                self.loop.call_exception_handler({"message": message, "exception": error})
        self.end(code)

    def _code_of(self, main: "asyncio.Task[int | None]") -> int:
        if main.cancelled():
            self.print_error("the main coroutine was cancelled")
            return 1
        error = main.exception()
        if error is not None:
            self.print_error("".join(traceback.format_exception(error)))
            return 1
        return main.result() or 0

    def _printed_line(self, line: str) -> None:
        if self.code is not None:
            return
        self.world.record(f"{self._label} says {line}")
        self.printed.append(line)
        if self.on_line is not None:
            self.world.after(0, self.on_line, line)

    def _error_line(self, line: str) -> None:
        if self.code is None:
            self.error_lines.append(line)
            if self.on_error_line is not None:
                self.world.after(0, self.on_error_line, line)
