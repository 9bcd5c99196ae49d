"""The node agent where connections break: a daemon that outlives them, and no driver for long.

    python3 -S -s -E daemon.py FOLDER ADDRESS --lease 20

It detaches from whoever started it and serves the verbs of `agent` on a unix socket in FOLDER,
one driver at a time; a new one replaces the old. What an ssh channel carries is `relay`,
which joins that socket. When the command returns, the socket listens.

*Exactly once, both ways.* Every message to the driver has a number, `n`, and is kept until the
driver says that it has it. A driver begins with `{"attach": 41, "driver": "a name"}`: it has all up
to 41, so what comes after is said again, in order. It sends its unanswered requests again, too;
their ids rise, so one that is not above the highest seen is known here: it is being done, or its
answer is kept. A broken connection costs time, never a line, and no action is done twice.

*Lease.* A driver sends something every few seconds (`{"heard": 41}` says what it has). When none
was heard for the length of the lease, the agent does what it does at the end of standard input
elsewhere: it heals its links, resumes and kills what it started, and leaves. So every fault
expires by itself. SIGTERM means the same. Why it left is in `agent.end`, for the relay to tell.

*One agent a host.* Link rules and the port of probes belong to the whole host, so an agent inherits
the host's lock from the errand that starts it; the kernel frees it when the agent ends, in whatever
way. Probes go to a port that only root can open, so that no other user of the host takes it.
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
    from clusters.hosts._agent import agent as _agent
else:
    import agent as _agent

PROBE_PORT = 1007
SOCKET, PID, LOG, END = "agent.sock", "agent.pid", "agent.log", "agent.end"
KEPT_BYTES = 256 * 1024 * 1024

Json = dict[str, Any]


class Kept:
    """What was said and may not have arrived, by number."""

    def __init__(self) -> None:
        self.lines: dict[int, bytes] = {}
        self.size_bytes = 0
        self.first = self.next = 1

    def keep(self, message: Json) -> None:
        line = self.lines[self.next] = _line({"n": self.next, **message})
        self.size_bytes += len(line)
        self.next += 1

    def forget(self, up_to: int) -> None:
        """The driver has these."""
        while self.first <= min(up_to, self.next - 1):
            self.size_bytes -= len(self.lines.pop(self.first))
            self.first += 1


class Connection(asyncio.Protocol):
    """A driver's way to us, through a relay."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.paused = False
        self.transport: Any = None
        self.rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.session.hear()
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.session.take(self, json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.leave(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.session.push()


class Session:
    """The agent's talk with its driver, over as many connections as it takes."""

    def __init__(self, address: str, lease_s: float, kept_bytes: int, probe_port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.lease_s, self.kept_bytes = lease_s, kept_bytes
        self.over: asyncio.Future[str] = self.loop.create_future()
        self.agent = _agent.Agent(address, self.say, probe_port)
        self.tasks: set[asyncio.Task[None]] = set()
        self.connection: Connection | None = None
        self.heard_s = self.loop.time()
        self.meet("")

    def meet(self, driver: str) -> None:
        """A driver that was not here before: nothing is owed to it, and its ids are its own."""
        for task in self.tasks:
            task.cancel()
        self.driver = driver
        self.kept = Kept()
        self.pushed = 0  # the last message handed to the connection
        self.highest = 0  # of the requests' ids

    def end(self, why: str) -> None:
        if not self.over.done():
            self.over.set_result(why)

    # ------------------------------------------------------------------------- to the driver

    def say(self, message: Json) -> None:
        self.kept.keep(message)
        if self.kept.size_bytes > self.kept_bytes:
            self.end(f"more than {self.kept_bytes >> 20} MB waited for a driver to take them")
        self.push()

    def push(self) -> None:
        """Hand over what the connection has room for."""
        while self.connection and not self.connection.paused and self.pushed < self.kept.next - 1:
            self.pushed += 1
            self.connection.transport.write(self.kept.lines[self.pushed])

    def say_once(self, message: Json) -> None:
        """What needs no number, because it is of no use later."""
        if self.connection:
            self.connection.transport.write(_line(message))

    # ----------------------------------------------------------------------- from the driver

    def hear(self) -> None:
        self.heard_s = self.loop.time()

    def take(self, connection: Connection, message: Json) -> None:
        if "attach" in message:
            self.attach(connection, message["driver"], message["attach"])
        elif connection is not self.connection:
            connection.transport.abort()  # it was replaced
        elif "heard" in message:
            self.kept.forget(message["heard"])
            self.say_once({"hears": True})
        elif message["id"] > self.highest:
            self.highest = message["id"]
            self.begin(message)

    def attach(self, connection: Connection, driver: str, has: int) -> None:
        if driver != self.driver:
            self.say_once({"gone": "another driver took its agent over"})
            self.meet(driver)
        if self.connection and self.connection is not connection:
            self.connection.transport.close()
        self.connection = connection
        self.kept.forget(has)
        self.pushed = self.kept.first - 1
        self.push()
        self.say_once({"hears": True})

    def leave(self, connection: Connection) -> None:
        if self.connection is connection:
            self.connection = None

    def begin(self, request: Json) -> None:
        task = self.loop.create_task(self.agent.answer(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def renew(self) -> None:
        """End when the lease is over; until then, look again when it may be."""
        due_s = self.heard_s + self.lease_s
        if self.loop.time() < due_s:
            self.loop.call_at(due_s, self.renew)
        else:
            self.end(f"no driver was heard for {self.lease_s:g} s")


async def serve(listening: socket.socket, asked: argparse.Namespace) -> None:
    """Serve drivers to the end."""
    session = Session(asked.address, asked.lease, asked.kept_bytes, asked.probe_port)
    loop = session.loop
    loop.add_signal_handler(signal.SIGCHLD, session.agent.children.reap)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(number, session.end, f"told to by {number.name}")
    await session.agent.probes.listen()
    server = await loop.create_unix_server(lambda: Connection(session), sock=listening)
    session.renew()
    why = await session.over
    with contextlib.suppress(OSError), open(f"{asked.folder}/{END}", "w") as file:
        file.write(why)  # the folder may be full, or gone
    await session.agent.leave()
    session.say_once({"gone": f"its agent left: {why}"})
    server.close()


def main() -> None:
    asked = _asked()
    _agent.widen_path()
    os.umask(0o077)
    os.chdir(asked.folder)  # the paths of sockets are short, so they are named from here
    if asked.lock is not None:
        os.set_inheritable(asked.lock, False)  # it is ours, not our processes'
    listening = _listen()
    ready = _detach()
    with open(PID, "w") as file:
        file.write(f"{os.getpid()}\n")
    os.write(ready, b"!")
    os.close(ready)
    asyncio.run(serve(listening, asked))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="daemon.py")
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("address")
    parser.add_argument("--lease", type=float, default=20.0, help="seconds")
    parser.add_argument("--kept-bytes", type=int, default=KEPT_BYTES)
    parser.add_argument("--probe-port", type=int, default=PROBE_PORT)
    parser.add_argument("--lock", type=int, help="a descriptor to keep open: the host's lock")
    return parser.parse_args()


def _listen() -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(SOCKET)
    os.chmod(SOCKET, 0o600)
    listening.listen()
    return listening


def _detach() -> int:
    """Go on as a process that no session, terminal or pipe of the caller can end; who called
    returns when it is told, through the pipe that this gives back, that all is well."""
    told, ready = os.pipe()
    if os.fork():
        os.close(ready)
        os._exit(0 if os.read(told, 1) else 1)
    os.close(told)
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
