"""A gate between a node's process and its disk: system calls that change files pass it one by one.

    python3 -S -s _gate.py watch NAME               the gate's warden; reads orders, JSON lines
    python3 -S -s _gate.py enter NAME -- PROGRAM    become a program behind the gate
    python3 -S -s _gate.py try NAME FOLDER SECONDS  what a program behind the gate meets there

The kernel's seccomp filter hands the calls that write, sync, make, rename and remove to the warden
(SECCOMP_RET_USER_NOTIF), which lets them pass, holds them up, or answers them with an error. It
works for every program, in whatever language, and needs no compiler, no privilege and no file
system of our own. Calls that read or send never meet it. What a program maps into its memory, or
hands to io_uring, goes past it.

An order says what holds below one folder: {"below": ..., "full": ..., "read_only": ...,
"sync_fails": ..., "sync_s": ...}, seconds, or null for a sync that hangs; an empty one, nothing.
Without the warden the calls would fail, so it stays until nobody is behind its gate any more; when
whoever gives orders is gone, all pass.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import heapq
import json
import os
import platform
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

# what each call is: its number here, and which of its arguments say what it is about
_X86 = {
    "write": 1, "open": 2, "pwrite64": 18, "writev": 20, "msync": 26, "fsync": 74, "fdatasync": 75,
    "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85,
    "link": 86, "unlink": 87, "symlink": 88, "openat": 257, "mkdirat": 258, "unlinkat": 263,
    "renameat": 264, "linkat": 265, "symlinkat": 266, "sync_file_range": 277, "fallocate": 285,
    "pwritev": 296, "renameat2": 316, "pwritev2": 328,
}  # fmt: skip
_ARM = {
    "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38, "truncate": 45,
    "ftruncate": 46, "fallocate": 47, "openat": 56, "write": 64, "writev": 66, "pwrite64": 68,
    "pwritev": 70, "fsync": 82, "fdatasync": 83, "sync_file_range": 84, "msync": 227,
    "renameat2": 276, "pwritev2": 287,
}  # fmt: skip
MACHINES = {"x86_64": (0xC000003E, _X86, 317), "aarch64": (0xC00000B7, _ARM, 277)}

SYNCS = frozenset({"fsync", "fdatasync", "sync_file_range", "msync"})
WRITES = frozenset({"write", "writev", "pwrite64", "pwritev", "pwritev2", "fallocate"})
AT_OFFSET = frozenset({"pwrite64", "pwritev", "pwritev2"})  # the fourth argument says where
# the arguments that hold a folder's descriptor (-1: none) and a path, for each path that changes
PATHS = {
    "open": [(-1, 0)], "creat": [(-1, 0)], "truncate": [(-1, 0)], "mkdir": [(-1, 0)],
    "rmdir": [(-1, 0)], "unlink": [(-1, 0)], "link": [(-1, 1)], "symlink": [(-1, 1)],
    "rename": [(-1, 0), (-1, 1)], "openat": [(0, 1)], "mkdirat": [(0, 1)], "unlinkat": [(0, 1)],
    "renameat": [(0, 1), (2, 3)], "renameat2": [(0, 1), (2, 3)], "linkat": [(2, 3)],
    "symlinkat": [(1, 2)],
}  # fmt: skip
FLAGS_AT = {"open": 1, "openat": 2}
FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
SET_MODE_FILTER, NEW_LISTENER = 1, 8
PR_SET_PTRACER, PR_SET_NO_NEW_PRIVS = 0x59616D61, 38
RECEIVE, SEND = 0xC0502100, 0xC0182101
NOTICE = struct.Struct("=QIIiIQ6Q")  # id, thread, flags, call, machine, where, arguments
ANSWER = struct.Struct("=QqiI")  # id, value, error, flags
PASS = 1  # a flag of an answer: carry the call out
AT_CWD = 0xFFFFFF9C
MOST_PATH = 4096
PEER = socket.SOL_SOCKET, socket.SO_PEERCRED, 12
NOBODY: tuple[bytes, list[int], int, Any] = b"", [], 0, None
OLDEST = "it needs Linux 5.5 or later, and a container runtime that allows seccomp"


# ---------------------------------------------------------------------------------- the filter


def program() -> bytes:
    """The filter of this machine: pairs of a comparison and an answer, one for each call."""
    machine, numbers, _ = _machine()
    code = [_op(LOAD, 4), _op(EQUAL, machine, 1, 0), _op(RETURN, ALLOW), _op(LOAD, 0)]
    for name, number in numbers.items():
        if name in FLAGS_AT:
            flags = 16 + 8 * FLAGS_AT[name]
            code += [_op(EQUAL, number, 0, 4), _op(LOAD, flags), _op(ANY_BIT, FOR_WRITING, 0, 1)]
            code += [_op(RETURN, NOTIFY), _op(RETURN, ALLOW)]
        else:
            code += [_op(EQUAL, number, 0, 1), _op(RETURN, NOTIFY)]
    return b"".join([*code, _op(RETURN, ALLOW)])


def _op(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)


def _machine() -> tuple[int, dict[str, int], int]:
    if platform.machine() not in MACHINES:
        sys.exit(f"the gate knows no system calls of {platform.machine()}, only {list(MACHINES)}")
    return MACHINES[platform.machine()]


def _put_up() -> int:
    """Put this process behind a filter; the descriptor that the warden listens at."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = program()
    held = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    head = ctypes.create_string_buffer(described, len(described))
    libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)
    _, _, seccomp = _machine()
    for _ in range(2):
        listener = libc.syscall(seccomp, SET_MODE_FILTER, NEW_LISTENER, head)
        if listener >= 0:
            return int(listener)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # and again: now no privilege is needed
    sys.exit(f"the kernel refused the gate: {os.strerror(ctypes.get_errno())}; {OLDEST}")


