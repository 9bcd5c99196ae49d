"""Linux namespaces through libc: what `unshare`, `setns`, `mount` and `prctl` do in a shell.

Python has `os.unshare` only since 3.12, so these functions use ctypes. A process may enter a new
user namespace only while it has one thread, so a runner does it before anything else.

An ordinary user is mapped to root of the new user namespace, so everything else needs no privilege.
Root maps every id to itself, with a helper process that stays outside: in a container or under
sudo, files of other users must stay readable.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

NEWNS = 0x00020000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
_ALL_IDS = "0 0 4294967295"

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def join(fd: int, flags: int) -> None:
    _checked(_libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)), "setns")


def mount(kind: str, target: str) -> None:
    """Mount a file system without a device: proc, tmpfs."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _mount(kind, target, kind, flags)


def make_mounts_private() -> None:
    """Keep later mounts from being seen outside."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)


def die_with_parent() -> None:
    """Have this process killed when the *thread* that started it ends.

    The kernel forgets this when credentials change, so call it again after `unshare`.
    """
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def enter(others: int) -> None:
    """Enter the namespaces in `others`, in a user namespace where this process is root.

    If user namespaces are refused but this process is root already, it enters without one.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        with _map_by_helper() if uid == 0 else _map_by_self(uid, gid):
            unshare(NEWUSER | others)
    except OSError as refused:
        if os.geteuid() != 0:  # not root, or in a user namespace without mapped ids
            raise
        try:
            unshare(others)
        except OSError:
            raise refused from None


@contextlib.contextmanager
def elsewhere(flags: int, kind: str) -> Iterator[None]:
    """Run the block in a new namespace; children started there stay there."""
    home = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(flags)
        yield
    finally:
        join(home, flags)
        os.close(home)


@contextlib.contextmanager
def _map_by_self(uid: int, gid: int) -> Iterator[None]:
    yield
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


@contextlib.contextmanager
def _map_by_helper() -> Iterator[None]:
    """Map all ids, as root: only a process outside may map more than one id into the namespace."""
    to_helper, from_us = os.pipe()
    parent = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(from_us)
        os._exit(_write_maps(parent) if os.read(to_helper, 1) else 0)
    os.close(to_helper)
    try:
        yield
        os.write(from_us, b"!")
    finally:
        os.close(from_us)
        _, status = os.waitpid(helper, 0)
    if status != 0:  # root of a container may lack the right: map its own id only
        _map_own_root()


def _map_own_root() -> None:
    with _map_by_self(0, 0):
        pass


def _write_maps(pid: int) -> int:
    try:
        Path(f"/proc/{pid}/uid_map").write_text(_ALL_IDS)
        Path(f"/proc/{pid}/gid_map").write_text(_ALL_IDS)
    except OSError:
        return 1
    return 0


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    encoded = kind.encode() if kind else None
    result = _libc.mount(
        source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), ctypes.c_char_p(None)
    )
    _checked(result, f"mount {target}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
