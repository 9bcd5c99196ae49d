"""Run a command on a node so that signals to its process group reach all of its descendants.

    python3 -I -S process_tree.py FOLDER COMMAND [ARGUMENT...]

The agent of a node signals process groups, and some programs put their processes into sessions of
their own: PostgreSQL does so with each. So a guard outside the group, to which all orphans below it
fall (a child subreaper), stops, continues and kills every descendant whenever that happens to the
probe, a child of it that stays in the group. The guard holds a lock on FOLDER until the last
descendant is dead, so that none is left when the command starts again.

The command does not run as root, which PostgreSQL and others refuse. It gets a user namespace where
its user has another number, so that its files belong to the same user as before, and a namespace of
System V memory, which would outlive it; where those are not allowed, root becomes another user, to
whom FOLDER is given. The file runs on nodes that have nothing but Python.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Callable

NEWUSER, NEWIPC = 0x10000000, 0x08000000
SUBREAPER = 36  # of prctl
OTHER_ID = 65534  # the user without rights, which every Linux has
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    folder, argv, group = sys.argv[1], sys.argv[2:], os.getpid()
    if guard := os.fork():
        signal.signal(signal.SIGTERM, lambda *_: os.kill(guard, signal.SIGTERM))
        code = os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    os.setpgid(0, 0)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    probe = fork(lambda: stay_in(group))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    command = fork(lambda: execute(folder, argv))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(command, signal.SIGTERM))
    os._exit(watch(probe, command))


def fork(run: Callable[[], None]) -> int:
    """Return the pid of a child that runs it."""
    if pid := os.fork():
        return pid
    try:
        run()
    except OSError as e:
        print(f"process_tree: {e}", file=sys.stderr, flush=True)
    os._exit(127)


def stay_in(group: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setpgid(0, group)
    while True:
        signal.pause()


def execute(folder: str, argv: list[str]) -> None:
    os.setsid()
    if os.geteuid() == 0:
        drop_root(folder)
    os.execvp(argv[0], argv)


def drop_root(folder: str) -> None:
    gid = os.getegid()
    if libc.unshare(NEWUSER | NEWIPC) == 0:
        for name, text in (("setgroups", "deny"), ("uid_map", "0"), ("gid_map", str(gid))):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text if name == "setgroups" else f"{OTHER_ID} {text} 1")
        return
    for path, _, files in os.walk(folder):
        for name in (path, *(os.path.join(path, file) for file in files)):
            os.lchown(name, OTHER_ID, OTHER_ID)
    os.setgroups([])
    os.setgid(OTHER_ID)
    os.setuid(OTHER_ID)


def watch(probe: int, command: int) -> int:
    """Pass on what happens to the probe until either ends; return the exit code."""
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED | os.WCONTINUED)
        if pid == probe and os.WIFSTOPPED(status):
            stop(probe)
        elif pid == probe and os.WIFCONTINUED(status):
            send(descendants() - {probe}, signal.SIGCONT)
        elif pid in (probe, command) and (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
            kill()
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def stop(probe: int) -> None:
    """Stop all descendants, and those that they start meanwhile."""
    stopped: set[int] = set()
    while new := descendants() - {probe} - stopped:
        send(new, signal.SIGSTOP)
        stopped |= new


def kill() -> None:
    """Kill all descendants, until there are none."""
    try:
        while True:
            send(descendants(), signal.SIGKILL)
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants() -> set[int]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found.update(below)
        todo += below
    return found


if __name__ == "__main__":
    main()
