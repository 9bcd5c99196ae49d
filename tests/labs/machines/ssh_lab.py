"""Machines of the tests' own, reached by SSH: real sshds on hosts that vanish with the lab.

A host is a set of namespaces (network, mounts, processes, name) with its own /etc, homes,
/tmp, /var/tmp and /run, an address on the lab's bridge, users and a host key. It differs from a
machine in that it shares the clock, and the rest of the files, which it can not write. The lab's
own network is where a driver stands: at 198.18.0.1, on the bridge.

    lab.host("h1")               one of those that are always there; leave it as it was
    lab.add()                    a host of your own, to break
    lab.inventory(hosts)         a file for `--bed inventory=FILE`
    lab.run([...]), lab.inside([...])   a command in the driver's place
    with lab.network():          code of this thread in the driver's place

`tests/conftest.py` imports the fixture `ssh_lab`. `with raised(9) as lab:` is the same without
pytest. Leaving it ends every process, and it is an error if anything stayed behind.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from docker_lab import (
    PATIENCE_S,
    SEARCH_PATH,
    _end,
    _machine_rules,
    _mounts,
    _process_1,
    _processes,
    _until,
)

from clusters.hosts.local import namespaces as _namespaces

HOSTS = 9
DRIVER = "198.18.0.1"
NETWORK_BITS = 16
HOSTS_PER_BLOCK = 200
PROGRAMS = (
    "sshd",
    "ssh-keygen",
    "sudo",
    "ip",
    "iptables",
    "mount",
    "nsenter",
    "setpriv",
    "unshare",
)
KINDS = {"net": "net", "mount": "mnt", "pid": "pid", "uts": "uts", "ipc": "ipc"}
LAB = f"""
set -e
ip link set lo up
ip link add lab0 type bridge forward_delay 0
ip addr add {DRIVER}/{NETWORK_BITS} dev lab0
ip link set lab0 up
touch "$1/ready"
exec sleep infinity
"""
HOST = """
set -e
hostname "$2"
mount -t tmpfs tmpfs /run
mkdir -p /run/lab /run/sshd /run/etc
[ -z "$3" ] || { mkdir /run/python; mount --bind "$3" /run/python; }
cp "$1"/* /run/lab/
cp -a /etc/. /run/etc/
mount --bind /run/etc /etc
for folder in ~root /home /tmp /var/tmp; do mount -t tmpfs tmpfs "$folder"; done
chmod 1777 /tmp /var/tmp
[ -z "$3" ] || { mkdir -p "$3"; mount --bind /run/python "$3"; }
mount -o remount,bind,ro /
for scope in all default; do
  [ ! -e /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/$scope/disable_ipv6
done
touch /run/lab/ready
while :; do sleep 1000000 & wait $! || :; done
"""
CONFIG = """
ListenAddress 0.0.0.0
HostKey /run/lab/host_key
PidFile /run/lab/sshd.pid
AuthorizedKeysFile /run/lab/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
StrictModes no
MaxStartups 100
MaxSessions 100
"""
SSHDS = """
for process in /proc/[0-9]*; do
  read -r name < $process/comm && [ "$name" = sshd ] && echo ${process#/proc/} || :
done 2> /dev/null
"""
NEW_KEY = """
rm /run/lab/host_key*
ssh-keygen -q -t ed25519 -N "" -f /run/lab/host_key
"""
NO_IPTABLES = """
for name in iptables iptables-restore iptables-save; do
  mount --bind /dev/null "$(readlink -f "$(command -v $name)")" || :
done
"""


class LabHost:
    """A machine of the lab. `pid`: its process 1, as it is called outside."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name, self.address, self.pid = name, address, pid

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command that runs another there, as root."""
        own = [f"--{long}=/proc/{self.pid}/ns/{short}" for long, short in KINDS.items()]
        return ["nsenter", *own, "--wd=/", "--", *argv]

    def run(self, *argv: str, stdin: str = "", check: bool = True) -> str:
        """A command there, as root; its output."""
        done = subprocess.run(
            self.inside(argv),
            env={"PATH": SEARCH_PATH, "HOME": os.path.expanduser("~root")},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert not check or done.returncode == 0, f"{self.name}: {argv}: {done.stderr}"
        return done.stdout

    def path(self, path: str) -> Path:
        """A file there, as it is called outside."""
        return Path("/proc", str(self.pid), "root", path.lstrip("/"))

    def start_sshd(self, *options: str) -> None:
        """`options` as in sshd_config: "PubkeyAuthentication no"."""
        also = [word for option in options for word in ("-o", option)]
        sshd = shutil.which("sshd", path=SEARCH_PATH) or "sshd"
        self.run(sshd, "-f", "/run/lab/sshd_config", "-E", "/run/lab/sshd.log", *also)
        assert _until(self.path("/run/lab/sshd.pid").exists)

    def kill_sshd(self) -> None:
        """The listener and all its sessions."""
        self.signal_sshd("KILL")
        assert _until(lambda: not self.run("sh", "-c", SSHDS)), "sshd would not end"
        self.path("/run/lab/sshd.pid").unlink(missing_ok=True)

    def signal_sshd(self, signal: str) -> None:
        """STOP: it hangs. CONT: it goes on."""
        pids = self.run("sh", "-c", SSHDS).split()
        self.run("sh", "-c", 'kill -s "$@" || :', "sh", signal, *pids)

    def cut_off(self, *sources: str) -> None:
        """Drop whatever comes from these addresses; none: let all in again."""
        self.run("iptables", "-F", "INPUT")
        for source in sources:
            self.run("iptables", "-I", "INPUT", "-s", source, "-j", "DROP")

    def change_key(self) -> None:
        """Another host key, as after an installation from scratch."""
        self.kill_sshd()
        self.run("sh", "-c", NEW_KEY)
        self.start_sshd()

    def add_user(self, name: str, *, sudo: bool) -> None:
        """Somebody who is not root; `sudo`: may become it without a password."""
        self.run("useradd", "--create-home", "--password", "*", "--shell", "/bin/sh", name)
        if sudo:
            self.write("/etc/sudoers", f"root ALL=(ALL) ALL\n{name} ALL=(ALL) NOPASSWD: ALL\n")
            self.run("chmod", "0440", "/etc/sudoers")

    def write(self, path: str, text: str, *, program: bool = False) -> None:
        self.run("sh", "-c", 'cat > "$0"', path, stdin=text)
        if program:
            self.run("chmod", "0755", path)

    def remove_iptables(self) -> None:
        self.run("sh", "-c", NO_IPTABLES)


@dataclass
class SshLab:
    """Running hosts. `pid`: the lab's process 1, whose network a driver stands in."""

    folder: Path
    pid: int
    standing: tuple[LabHost, ...] = ()  # the hosts that are always there, in order
    _outside: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _count: int = 0

    @property
    def key(self) -> Path:
        """The private key that every host lets in, as any user."""
        return self.folder / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The key of every host, as it was first."""
        return self.folder / "known_hosts"

    @property
    def python(self) -> str:
        """Python 3.11 or later, as the hosts call it."""
        home = _python_home()
        return f"{home}/bin/python3.{sys.version_info[1]}" if home else "python3"

    def host(self, name: str) -> LabHost:
        return next(host for host in self.standing if host.name == name)

    def add(self) -> LabHost:
        """One more host, for whoever wants to break it."""
        with self._lock:
            self._count += 1
            at = self._count
        name = f"h{at}"
        files = self._files(name)
        with (self.folder / "lab.log").open("a") as log:
            outside = subprocess.Popen(
                self._command(name, files),
                env={"PATH": SEARCH_PATH},
                cwd="/",  # a shell tells its children where it began, which may be called as we are
                stderr=log,
            )
        with self._lock:
            self._outside.append(outside)
        assert _until(lambda: _is_ready(_grandchild(outside.pid))), f"{name} did not start"
        host = LabHost(name, _address(at), _grandchild(outside.pid))
        self._join(host)
        host.start_sshd()
        kind, key, *_ = (files / "host_key.pub").read_text().split()
        with self._lock, self.known_hosts.open("a") as known:
            known.write(f"{host.address} {kind} {key}\n")
        return host

    def entry(self, host: LabHost, **more: Any) -> dict[str, Any]:
        """A host as an inventory lists it."""
        usual = {
            "host": host.address,
            "user": "root",
            "key": str(self.key),
            "known_hosts": str(self.known_hosts),
            "python": self.python,
        }
        return {**usual, **more}

    def inventory(self, hosts: Sequence[LabHost] = (), **more: Any) -> Path:
        """A file that lists these hosts, or those always there; `more` holds for each."""
        listed = [self.entry(host, **more) for host in hosts or self.standing]
        path = Path(tempfile.mkstemp(suffix=".toml", prefix="inventory-", dir=self.folder)[1])
        path.write_text(tomli_w.dumps({"host": listed}))
        return path

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The same command in the driver's place; files and pids are as they are outside."""
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
        """Run a command in the driver's place to its end."""
        return subprocess.run(
            self.inside(argv),
            env={**os.environ, "PATH": SEARCH_PATH, **(env or {})},
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    @contextmanager
    def network(self) -> Iterator[None]:
        """This thread, and those it starts, in the driver's place for the length of a block."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        there = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _namespaces.join(there, _namespaces.NEWNET)
            yield
        finally:
            _namespaces.join(here, _namespaces.NEWNET)
            os.close(here)
            os.close(there)

    def wait(self) -> None:
        """Once process 1 is gone: bury those who stood outside."""
        for outside in self._outside:
            outside.wait(PATIENCE_S)

    def _files(self, name: str) -> Path:
        """What a host is given at its start."""
        files = self.folder / name
        files.mkdir()
        _make_key(files / "host_key")
        (files / "sshd_config").write_text(CONFIG)
        shutil.copy(f"{self.key}.pub", files / "authorized_keys")
        return files

    def _command(self, name: str, files: Path) -> list[str]:
        apart = ("--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
        return [
            *("nsenter", f"--pid=/proc/{self.pid}/ns/pid", "--"),
            *("unshare", *apart, "--mount-proc", "--"),
            *("sh", "-c", HOST, "ssh-lab", str(files), name, _python_home()),
        ]

    def _join(self, host: LabHost) -> None:
        """A pair of links, from the bridge into the host."""
        pair = f"link add {host.name} type veth peer name eth0 netns {host.pid}\n"
        done = self.run(["ip", "-batch", "-"], stdin=f"{pair}link set {host.name} master lab0 up\n")
        assert done.returncode == 0, done.stderr
        own = f"addr add {host.address}/{NETWORK_BITS} dev eth0\nlink set eth0 up\n"
        host.run("ip", "-batch", "-", stdin=f"link set lo up\n{own}")


@pytest.fixture(scope="session")
def ssh_lab() -> Iterator[SshLab]:
    """One lab for all tests of the session."""
    if why := lacking():
        pytest.skip(f"no SSH hosts of our own can be started here: {why}")
    with raised(HOSTS) as lab:
        yield lab


def lacking() -> str:
    """Why no lab can be raised here; empty: it can."""
    if sys.platform != "linux":
        return "this is not Linux"
    if os.geteuid() != 0:
        return "sshd needs root; run the tests as root (sudo) to include them"
    missing = [p for p in PROGRAMS if not shutil.which(p, path=SEARCH_PATH)]
    packages = "openssh-server sudo iproute2 iptables util-linux"
    return f"missing {', '.join(missing)}; apt-get install {packages}" if missing else ""


@contextmanager
def raised(count: int) -> Iterator[SshLab]:
    """So many hosts that let us in. On leaving nothing of them is left."""
    rules = _machine_rules()
    folder = Path(tempfile.mkdtemp(prefix="ssh-lab-"))
    unshare = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    with (folder / "lab.log").open("a") as log:
        outside = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *unshare, "sh", "-c", LAB, "ssh-lab", folder],
            stdin=subprocess.DEVNULL,
            stderr=log,
            env={"PATH": SEARCH_PATH},
            start_new_session=True,
        )
    lab = None
    try:
        assert _until((folder / "ready").exists), "the lab's network could not be made"
        lab = SshLab(folder, _process_1(outside))
        _make_key(lab.key)
        with ThreadPoolExecutor(max_workers=4) as pool:
            hosts = [raising.result() for raising in [pool.submit(lab.add) for _ in range(count)]]
        lab.standing = tuple(sorted(hosts, key=lambda host: int(host.name[1:])))
        yield lab
    finally:
        _end(outside)
        if lab:
            lab.wait()
        left = [*_processes(folder), *_mounts(folder)]
        shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"the lab left something behind: {left}"
    assert _machine_rules() == rules, "the machine's own iptables rules changed"


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


def _address(at: int) -> str:
    block, place = divmod(at - 1, HOSTS_PER_BLOCK)
    return f"198.18.{block + 1}.{place + 11}"


def _grandchild(pid: int) -> int:
    """The only one there is; 0 while there is none."""
    for _ in range(2):
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return 0
        if not children:
            return 0
        pid = int(children[0])
    return pid


def _is_ready(pid: int) -> bool:
    return pid > 0 and Path("/proc", str(pid), "root", "run", "lab", "ready").exists()


def _python_home() -> str:
    """The folder of this interpreter, where the machine's own is too old for a node."""
    own = shutil.which("python3", path="/usr/bin")
    if own:
        said = "import sys; print(sys.version_info[:2] >= (3, 11))"
        asked = subprocess.run([own, "-c", said], capture_output=True, text=True)
        if asked.stdout.strip() == "True":
            return ""
    return str(Path(sys.base_prefix).resolve())
