"""Checks whether this machine can run local nodes; if not: what is missing, why, and how to fix it.

The check tries it, in a process of its own: namespaces, mounts, a bridge with a pair of links, and
a rule that drops packets at random. A failure is then explained by the few known causes
(distributions that restrict user namespaces, containers, missing programs or kernel modules).
"""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from clusters.hosts._agent import agent as agent_program
from clusters.hosts._faults import own_disk
from clusters.hosts._problems import Problem
from clusters.hosts.local import namespaces

PROBE_WITHIN_S = 20.0
CAP_SYS_ADMIN, ALL_IDS, LOOP_CTL_GET_FREE = 21, "4294967295", 0x4C82
DISK_PROGRAMS = {"mkfs.ext4": "e2fsprogs", "mount": "mount", "umount": "mount"}
_KERNEL = Path("/proc/sys/kernel")
_NAMESPACES_MATTER = (
    "local nodes live in namespaces of their own, so that a trial needs no root and leaves "
    "nothing behind"
)
_DOCKER_OPTIONS = (
    "docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined ..."
)
_LINKS = (
    "link add probe0 type bridge\n"
    "link add probe1 type veth peer name probe2\n"
    "link set probe1 master probe0\n"
)
_RULES = (
    "*filter\n:SEATRIAL - [0:0]\n-I INPUT -j SEATRIAL\n-A SEATRIAL -s 198.18.1.1 -j DROP\nCOMMIT\n"
)
_LOSS = (
    "*filter\n:SEATRIAL - [0:0]\n"
    "-A SEATRIAL -s 198.18.1.1 -m statistic --mode random --probability 0.5 -j DROP\nCOMMIT\n"
)


def problems() -> list[Problem]:
    """Return everything that prevents a local trial."""
    missing = list(_missing_programs())
    if missing:
        return missing
    failed = _run_attempt()
    return [_explain(failed)] if failed else []


def why_no_own_disks(*, try_it: bool = False) -> str:
    """Return why nodes cannot have file systems of their own, and what to do; empty if they can.
    `try_it`: make one, cut its power and mount it again, instead of looking only."""
    return _why_no_disk() or (_why_disk_fails() if try_it else "")


@cache
def _why_no_disk() -> str:
    rights = _read("/proc/self/status").partition("CapEff:")[2].split()
    may_mount = bool(rights) and int(rights[0], 16) >> CAP_SYS_ADMIN & 1
    if not may_mount or _read("/proc/self/uid_map").split() != ["0", "0", ALL_IDS]:
        return (
            "a file system of its own for each node's data needs root of the machine itself; to "
            "fix it: run seatrial as root, outside of unprivileged containers"
        )
    for program, package in DISK_PROGRAMS.items():
        if not shutil.which(program, path=search_path()):
            return f"the program {program} is missing; to fix it: {_install(package)}"
    try:
        with open("/dev/loop-control", "rb") as control:
            fcntl.ioctl(control, LOOP_CTL_GET_FREE)
    except OSError as e:
        return f"there are no loop devices ({e.strerror}); to fix it: sudo modprobe loop"
    return ""


@cache
def _why_disk_fails() -> str:
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-I", "-S", own_disk.__file__, "try", folder]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_WITHIN_S)
            why = json.loads(done.stdout)["why"] if done.stdout else done.stderr.strip()[-300:]
        except subprocess.TimeoutExpired:
            why = f"no answer within {PROBE_WITHIN_S:g} s"
    if not why:
        return ""
    return (
        f"the power of a disk cannot be cut here ({why}); to fix it: load the modules ext4 and loop"
    )


