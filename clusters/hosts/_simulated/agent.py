"""The agent of a node in the simulated world: the verbs of every other agent, without one.

The driver asks from its own loop. What it asks for is done to the world at once, from outside of
every process; only what has to be waited for (a process's end, or its answer) takes time. Rules are
effects on the links that lead to the node, counted where they drop; probes are packets on these
links; a process is asked over the node's own TCP.
"""

import asyncio
import errno
import math
import posixpath
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from clusters.hosts._agent.driver import NoAnswer
from clusters.hosts._faults.disk_faults import merged
from harness.contracts import (
    Completed,
    DiskFault,
    DiskSeen,
    Flight,
    Forgotten,
    LinkRule,
    ProcessState,
)
from harness.errors import BedFailed

from .content import Content
from .disk import Disk
from .driver import DriverLoop
from .machine import Machine, command, program
from .network import Link
from .process import Process
from .world import SECOND

HEADERS_BYTES = 28  # of a datagram
YOUNG = 256
Tell = Callable[[Any], object]  # with what came of it, or with what went wrong


class SimulatedAgent:
    """`harness.contracts.Agent` of one node. `peers`: all agents by address."""

    def __init__(
        self, machine: Machine, driver: DriverLoop, peers: "Mapping[str, SimulatedAgent]"
    ) -> None:
        self.machine = machine
        self._driver, self._world, self._peers = driver, driver.world, peers
        self._network, self._address = machine.host.network, machine.node.address
        self._named: dict[str, Process] = {}
        self._ruled: dict[str, int] = {}  # source -> packets its link had dropped before
        self._arrived: dict[str, int] = {}  # probes, by token
        self._landed: dict[str, Sequence[Flight]] = {}  # flights of the youngest tokens
        self._asking: dict[int, Tell] = {}  # who waits for an answer of the node's processes
        self._asked = 0
        self._spoilt: dict[str, DiskFault] = {}  # what each fault wants of the disk

    # files and commands

    async def run(
        self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 10.0
    ) -> Completed:
        done: Completed = await self._there(lambda: command(self.machine, argv))
        return done

    async def put(self, path: str, data: bytes) -> None:
        await self._there(lambda: self.machine.disk.put(path, data))

    async def get(self, path: str) -> bytes:
        data: bytes = await self._there(lambda: self.machine.files.read(path))
        return data

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
            running = self._named.get(name)
            if running and running.alive:
                raise BedFailed(f"{name} is running already; stop it before it is started again")
            if not self.machine.host.up:
                raise BedFailed(f"{name} did not start: there is no power")
            main = program(self.machine, argv)
            process = self._named[name] = self.machine.host.start(name, main)
            process.on_line = self._hears(on_line) if on_line else self._keeps(log)
            process.on_complaint = self._keeps(log)
            return process.pid

        pid: int = await self._there(begin)
        return pid

    async def tell(self, name: str, line: str) -> None:
        def feed() -> None:
            process = self._process(name)
            if not process.alive:
                raise BedFailed(f"{name} does not listen: it ended")
            process.stdin.feed(line.encode() + b"\n")

        await self._there(feed)

    async def signal(self, name: str, number: int) -> None:
        def send() -> None:
            process = self._process(name)
            if process.alive:
                process.signal(signal.Signals(number))

        await self._there(send)

    async def state(self, name: str) -> ProcessState:
        def look() -> ProcessState:
            process = self._named.get(name)
            if process is None:
                return ProcessState("absent")
            if process.code is not None:
                return ProcessState("exited", process.pid, process.code)
            return ProcessState("stopped" if process.paused else "running", process.pid)

        state: ProcessState = await self._there(look)
        return state

    async def exited(self, name: str) -> int:
        code: int = await self._until(lambda tell: self._process(name).on_exit(tell))
        return code

    async def power(self, on: bool) -> Forgotten:
        def switch() -> Forgotten:
            lost = self.machine.power(on)
            for number in list(self._asking):
                self._answered(number, ConnectionError("it gave no answer: there is no power"))
            return lost

        lost: Forgotten = await self._there(switch)
        return lost

    # the disk

    async def forget_unsynced(self, seed: int) -> Forgotten:
        def forget() -> Forgotten:
            if running := [name for name, process in self._named.items() if process.alive]:
                raise BedFailed(f"{running[0]} runs, and would remember")
            return self.machine.forget_unsynced()

        forgotten: Forgotten = await self._there(forget)
        return forgotten

    async def keep_unsynced(self) -> None:
        """The disk itself knows who changed it."""

    async def disk(self, owner: str, fault: DiskFault | None) -> None:
        self._spoilt.pop(owner, None)
        if fault is not None:
            self._spoilt[owner] = fault
        await self._there(lambda: self._spoil(merged(self._spoilt.values())))

    async def disk_wanted(self) -> DiskFault | None:
        return merged(self._spoilt.values())

    def _spoil(self, fault: DiskFault | None) -> None:
        disk, wanted = self.machine.disk, fault or DiskFault("")
        self._world.record(f"the disk of {self.machine.node.name}: {fault or 'sound'}")
        disk.full, disk.read_only = wanted.full, wanted.read_only
        disk.sync_error = errno.EIO if wanted.sync_fails else 0
        hangs = wanted.sync_s == math.inf
        disk.delay_ns = 0 if hangs else round(wanted.sync_s * SECOND)
        disk.hang(hangs)
        if wanted.sync_fails:
            for tell in self.machine.on_failing_syncs:
                tell()

    async def disk_seen(self, below: str, patience_s: float) -> DiskSeen:
        seen: DiskSeen = await self._until(lambda tell: self._look(below, patience_s, tell))
        return seen

    def _look(self, below: str, patience_s: float, tell: Tell) -> None:
        """Write a few bytes, ask for a sync, and tell what came of it, once. The file has no name,
        so the look makes nobody else's names durable."""
        disk, began_ns = self.machine.disk, self._world.now_ns
        disk.folder(below)
        told: list[bool] = []
        probe = Content()
        write = _name_of(_scrawl, disk, probe)

        def over(error: OSError | None, ended: bool = True) -> None:
            if not told:
                told.append(ended)
                took_s = (self._world.now_ns - began_ns) / SECOND
                tell(DiskSeen(write, _errno_name(error), took_s if ended else math.inf))

        disk.sync_file(probe, over)
        self._world.after(round(patience_s * SECOND), over, None, False)

    # the network

    async def links(self, rules: Sequence[LinkRule]) -> None:
        def lay() -> None:
            for source in self._ruled:
                _affect(self._link(source), LinkRule(source, 0.0))
            self._ruled = {rule.source: self._link(rule.source).dropped for rule in rules}
            for rule in rules:
                _affect(self._link(rule.source), rule)
            words = ", ".join(map(_words, rules))
            self._world.record(f"{self.machine.node.name} drops {words or 'nothing'}")

        await self._there(lay)

    async def dropped(self) -> Mapping[str, int]:
        def count() -> Mapping[str, int]:
            ruled = self._ruled.items()
            return {source: self._link(source).dropped - before for source, before in ruled}

        packets: Mapping[str, int] = await self._there(count)
        return packets

    async def probe(self, target: str, token: str, count: int) -> None:
        link = self._network.link(self._address, target)
        await self._there(lambda: self._peers[target].receive(link, token, count))

    def receive(self, link: Link, token: str, count: int) -> None:
        """Probes arrive at this node's rules; some may pass."""
        self._arrived[token] = self._arrived.get(token, 0) + link.pass_all(count)

    async def probed(self, token: str) -> int:
        count: int = await self._there(lambda: self._arrived.get(token, 0))
        return count

    async def fly(self, target: str, token: str, count: int, size_bytes: int) -> None:
        link = self._network.link(self._address, target)
        await self._there(lambda: self._peers[target].land(link, token, count, size_bytes))

    def land(self, link: Link, token: str, count: int, size_bytes: int) -> None:
        """Datagrams are sent to this node. It is known at once when they will arrive."""
        now_ns = self._world.now_ns
        arrivals = link.flights_ns(now_ns, count, size_bytes + HEADERS_BYTES)
        if len(self._landed) >= YOUNG:
            self._landed.clear()  # nobody asks for them any more
        self._landed[token] = [Flight(number, now_ns, at_ns) for at_ns, number in arrivals]

    async def flown(self, token: str) -> Sequence[Flight]:
        """Also those that are still under way."""
        flights: Sequence[Flight] = await self._there(lambda: self._landed.get(token, ()))
        return flights

    async def lacks(self, ability: str) -> str:
        return ""

    async def ask(self, port: int, frame: bytes, timeout_s: float) -> bytes:
        def begin(tell: Tell) -> None:
            if not self.machine.host.up:
                raise ConnectionError(f"port {port} gave no answer: there is no power")
            self._asked = number = self._asked + 1
            self._asking[number] = tell
            place, asker = (self._address, port), self.machine.agent.loop
            asker.post(_ask, asker, place, frame, timeout_s, partial(self._answered, number))

        answer: bytes = await self._until(begin)
        return answer

    # inside

    def _answered(self, number: int, told: Any) -> None:
        if tell := self._asking.pop(number, None):
            tell(told)

    def _process(self, name: str) -> Process:
        if name not in self._named:
            raise BedFailed(f"no process {name!r} was started on this node")
        return self._named[name]

    def _link(self, source: str) -> Link:
        return self._network.link(source, self._address)

    def _hears(self, on_line: Callable[[str], None]) -> Callable[[str], None]:
        """Lines on their way to the driver."""
        return lambda line: self._world.after(0, self._driver.enter, on_line, line)

    def _keeps(self, log: str) -> Callable[[str], None]:
        """Lines into a file of the node's own folder, wherever it should have been."""
        path = log and f"{self.machine.folder}/{posixpath.basename(log)}"

        def keep(line: str) -> None:
            if path:
                if not self.machine.files.exists(path):
                    self.machine.disk.put(path, b"", spared=True)
                self.machine.files.append(path, f"{line}\n".encode())

        return keep

    async def _there(self, act: Callable[[], Any]) -> Any:
        """What an act in the world gives; nobody's loop runs meanwhile."""
        self._world.enter(None)
        try:
            return act()
        except (BedFailed, OSError) as e:
            raise self._told(e) from e
        finally:
            self._world.enter(self._driver)

    async def _until(self, begin: Callable[[Tell], object]) -> Any:
        """What is told, sooner or later, by what is begun in the world."""
        answer: asyncio.Future[Any] = self._driver.create_future()

        def tell(told: Any) -> None:
            self._world.after(0, self._driver.enter, self._settle, answer, told)

        await self._there(lambda: begin(tell))
        return await answer

    def _settle(self, answer: "asyncio.Future[Any]", told: Any) -> None:
        if answer.done():
            return
        if isinstance(told, Exception):
            answer.set_exception(self._told(told))
        else:
            answer.set_result(told)

    def _told(self, error: Exception) -> BedFailed:
        kind = NoAnswer if isinstance(error, ConnectionError) else BedFailed
        return kind(f"{self.machine.node.name}: {error}")