def _behind(name: str) -> None:
    """This process is behind the gate when this returns."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as warden:
        warden.connect(f"\0{name}")
        listener = _put_up()
        socket.send_fds(warden, [b"!"], [listener])
        os.close(listener)
        if not warden.recv(1):
            sys.exit("the gate's warden is gone")


def enter(name: str, argv: list[str]) -> NoReturn:
    _behind(name)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and children would too
    try:
        os.execvp(argv[0], argv)
    except OSError as e:
        sys.exit(f"{argv[0]}: {e.strerror}")


# ---------------------------------------------------------------------------------- the warden


@dataclass(frozen=True)
class Order:
    """What holds below a folder."""

    below: str = ""
    full: bool = False
    read_only: bool = False
    sync_fails: bool = False
    sync_s: float | None = 0.0  # None: it hangs


@dataclass(frozen=True)
class Call:
    """A system call that waits for its answer."""

    listener: int
    id: int
    thread: int
    name: str
    args: tuple[int, ...]


@dataclass
class Warden:
    """Who is asked about every call. `held`: syncs, with when they may go on."""

    orders: int = 0  # the descriptor that they come from; -1: from nobody any more
    order: Order = field(default_factory=Order)
    listeners: set[int] = field(default_factory=set)
    held: list[tuple[float, int, Call]] = field(default_factory=list)
    seen: int = 0
    rest: bytes = b""

    def serve(self, door: socket.socket) -> None:
        poll = select.poll()
        poll.register(self.orders, select.POLLIN)
        poll.register(door, select.POLLIN)
        while self.orders >= 0 or self.listeners:
            for fd, events in poll.poll(self._patience_ms()):
                if fd == self.orders:
                    self._hear(poll)
                elif fd == door.fileno():
                    self._let_in(door, poll)
                elif events & select.POLLIN:
                    self._ask(fd)
                else:
                    poll.unregister(fd)
                    self.listeners.discard(fd)
                    os.close(fd)
            self._let_go()

    def _patience_ms(self) -> float | None:
        if not self.held or self.held[0][0] == float("inf"):
            return None
        return max(0.0, (self.held[0][0] - time.monotonic()) * 1000)

    def _hear(self, poll: select.poll) -> None:
        data = os.read(self.orders, 65536)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self._obey(Order(**json.loads(line)))
            print("obeyed", flush=True)
        if not data:
            poll.unregister(self.orders)
            self.orders = -1
            self._obey(Order())

    def _obey(self, order: Order) -> None:
        """From now on; what is held up is decided anew."""
        self.order, held, self.held = order, self.held, []
        for _, _, call in held:
            self._decide(call)

    def _let_in(self, door: socket.socket, poll: select.poll) -> None:
        visitor, _ = door.accept()
        with visitor, suppress(OSError):
            _, uid, _ = struct.unpack("3i", visitor.getsockopt(*PEER))
            _, listeners, _, _ = socket.recv_fds(visitor, 1, 1) if uid == os.getuid() else NOBODY
            for listener in listeners:
                self.listeners.add(listener)
                poll.register(listener, select.POLLIN)
                visitor.send(b"!")

    def _ask(self, listener: int) -> None:
        notice = array.array("B", bytes(NOTICE.size))
        with suppress(FileNotFoundError):  # the thread was killed meanwhile
            fcntl.ioctl(listener, RECEIVE, notice)
            number, thread, _, call, _, _, *args = NOTICE.unpack(notice)
            self._decide(Call(listener, number, thread, NAMES[call], tuple(args)))

    def _decide(self, call: Call) -> None:
        order = self.order
        if not order.below:
            return _answer(call)
        if call.name in SYNCS:
            return self._decide_sync(call)
        if order.read_only and _is_below(call, order.below):
            return _answer(call, errno.EROFS)
        if order.full and call.name in WRITES and _is_below(call, order.below) and _grows(call):
            return _answer(call, errno.ENOSPC)
        return _answer(call)

    def _decide_sync(self, call: Call) -> None:
        order = self.order
        if call.name != "msync" and not _is_below(call, order.below):
            return _answer(call)
        if order.sync_fails:
            return _answer(call, errno.EIO)
        delay_s = float("inf") if order.sync_s is None else order.sync_s
        if not delay_s:
            return _answer(call)
        self.seen += 1
        heapq.heappush(self.held, (time.monotonic() + delay_s, self.seen, call))
        return None

    def _let_go(self) -> None:
        while self.held and self.held[0][0] <= time.monotonic():
            _answer(heapq.heappop(self.held)[2])


def _answer(call: Call, error: int = 0) -> None:
    answer = array.array("B", ANSWER.pack(call.id, 0, -error, 0 if error else PASS))
    with suppress(OSError):  # killed meanwhile
        fcntl.ioctl(call.listener, SEND, answer)


def _is_below(call: Call, folder: str) -> bool:
    """Whether the call is about a file below the folder, or the folder itself."""
    with suppress(OSError, UnicodeDecodeError):
        return any(path == folder or path.startswith(f"{folder}/") for path in _paths(call))
    return False


def _paths(call: Call) -> Iterator[str]:
    proc = f"/proc/{call.thread}"
    if call.name not in PATHS:
        yield os.readlink(f"{proc}/fd/{call.args[0] & 0xFFFFFFFF}")
        return
    for of_folder, of_path in PATHS[call.name]:
        fd = AT_CWD if of_folder < 0 else call.args[of_folder] & 0xFFFFFFFF
        folder = os.readlink(f"{proc}/cwd" if fd == AT_CWD else f"{proc}/fd/{fd}")
        path = os.path.join(folder, _text(call.thread, call.args[of_path]))
        yield os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _text(thread: int, at: int) -> str:
    """A string in somebody's memory, page by page."""
    data = b""
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        while b"\0" not in data and len(data) < MOST_PATH:
            memory.seek(at + len(data))
            data += memory.read(4096 - (at + len(data)) % 4096)
    return data.split(b"\0")[0].decode()


