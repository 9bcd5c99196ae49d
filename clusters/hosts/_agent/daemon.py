"""The node agent as a daemon, which outlives broken connections to its driver, but not for long.

    python3 -S -s -E daemon.py FOLDER ADDRESS --lease 20

It detaches from the process that started it and serves the verbs of `agent` on a unix socket in
FOLDER, one driver at a time; a new one replaces the old. An ssh channel carries `relay`, which
connects to that socket. When the command returns, the socket listens.

*Exactly once, in both directions.* Every message to the driver has a number `n` and is kept until
the driver acknowledges it. A driver begins with `{"attach": 41, "driver": "a name"}`: it has all
messages up to 41, so the later ones are sent again, in order. The driver sends its unanswered
requests again, too. Ids of requests increase, so one that is not above the highest known was
received before: it is in progress, or its answer is kept. A broken connection costs time, but no
line, and no request is carried out twice.

*Lease.* A driver sends something every few seconds (`{"heard": 41}` acknowledges messages). After a
silence as long as the lease, the agent does what another one does at the end of standard input: it
heals its links, resumes and kills what it started, and exits. So every fault expires by itself.
SIGTERM has the same effect. The relay reads the reason from `agent.end`.

*One agent per host.* Link rules and the port of probes belong to the whole host, so an agent
inherits the host's lock from the script that starts it; the kernel releases the lock when the agent
ends, in whatever way. Probes go to a privileged port, so that no other user of the host can take
it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusters.hosts._agent import agent as agent_program
else:
    import agent as agent_program

PROBE_PORT = 1007
SOCKET, PID, LOG, END = "agent.sock", "agent.pid", "agent.log", "agent.end"
MAX_OUTBOX_BYTES = 256 * 1024 * 1024

Json = dict[str, Any]


class Outbox:
    """Messages that may not have arrived, by number."""

    def __init__(self) -> None:
        self.lines: dict[int, bytes] = {}
        self.size_bytes = 0
        self.first = self.next = 1

    def keep(self, message: Json) -> None:
        line = self.lines[self.next] = _line({"n": self.next, **message})
        self.size_bytes += len(line)
        self.next += 1

    def forget(self, up_to: int) -> None:
        """Remove messages that the driver has received."""
        while self.first <= min(up_to, self.next - 1):
            self.size_bytes -= len(self.lines.pop(self.first))
            self.first += 1


class DriverConnection(asyncio.Protocol):
    """A connection of a driver, through a relay."""

    def __init__(self, session: DriverSession) -> None:
        self.session = session
        self.paused = False
        self.transport: Any = None
        self.rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.session.renew_lease()
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.session.take(self, json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.detach(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.session.push()


class DriverSession:
    """The agent's exchange with its driver, over any number of connections."""

    def __init__(self, address: str, lease_s: float, kept_bytes: int, probe_port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.lease_s, self.kept_bytes = lease_s, kept_bytes
        self.over: asyncio.Future[str] = self.loop.create_future()
        self.agent = agent_program.NodeAgent(address, self.send, probe_port)
        self.tasks: set[asyncio.Task[None]] = set()
        self.connection: DriverConnection | None = None
        self.heard_s = self.loop.time()
        self.reset("")

    def reset(self, driver: str) -> None:
        """Begin with a new driver, which has received nothing and has ids of its own."""
        for task in self.tasks:
            task.cancel()
        self.driver = driver
        self.outbox = Outbox()
        self.pushed = 0  # the last message written to the connection
        self.last_id = 0  # id of a request

    def end(self, why: str) -> None:
        if not self.over.done():
            self.over.set_result(why)

    # ------------------------------------------------------------------------- to the driver

    def send(self, message: Json) -> None:
        self.outbox.keep(message)
        if self.outbox.size_bytes > self.kept_bytes:
            self.end(f"more than {self.kept_bytes >> 20} MB waited for a driver to take them")
        self.push()

    def push(self) -> None:
        """Send what the connection has room for."""
        while self.connection and not self.connection.paused and self.pushed < self.outbox.next - 1:
            self.pushed += 1
            self.connection.transport.write(self.outbox.lines[self.pushed])

    def send_unnumbered(self, message: Json) -> None:
        """Send a message without a number, which need not be sent again."""
        if self.connection:
            self.connection.transport.write(_line(message))

    # ----------------------------------------------------------------------- from the driver

    def renew_lease(self) -> None:
        self.heard_s = self.loop.time()

    def take(self, connection: DriverConnection, message: Json) -> None:
        if "attach" in message:
            self.attach(connection, message["driver"], message["attach"])
        elif connection is not self.connection:
            connection.transport.abort()  # another connection has replaced it
        elif "heard" in message:
            self.outbox.forget(message["heard"])
            self.send_unnumbered({"hears": True})
        elif self.over.done():
            pass  # the agent leaves, and says so at the end; a process started now would stay
        elif message["id"] > self.last_id:
            self.last_id = message["id"]
            self.begin(message)

    def attach(self, connection: DriverConnection, driver: str, has: int) -> None:
        if driver != self.driver:
            self.send_unnumbered({"gone": "another driver took over its agent"})
            self.reset(driver)
        if self.connection and self.connection is not connection:
            self.connection.transport.close()
        self.connection = connection
        self.outbox.forget(has)
        self.pushed = self.outbox.first - 1
        self.push()
        self.send_unnumbered({"hears": True})

    def detach(self, connection: DriverConnection) -> None:
        if self.connection is connection:
            self.connection = None

    def begin(self, request: Json) -> None:
        task = self.loop.create_task(self.agent.answer(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def check_lease(self) -> None:
        """End the session when the lease is over; until then, check again when it may be."""
        due_s = self.heard_s + self.lease_s
        if self.loop.time() < due_s:
            self.loop.call_at(due_s, self.check_lease)
        else:
            self.end(f"no driver was heard for {self.lease_s:g} s")


async def serve(listening: socket.socket, arguments: argparse.Namespace) -> None:
    """Serve drivers until the lease ends or a signal arrives."""
    session = DriverSession(
        arguments.address, arguments.lease, arguments.kept_bytes, arguments.probe_port
    )
    loop = session.loop
    loop.add_signal_handler(signal.SIGCHLD, session.agent.children.reap)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(number, session.end, f"{number.name} was received")
    await session.agent.probes.listen()
    server = await loop.create_unix_server(lambda: DriverConnection(session), sock=listening)
    session.check_lease()
    why = await session.over
    with contextlib.suppress(OSError), open(f"{arguments.folder}/{END}", "w") as file:
        file.write(why)  # the folder may be full or removed
    await session.agent.leave()
    session.send_unnumbered({"gone": f"its agent left: {why}"})
    server.close()


def main() -> None:
    arguments = _arguments()
    agent_program.widen_path()
    os.umask(0o077)
    os.chdir(arguments.folder)  # paths of sockets are limited to 107 bytes
    if arguments.lock is not None:
        os.set_inheritable(arguments.lock, False)  # child processes must not inherit it
    listening = _listen()
    ready = _detach()
    with open(PID, "w") as file:
        file.write(f"{os.getpid()}\n")
    os.write(ready, b"!")
    os.close(ready)
    asyncio.run(serve(listening, arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="daemon.py")
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("address")
    parser.add_argument("--lease", type=float, default=20.0, help="seconds")
    parser.add_argument("--kept-bytes", type=int, default=MAX_OUTBOX_BYTES)
    parser.add_argument("--probe-port", type=int, default=PROBE_PORT)
    parser.add_argument("--lock", type=int, help="descriptor of the host's lock, to keep open")
    return parser.parse_args()


def _listen() -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(SOCKET)
    os.chmod(SOCKET, 0o600)
    listening.listen()
    return listening


def _detach() -> int:
    """Continue as a process that no session, terminal or pipe of the caller can end.

    The calling process returns when something is written to the pipe whose descriptor this returns.
    """
    wait, ready = os.pipe()
    if os.fork():
        os.close(ready)
        os._exit(0 if os.read(wait, 1) else 1)
    os.close(wait)
    os.setsid()
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    return ready


def _line(message: Json) -> bytes:
    return json.dumps(message).encode() + b"\n"


if __name__ == "__main__":
    main()
