"""The agent that outlives its connections: wherever they break, nothing is lost or done twice.

A relay is a child process here, where an ssh channel would carry it; it is cut in the middle of
lines, stopped, and left alone. No rule of any network is changed.
"""

import asyncio
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import leftovers
import pytest

from clusters.hosts._agent import agent as _agent
from clusters.hosts._agent.reconnecting_agent import ReconnectingConnection
from harness.errors import NodeGone

HERE = Path(_agent.__file__).parent
PYTHON = [sys.executable, "-S", "-s", "-E"]
PATIENCE_S = 20.0
LEASE_S = 20.0
TOLD = 600
FLOOD = 20_000


class Relay:
    """A connection to the agent, as a child process."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [*PYTHON, str(HERE / "relay.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def recv(self, size: int) -> bytes:
        return os.read(_fd(self.process.stdout), size)

    def sendall(self, data: bytes) -> None:
        while data:
            data = data[os.write(_fd(self.process.stdin), data) :]

    def shutdown(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def bury(self) -> None:
        self.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with suppress(OSError):
                    pipe.close()


class Fraying(Relay):
    """A stream that breaks after a number of bytes in each direction, anywhere in a line."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder)
        self.left_in, self.left_out = dice.randint(1, 100_000), dice.randint(1, 20_000)

    def recv(self, size: int) -> bytes:
        data = super().recv(min(size, self.left_in))
        self.left_in -= len(data)
        if not self.left_in:
            self.process.kill()
        return data

    def sendall(self, data: bytes) -> None:
        super().sendall(data[: self.left_out])
        self.left_out -= len(data)
        if self.left_out <= 0:
            self.process.kill()
            raise BrokenPipeError


