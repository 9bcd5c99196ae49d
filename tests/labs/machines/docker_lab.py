"""A Docker engine of the tests' own: a real dockerd in namespaces that vanish with it.

The engine has its own network, mounts and processes, and its data, socket and state in a folder of
its own, so it needs no engine on the machine, reaches no registry, and the machine's rules, links
and mounts stay as they are. What needs its network (a trial whose driver talks to containers) runs
inside with `run` or `inside`: that enters the network alone, so pids and files are as they are
outside, and killing such a process kills it.

`tests/conftest.py` imports the fixture `docker_lab`, so any test gets the session's engine by that
name. `with raised() as lab:` is the same without pytest. Leaving it ends every process, and it is
an error if a mount, process, cgroup, file or iptables rule stayed behind.
"""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PATIENCE_S = 120.0
PROGRAMS = ("dockerd", "containerd", "runc", "ip", "iptables", "mount", "nsenter", "setpriv")
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
CGROUPS = Path("/sys/fs/cgroup")
PROCESS_1 = """
set -e
ip link set lo up
mount -t tmpfs tmpfs /run
[ ! -d /etc/docker ] || mount -t tmpfs tmpfs /etc/docker
dockerd "$@" &
wait $!
"""


@dataclass(frozen=True)
class DockerLab:
    """A running engine. `pid`: its process 1, whose namespaces it lives in."""

    folder: Path
    pid: int

    @property
    def host(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes a client use this engine and no other."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("DOCKER_")}
        return {**inherited, "PATH": SEARCH_PATH, "DOCKER_HOST": self.host}

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The same command in the engine's network; to be started with `environment`."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: str = "",
        timeout_s: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the engine's network to its end."""
        return subprocess.run(
            self.inside(argv),
            env={**self.environment, **(env or {})},
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def rules(self) -> str:
        """The engine's iptables rules; never the machine's."""
        return self.run(["iptables-save"]).stdout


@pytest.fixture(scope="session")
def docker_lab() -> Iterator[DockerLab]:
    """One engine for all tests of the session."""
    if why := lacking():
        pytest.skip(f"no Docker engine of our own can be started here: {why}")
    with raised() as lab:
        yield lab


def lacking() -> str:
    """Why no lab can be raised here; empty: it can."""
    if sys.platform != "linux":
        return "this is not Linux"
    if os.geteuid() != 0:
        return "dockerd needs root; run the tests as root (sudo) to include them"
    missing = [p for p in PROGRAMS if not shutil.which(p, path=SEARCH_PATH)]
    packages = "docker.io iproute2 iptables util-linux"
    return f"missing {', '.join(missing)}; apt-get install {packages}" if missing else ""


@contextmanager
def raised(*options: str) -> Iterator[DockerLab]:
    """An engine that answers; `options` are dockerd's. On leaving nothing of it is left."""
    rules = _machine_rules()
    folder = Path(tempfile.mkdtemp(prefix="docker-lab-"))
    with (folder / "dockerd.log").open("w") as log:
        outside = subprocess.Popen(
            _command(folder, options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": SEARCH_PATH},
            start_new_session=True,
        )
    try:
        yield _answering(folder, outside)
    finally:
        _end(outside)
        left = _left_after(folder)
    assert not left, f"the lab left something behind: {left}"
    assert _machine_rules() == rules, "the machine's own iptables rules changed"


def _command(folder: Path, options: Sequence[str]) -> list[str]:
    """`setpriv` ends all of it with the test run, also when that is killed."""
    unshare = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    dockerd = {
        "--data-root": folder / "data",
        "--exec-root": folder / "exec",
        "--pidfile": folder / "pid",
        "--host": f"unix://{folder}/docker.sock",
        "--cgroup-parent": f"/{folder.name}",
        "--exec-opt": "native.cgroupdriver=cgroupfs",
        "--log-level": "warn",
    }
    return [
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *unshare,
        *("sh", "-c", PROCESS_1, "docker-lab"),
        *(f"{name}={value}" for name, value in dockerd.items()),
        *options,
    ]


def _answering(folder: Path, outside: subprocess.Popen[bytes]) -> DockerLab:
    def answers() -> bool:
        if outside.poll() is not None:
            pytest.fail(f"dockerd ended:\n{(folder / 'dockerd.log').read_text()[-2000:]}")
        return _pings(folder / "docker.sock")

    if not _until(answers):
        pytest.fail(f"dockerd did not answer:\n{(folder / 'dockerd.log').read_text()[-2000:]}")
    return DockerLab(folder, _process_1(outside))


def _process_1(outside: subprocess.Popen[bytes]) -> int:
    """Of the lab, as it is called outside; 0 when there is none yet, or no more."""
    try:
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text()
    except OSError:
        return 0
    return int((children.split() or ["0"])[0])


def _end(outside: subprocess.Popen[bytes]) -> None:
    """Process 1 takes all others with it, and is waited for by the one outside."""
    if pid := _process_1(outside):
        os.kill(pid, signal.SIGKILL)
    try:
        outside.wait(PATIENCE_S if pid else 0.1)
    except subprocess.TimeoutExpired:
        outside.kill()
        outside.wait()


def _pings(path: Path) -> bool:
    connection = http.client.HTTPConnection("engine", timeout=PATIENCE_S)
    with socket.socket(socket.AF_UNIX) as connection.sock:
        try:
            connection.sock.connect(str(path))
            connection.request("GET", "/_ping")
            return connection.getresponse().read() == b"OK"
        except OSError:
            return False


def _left_after(folder: Path) -> list[str]:
    """Take the folder and the cgroups away, once nothing uses them; what would not go."""
    _until(lambda: not [*_processes(folder), *_mounts(folder)])
    left = [*_processes(folder), *_mounts(folder)]
    _until(lambda: not _cgroups(folder.name))
    shutil.rmtree(folder, ignore_errors=True)
    return left + _cgroups(folder.name) + ([str(folder)] if folder.exists() else [])


def _processes(folder: Path) -> list[str]:
    """Processes of the lab: all were started with its folder in their arguments, or in cgroups
    of its name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            group = (process / "cgroup").read_text()
        except OSError:
            continue
        if command and (f"{folder}/" in command or f"/{folder.name}/" in group):
            found.append(f"process {process.name}: {command}")
    return found


def _mounts(folder: Path) -> list[str]:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return [mount for mount in mounts if str(folder) in mount]


def _cgroups(name: str) -> list[str]:
    """Remove the lab's control groups, in each hierarchy; those that would not go."""
    roots = [p for p in (CGROUPS / name, *CGROUPS.glob(f"*/{name}")) if p.is_dir()]
    for root in roots:
        for path, _, _ in os.walk(root, topdown=False):
            try:
                Path(path).rmdir()
            except OSError:  # a process in it is ending
                break
    return [str(root) for root in roots if root.exists()]


def _machine_rules() -> str:
    """Every rule, and every chain that is not an empty default."""
    done = subprocess.run(
        ["iptables-save"],
        env={**os.environ, "PATH": SEARCH_PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    chains = (line.split(" [")[0] for line in done.stdout.splitlines())
    return "\n".join(c for c in chains if c[:1] in ("-", ":") and not c.endswith(" ACCEPT"))


def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False
