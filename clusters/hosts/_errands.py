"""Errands: what is done on a host by its own Python, before there is an agent and after.

The driver sends this file along with the order (BOOT reads it from standard input), so nothing has
to be installed for it. An order is a JSON object; `do` names the errand, the rest are its
parameters. The answer is one JSON line; a failure is a sentence on standard error. It needs the
standard library of Python 3.11, and root.

A run's folder on a host is FOLDER = `<folder>/seatrial-<run>`: `owner.json` says whose it is,
`packages/` holds our code, `agent.*` belong to the agent, and `NODE/` is the node's own. Every
process of a run inherits SEATRIAL_RUN=FOLDER, so those that outlived their agent are found too.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import gzip
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

BOOT = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
MARK = "SEATRIAL_RUN="
CHAIN = "SEATRIAL"
AGENT, RELAY = "_agent_daemon.py", "_agent_relay.py"
AGENT_NAME = "seatrial-agent"  # held by a host's one agent
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
    agent. Where there are other runs, not `known`, nothing is done but to tell of them."""
    others = [run for run in _runs(os.path.dirname(folder)) if run["folder"] not in known]
    if not others and not _claim(folder, owner):
        others = [_told(folder, Run())]
    if others:
        return {"others": others}
    os.mkdir(f"{folder}/{node}")
    _unpack(f"{folder}/packages")
    _start_agent(folder, address, lease_s)
    return {"python": sys.executable}


def end(folder: str, remove: bool) -> Json:
    """Nothing of a run goes on here: agent, processes, rules, and if that is wanted its folder."""
    run = _scan().get(folder, Run())
    _end_agents(run.agents)
    killed = _kill_processes(folder)
    rules = _remove_rules()
    exists = os.path.isdir(folder)
    if remove and exists:
        shutil.rmtree(folder)
    return {
        "agents": len(run.agents),
        "processes": killed,
        "rules": rules,
        "folder": remove and exists,
    }


def home(folder: str, node: str, largest_bytes: int) -> None:
    """The end of a run, and on standard output a tar of what its node wrote. What is too large is
    left out, and told."""
    end(folder, remove=False)
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
    """All runs with processes here, by folder."""
    runs: dict[str, Run] = {}
    for pid in _pids():
        argv = _words(pid, "cmdline")
        if folder := _folder_of(argv, AGENT):
            runs.setdefault(folder, Run()).agents.append(pid)
        elif folder := _folder_of(argv, RELAY):
            runs.setdefault(folder, Run()).relays.append(pid)
        elif folder := _marked(_words(pid, "environ")):
            runs.setdefault(folder, Run()).processes.append(pid)
    return runs


def _runs(parent: str) -> list[Json]:
    """All runs that left something here: an agent, processes, a folder below `parent`."""
    found = {folder: run for folder, run in _scan().items() if run.agents or run.processes}
    for path in glob.glob(f"{glob.escape(parent)}/seatrial-*/owner.json"):
        found.setdefault(os.path.dirname(path), Run())
    return [_told(folder, run) for folder, run in found.items()]


def _told(folder: str, run: Run) -> Json:
    try:
        with open(f"{folder}/owner.json") as file:
            owner = json.load(file)
    except (OSError, ValueError):
        owner = {}  # damaged, or gone
    return {"folder": folder, "owner": owner, "agents": len(run.agents)}


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


def _folder_of(argv: list[str], program: str) -> str:
    """The folder that a program of ours was started with."""
    if "python" not in os.path.basename(argv[0] if argv else ""):
        return ""
    for word, following in itertools.pairwise(argv):
        if word.endswith(f"/{program}"):
            return following
    return ""


def _marked(environment: list[str]) -> str:
    return next((word[len(MARK) :] for word in environment if word.startswith(MARK)), "")


# ------------------------------------------------------------------------------- the beginning


def _claim(folder: str, owner: Json) -> bool:
    """Make a run's folder. Its owner is in it from the first moment, lest another machine, or
    this one under another name, takes it for nobody's and removes it. False where there is one."""
    parent, name = os.path.split(folder)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as made:
        os.mkdir(f"{made}/it", 0o700)
        with open(f"{made}/it/owner.json", "w") as file:
            json.dump(owner, file)
        try:
            os.rename(f"{made}/it", folder)
        except OSError as e:
            if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
    return True


def _unpack(into: str) -> None:
    trusted: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as tar:
        tar.extractall(into, **trusted)


def _start_agent(folder: str, address: str, lease_s: float) -> None:
    """Returns when it listens."""
    program = f"{folder}/packages/clusters/hosts/{AGENT}"
    done = subprocess.run(
        [sys.executable, "-S", "-s", "-E", program, folder, address, "--lease", str(lease_s)],
        env={**os.environ, MARK[:-1]: folder},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip() or _last_words(f"{folder}/agent.log")
        sys.exit(f"the node agent did not start: {said.splitlines()[-1] if said else 'silent'}")


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


def _kill_processes(folder: str) -> int:
    """Kill what the agent left behind, and what that starts meanwhile; how many there were."""
    killed: set[int] = set()

    def none_left() -> bool:
        run = _scan().get(folder, Run())
        for pid in run.relays + run.processes:
            _signal(pid, signal.SIGKILL)
            _signal(pid, signal.SIGCONT)
        killed.update(run.processes)
        return not run.processes

    _until(none_left, DIE_WITHIN_S)
    return len(killed)


def _remove_rules() -> int:
    """Take our chain away, unless another run's agent is at work here; how many rules it had."""
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0{AGENT_NAME}")
        except OSError:
            return 0
        listed = _iptables("-S", CHAIN)
        while _iptables("-D", "INPUT", "-j", CHAIN) is not None:
            pass
        _iptables("-F", CHAIN)
        _iptables("-X", CHAIN)
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
    order = json.loads(sys.argv[1])
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
