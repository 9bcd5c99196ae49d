"""The node agent: runs commands and processes on one node, on the driver's request.

It is a folder of files that need only Python. A driver starts it on a node as `python3 -I -S
agent.py ADDRESS` and exchanges JSON lines with it: on standard input `{"id": 7, "do": "signal",
"name": "broker", "number": 9}`, on standard output the answer `{"id": 7, "is": {...}}` or `{"id":
7, "error": "a sentence", "kind": "failed"}`, and, without a request, `{"line": "crew", "text":
"..."}` for each line that a started process prints. Bytes are base64. A request takes about a
millisecond, a `docker exec` forty. This file does not depend on what carries the lines (a socket
pair, a docker exec, an ssh channel). What it does to the network is in `network`.

Answers arrive in any order, because requests are served concurrently: a request to a paused node
does not delay the one that resumes it.

*Dead man's switch.* When standard input ends, the driver is gone. Then the agent heals its links,
resumes and kills what it started, resumes what else it had stopped (`existing`), runs the command
that the driver left for this moment, and exits.

*Processes.* Each has a session of its own, so that a signal reaches its whole group, and Ctrl-C in
a terminal reaches none of them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from clusters.hosts._agent import existing, network
else:  # `-I` removes the folder of the program from the path
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import existing
    import network

LINE_LIMIT_BYTES = 64 * 1024 * 1024
LEAVE_COMMAND_WITHIN_S = 30.0
MAX_ANSWER_BYTES = 4 << 20  # of a server that is asked for everything until it closes
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # often not in an ordinary user's PATH

Json = dict[str, Any]  # what a line holds
CommandFailed = network.CommandFailed
ProcessNoAnswer = network.ProcessNoAnswer


class Child:
    """A process that the agent started, and its pipes if it has any."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.stdin: asyncio.WriteTransport | None = None
        self.before_end: Callable[[], None] = lambda: None

    def end(self, code: int) -> None:
        self.before_end()
        if self.stdin:
            self.stdin.close()
        self.ended.set_result(code)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, as `state` reports
            os.killpg(self.pid, number)


class Children:
    """Starts and reaps processes."""

    def __init__(self) -> None:
        self.alive: dict[int, Child] = {}

    def spawn(
        self, argv: list[str], files: tuple[int, int, int], env: Json | None, cwd: str
    ) -> Child:
        """Start `argv` with standard input, output and error from `files`."""
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(files)]
        os.chdir(cwd or "/")  # posix_spawn takes no folder; there is only one thread
        pid = os.posix_spawnp(
            argv[0],
            argv,
            {**os.environ, **(env or {})},
            file_actions=actions,
            setsid=True,
            setsigdef=[signal.SIGPIPE],
        )
        child = self.alive[pid] = Child(pid)
        return child

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if child := self.alive.pop(pid, None):
                    child.end(os.waitstatus_to_exitcode(status))

    def kill(self) -> None:
        """Kill every process group, and resume the stopped ones so that they die."""
        for child in self.alive.values():
            child.signal(signal.SIGKILL)
            child.signal(signal.SIGCONT)

    async def run(self, argv: list[str], stdin: bytes, timeout_s: float) -> tuple[int, str, str]:
        """Run a command to its end. Its files are in memory, so no full pipe can block it."""
        files = os.memfd_create("in"), os.memfd_create("out"), os.memfd_create("err")
        try:
            _fill(files[0], stdin)
            child = self.spawn(argv, files, None, "")
            code = await self._within(child, argv[0], timeout_s)
            return code, _text(files[1]), _text(files[2])
        except FileNotFoundError:
            return 127, "", f"{argv[0]}: no such program on this node"
        except PermissionError:
            return 126, "", f"{argv[0]}: not allowed to run this"
        finally:
            for fd in files:
                os.close(fd)

    async def _within(self, child: Child, what: str, timeout_s: float) -> int:
        try:
            return await asyncio.wait_for(asyncio.shield(child.ended), timeout_s)
        except TimeoutError:
            child.signal(signal.SIGKILL)
            raise CommandFailed(f"{what} took longer than {timeout_s:g} s") from None


