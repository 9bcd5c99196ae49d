"""Intercepts the system calls by which a node's processes change files, one by one.

    python3 -S -s syscall_tracer.py watch NAME [FOLDER]      the supervisor; reads JSON orders
    python3 -S -s syscall_tracer.py enter NAME -- PROGRAM    become a traced program
    python3 -S -s syscall_tracer.py try NAME FOLDER SECONDS  probe the disk as a traced program

The kernel's seccomp filter passes calls that write, sync, create, rename and remove to the
supervisor (SECCOMP_RET_USER_NOTIF), which allows them, delays them, or answers them with an error.
This works for every program, in any language, and needs no compiler, no privilege and no file
system of our own. Calls that read or send are not intercepted. Writes through memory mappings and
io_uring are not seen.

Given a folder, the supervisor records the unsynced changes below it (`unsynced_writes.py`), so that
they can be taken away once the node is dead: {"lose": SEED} is answered with what was at stake and
what is lost; {"settle": true} makes everything that is there now durable. An order may have a
number, {"order": 7, ...}, and its answer begins with it: `7 obeyed`.

Any other order sets the faults below one folder: {"below": ..., "full": ..., "read_only": ...,
"sync_fails": ..., "sync_s": ...}; sync_s is in seconds, or null for a sync that hangs. An empty
order ends all faults. Without the supervisor the calls would fail, so it runs until the last traced
process has ended. When its standard input ends, it allows all calls.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

if not __package__:  # the packages are four folders above this file
    sys.path.append(os.path.abspath(f"{__file__}/../../../.."))
from clusters.hosts._faults.syscalls import (
    ALWAYS_ALLOWED,
    MACHINES,
    NAMES,
    ONLY_WITH,
    SYNCS,
    WRITES,
    Call,
    grows,
    is_below,
    record,
    record_failed_sync,
)

if TYPE_CHECKING:
    from clusters.hosts._faults.unsynced_writes import UnsyncedWrites

ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
SET_MODE_FILTER, NEW_LISTENER = 1, 8
PR_SET_PTRACER, PR_SET_NO_NEW_PRIVS = 0x59616D61, 38
RECEIVE, SEND = 0xC0502100, 0xC0182101
NOTICE = struct.Struct("=QIIiIQ6Q")  # id, thread, flags, call, machine, address, arguments
ANSWER = struct.Struct("=QqiI")  # id, value, error, flags
DEAD_WITHIN_S = 1.0
PASS = 1  # flag of an answer: carry out the call
PEER = socket.SOL_SOCKET, socket.SO_PEERCRED, 12
NO_LISTENER: tuple[bytes, list[int], int, Any] = b"", [], 0, None
NEEDS_LINUX = "it needs Linux 5.5 or later, and a container runtime that allows seccomp"


# ---------------------------------------------------------------------------------- the filter


def program() -> bytes:
    """Return this machine's filter: for each call, comparisons and an answer."""
    machine, numbers, _ = _machine()
    code = [_op(LOAD, 4), _op(EQUAL, machine, 1, 0), _op(RETURN, ALLOW), _op(LOAD, 0)]
    for name, number in numbers.items():
        asks = [_op(RETURN, NOTIFY)]
        for argument, bits in reversed(ONLY_WITH.get(name, ())):
            asks = [_op(LOAD, 16 + 8 * argument), _op(ANY_BIT, bits, 0, len(asks)), *asks]
        if name in ONLY_WITH:
            asks += [_op(RETURN, ALLOW)]
        code += [_op(EQUAL, number, 0, len(asks)), *asks]
    return b"".join([*code, _op(RETURN, ALLOW)])


def _op(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)


def _machine() -> tuple[int, dict[str, int], int]:
    if platform.machine() not in MACHINES:
        sys.exit(f"system calls of {platform.machine()} cannot be traced, only of {list(MACHINES)}")
    return MACHINES[platform.machine()]


def _install_filter() -> int:
    """Install the filter in this process; return the descriptor that the supervisor listens on."""
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
        libc.prctl(
            PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0
        )  # with this, the second attempt needs no privilege
    sys.exit(
        f"the kernel refused the syscall filter: {os.strerror(ctypes.get_errno())}; {NEEDS_LINUX}"
    )


