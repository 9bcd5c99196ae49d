"""Scripts that a host's own Python runs before there is an agent and after.

The driver sends this file and an order on standard input (BOOT reads the file), so nothing has to
be installed, and other users of the host do not see the order. An order is one line, a JSON object;
`do` names the script, the other fields are its parameters. The answer is one JSON line; an error is
a sentence on standard error. The scripts need the standard library of Python 3.11, and root.

A run's folder on a host is FOLDER = `<parent>/seatrial-<run>`: `owner.json` names its run,
`packages/` holds our code, `agent.*` belong to the agent, and `NODE/` is the node's own. Every
process of a run inherits SEATRIAL_RUN=FOLDER, so processes that outlived their agent are found,
too.

*Other users of the host.* Any user may start processes and make folders with such names, so a name
proves nothing. A process counts if it is root's, by its real and effective user. A folder counts if
it is a real folder (not a link) of root that others cannot write to, with a readable owner.json;
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
RUN_VARIABLE = "SEATRIAL_RUN="
CHAIN, TRIAL = "SEATRIAL", "SEATRIAL-TRIAL"
AGENT, RELAY = "daemon.py", "relay.py"
LOCK = "/run/seatrial-agent.lock"  # the host's one agent holds it
PREFIX = "seatrial-"
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
AGENT_LEAVES_WITHIN_S = 5.0
DIE_WITHIN_S = 3.0
LOOK_EVERY_S = 0.01
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")

Json = dict[str, Any]


# ------------------------------------------------------------------------------------ scripts


def occupy(
    folder: str, node: str, owner: Json, address: str, lease_s: float, known: list[str]
) -> Json:
    """Occupy the host for a run: make its folder, unpack the archive from standard input, start the
    agent.

    If there are other runs that are not in `known`, only return those.
    """
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


def end_run(folder: str, owner: Json, remove: bool) -> Json:
    """End everything of a run here: agent, processes, link rules, and if `remove` its folder.

    shared: another run's agent is running, so the link rules are that run's and stay
    """
    exists = os.path.lexists(folder)
    if exists and owner_of(folder) != owner:
        sys.exit(f"{folder} is not the folder of this run, so nothing was removed; look at it")
    run = _scan().get(folder, RunProcesses())
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


def send_files(folder: str, owner: Json, node: str, largest_bytes: int) -> None:
    """End the run and write a tar of the node's files to standard output. Files that are too large
    are left out, and listed on standard error."""
    end_run(folder, owner, remove=False)
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


class RunProcesses:
    """The processes of one run: its agents, of which there can be only one, their relays, and the
    others."""

    def __init__(self) -> None:
        self.agents: list[int] = []
        self.relays: list[int] = []
        self.processes: list[int] = []


def _scan() -> dict[str, RunProcesses]:
    """Return all runs that have processes of root here, by folder."""
    runs: dict[str, RunProcesses] = {}
    for pid in filter(_is_roots, _pids()):
        argv = _proc_words(pid, "cmdline")
        if folder := _folder_of(pid, argv, AGENT):
            runs.setdefault(folder, RunProcesses()).agents.append(pid)
        elif folder := _folder_of(pid, argv, RELAY):
            runs.setdefault(folder, RunProcesses()).relays.append(pid)
        elif folder := _run_of(_proc_words(pid, "environ")):
            runs.setdefault(folder, RunProcesses()).processes.append(pid)
    return runs


def _runs(parent: str) -> list[Json]:
    """Return all runs that left something here: processes, or a folder below `parent`."""
    runs = {folder: run for folder, run in _scan().items() if run.agents or run.processes}
    for folder in glob.glob(f"{glob.escape(parent)}/{PREFIX}*"):
        runs.setdefault(folder, RunProcesses())
    return [
        {"folder": folder, "owner": owner, "agents": len(run.agents)}
        for folder, run in runs.items()
        if (owner := owner_of(folder))
    ]


def owner_of(folder: str) -> dict[str, str] | None:
    """Return the owner.json of a run's folder, or None if root did not make this folder for
    a run."""
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
    """Return whether root owns the file or folder, and only root can write to it."""
    found = os.fstat(fd)
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return plain and found.st_uid == os.geteuid() and not found.st_mode & OTHERS_MAY_WRITE


def _is_roots(pid: int) -> bool:
    """Return whether all user ids of a process are ours: real, effective, saved."""
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


def _proc_words(pid: int, what: str) -> list[str]:
    """Return command line or environment of a process, or an empty list if it has none or has
    ended."""
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


def _run_of(environment: list[str]) -> str:
    return next(
        (word[len(RUN_VARIABLE) :] for word in environment if word.startswith(RUN_VARIABLE)), ""
    )


# ------------------------------------------------------------------------------- the beginning


def _claim(folder: str, owner: Json) -> bool:
    """Make a run's folder; return False if there is one. Its owner.json is there from the first
    moment, so that no other run takes the folder for one of a finished run."""
    parent = os.path.dirname(folder)
    _refuse_unsafe(parent)
    with tempfile.TemporaryDirectory(prefix=f".{PREFIX}", dir=parent) as made:
        os.mkdir(f"{made}/it", 0o700)
        with open(f"{made}/it/owner.json", "w", opener=_open_private) as file:
            json.dump(owner, file)
        try:
            os.rename(f"{made}/it", folder)
        except OSError as e:
            if e.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            return False
    return True


def _refuse_unsafe(parent: str) -> None:
    """Exit with an error if another user could replace a run's folder by one of his own."""
    found = os.stat(parent)
    trusted = {0, os.geteuid(), int(os.environ.get("SUDO_UID", 0))}
    shared = found.st_mode & OTHERS_MAY_WRITE and not found.st_mode & stat.S_ISVTX
    if shared or found.st_uid not in trusted:
        sys.exit(f"other users may replace folders in {parent}; set another `folder`: /var/tmp")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _unpack(into: str) -> None:
    trusted: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as tar:
        tar.extractall(into, **trusted)