class NodeAgent:
    """The verbs of the protocol: each method `do_VERB` takes the fields of the request."""

    def __init__(
        self,
        address: str,
        send: Callable[[Json], None],
        probe_port: int = network.PROBE_PORT,
    ) -> None:
        self.address = address
        self.send = send
        self.children = Children()
        self.links = network.LinkChain(self.children.run, self._helper)
        self.probes = network.Probes(probe_port)
        self.processes: dict[str, Child] = {}
        self.existing = existing.ExistingProcesses()
        self.last_command: list[str] = []

    async def answer(self, request: Json) -> None:
        number, verb = request.pop("id", None), request.pop("do", "")
        try:
            method: Callable[..., Awaitable[Json | None]] | None = getattr(self, f"do_{verb}", None)
            if method is None:
                raise CommandFailed(f"this agent knows no verb {verb!r}")
            self.send({"id": number, "is": await method(**request) or {}})
        except CommandFailed as e:
            self.send({"id": number, "error": str(e), "kind": e.kind})
        except OSError as e:
            self.send({"id": number, "error": f"{verb}: {e}", "kind": "failed"})
        except (TypeError, ValueError) as e:
            self.send({"id": number, "error": f"{verb}: bad request: {e}", "kind": "failed"})

    async def leave(self) -> None:
        self.children.kill()
        self.existing.resume()
        with contextlib.suppress(CommandFailed, OSError):
            await self.links.remove()
        with contextlib.suppress(CommandFailed, OSError):
            if self.last_command:
                await self.children.run(self.last_command, b"", LEAVE_COMMAND_WITHIN_S)

    async def do_hello(self, secret: str = "") -> Json:
        """Take the secret of the run; datagrams without it are ignored."""
        self.probes.secret = secret.encode()
        return {
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "address": self.address,
            "clock": clock_id(),
        }

    async def do_clock(self) -> Json:
        return {"mono_ns": time.monotonic_ns()}

    # ------------------------------------------------------------------------ files, commands

    async def do_run(self, argv: list[str], stdin: str, timeout_s: float) -> Json:
        code, out, err = await self.children.run(argv, base64.b64decode(stdin), timeout_s)
        return {"code": code, "out": out, "err": err}

    async def do_put(self, path: str, data: str, append: bool) -> None:
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
        with open(path, "ab" if append else "wb") as file:
            file.write(base64.b64decode(data))

    async def do_get(self, path: str, offset: int, size: int) -> Json:
        with open(path, "rb") as file:
            file.seek(offset)
            return {"data": base64.b64encode(file.read(size)).decode()}

    # ------------------------------------------------------------------------------ processes

    async def do_start(
        self, name: str, argv: list[str], env: Json | None, cwd: str, log: str, lines: bool
    ) -> Json:
        if name in self.processes and not self.processes[name].ended.done():
            raise CommandFailed(f"{name} is running already; stop it before it is started again")
        start = self._start_with_pipes if lines else self._start_silent
        with _open_log(log) as error_fd:
            try:
                child = self.processes[name] = await start(name, argv, env, cwd, error_fd)
            except OSError as e:
                raise CommandFailed(f"{name} did not start: {argv[0]}: {e.strerror}") from e
        return {"pid": child.pid}

    async def _start_silent(
        self, name: str, argv: list[str], env: Json | None, cwd: str, error_fd: int
    ) -> Child:
        with open(os.devnull, "rb") as nothing:
            return self.children.spawn(argv, (nothing.fileno(), error_fd, error_fd), env, cwd)

    async def _start_with_pipes(
        self, name: str, argv: list[str], env: Json | None, cwd: str, error_fd: int
    ) -> Child:
        """Start a process whose lines are sent to the driver, and which `tell` writes to."""
        send = self.send
        return await self._spawn_with_pipes(
            argv, env, cwd, error_fd, lambda text: send({"line": name, "text": text})
        )

    async def _helper(self, argv: list[str], on_line: Callable[[str], None]) -> Child:
        """Start a process of the agent's own."""
        return await self._spawn_with_pipes(argv, None, "", sys.stderr.fileno(), on_line)

    async def _spawn_with_pipes(
        self,
        argv: list[str],
        env: Json | None,
        cwd: str,
        error_fd: int,
        on_line: Callable[[str], None],
    ) -> Child:
        """Start a process and keep the other ends of its pipes."""
        loop = asyncio.get_running_loop()
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        try:
            child = self.children.spawn(argv, (theirs_in, theirs_out, error_fd), env, cwd)
        except OSError:
            os.close(ours_in)
            os.close(ours_out)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        lines = LineReader(ours_in, on_line)
        child.before_end = lines.finish
        child.stdin, _ = await loop.connect_write_pipe(
            asyncio.BaseProtocol, os.fdopen(ours_out, "wb", buffering=0)
        )
        return child

    async def do_tell(self, name: str, line: str) -> None:
        child = self._child(name)
        if not child.stdin or child.stdin.is_closing():
            raise CommandFailed(
                f"{name} accepts no input: it has ended, or was started without a pipe"
            )
        child.stdin.write(line.encode() + b"\n")

    async def do_signal(self, name: str, number: int) -> None:
        self._child(name).signal(number)

    async def do_state(self, name: str) -> Json:
        child = self.processes.get(name)
        if child is None:
            return {"state": "absent", "pid": 0, "code": 0}
        if child.ended.done():
            return {"state": "exited", "pid": child.pid, "code": child.ended.result()}
        return {"state": _state(child.pid), "pid": child.pid, "code": 0}

    async def do_exited(self, name: str) -> Json:
        return {"code": await asyncio.shield(self._child(name).ended)}

    def _child(self, name: str) -> Child:
        if name not in self.processes:
            raise CommandFailed(f"no process {name!r} was started on this node")
        return self.processes[name]

    async def do_look(self, pid: int, started: int, name: str) -> Json:
        return self.existing.look(pid, started, name)

    async def do_hit(self, pid: int, started: int, number: int) -> None:
        self.existing.signal(pid, started, number)

    async def do_at_leave(self, argv: list[str]) -> None:
        self.last_command = argv

    # ------------------------------------------------------------------------------------ net

    async def do_links(self, rules: list[Json]) -> None:
        await self.links.make(rules)

    async def do_dropped(self) -> Json:
        return {"packets": await self.links.dropped()}

    async def do_probe(self, target: str, token: str, count: int) -> None:
        await self.probes.send(target, token, count)

    async def do_probed(self, token: str) -> Json:
        return {"count": self.probes.counts.get(token, 0)}

    async def do_fly(self, target: str, token: str, count: int, size_bytes: int) -> None:
        await self.probes.fly(target, token, count, size_bytes)

    async def do_flown(self, token: str) -> Json:
        return {"flights": self.probes.flights.get(token, [])}

    async def do_lacks(self, ability: str) -> Json:
        if ability == "network":
            return {"why": ""}
        return {"why": await self.links.why_no_pace() if ability == "pace" else "it is unknown"}

    async def do_ask(self, port: int, frame: str, timeout_s: float, to_end: bool) -> Json:
        asked = self._ask(port, base64.b64decode(frame), to_end)
        try:
            answer = await asyncio.wait_for(asked, timeout_s)
        except TimeoutError:
            raise ProcessNoAnswer(f"port {port} gave no answer within {timeout_s:g} s") from None
        except (OSError, EOFError) as e:
            raise ProcessNoAnswer(f"port {port} gave no answer: {e}") from e
        return {"frame": base64.b64encode(answer).decode()}

    async def _ask(self, port: int, frame: bytes, to_end: bool) -> bytes:
        reader, writer = await asyncio.open_connection(self.address, port, limit=LINE_LIMIT_BYTES)
        try:
            writer.write(frame)
            if to_end:
                return await _read_to_end(reader)
            size = int.from_bytes(await reader.readexactly(4), "big")
            return await reader.readexactly(size)
        finally:
            writer.close()