def _enter_filter(name: str) -> None:
    """Put this process under the filter of a supervisor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as warden:
        warden.connect(f"\0{name}")
        listener = _install_filter()
        socket.send_fds(warden, [b"!"], [listener])
        os.close(listener)
        if not warden.recv(1):
            sys.exit("the supervisor of the syscall tracer is gone")


def enter(name: str, argv: list[str]) -> NoReturn:
    _enter_filter(name)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and children would too
    try:
        os.execvp(argv[0], argv)
    except OSError as e:
        sys.exit(f"{argv[0]}: {e.strerror}")


# ---------------------------------------------------------------------------------- the warden


@dataclass(frozen=True)
class DiskOrder:
    """The faults below a folder."""

    below: str = ""
    full: bool = False
    read_only: bool = False
    sync_fails: bool = False
    sync_s: float | None = 0.0  # None: syncs hang


@dataclass
class Supervisor:
    """Answers every intercepted call.

    held: delayed syncs, with the time when each may go on losing: orders to lose unsynced changes:
    until when to wait for the last process to end, the seed, the number of the order. There are two
    if the caller did not wait for the answer to the first one.
    """

    recorder: UnsyncedWrites | None = None
    losing: list[tuple[float, int | None, int]] = field(default_factory=list)
    orders: int = 0  # the descriptor of standard input; -1: it has ended
    order: DiskOrder = field(default_factory=DiskOrder)
    listeners: set[int] = field(default_factory=set)
    held: list[tuple[float, int, Call]] = field(default_factory=list)
    held_count: int = 0
    rest: bytes = b""

    def serve(self, door: socket.socket) -> None:
        poll = select.poll()
        poll.register(self.orders, select.POLLIN)
        poll.register(door, select.POLLIN)
        while self.orders >= 0 or self.listeners:
            for fd, events in poll.poll(self._timeout_ms()):
                if fd == self.orders:
                    self._read_orders(poll)
                elif fd == door.fileno():
                    self._add_listener(door, poll)
                elif events & select.POLLIN:
                    self._receive(fd)
                else:
                    poll.unregister(fd)
                    self._remove_listener(fd)
            self._release_due()
            self._lose_when_ended()

    def _timeout_ms(self) -> float | None:
        times = [self.held[0][0]] if self.held else []
        times += [self.losing[0][0]] if self.losing else []
        if min(times, default=float("inf")) == float("inf"):
            return None
        return max(0.0, (min(times) - time.monotonic()) * 1000)

    def _read_orders(self, poll: select.poll) -> None:
        data = os.read(self.orders, 65536)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self._handle_order(json.loads(line))
        if not data:
            poll.unregister(self.orders)
            self.orders = -1
            self._apply(DiskOrder())

    def _handle_order(self, order: dict[str, Any]) -> None:
        number = order.pop("order", 0)
        if "lose" in order:
            self.losing.append((time.monotonic() + DEAD_WITHIN_S, order["lose"], number))
            return
        if "settle" not in order:
            self._apply(DiskOrder(**order))
        elif self.recorder:
            self.recorder.settle()
        print(f"{number} obeyed", flush=True)

    def _lose_when_ended(self) -> None:
        """Carry out orders to lose as soon as no traced process is left. Older kernels do not
        report that, so there is a deadline."""
        while self.losing and (not self.listeners or self.losing[0][0] <= time.monotonic()):
            _, seed, number = self.losing.pop(0)
            result = json.dumps(self.recorder.lose(seed) if self.recorder else {})
            print(f"{number} {result}", flush=True)

    def _apply(self, order: DiskOrder) -> None:
        """Apply an order from now on; delayed calls are decided again."""
        self.order, held, self.held = order, self.held, []
        for _, _, call in held:
            self._decide(call)

    def _add_listener(self, door: socket.socket, poll: select.poll) -> None:
        visitor, _ = door.accept()
        with visitor, suppress(OSError):
            _, uid, _ = struct.unpack("3i", visitor.getsockopt(*PEER))
            _, listeners, _, _ = (
                socket.recv_fds(visitor, 1, 1) if uid == os.getuid() else NO_LISTENER
            )
            for listener in listeners:
                self.listeners.add(listener)
                poll.register(listener, select.POLLIN)
                visitor.send(b"!")

    def _remove_listener(self, listener: int) -> None:
        """The last process of a listener has ended: its delayed syncs are dropped."""
        self.listeners.discard(listener)
        self.held = [each for each in self.held if each[2].listener != listener]
        heapq.heapify(self.held)
        os.close(listener)

    def _receive(self, listener: int) -> None:
        notice = array.array("B", bytes(NOTICE.size))
        with suppress(FileNotFoundError):  # the thread was killed meanwhile
            fcntl.ioctl(listener, RECEIVE, notice)
            number, thread, _, call, _, _, *args = NOTICE.unpack(notice)
            self._decide(Call(listener, number, thread, NAMES[call], tuple(args)))

    def _decide(self, call: Call) -> None:
        order = self.order
        if not order.below or call.name in ALWAYS_ALLOWED:
            return self._allow(call)
        if call.name in SYNCS:
            return self._decide_sync(call)
        if order.read_only and is_below(call, order.below):
            return _answer(call, errno.EROFS)
        if order.full and call.name in WRITES and is_below(call, order.below) and grows(call):
            return _answer(call, errno.ENOSPC)
        return self._allow(call)

    def _decide_sync(self, call: Call) -> None:
        order = self.order
        if call.name != "msync" and not is_below(call, order.below):
            return self._allow(call)
        delay_s = float("inf") if order.sync_s is None else order.sync_s
        if not delay_s:
            return self._finish_sync(call)
        self.held_count += 1
        heapq.heappush(self.held, (time.monotonic() + delay_s, self.held_count, call))
        return None

    def _release_due(self) -> None:
        while self.held and self.held[0][0] <= time.monotonic():
            self._finish_sync(heapq.heappop(self.held)[2])

    def _finish_sync(self, call: Call) -> None:
        """Finish a delayed sync. The order in force held when it began, or it was decided again."""
        if self.order.sync_fails:
            self._record(record_failed_sync, call)
            _answer(call, errno.EIO)
        else:
            self._allow(call)

    def _allow(self, call: Call) -> None:
        self._record(record, call)
        _answer(call)

    def _record(self, deed: Callable[[Call, UnsyncedWrites], None], call: Call) -> None:
        if self.recorder:
            try:
                deed(call, self.recorder)
            except Exception:  # invalid arguments, which the kernel answers
                self.recorder.missed += not was_killed(call.proc)


def was_killed(proc: str) -> bool:
    """Whether a thread, by its folder in /proc, ends or has to: then its call changes nothing. A
    folder is there until the parent has asked how the process ended, and on a busy machine a
    thread may not know yet that it was killed."""
    try:
        with open(f"{proc}/status", encoding="utf-8", errors="replace") as file:
            status = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return True
    pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
    return "VmSize" not in status or bool(pending >> (signal.SIGKILL - 1) & 1)


def _answer(call: Call, error: int = 0) -> None:
    answer = array.array("B", ANSWER.pack(call.id, 0, -error, 0 if error else PASS))
    with suppress(OSError):  # killed meanwhile
        fcntl.ioctl(call.listener, SEND, answer)


def watch(name: str, below: str = "") -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(f"\0{name}")
        door.listen()
        _try_filter()
        print("0 ready", flush=True)
        Supervisor(_recorder(below)).serve(door)


def _recorder(below: str) -> UnsyncedWrites | None:
    if not below:
        return None
    from clusters.hosts._faults.unsynced_writes import (
        UnsyncedWrites,  # needed by the supervisor only
    )

    return UnsyncedWrites(below)


def _try_filter() -> None:
    """Exit with an error if the kernel supports no such filters."""
    child = os.fork()
    if not child:
        os.close(_install_filter())
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)


# --------------------------------------------------------------------------------- the prober


def probe(name: str, folder: str, patience_s: float) -> dict[str, Any]:
    """Write below the folder and sync it, as a traced process; return names of errors, and
    seconds."""
    _enter_filter(name)
    result: dict[str, Any] = {
        "write": _write(f"{folder}/.seatrial-probe"),
        "sync": "",
        "sync_s": -1,
    }
    thread = threading.Thread(target=_sync, args=(folder, result), daemon=True)
    thread.start()
    thread.join(patience_s)
    return result


def _write(path: str) -> str:
    """Return the name of the error, or an empty string."""
    try:
        fd = _create(path)
    except OSError as e:
        return errno.errorcode[e.errno or 0]
    try:
        os.write(fd, b"seatrial")
    except OSError as e:
        return errno.errorcode[e.errno or 0]
    finally:
        os.close(fd)
        with suppress(OSError):  # read-only by now
            os.unlink(path)
    return ""


def _create(path: str) -> int:
    """Create the file; one that an earlier probe could not remove is removed first."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o600)


def _sync(folder: str, result: dict[str, Any]) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    began_s = time.monotonic()
    try:
        os.fsync(fd)
    except OSError as e:
        result["sync"] = errno.errorcode[e.errno or 0]
    result["sync_s"] = time.monotonic() - began_s


def main() -> None:
    match sys.argv[1:]:
        case ["watch", name, *below]:
            watch(name, *below)
        case ["enter", name, "--", *argv]:
            enter(name, argv)
        case ["try", name, folder, patience_s]:
            result = probe(name, folder, float(patience_s))
            os.write(1, json.dumps(result).encode())
            os._exit(0)  # a hanging sync must not delay the exit
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