def search_path() -> str:
    """Return PATH with the folders of administrators' programs."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *agent_program.SYSTEM_FOLDERS])


def explain(error: OSError) -> str:
    """Return a message for a refused entry into namespaces."""
    return _refused_namespaces(error.errno or 0).sentence()


def _missing_programs() -> list[Problem]:
    wanted = {
        "ip": ("iproute2", "it joins the nodes of a trial to one network"),
        "iptables": ("iptables", "it cuts the links between nodes"),
        "iptables-restore": ("iptables", "it cuts the links of a node in one step"),
        "iptables-save": ("iptables", "its counters prove that a link is cut"),
    }
    problems: dict[str, Problem] = {}
    for program, (package, why) in wanted.items():
        if not shutil.which(program, path=search_path()):
            problem = Problem(f"the program {program} is missing", why, _install(package))
            problems.setdefault(package, problem)
    return list(problems.values())


def _install(package: str) -> str:
    if shutil.which("dnf"):
        return f"sudo dnf install -y {'iproute' if package == 'iproute2' else package}"
    return f"sudo apt-get install -y {package}"


# -------------------------------------------------------------------------- trying it, in a child


def _run_attempt() -> dict[str, object] | None:
    """Return the step that failed, as the child process reported it."""
    root = str(Path(__file__).resolve().parents[3])
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "clusters.hosts.local.requirements"],
            env={**os.environ, "PATH": search_path(), "PYTHONPATH": root},
            capture_output=True,
            text=True,
            timeout=PROBE_WITHIN_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"step": "time", "number": 0, "text": f"no answer within {PROBE_WITHIN_S:g} s"}
    if done.returncode == 0:
        return None
    if done.stdout.strip():
        failed: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
        return failed
    return {"step": "unknown", "number": 0, "text": done.stderr.strip()[-300:]}


def _attempt() -> int:
    """Do once what a trial does, in the child process; print the step that failed."""
    try:
        namespaces.enter(namespaces.NEWNET | namespaces.NEWNS | namespaces.NEWPID)
    except OSError as e:
        return _failed("namespaces", e.errno or 0, str(e))
    inside = os.fork()
    if inside:
        return os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
    for step, attempt in _STEPS.items():
        try:
            attempt()
        except OSError as e:
            return _failed(step, e.errno or 0, str(e))
        except subprocess.CalledProcessError as e:
            return _failed(step, 0, " ".join(str(e.stderr).split()))
    return 0


def _failed(step: str, number: int, text: str) -> int:
    print(json.dumps({"step": step, "number": number, "text": text}), flush=True)
    return 1


def _mount() -> None:
    namespaces.make_mounts_private()
    namespaces.mount("proc", "/proc")


def _feed(argv: list[str], text: str) -> None:
    subprocess.run(argv, input=text, text=True, capture_output=True, check=True)


_STEPS: Mapping[str, Callable[[], None]] = {
    "mounts": _mount,
    "links": lambda: _feed(["ip", "-batch", "-"], _LINKS),
    "rules": lambda: _feed(["iptables-restore", "-w", "--noflush"], _RULES),
    "statistic": lambda: _feed(["iptables-restore", "-w", "--noflush"], _LOSS),
}


# -------------------------------------------------------------------------------- explaining it


def _explain(failed: dict[str, object]) -> Problem:
    text = str(failed["text"])
    match failed["step"]:
        case "namespaces":
            return _refused_namespaces(int(str(failed["number"])))
        case "mounts" if _in_container():
            return Problem(
                "this container may not mount /proc", _NAMESPACES_MATTER, _DOCKER_OPTIONS
            )
        case "mounts":
            return _refused_namespaces(int(str(failed["number"])))
        case "links":
            return Problem(
                f"the kernel refused a bridge or a pair of virtual links ({text})",
                "they are the network between nodes",
                "sudo modprobe -a bridge veth",
            )
        case "rules":
            return Problem(
                f"iptables does not work in a namespace ({text})",
                "it cuts the links between nodes",
                "sudo modprobe -a nf_tables nft_compat ip_tables iptable_filter",
            )
        case "statistic":
            return Problem(
                f"iptables has no statistic match ({text})",
                "it drops packets by chance for the fault `loss`",
                "sudo modprobe xt_statistic",
            )
        case _:
            return Problem(f"making a test network failed ({text})", _NAMESPACES_MATTER, _by_hand())


def _refused_namespaces(number: int) -> Problem:
    """Return the problem among the known restrictions of user namespaces."""
    if _read(_KERNEL / "apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        what = "AppArmor keeps ordinary users from user namespaces"
        fix = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    elif _read(_KERNEL / "unprivileged_userns_clone") == "0" and os.geteuid() != 0:
        what = "the kernel keeps ordinary users from user namespaces"
        fix = "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    elif number == errno.ENOSPC or _read("/proc/sys/user/max_user_namespaces") == "0":
        what = "the limit of user namespaces is reached"
        fix = "sudo sysctl -w user.max_user_namespaces=15000"
    elif number == errno.EINVAL:
        what = "this process had started threads before it entered its namespaces"
        fix = "run the `seatrial` command itself, not a trial inside a program of yours"
    elif _in_container():
        what = "this container may not make user namespaces"
        fix = _DOCKER_OPTIONS
    elif _in_chroot():
        what = "user namespaces cannot be made in a chroot"
        fix = "run seatrial outside the chroot"
    else:
        what = f"user namespaces are refused ({os.strerror(number)})"
        fix = _by_hand()
    return Problem(what, _NAMESPACES_MATTER, fix)


def _by_hand() -> str:
    return "see what `unshare --user --map-root-user --net --mount --pid --fork true` says"


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _in_container() -> bool:
    marks = ("/.dockerenv", "/run/.containerenv")
    return any(Path(mark).exists() for mark in marks) or "Seccomp:\t2" in _read("/proc/self/status")


def _in_chroot() -> bool:
    try:
        return not Path("/proc/1/root").samefile("/")
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(_attempt())