def _start_agent(folder: str, address: str, lease_s: float) -> None:
    """Start the agent, which inherits the host's lock; return when it listens."""
    lock = hold_lock()
    if lock is None:
        sys.exit("another agent of Seatrial is running on this host")
    program = f"{folder}/packages/clusters/hosts/_agent/{AGENT}"
    options = ("--lease", str(lease_s), "--lock", str(lock))
    done = subprocess.run(
        [sys.executable, "-S", "-s", "-E", program, folder, address, *options],
        env={**os.environ, RUN_VARIABLE[:-1]: folder},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        pass_fds=(lock,),
    )
    os.close(lock)
    if done.returncode != 0:
        output = done.stderr.strip() or _log_text(f"{folder}/agent.log")
        sys.exit(f"the node agent did not start: {output.splitlines()[-1] if output else 'silent'}")


def hold_lock() -> int | None:
    """Return a descriptor that holds the lock of the host's one agent, or None if an agent holds
    it."""
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
        os.close(lock)  # the previous holder has removed the file


def _log_text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


# ------------------------------------------------------------------------------------- the end


def _end_agents(pids: list[int]) -> None:
    """Let the agents heal and exit; kill those that do not."""
    for number, within_s in ((signal.SIGTERM, AGENT_LEAVES_WITHIN_S), (signal.SIGKILL, 1.0)):
        for pid in pids:
            _signal(pid, number)
            _signal(pid, signal.SIGCONT)
        _wait_until(lambda: not any(_is_alive(pid) for pid in pids), within_s)


def _kill_processes(folder: str) -> tuple[set[int], list[int]]:
    """Kill what the agent left, and what that starts meanwhile; return what was killed and what did
    not end."""
    killed: set[int] = set()
    left: list[int] = []

    def none_left() -> bool:
        run = _scan().get(folder, RunProcesses())
        for pid in run.relays + run.processes:
            _signal(pid, signal.SIGKILL)
            _signal(pid, signal.SIGCONT)
        killed.update(run.processes)
        left[:] = run.processes
        return not left

    _wait_until(none_left, DIE_WITHIN_S)
    return killed, left


def _remove_rules() -> int | None:
    """Remove our chain; return how many rules it had, or None if another run's agent is running,
    which emptied the chain at its start."""
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
    """Return its output, or None if it fails."""
    done = subprocess.run(["iptables", "-w", *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _files(folder: str, node: str) -> Iterator[tuple[str, str]]:
    """Yield the regular files of the node and the log of its agent, with their names in the tar."""
    for where, _, names in os.walk(f"{folder}/{node}"):
        for path in (f"{where}/{name}" for name in names):
            if os.path.isfile(path) and not os.path.islink(path):
                yield path, os.path.relpath(path, folder)
    log = f"{folder}/agent.log"
    if os.path.isfile(log) and os.path.getsize(log):
        yield log, f"{node}/agent.log"


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_until(condition: Callable[[], bool], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)


def main() -> None:
    scripts: dict[str, Callable[..., Json | None]] = {
        "occupy": occupy,
        "end": end_run,
        "home": send_files,
    }
    order = json.loads(sys.stdin.buffer.readline())
    script = scripts[order.pop("do")]
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
    try:
        answer = script(**order)
    except OSError as e:
        sys.exit(f"{e.filename or 'it'}: {e.strerror or e}")
    if answer is not None:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