def _scrawl(disk: Disk, probe: Content) -> None:
    """Write, and give the room back."""
    try:
        disk.write(probe, b"seatrial", 0)
    finally:
        if probe.size:
            disk.truncate(probe, 0)


def _name_of(attempt: Callable[..., object], *args: Any) -> str:
    """The error that an attempt ends with; empty: none."""
    try:
        attempt(*args)
    except OSError as e:
        return _errno_name(e)
    return ""


def _errno_name(error: OSError | None) -> str:
    return errno.errorcode.get(error.errno or 0, str(error)) if error else ""


def _affect(link: Link, rule: LinkRule) -> None:
    link.cut = rule.drop >= 1
    link.loss = 0.0 if rule.drop >= 1 else rule.drop
    delay_ns, jitter_ns = round(rule.delay_s * SECOND), round(rule.jitter_s * SECOND)
    link.slow_down(delay_ns, jitter_ns, rule.reorder)
    link.bytes_per_s, link.door_bytes_per_s = int(rule.bytes_per_s), int(rule.node_bytes_per_s)


def _words(rule: LinkRule) -> str:
    """A rule, for the world's record."""
    paced = rule[2:]
    return f"{rule.source} {rule.drop:g}" + (f" {paced}" if any(paced) else "")


class _Asking(asyncio.Protocol):
    """One question, and the answer's bytes behind its length."""

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
    tell: Tell,
) -> None:
    """In the agent's loop: ask, and tell the answer."""

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
            transport, _ = await loop.create_connection(lambda: _Asking(frame, answer), *address)
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
