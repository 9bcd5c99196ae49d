"""What a machine must have to run a node, checked by one command: root, Python 3.11, iptables,
space.

The checks are a Python program that any Python since 2.6 can run, so that one that is too old
reports its version. It tries what a trial will do, in ways that change nothing: it lists the rules
and tests the folder. It reads the clock, and the driver compares that with its own clock before and
after, so the comparison is off by half of the time between at most.
"""

import json
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusters.hosts._problems import Problem
from clusters.hosts.ssh.inventory import InventoryHost
from harness.contracts import CommandResult

if TYPE_CHECKING:
    from clusters.hosts.ssh.connections import RemoteHost

MIN_PYTHON = (3, 11)
MIN_DISK_BYTES = 200_000_000
MAX_SKEW_S = 5.0
SURVEY_WITHIN_S = 15.0
NEEDS_TTY = "must have a tty"  # sudo's error with `Defaults requiretty`
MISSING = (126, 127)  # exit codes of a shell if a program cannot be run
_QUESTIONS = """
import json, os, subprocess, sys, time
os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
def tried(argv):
    try:
        p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError:
        return "missing"
    out = p.communicate()[0].decode("utf-8", "replace")
    return out.strip()[-200:] or "failed" if p.returncode else ""
def room(folder):
    try:
        found = os.statvfs(folder)
    except OSError:
        return -1
    return found.f_bavail * found.f_frsize if os.access(folder, os.W_OK | os.X_OK) else -1
print("\\n" + json.dumps({
    "time": time.time(),
    "python": list(sys.version_info[:2]),
    "system": os.uname()[0],
    "iptables": tried(["iptables", "-w", "-n", "-L", "INPUT"]),
    "restore": tried(["iptables-restore", "--version"]),
    "room": room(sys.argv[1]),
}))
"""


@dataclass(frozen=True)
class HostFacts:
    """The answers of a machine. `skew_s`: its clock minus ours, give or take `skew_error_s`."""

    python: tuple[int, int]
    system: str
    iptables: str  # why it does not work, or empty
    restore: str
    room_bytes: int  # -1: no such folder, or not writable
    skew_s: float
    skew_error_s: float


def facts(machine: "RemoteHost", now_s: Callable[[], float] = time.time) -> HostFacts | Problem:
    """Run the checks. Return a Problem if they cannot be run."""
    if machine.sudo_error:
        return no_root(machine)
    host = machine.host
    before = now_s()
    argv = [host.python, "-I", "-S", "-c", _QUESTIONS, host.folder]
    done = machine.run(argv, timeout_s=SURVEY_WITHIN_S)
    after = now_s()
    try:
        answer = _answer(done.out)
        return HostFacts(
            python=(int(answer["python"][0]), int(answer["python"][1])),
            system=str(answer["system"]),
            iptables=str(answer["iptables"]),
            restore=str(answer["restore"]),
            room_bytes=int(answer["room"]),
            skew_s=float(answer["time"]) - (before + after) / 2,
            skew_error_s=(after - before) / 2,
        )
    except (ValueError, TypeError, LookupError, OverflowError):
        return _no_python(host, done)


def lacking(host: InventoryHost, facts: HostFacts) -> Iterator[Problem]:
    """Yield what prevents a node from running there, the first obstacle first."""
    wanted = ".".join(str(part) for part in MIN_PYTHON)
    if facts.system != "Linux":
        yield Problem(
            f"{host} runs {facts.system}",
            "links are cut by iptables, which is Linux's",
            "take it out of the inventory",
        )
    if facts.python < MIN_PYTHON:
        version = ".".join(str(part) for part in facts.python)
        yield Problem(
            f"{host} has Python {version} as {host.python}",
            f"the node agent and Flotilla need Python {wanted} or later",
            f'install it there, and name it in the inventory: python = "python{wanted}"',
        )
    if error := facts.iptables or facts.restore:
        yield _no_iptables(host, error)
    if facts.room_bytes < MIN_DISK_BYTES:
        yield _no_room(host, facts.room_bytes)
    if abs(facts.skew_s) - facts.skew_error_s > MAX_SKEW_S:
        yield Problem(
            f"{host} has a clock that is {abs(facts.skew_s):.0f} s "
            f"{'ahead of' if facts.skew_s > 0 else 'behind'} this machine's",
            f"more than {MAX_SKEW_S:g} s make the nodes' own logs misleading",
            "set it right there, and keep it so (sudo apt-get install chrony)",
        )


def _answer(out: str) -> dict[str, Any]:
    """Return the last line that is ours, since a login may print others. Raises LookupError if
    there is none."""
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            try:
                answer: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            return answer
    raise LookupError


def no_shell(machine: "RemoteHost", done: CommandResult) -> Problem:
    """The user may log in but not run commands: nologin, false, or a forced command."""
    says = " ".join((done.out or done.err).split())[:200]
    answer = f"it says: {says}" if says else f"it exits with {done.code} and says nothing"
    user = machine.user
    return Problem(
        f"{machine.host} lets {user} in, but runs no commands for {user} ({answer})",
        "its login shell is nologin or the like, or sshd forces another command",
        f"give it a shell there (sudo chsh -s /bin/sh {user}), or set another `user` in "
        "the inventory",
    )


def no_root(machine: "RemoteHost") -> Problem:
    if NEEDS_TTY in machine.sudo_error:
        return Problem(
            f"{machine.host} lets {machine.user} in, but its sudo demands a terminal (requiretty)",
            "commands are run as root without one",
            f"exempt the user in its sudoers (sudo visudo): Defaults:{machine.user} !requiretty",
        )
    return Problem(
        f"{machine.host} lets {machine.user} in, but not act as root (sudo -n says: "
        f"{machine.sudo_error})",
        "rules of iptables and other users' processes are root's",
        f"add a line to its sudoers (sudo visudo): {machine.user} ALL=(ALL) NOPASSWD: ALL; or set "
        'user = "root" in the inventory',
    )


def _no_python(host: InventoryHost, done: CommandResult) -> Problem:
    error = " ".join((done.err or done.out).split())[-200:]
    if done.code in MISSING or "not found" in error:
        what = f"{host} has no program {host.python}"
    else:
        what = f"{host} cannot run {host.python}: {error or f'it exits with {done.code}'}"
    return Problem(
        what,
        "the node agent is a Python program",
        "install Python 3.11 there (sudo apt-get install python3), or correct `python` in the "
        "inventory",
    )


def _no_iptables(host: InventoryHost, error: str) -> Problem:
    why = "it cuts the links between nodes"
    if error == "missing":
        return Problem(
            f"{host} has no iptables", why, "install it there: sudo apt-get install iptables"
        )
    return Problem(
        f"{host} has an iptables that does not work ({' '.join(error.split())})",
        why,
        "run `sudo iptables -L` there; in a container it needs the capability NET_ADMIN",
    )


def _no_room(host: InventoryHost, room_bytes: int) -> Problem:
    why = "a run makes its folder there"
    if room_bytes < 0:
        return Problem(
            f"{host} has no folder {host.folder} that root may write to",
            why,
            f"make it there (sudo mkdir -p {shlex.quote(host.folder)}), or correct `folder` in the "
            "inventory",
        )
    return Problem(
        f"{host} has {room_bytes / 1e6:.0f} MB left in {host.folder}",
        why,
        f"make room for {MIN_DISK_BYTES / 1e6:.0f} MB, or choose another `folder`",
    )