class Daemon:
    """An agent of its own in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.relays: list[Relay] = []
        self._stopped = False
        self._lock = threading.Lock()

    def start(self, lease_s: float = LEASE_S, **options: int) -> None:
        """Returns when it listens."""
        argv = [*PYTHON, str(HERE / "daemon.py"), str(self.folder), "127.0.0.1"]
        argv += ["--lease", str(lease_s)]
        for key, value in options.items():
            argv += [f"--{key.replace('_', '-')}", str(value)]
        kept = [options["lock"]] if "lock" in options else []
        subprocess.run(argv, check=True, timeout=PATIENCE_S, pass_fds=kept)

    def dial(self) -> Relay:
        return self._kept(Relay(self.folder))

    def fraying(self, dice: random.Random) -> Callable[[], Relay]:
        return lambda: self._kept(Fraying(self.folder, dice))

    @property
    def pid(self) -> int:
        return int(self._read("agent.pid"))

    @property
    def end(self) -> str:
        return self._read("agent.end")

    def stop(self) -> None:
        if self._read("agent.pid"):
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        with self._lock:
            self._stopped = True
        for relay in self.relays:
            relay.bury()

    def _kept(self, relay: Relay) -> Relay:
        """One that was dialled too late to be wanted is buried at once."""
        with self._lock:
            if not self._stopped:
                self.relays.append(relay)
                return relay
        relay.bury()
        raise ConnectionAbortedError

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text().strip() if path.exists() else ""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.stop()


@pytest.mark.parametrize("seed", range(4))
def test_a_connection_that_breaks_anywhere_costs_no_line_and_doubles_no_action(
    daemon: Daemon, seed: int
) -> None:
    """Every line arrives once and in order; every request is carried out once and answered."""
    daemon.start()
    flood: list[str] = []
    echoes: list[str] = []

    async def scene() -> int:
        carrier = ReconnectingConnection("a", daemon.fraying(random.Random(seed)), LEASE_S)
        agent = carrier.agent
        await agent.start("echo", ["sed", "-u", f"{TOLD}q"], on_line=echoes.append)
        await agent.start("flood", ["seq", str(FLOOD)], on_line=flood.append)
        for number in range(TOLD):
            await agent.tell("echo", str(number))
        assert await agent.exited("flood") == 0
        assert await agent.exited("echo") == 0
        await carrier.hang_up()
        return carrier.attachments

    attachments = asyncio.run(scene())
    assert flood == [str(number) for number in range(1, FLOOD + 1)]
    assert echoes == [str(number) for number in range(TOLD)]
    assert attachments > 3


def test_many_open_requests_survive_a_break_each_on_its_own(daemon: Daemon, tmp_path: Path) -> None:
    """Requests in progress when the connection breaks continue, and are not started again."""
    daemon.start()
    done = tmp_path / "done"

    async def scene() -> list[int]:
        carrier = ReconnectingConnection("a", daemon.dial, LEASE_S)
        note = f"sleep 0.5; echo x >> {done}"
        runs = [carrier.agent.run(["sh", "-c", note]) for _ in range(40)]
        together = asyncio.gather(*runs)
        attached = 0
        for _ in range(3):
            await carrier.agent.hello()
            assert carrier.attachments > attached, "a new one each time"
            attached = carrier.attachments
            daemon.relays[-1].process.kill()
        codes = [run.code for run in await together]
        await carrier.hang_up()
        return codes

    assert asyncio.run(scene()) == [0] * 40
    assert done.read_text() == "x\n" * 40


def test_a_silent_connection_is_replaced(daemon: Daemon) -> None:
    """A relay that neither ends nor answers does not delay the next request."""
    daemon.start()

    async def scene() -> str:
        carrier = ReconnectingConnection("a", daemon.dial, lease_s=8.0)
        await carrier.agent.hello()
        stopped = daemon.relays[-1].process
        os.kill(stopped.pid, signal.SIGSTOP)
        state = (await carrier.agent.state("nobody")).state
        assert daemon.relays[-1].process is not stopped
        await carrier.hang_up()
        return state

    assert asyncio.run(scene()) == "absent"


def test_without_a_driver_it_leaves_and_takes_everything_along(daemon: Daemon) -> None:
    """At the end of the lease running and stopped processes die, and the next driver gets the
    reason."""
    daemon.start(lease_s=8.0)

    async def scene() -> list[int]:
        carrier = ReconnectingConnection("a", daemon.dial, LEASE_S)
        running = await carrier.agent.start("running", ["sleep", "1000"])
        stopped = await carrier.agent.start("stopped", ["sleep", "1000"])
        await carrier.agent.signal("stopped", signal.SIGSTOP)
        await carrier.hang_up()
        return [running, stopped]

    pids = asyncio.run(scene())
    eventually(lambda: not any(leftovers.alive(pid) for pid in [*pids, daemon.pid]))
    assert daemon.end == "no driver was heard for 8 s"
    sentence = asyncio.run(refused(daemon))
    assert sentence == "a is gone: its agent left: no driver was heard for 8 s"


def test_a_driver_that_is_heard_may_be_idle(daemon: Daemon) -> None:
    """Pings alone renew the lease."""
    daemon.start(lease_s=8.0)

    async def scene() -> str:
        carrier = ReconnectingConnection("a", daemon.dial, lease_s=8.0)
        await carrier.agent.hello()
        await asyncio.sleep(10.0)  # what is waited for is that nothing happens
        state = (await carrier.agent.state("nobody")).state
        await carrier.hang_up()
        return state

    assert asyncio.run(scene()) == "absent"


def test_told_to_leave_it_says_so_and_fails_open_calls(daemon: Daemon) -> None:
    """SIGTERM ends the lease; open calls fail at once, with the signal as reason."""
    daemon.start()

    async def scene() -> tuple[str, int]:
        carrier = ReconnectingConnection("a", daemon.dial, LEASE_S)
        pid = await carrier.agent.start("sleeper", ["sleep", "1000"])
        waiting = asyncio.ensure_future(carrier.agent.exited("sleeper"))
        await carrier.agent.hello()
        os.kill(daemon.pid, signal.SIGTERM)
        with pytest.raises(NodeGone) as error:
            await waiting
        await carrier.hang_up()
        return str(error.value), pid

    sentence, pid = asyncio.run(scene())
    assert sentence == "a is gone: its agent left: SIGTERM was received"
    eventually(lambda: not leftovers.alive(pid) and not leftovers.alive(daemon.pid))


def test_a_request_that_comes_while_it_leaves_is_not_carried_out(
    daemon: Daemon, tmp_path: Path
) -> None:
    """A driver that goes on after the lease learns that its node is gone; it starts nothing there,
    though the agent is still busy with leaving."""
    gate, late = tmp_path / "gate", tmp_path / "late"
    daemon.start()

    async def scene() -> str:
        carrier = ReconnectingConnection("a", daemon.dial, LEASE_S)
        pid = await carrier.agent.start("sleeper", ["sleep", "1000"])
        wait = f"until [ -e {gate} ]; do sleep 0.02; done"
        await carrier.agent.at_leave(["sh", "-c", wait])
        os.kill(daemon.pid, signal.SIGTERM)
        await asyncio.to_thread(eventually, lambda: not leftovers.alive(pid))
        asked = asyncio.ensure_future(carrier.agent.start("late", ["touch", str(late)]))
        await asyncio.wait({asked}, timeout=0.5)  # nothing comes, so a longer wait shows no more
        gate.touch()
        with pytest.raises(NodeGone) as error:
            await asked
        await carrier.hang_up()
        return str(error.value)

    assert asyncio.run(scene()) == "a is gone: its agent left: SIGTERM was received"
    assert not late.exists()


def test_an_agent_that_was_killed_is_a_node_that_is_gone(daemon: Daemon) -> None:
    """The relay finds no agent, and the driver does not wait for the lease."""
    daemon.start()

    async def scene() -> str:
        carrier = ReconnectingConnection("a", daemon.dial, LEASE_S)
        await carrier.agent.hello()
        os.kill(daemon.pid, signal.SIGKILL)
        with pytest.raises(NodeGone) as error:
            await carrier.agent.exited("nobody")
        await carrier.hang_up()
        return str(error.value)

    assert asyncio.run(scene()) == "a is gone: its agent ended without a reason"


def test_what_is_kept_has_a_bound(daemon: Daemon) -> None:
    """A driver that reads nothing costs a limited amount of memory; then the agent ends with the
    reason."""
    daemon.start(kept_bytes=2 << 20)

    async def scene() -> None:
        carrier = ReconnectingConnection("a", daemon.dial, LEASE_S)
        late = ["sh", "-c", "sleep 0.3; exec yes"]
        await carrier.agent.start("flood", late, on_line=lambda line: None)
        await carrier.hang_up()

    asyncio.run(scene())
    eventually(lambda: not leftovers.alive(daemon.pid))
    assert daemon.end == "more than 2 MB waited for a driver to take them"


def test_another_driver_replaces_the_first(daemon: Daemon) -> None:
    """It starts with ids of its own; the first driver learns that it has been replaced."""
    daemon.start()

    async def scene() -> str:
        first = ReconnectingConnection("a", daemon.dial, LEASE_S)
        await first.agent.start("sleeper", ["sleep", "1000"])
        open_call = asyncio.ensure_future(first.agent.exited("sleeper"))
        await first.agent.hello()
        second = ReconnectingConnection("a", daemon.dial, LEASE_S)
        assert (await second.agent.state("sleeper")).state == "running"
        with pytest.raises(NodeGone) as error:
            await open_call
        assert (await second.agent.state("sleeper")).state == "running"
        await first.hang_up()
        await second.hang_up()
        return str(error.value)

    assert asyncio.run(scene()) == "a is gone: another driver took over its agent"


def test_a_host_that_cannot_be_dialled_is_gone_after_the_lease() -> None:
    """The error contains the last reason: the lease is long enough for one on a busy machine."""

    def dial() -> Relay:
        raise ConnectionRefusedError("no route")

    async def scene() -> str:
        carrier = ReconnectingConnection("a", dial, lease_s=2.0)
        with pytest.raises(NodeGone) as error:
            await carrier.agent.hello()
        await carrier.hang_up()
        return str(error.value)

    assert asyncio.run(scene()) == "a is gone: it was not heard for 2 s: no route"


def test_it_is_detached_and_holds_the_lock_of_the_host(daemon: Daemon, tmp_path: Path) -> None:
    """It has a session of its own without a terminal. It holds the inherited lock as long as it
    lives, and none of the processes that it starts does."""
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    daemon.start(lock=lock)
    os.close(lock)
    fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    session, terminal = int(fields[3]), int(fields[4])
    assert session != os.getsid(0)
    assert session != daemon.pid  # no leader of one: it can not get a terminal by opening it
    assert terminal == 0
    assert (daemon.folder / "agent.sock").stat().st_mode & 0o777 == 0o600

    async def scene() -> int:
        carrier = ReconnectingConnection("a", daemon.dial, LEASE_S)
        pid = await carrier.agent.start("astray", ["sleep", "1000"])
        await carrier.hang_up()
        return pid

    pid = asyncio.run(scene())
    with open(tmp_path / "lock") as another:
        with pytest.raises(BlockingIOError):
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(daemon.pid, signal.SIGKILL)
        fcntl.flock(another, fcntl.LOCK_EX)
    assert leftovers.alive(pid)
    os.kill(pid, signal.SIGKILL)


async def refused(daemon: Daemon) -> str:
    carrier = ReconnectingConnection("a", daemon.dial, LEASE_S)
    with pytest.raises(NodeGone) as error:
        await carrier.agent.hello()
    await carrier.hang_up()
    return str(error.value)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def _fd(pipe: IO[bytes] | None) -> int:
    """Of a pipe that may have been buried meanwhile, by another thread."""
    assert pipe
    try:
        return pipe.fileno()
    except ValueError as e:
        raise ConnectionAbortedError from e