class LineReader:
    """Reads lines from a pipe."""

    def __init__(self, fd: int, on_line: Callable[[str], None]) -> None:
        self.fd = fd
        self.on_line = on_line
        self.rest = b""
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self.read)

    def read(self) -> bool:
        """Read what is there; return whether there may be more."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._close()
            return False
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.on_line(line.decode(errors="replace"))
        return True

    def finish(self) -> None:
        """Read the rest when the process has ended, so that its last lines precede the news of its
        end."""
        while self.fd >= 0 and self.read():
            pass
        if self.rest:
            self.on_line(self.rest.decode(errors="replace"))
            self.rest = b""
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            asyncio.get_running_loop().remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Return everything up to the end of the stream. Raises OSError if it is too long."""
    found = bytearray()
    while part := await reader.read(1 << 16):
        found += part
        if len(found) > MAX_ANSWER_BYTES:
            raise OSError(f"it is longer than {MAX_ANSWER_BYTES >> 20} MB")
    return bytes(found)


@contextlib.contextmanager
def _open_log(path: str) -> Any:
    """Open a file for appending, or /dev/null without a path."""
    if path:
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
    fd = os.open(path or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _state(pid: int) -> str:
    """Return the state of a child that has not been reaped, from /proc."""
    with open(f"/proc/{pid}/stat") as file:
        letter = file.read().rpartition(")")[2].split()[0]
    return "stopped" if letter in "Tt" else "running"


def _fill(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)


def _text(fd: int) -> str:
    return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")


def clock_id() -> str:
    """Return an id of the monotonic clock that this process reads: the boot and the time
    namespace."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        namespace = ""  # a kernel without time namespaces
    return f"{boot} {namespace}"


async def serve(address: str) -> None:
    """Answer the driver until it is gone."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
    agent = NodeAgent(address, lambda message: out.write(json.dumps(message).encode() + b"\n"))
    loop.add_signal_handler(signal.SIGCHLD, agent.children.reap)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, reader.feed_eof)
    await agent.probes.listen()
    tasks: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = loop.create_task(agent.answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await agent.leave()


def widen_path() -> None:
    folders = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*folders, *SYSTEM_FOLDERS])


def main() -> None:
    widen_path()
    asyncio.run(serve(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"))


if __name__ == "__main__":
    main()