def _grows(call: Call) -> bool:
    """Whether a write needs room that the file has not been given yet."""
    fd = f"/proc/{call.thread}/fd/{call.args[0] & 0xFFFFFFFF}"
    info = os.stat(fd)
    given = info.st_blocks * 512
    if call.name == "fallocate":
        return call.args[2] + call.args[3] > given
    if call.name in AT_OFFSET:
        start = call.args[3]
    else:
        start = info.st_size if _flags(call) & os.O_APPEND else _field(call, "pos", 10)
    length = call.args[2] if call.name in ("write", "pwrite64") else 1
    return start + length > given or start + length > info.st_size


def _flags(call: Call) -> int:
    return _field(call, "flags", 8)


def _field(call: Call, name: str, base: int) -> int:
    with open(f"/proc/{call.thread}/fdinfo/{call.args[0] & 0xFFFFFFFF}") as info:
        return next(int(line.split()[1], base) for line in info if line.startswith(f"{name}:"))


NAMES = {number: name for name, number in MACHINES.get(platform.machine(), (0, {}, 0))[1].items()}


def watch(name: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(f"\0{name}")
        door.listen()
        _try_filter()
        print("ready", flush=True)
        Warden().serve(door)


def _try_filter() -> None:
    """Leave with a sentence where the kernel has no such gates."""
    child = os.fork()
    if not child:
        os.close(_put_up())
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)


# --------------------------------------------------------------------------------- the prober


def attempt(name: str, folder: str, patience_s: float) -> dict[str, Any]:
    """Write below the folder and sync it, behind the gate; names of errors, and seconds."""
    _behind(name)
    told: dict[str, Any] = {"write": _write(f"{folder}/.seatrial-probe"), "sync": "", "sync_s": -1}
    thread = threading.Thread(target=_sync, args=(folder, told), daemon=True)
    thread.start()
    thread.join(patience_s)
    return told


def _write(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as e:
        return errno.errorcode[e.errno or 0]
    try:
        os.write(fd, b"seatrial")
    except OSError as e:
        return errno.errorcode[e.errno or 0]
    finally:
        os.close(fd)
        os.unlink(path)
    return ""


def _sync(folder: str, told: dict[str, Any]) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    began_s = time.monotonic()
    try:
        os.fsync(fd)
    except OSError as e:
        told["sync"] = errno.errorcode[e.errno or 0]
    told["sync_s"] = time.monotonic() - began_s


def main() -> None:
    match sys.argv[1:]:
        case ["watch", name]:
            watch(name)
        case ["enter", name, "--", *argv]:
            enter(name, argv)
        case ["try", name, folder, patience_s]:
            told = attempt(name, folder, float(patience_s))
            os.write(1, json.dumps(told).encode())
            os._exit(0)  # a sync that hangs holds up nobody's end
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
