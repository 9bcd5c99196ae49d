"""A gate between a node's process and its disk: system calls that change files pass it one by one.

    python3 -S -s syscall_tracer.py watch NAME [FOLDER]      the gate's warden; reads orders, JSON
    lines python3 -S -s syscall_tracer.py enter NAME -- PROGRAM    become a program behind the gate
    python3 -S -s syscall_tracer.py try NAME FOLDER SECONDS  what a program behind the gate meets
    there

The kernel's seccomp filter hands the calls that write, sync, make, rename and remove to the warden
(SECCOMP_RET_USER_NOTIF), which lets them pass, holds them up, or answers them with an error. It
works for every program, in whatever language, and needs no compiler, no privilege and no file
system of our own. Calls that read or send never meet it. What a program maps into its memory, or
hands to io_uring, goes past it.

Given a folder, the warden keeps a ledger of what is changed below it and not synced
(`unsynced_writes.py`), so that it can be taken away once the node is dead: {"lose": SEED},
answered with what was at stake and what is gone; {"settle": true} says that what is there now is
to stay. An order may have a number, {"order": 7, ...}, and its answer begins with it: `7 obeyed`.

Any other order says what holds below one folder: {"below": ..., "full": ..., "read_only": ...,
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

if not __package__:  # a program lies three folders below our packages
    sys.path.append(os.path.abspath(f"{__file__}/../../../.."))
from clusters.hosts._faults.syscalls import (
    MACHINES,
    NAMES,
    ONLY_WITH,
    SYNCS,
    UNSPOILT,
    WRITES,
    Call,
    grows,
    is_below,
    tell,
    tell_refused,
)

if TYPE_CHECKING:
    from clusters.hosts._faults.unsynced_writes import Ledger

ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
SET_MODE_FILTER, NEW_LISTENER = 1, 8
PR_SET_PTRACER, PR_SET_NO_NEW_PRIVS = 0x59616D61, 38
RECEIVE, SEND = 0xC0502100, 0xC0182101
NOTICE = struct.Struct("=QIIiIQ6Q")  # id, thread, flags, call, machine, where, arguments
ANSWER = struct.Struct("=QqiI")  # id, value, error, flags
DEAD_WITHIN_S = 1.0
PASS = 1  # a flag of an answer: carry the call out
PEER = socket.SOL_SOCKET, socket.SO_PEERCRED, 12
NOBODY: tuple[bytes, list[int], int, Any] = b"", [], 0, None
OLDEST = "it needs Linux 5.5 or later, and a container runtime that allows seccomp"


# ---------------------------------------------------------------------------------- the filter


def program() -> bytes:
    """The filter of this machine: for each call comparisons and an answer."""
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


@dataclass
class Warden:
    """Who is asked about every call. `held`: syncs, with when they may go on. `losing`: orders to
    lose what is unsynced, each with until when to wait for the last process to be gone, the seed,
    and its number; there are two when nobody waited for the first one's answer."""

    ledger: Ledger | None = None
    losing: list[tuple[float, int, int]] = field(default_factory=list)
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
                    self._let_out(fd)
            self._let_go()
            self._lose()

    def _patience_ms(self) -> float | None:
        times = [self.held[0][0]] if self.held else []
        times += [self.losing[0][0]] if self.losing else []
        if min(times, default=float("inf")) == float("inf"):
            return None
        return max(0.0, (min(times) - time.monotonic()) * 1000)

    def _hear(self, poll: select.poll) -> None:
        data = os.read(self.orders, 65536)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self._heed(json.loads(line))
        if not data:
            poll.unregister(self.orders)
            self.orders = -1
            self._obey(Order())

    def _heed(self, order: dict[str, Any]) -> None:
        number = order.pop("order", 0)
        if "lose" in order:
            self.losing.append((time.monotonic() + DEAD_WITHIN_S, order["lose"], number))
            return
        if "settle" not in order:
            self._obey(Order(**order))
        elif self.ledger:
            self.ledger.settle()
        print(f"{number} obeyed", flush=True)

    def _lose(self) -> None:
        """As soon as nobody is behind the gate, whom older kernels do not tell to be gone."""
        while self.losing and (not self.listeners or self.losing[0][0] <= time.monotonic()):
            _, seed, number = self.losing.pop(0)
            told = json.dumps(self.ledger.lose(seed) if self.ledger else {})
            print(f"{number} {told}", flush=True)

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

    def _let_out(self, listener: int) -> None:
        """Nobody is behind it any more: syncs that were held up will never be carried out."""
        self.listeners.discard(listener)
        self.held = [each for each in self.held if each[2].listener != listener]
        heapq.heapify(self.held)
        os.close(listener)

    def _ask(self, listener: int) -> None:
        notice = array.array("B", bytes(NOTICE.size))
        with suppress(FileNotFoundError):  # the thread was killed meanwhile
            fcntl.ioctl(listener, RECEIVE, notice)
            number, thread, _, call, _, _, *args = NOTICE.unpack(notice)
            self._decide(Call(listener, number, thread, NAMES[call], tuple(args)))

    def _decide(self, call: Call) -> None:
        order = self.order
        if not order.below or call.name in UNSPOILT:
            return self._pass(call)
        if call.name in SYNCS:
            return self._decide_sync(call)
        if order.read_only and is_below(call, order.below):
            return _answer(call, errno.EROFS)
        if order.full and call.name in WRITES and is_below(call, order.below) and grows(call):
            return _answer(call, errno.ENOSPC)
        return self._pass(call)

    def _decide_sync(self, call: Call) -> None:
        order = self.order
        if call.name != "msync" and not is_below(call, order.below):
            return self._pass(call)
        delay_s = float("inf") if order.sync_s is None else order.sync_s
        if not delay_s:
            return self._sync(call)
        self.seen += 1
        heapq.heappush(self.held, (time.monotonic() + delay_s, self.seen, call))
        return None

    def _let_go(self) -> None:
        while self.held and self.held[0][0] <= time.monotonic():
            self._sync(heapq.heappop(self.held)[2])

    def _sync(self, call: Call) -> None:
        """Its time has come. What holds now held already when it began, or was decided anew."""
        if self.order.sync_fails:
            self._tell(tell_refused, call)
            _answer(call, errno.EIO)
        else:
            self._pass(call)

    def _pass(self, call: Call) -> None:
        self._tell(tell, call)
        _answer(call)

    def _tell(self, deed: Callable[[Call, Ledger], None], call: Call) -> None:
        if self.ledger:
            try:
                deed(call, self.ledger)
            except Exception:  # whatever the node has asked for: the kernel answers it
                self.ledger.missed += os.path.exists(call.proc)  # or it was killed meanwhile


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
        Warden(_ledger(below)).serve(door)


def _ledger(below: str) -> Ledger | None:
    if not below:
        return None
    from clusters.hosts._faults.unsynced_writes import Ledger  # of use to the warden alone

    return Ledger(below)


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
    """The name of the error that is met, if any."""
    try:
        fd = _made(path)
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


def _made(path: str) -> int:
    """A new file; one that an earlier try had to leave goes first."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o600)


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
        case ["watch", name, *below]:
            watch(name, *below)
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
