"""The agent of a node in the simulated world: the same verbs as every agent, without a program on
the node.

The driver calls it from its own loop. A call changes the world at once, from outside of every
process; only results that take time (the end of a process, or its answer) are awaited. Rules are
effects on the links that lead to the node, which count dropped packets; probes are packets on these
links; a process is asked over the node's own TCP.
"""

import asyncio
import errno
import math
import posixpath
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from clusters.hosts._agent.driver import NoAnswer
from clusters.hosts._faults.disk_faults import merge
from clusters.hosts._world.content import Content
from clusters.hosts._world.disk import Disk
from clusters.hosts._world.driver import DriverLoop
from clusters.hosts._world.network import SimLink
from clusters.hosts._world.process import SimProcess
from clusters.hosts._world.world import SECOND
from clusters.hosts.simulated.machine import SimNode, command, program
from harness.contracts import (
    CommandResult,
    DiskFault,
    DiskProbe,
    LinkRule,
    ProcessState,
    TimedDatagram,
    UnsyncedReport,
)
from harness.errors import BedFailed

HEADERS_BYTES = 28  # of a datagram
MAX_TOKENS = 256
Done = Callable[[Any], object]  # takes the result or an exception
Result = TypeVar("Result")


class SimulatedAgent:
    """`harness.contracts.Agent` of one node. `peers`: all agents by address."""

    def __init__(
        self, machine: SimNode, driver: DriverLoop, peers: "Mapping[str, SimulatedAgent]"
    ) -> None:
        self.machine = machine
        self._driver, self._world, self._peers = driver, driver.world, peers
        self._network, self._address = machine.host.network, machine.node.address
        self._processes: dict[str, SimProcess] = {}
        self._ruled: dict[str, int] = {}  # source -> packets that its link dropped before the rule
        self._probes: dict[str, int] = {}  # probes, by token
        self._flights: dict[str, Sequence[TimedDatagram]] = {}  # by token
        self._asking: dict[int, Done] = {}  # open requests to the node's processes
        self._asked = 0
        self._disk_faults: dict[str, DiskFault] = {}  # by owner

    # files and commands

    async def run(
        self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 10.0
    ) -> CommandResult:
        return await self._in_world(lambda: command(self.machine, argv))

    async def put(self, path: str, data: bytes) -> None:
        await self._in_world(lambda: self.machine.disk.put(path, data))

    async def get(self, path: str) -> bytes:
        return await self._in_world(lambda: self.machine.files.read(path))

    # processes

    async def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        log: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        def begin() -> int:
            running = self._processes.get(name)
            if running and running.alive:
                raise BedFailed(f"{name} is running already; stop it before it is started again")
            if not self.machine.host.up:
                raise BedFailed(f"{name} did not start: the node's power is off")
            main = program(self.machine, argv)
            process = self._processes[name] = self.machine.host.start(name, main)
            process.on_line = self._to_driver(on_line) if on_line else self._to_file(log)
            process.on_error_line = self._to_file(log)
            return process.pid

        return await self._in_world(begin)

    async def tell(self, name: str, line: str) -> None:
        def feed() -> None:
            process = self._process(name)
            if not process.alive:
                raise BedFailed(f"{name} accepts no input: it has ended")
            process.stdin.feed(line.encode() + b"\n")

        await self._in_world(feed)

    async def signal(self, name: str, number: int) -> None:
        def send() -> None:
            process = self._process(name)
            if process.alive:
                process.signal(signal.Signals(number))

        await self._in_world(send)

    async def state(self, name: str) -> ProcessState:
        def look() -> ProcessState:
            process = self._processes.get(name)
            if process is None:
                return ProcessState("absent")
            if process.code is not None:
                return ProcessState("exited", process.pid, process.code)
            return ProcessState("stopped" if process.paused else "running", process.pid)

        return await self._in_world(look)

    async def exited(self, name: str) -> int:
        code: int = await self._until(lambda tell: self._process(name).on_exit(tell))
        return code

    async def power(self, on: bool) -> UnsyncedReport:
        def switch() -> UnsyncedReport:
            lost = self.machine.power(on)
            for number in list(self._asking):
                self._answered(number, ConnectionError("it gave no answer: there is no power"))
            return lost

        return await self._in_world(switch)

    # the disk

    async def drop_unsynced(self, seed: int | None) -> UnsyncedReport:
        def forget() -> UnsyncedReport:
            if running := [name for name, process in self._processes.items() if process.alive]:
                raise BedFailed(f"{running[0]} is running, and would keep the data in memory")
            return self.machine.drop_unsynced(everything=seed is None)

        return await self._in_world(forget)

    async def keep_unsynced(self) -> None:
        """Do nothing: the disk itself knows which changes are unsynced."""

    async def disk(self, owner: str, fault: DiskFault | None) -> None:
        self._disk_faults.pop(owner, None)
        if fault is not None:
            self._disk_faults[owner] = fault
        await self._in_world(lambda: self._apply_disk_fault(merge(self._disk_faults.values())))

    async def disk_fault(self) -> DiskFault | None:
        return merge(self._disk_faults.values())

    def _apply_disk_fault(self, fault: DiskFault | None) -> None:
        disk, wanted = self.machine.disk, fault or DiskFault("")
        self._world.record(f"the disk of {self.machine.node.name}: {fault or 'sound'}")
        disk.full, disk.read_only = wanted.full, wanted.read_only
        disk.sync_error = errno.EIO if wanted.sync_fails else 0
        hangs = wanted.sync_s == math.inf
        disk.delay_ns = 0 if hangs else round(wanted.sync_s * SECOND)
        disk.hang(hangs)
        if wanted.sync_fails:
            for listener in self.machine.on_failing_syncs:
                listener()

    async def probe_disk(self, below: str, patience_s: float) -> DiskProbe:
        seen: DiskProbe = await self._until(lambda tell: self._probe_disk(below, patience_s, tell))
        return seen

    def _probe_disk(self, below: str, patience_s: float, tell: Done) -> None:
        """Write a few bytes, sync them, and report the result once. The file has no name, so the
        probe makes no names of others durable."""
        disk, began_ns = self.machine.disk, self._world.now_ns
        disk.folder(below)
        result: list[bool] = []
        probe = Content()
        write = _error_name(_write_probe, disk, probe)

        def over(error: OSError | None, ended: bool = True) -> None:
            if not result:
                result.append(ended)
                took_s = (self._world.now_ns - began_ns) / SECOND
                tell(DiskProbe(write, _errno_name(error), took_s if ended else math.inf))

        disk.sync_file(probe, over)
        self._world.after(round(patience_s * SECOND), over, None, False)

    # the network

    async def links(self, rules: Sequence[LinkRule]) -> None:
        def lay() -> None:
            for source in self._ruled:
                _apply_rule(self._link(source), LinkRule(source, 0.0))
            self._ruled = {rule.source: self._link(rule.source).dropped for rule in rules}
            for rule in rules:
                _apply_rule(self._link(rule.source), rule)
            words = ", ".join(map(_rule_text, rules))
            self._world.record(f"{self.machine.node.name} drops {words or 'nothing'}")

        await self._in_world(lay)

    async def dropped(self) -> Mapping[str, int]:
        def count() -> Mapping[str, int]:
            ruled = self._ruled.items()
            return {source: self._link(source).dropped - before for source, before in ruled}

        return await self._in_world(count)

    async def probe(self, target: str, token: str, count: int) -> None:
        link = self._network.link(self._address, target)
        await self._in_world(lambda: self._peers[target].receive_probes(link, token, count))

    def receive_probes(self, link: SimLink, token: str, count: int) -> None:
        """Apply this node's rules to probes that arrive."""
        self._probes[token] = self._probes.get(token, 0) + link.pass_all(count)

    async def probed(self, token: str) -> int:
        return await self._in_world(lambda: self._probes.get(token, 0))

    async def send_timed(self, target: str, token: str, count: int, size_bytes: int) -> None:
        link = self._network.link(self._address, target)
        await self._in_world(
            lambda: self._peers[target].receive_flights(link, token, count, size_bytes)
        )

    def receive_flights(self, link: SimLink, token: str, count: int, size_bytes: int) -> None:
        """Compute when datagrams that are sent to this node now will arrive."""
        now_ns = self._world.now_ns
        arrivals = link.flights_ns(now_ns, count, size_bytes + HEADERS_BYTES)
        if len(self._flights) >= MAX_TOKENS:
            self._flights.clear()  # old tokens are not asked for any more
        self._flights[token] = [TimedDatagram(number, now_ns, at_ns) for at_ns, number in arrivals]

    async def timed_arrivals(self, token: str) -> Sequence[TimedDatagram]:
        """Return all flights, even those that are still under way."""
        return await self._in_world(lambda: self._flights.get(token, ()))

    async def lacks(self, ability: str) -> str:
        return ""

    async def ask(
        self, port: int, frame: bytes, timeout_s: float, *, to_end: bool = False
    ) -> bytes:
        """Only Flotilla runs in worlds, and its answers have their length in front."""
        assert not to_end

        def begin(tell: Done) -> None:
            if not self.machine.host.up:
                raise ConnectionError(f"port {port} gave no answer: there is no power")
            self._asked = number = self._asked + 1
            self._asking[number] = tell
            place, asker = (self._address, port), self.machine.agent.loop
            asker.post(_ask, asker, place, frame, timeout_s, partial(self._answered, number))

        answer: bytes = await self._until(begin)
        return answer

    # internals

    def _answered(self, number: int, result: Any) -> None:
        if tell := self._asking.pop(number, None):
            tell(result)

    def _process(self, name: str) -> SimProcess:
        if name not in self._processes:
            raise BedFailed(f"no process {name!r} was started on this node")
        return self._processes[name]

    def _link(self, source: str) -> SimLink:
        return self._network.link(source, self._address)

    def _to_driver(self, on_line: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that passes lines to the driver."""
        return lambda line: self._world.after(0, self._driver.enter, on_line, line)

    def _to_file(self, log: str) -> Callable[[str], None]:
        """Return a function that appends lines to a file in the node's folder."""
        path = log and f"{self.machine.folder}/{posixpath.basename(log)}"

        def keep(line: str) -> None:
            if path:
                if not self.machine.files.exists(path):
                    self.machine.disk.put(path, b"", spared=True)
                self.machine.files.append(path, f"{line}\n".encode())

        return keep

    async def _in_world(self, act: Callable[[], Result]) -> Result:
        """Carry out an act in the world, outside of all loops."""
        self._world.enter(None)
        try:
            return act()
        except (BedFailed, OSError) as e:
            raise self._as_bed_error(e) from e
        finally:
            self._world.enter(self._driver)

    async def _until(self, begin: Callable[[Done], object]) -> Any:
        """Begin an act in the world and wait for its result."""
        answer: asyncio.Future[Any] = self._driver.create_future()

        def tell(result: Any) -> None:
            self._world.after(0, self._driver.enter, self._settle, answer, result)

        await self._in_world(lambda: begin(tell))
        return await answer

    def _settle(self, answer: "asyncio.Future[Any]", result: Any) -> None:
        if answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(self._as_bed_error(result))
        else:
            answer.set_result(result)

    def _as_bed_error(self, error: Exception) -> BedFailed:
        kind = NoAnswer if isinstance(error, ConnectionError) else BedFailed
        return kind(f"{self.machine.node.name}: {error}")


def _write_probe(disk: Disk, probe: Content) -> None:
    """Write, and free the space again."""
    try:
        disk.write(probe, b"seatrial", 0)
    finally:
        if probe.size:
            disk.truncate(probe, 0)


def _error_name(attempt: Callable[..., object], *args: Any) -> str:
    """Return the error that an attempt ends with, or an empty string."""
    try:
        attempt(*args)
    except OSError as e:
        return _errno_name(e)
    return ""


def _errno_name(error: OSError | None) -> str:
    return errno.errorcode.get(error.errno or 0, str(error)) if error else ""


def _apply_rule(link: SimLink, rule: LinkRule) -> None:
    link.cut = rule.drop >= 1
    link.loss = 0.0 if rule.drop >= 1 else rule.drop
    delay_ns, jitter_ns = round(rule.delay_s * SECOND), round(rule.jitter_s * SECOND)
    link.slow_down(delay_ns, jitter_ns, rule.reorder)
    link.bytes_per_s, link.host_bytes_per_s = int(rule.bytes_per_s), int(rule.node_bytes_per_s)


def _rule_text(rule: LinkRule) -> str:
    """Return a rule as text for the world's record."""
    paced = rule[2:]
    return f"{rule.source} {rule.drop:g}" + (f" {paced}" if any(paced) else "")


class _FrameRequest(asyncio.Protocol):
    """A request, and the bytes of its answer behind their length."""

    def __init__(self, frame: bytes, answer: "asyncio.Future[bytes]") -> None:
        self._frame, self._answer = frame, answer
        self._got = bytearray()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._frame)

    def data_received(self, data: bytes) -> None:
        self._got += data
        end = 4 + int.from_bytes(self._got[:4], "big")
        if 4 <= len(self._got) >= end and not self._answer.done():
            self._answer.set_result(bytes(self._got[4:end]))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("it hung up"))


def _ask(
    loop: asyncio.AbstractEventLoop,
    address: tuple[str, int],
    frame: bytes,
    timeout_s: float,
    tell: Done,
) -> None:
    """Send a request and report its answer, in the loop of the node's agent process."""

    def over(asked: "asyncio.Task[bytes]") -> None:
        if not asked.cancelled():
            tell(asked.exception() or asked.result())

    loop.create_task(_asked(address, frame, timeout_s)).add_done_callback(over)


async def _asked(address: tuple[str, int], frame: bytes, timeout_s: float) -> bytes:
    loop = asyncio.get_running_loop()
    port = address[1]
    answer: asyncio.Future[bytes] = loop.create_future()
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _FrameRequest(frame, answer), *address
            )
            try:
                return await answer
            finally:
                answer.cancel()
                transport.close()
    except TimeoutError:
        why = f"port {port} gave no answer within {timeout_s:g} s"
        raise ConnectionError(why) from None
    except OSError as e:
        raise ConnectionError(f"port {port} gave no answer: {e}") from e
