"""Errands: what is done on a host by its own Python, before there is an agent and after.

The driver sends this file and the order on standard input (BOOT reads the file), so nothing has to
be installed for it, and other users of the host do not see the order. An order is one line, a JSON
object; `do` names the errand, the rest are its parameters. The answer is one JSON line; a failure
is a sentence on standard error. It needs the standard library of Python 3.11, and root.

A run's folder on a host is FOLDER = `<parent>/seatrial-<run>`: `owner.json` says whose it is,
`packages/` holds our code, `agent.*` belong to the agent, and `NODE/` is the node's own. Every
process of a run inherits SEATRIAL_RUN=FOLDER, so those that outlived their agent are found too.

*Other users of the host.* Anybody may start processes and make folders with such names, so neither
counts by its name. A process counts if it is root's, real and effective. A folder counts if it is a
real folder (no link) that root owns, that others cannot write to and whose owner.json is readable;
nothing else is ever removed. A host has one agent at a time: it holds a lock on a file in /run,
where only root can make files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import gzip
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

BOOT = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
MARK = "SEATRIAL_RUN="
CHAIN, TRIAL = "SEATRIAL", "SEATRIAL-TRIAL"
AGENT, RELAY = "daemon.py", "relay.py"
LOCK = "/run/seatrial-agent.lock"  # held by a host's one agent
PREFIX = "seatrial-"
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
AGENT_LEAVES_WITHIN_S = 5.0
DIE_WITHIN_S = 3.0
LOOK_EVERY_S = 0.01
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")

Json = dict[str, Any]


# ------------------------------------------------------------------------------------- errands


def occupy(
    folder: str, node: str, owner: Json, address: str, lease_s: float, known: list[str]
) -> Json:
    """Take the host for a run: make its folder, unpack the archive from standard input, start the
    agent. Where there are other runs, not `known`, only return those."""
    parent = os.path.dirname(folder)
    others = [run for run in _runs(parent) if run["folder"] not in known]
    if not others and not _claim(folder, owner):
        if not (found := owner_of(folder)):
            sys.exit(f"{folder} is there already, and is no folder of a run; remove it")
        others = [{"folder": folder, "owner": found, "agents": 0}]
    if others:
        return {"others": others}
    os.mkdir(f"{folder}/{node}")
    _unpack(f"{folder}/packages")
    _start_agent(folder, address, lease_s)
    return {"python": sys.executable}


def end(folder: str, owner: Json, remove: bool) -> Json:
    """End everything of a run here: agent, processes, link rules, and if wanted its folder.

    `shared`: another run's agent is at work, so the link rules are that run's and stay.
    """
    exists = os.path.lexists(folder)
    if exists and owner_of(folder) != owner:
        sys.exit(f"{folder} is not the folder of this run, so nothing was removed; look at it")
    run = _scan().get(folder, Run())
    _end_agents(run.agents)
    killed, left = _kill_processes(folder)
    rules = _remove_rules()
    if left:
        sys.exit(f"processes of {folder} do not end: {', '.join(map(str, left))}")
    if remove and exists:
        shutil.rmtree(folder)
    return {
        "agents": len(run.agents),
        "processes": len(killed),
        "rules": rules or 0,
        "folder": remove and exists,
        "shared": rules is None,
    }


def home(folder: str, owner: Json, node: str, largest_bytes: int) -> None:
    """The end of a run, and on standard output a tar of what its node wrote. What is too large is
    left out, and told."""
    end(folder, owner, remove=False)
    with (
        gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=1) as out,
        tarfile.open(fileobj=out, mode="w|") as tar,
    ):
        for path, name in _files(folder, node):
            size = os.path.getsize(path)
            if size > largest_bytes:
                print(f"too large to be copied: {name} ({size >> 20} MB)", file=sys.stderr)
            else:
                tar.add(path, name)


# --------------------------------------------------------------------------- what there is here


class Run:
    """The processes of one run: its agents, which can be but one, their relays, and the rest."""

    def __init__(self) -> None:
        self.agents: list[int] = []
        self.relays: list[int] = []
        self.processes: list[int] = []


def _scan() -> dict[str, Run]:
    """Return all runs with processes of root here, by folder."""
    runs: dict[str, Run] = {}
    for pid in filter(_is_roots, _pids()):
        argv = _words(pid, "cmdline")
        if folder := _folder_of(pid, argv, AGENT):
            runs.setdefault(folder, Run()).agents.append(pid)
        elif folder := _folder_of(pid, argv, RELAY):
            runs.setdefault(folder, Run()).relays.append(pid)
        elif folder := _marked(_words(pid, "environ")):
            runs.setdefault(folder, Run()).processes.append(pid)
    return runs


def _runs(parent: str) -> list[Json]:
    """Return all runs that left something here: processes, or a folder below `parent`."""
    found = {folder: run for folder, run in _scan().items() if run.agents or run.processes}
    for folder in glob.glob(f"{glob.escape(parent)}/{PREFIX}*"):
        found.setdefault(folder, Run())
    return [
        {"folder": folder, "owner": owner, "agents": len(run.agents)}
        for folder, run in found.items()
        if (owner := owner_of(folder))
    ]


def owner_of(folder: str) -> dict[str, str] | None:
    """Return the owner.json of a run's folder; None if root did not make this folder for a run."""
    if folder != os.path.abspath(folder) or not os.path.basename(folder).startswith(PREFIX):
        return None
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            file = os.open("owner.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened)
            with open(file) as text:
                if not (_only_roots(opened) and _only_roots(file)):
                    return None
                owner = json.load(text)
        finally:
            os.close(opened)
        return {key: str(owner[key]) for key in ("driver", "run")}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _only_roots(fd: int) -> bool:
    """Whether root owns a file or folder, and only root can write to it."""
    found = os.fstat(fd)
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return plain and found.st_uid == os.geteuid() and not found.st_mode & OTHERS_MAY_WRITE


def _is_roots(pid: int) -> bool:
    """Whether a process has no other user id than ours: real, effective, saved."""
    try:
        with open(f"/proc/{pid}/status") as file:
            ids = next(line for line in file if line.startswith("Uid:")).split()[1:]
    except (OSError, StopIteration):
        return False
    return set(ids) == {str(os.geteuid())}


def _pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            yield int(entry)


def _words(pid: int, what: str) -> list[str]:
    """What /proc says of a process; nothing when it has ended, or is no process of a user."""
    try:
        with open(f"/proc/{pid}/{what}", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")]
    except OSError:
        return []


def _folder_of(pid: int, argv: list[str], program: str) -> str:
    """Return the folder that a program of ours was started with."""
    try:
        if "python" not in os.path.basename(os.readlink(f"/proc/{pid}/exe")):
            return ""
    except OSError:
        return ""
    for word, following in itertools.pairwise(argv):
        if word.endswith(f"/{program}"):
            return following
    return ""


def _marked(environment: list[str]) -> str:
    return next((word[len(MARK) :] for word in environment if word.startswith(MARK)), "")


# ------------------------------------------------------------------------------- the beginning


def _claim(folder: str, owner: Json) -> bool:
    """Make a run's folder; False if there is one. Its owner is in it from the first moment, lest
    another machine, or this one under another name, takes it for a run that is over."""
    parent = os.path.dirname(folder)
    _refuse_unsafe(parent)
    with tempfile.TemporaryDirectory(prefix=f".{PREFIX}", dir=parent) as made:
        os.mkdir(f"{made}/it", 0o700)
        with open(f"{made}/it/owner.json", "w", opener=_private) as file:
            json.dump(owner, file)
        try:
            os.rename(f"{made}/it", folder)
        except OSError as e:
            if e.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            return False
    return True


def _refuse_unsafe(parent: str) -> None:
    """Exit with a sentence if another user could put a folder of his own in a run's place."""
    found = os.stat(parent)
    trusted = {0, os.geteuid(), int(os.environ.get("SUDO_UID", 0))}
    shared = found.st_mode & OTHERS_MAY_WRITE and not found.st_mode & stat.S_ISVTX
    if shared or found.st_uid not in trusted:
        sys.exit(f"other users may replace folders in {parent}; set another `folder`: /var/tmp")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _unpack(into: str) -> None:
    trusted: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as tar:
        tar.extractall(into, **trusted)


def _start_agent(folder: str, address: str, lease_s: float) -> None:
    """Start the agent, which inherits the host's lock; return when it listens."""
    lock = hold_lock()
    if lock is None:
        sys.exit("another agent of Seatrial is at work on this host")
    program = f"{folder}/packages/clusters/hosts/_agent/{AGENT}"
    options = ("--lease", str(lease_s), "--lock", str(lock))
    done = subprocess.run(
        [sys.executable, "-S", "-s", "-E", program, folder, address, *options],
        env={**os.environ, MARK[:-1]: folder},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        pass_fds=(lock,),
    )
    os.close(lock)
    if done.returncode != 0:
        said = done.stderr.strip() or _last_words(f"{folder}/agent.log")
        sys.exit(f"the node agent did not start: {said.splitlines()[-1] if said else 'silent'}")


def hold_lock() -> int | None:
    """Return a descriptor that holds the lock of this host's one agent; None if one has it."""
    while True:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(LOCK)):
                return lock
        os.close(lock)  # who held it before us has removed the file


def _last_words(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


# ------------------------------------------------------------------------------------- the end


def _end_agents(pids: list[int]) -> None:
    """Let them heal and leave; those that do not are killed."""
    for number, within_s in ((signal.SIGTERM, AGENT_LEAVES_WITHIN_S), (signal.SIGKILL, 1.0)):
        for pid in pids:
            _signal(pid, number)
            _signal(pid, signal.SIGCONT)
        _until(lambda: not any(_lives(pid) for pid in pids), within_s)


def _kill_processes(folder: str) -> tuple[set[int], list[int]]:
    """Kill what the agent left behind, and what that starts meanwhile; what did not end."""
    killed: set[int] = set()
    left: list[int] = []

    def none_left() -> bool:
        run = _scan().get(folder, Run())
        for pid in run.relays + run.processes:
            _signal(pid, signal.SIGKILL)
            _signal(pid, signal.SIGCONT)
        killed.update(run.processes)
        left[:] = run.processes
        return not left

    _until(none_left, DIE_WITHIN_S)
    return killed, left


def _remove_rules() -> int | None:
    """Take our chain away; how many rules it had. None if another run's agent is at work here: it
    has emptied the chain when it began."""
    lock = hold_lock()
    if lock is None:
        return None
    try:
        listed = _iptables("-S", CHAIN)
        while _iptables("-D", "INPUT", "-j", CHAIN) is not None:
            pass
        for chain in (CHAIN, TRIAL):
            _iptables("-F", chain)
            _iptables("-X", chain)
        left = _iptables("-S")
        if left is None or not {CHAIN, TRIAL}.isdisjoint(left.split()):
            sys.exit(f"link rules may be left: iptables did not remove the chain {CHAIN}")
    finally:
        os.unlink(LOCK)
        os.close(lock)
    return sum(line.startswith("-A") for line in (listed or "").splitlines())


def _iptables(*words: str) -> str | None:
    """What it says; None when it refuses."""
    done = subprocess.run(["iptables", "-w", *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _files(folder: str, node: str) -> Iterator[tuple[str, str]]:
    """Plain files of the node, and what its agent said, with their names in the tar."""
    for where, _, names in os.walk(f"{folder}/{node}"):
        for path in (f"{where}/{name}" for name in names):
            if os.path.isfile(path) and not os.path.islink(path):
                yield path, os.path.relpath(path, folder)
    log = f"{folder}/agent.log"
    if os.path.isfile(log) and os.path.getsize(log):
        yield log, f"{node}/agent.log"


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _until(condition: Callable[[], bool], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)


def main() -> None:
    errands: dict[str, Callable[..., Json | None]] = {"occupy": occupy, "end": end, "home": home}
    order = json.loads(sys.stdin.buffer.readline())
    errand = errands[order.pop("do")]
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
    try:
        answer = errand(**order)
    except OSError as e:
        sys.exit(f"{e.filename or 'it'}: {e.strerror or e}")
    if answer is not None:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
