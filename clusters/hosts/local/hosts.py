"""Nodes as network namespaces of this machine, without root; nothing outlives the run.

The runner enters its own user, network, mount and pid namespaces, where it is process 1. Each node
is one more network namespace, connected to a bridge by a pair of virtual links, with a real
address, real TCP and real `iptables`. Everything depends on process 1: when it ends, by whatever
signal, the kernel kills all processes of the run and removes the namespaces, links, mounts and
rules. The machine's own network, rules and mounts are never changed. A plan that cuts the power of
disks needs root: a user namespace cannot mount a file system, so the runner enters none then.

Three things tie process 1 to the command that started it: the kernel's death signal to the process
that waits outside, the same from that one to process 1, and the end of standard input.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import clusters
from clusters.hosts._addresses import address
from clusters.hosts._agent import agent as agent_program
from clusters.hosts._agent.driver import PipeAgent, PipeConnection
from clusters.hosts._problems import Problem
from clusters.hosts._real_hosts import ABILITIES, RealHosts, clock_ability
from clusters.hosts.local import namespaces, requirements
from harness.contracts import Agent, ClockOffset, HostsPlugin, Node, PythonRuntime
from harness.errors import BadRequest, BedFailed
from harness.history.rundir import RunDir
from harness.trial import Trial

PACKAGES = Path(clusters.__file__).resolve().parents[1]
BRIDGE = "seatrial0"
NETWORK_BITS = 16
BRIDGE_ADDRESS = "198.18.0.1"
RAISE_WITHIN_S = 30.0
LEAVE_WITHIN_S = 3.0

NEEDS = (  # what `problems` tries, for the doctor's table
    "user namespaces",
    "iproute2: bridge, virtual links",
    "iptables: drop packets",
    "iptables: drop by chance",
)


def hosts(trial: Trial, folder: Path) -> "LocalHosts":
    _check(trial.bed)
    return LocalHosts(Path(folder).resolve())


def problems(bed: Mapping[str, Any]) -> list[Problem]:
    _check(bed)
    return requirements.problems()


def shell(run: RunDir, node: str, command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command on a node of a running trial, from outside its
    namespaces."""
    pid = _outside_pid(run.names()["addresses"][node], run.state()["keeper"])
    enter = ["nsenter", "-t", str(pid), "--net", "--mount", "--pid"]
    if os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user"):
        enter += ["--user", "--preserve-credentials"]
    return [*enter, "--wd=/", "--", *command]


def optional() -> dict[str, Problem | None]:
    """Return why the power of a node's disk cannot be cut, or None if it can."""
    what, _, fix = requirements.why_no_own_disks(try_it=True).partition("; to fix it: ")
    matters = 'the fault unsynced with by = "disk" needs it'
    return {"power cuts of disks": Problem(what, matters, fix) if what else None}


PLUGIN = HostsPlugin(hosts=hosts, problems=problems, needs=NEEDS, shell=shell, optional=optional)


def _outside_pid(node_address: str, keeper: int) -> int:
    """Return the pid, outside, of the agent with this address below the keeper process."""
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = cmdline.read_bytes().split(b"\0")
            if words[-2:-1] == [node_address.encode()] and agent_program.__file__.encode() in words:
                pid = int(cmdline.parent.name)
                if keeper in _ancestors(pid):
                    return pid
    raise BedFailed(f"the agent of {node_address} is gone")


def _ancestors(pid: int) -> Iterator[int]:
    while pid:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _check(bed: Mapping[str, Any]) -> None:
    if bed:
        raise BadRequest(f"local hosts have no options; remove bed.{min(bed)}")


class LocalHosts(RealHosts):
    """The namespaces of one run, whose files are below `folder`."""

    can = ABILITIES | clock_ability(as_root=True)
    shares_files = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._as_root = False  # stay root of the machine, as own disks need
        if not requirements.why_no_own_disks():
            self.can = self.can | {"own-disk"}

    def enter(self) -> None:
        """Continue as process 1 of the run's own namespaces; the caller must have one thread."""
        os.environ["PATH"] = requirements.search_path()
        parent = os.getppid()
        enter = namespaces.unshare if self._as_root else namespaces.enter
        try:
            enter(namespaces.NEWNET | namespaces.NEWNS | namespaces.NEWPID)
        except OSError as e:
            raise BedFailed(requirements.explain(e)) from e
        namespaces.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)  # it ended before the death signal was set
        _fork_as_process_1()
        _make_mounts(self._folder)
        _disable_ipv6()

    def check(self, nodes: Sequence[Node]) -> None:
        """Accept any number of nodes."""

    def why_no_own_disks(self) -> str:
        return requirements.why_no_own_disks(try_it=True)

    def prepare_own_disks(self) -> None:
        self._as_root = not requirements.why_no_own_disks(try_it=True)
        if not self._as_root:
            self.can = self.can - {"own-disk"}

    @asynccontextmanager
    async def start_nodes(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        addressed = [replace(node, address=address(at)) for at, node in enumerate(nodes)]
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, _reap)
        started = [_NamespaceNode(node) for node in addressed]
        try:
            _make_network([node.pid for node in started])
            async with asyncio.timeout(RAISE_WITHIN_S):
                agents = await asyncio.gather(*(node.connect() for node in started))
            yield addressed, {agent.node: agent for agent in agents}
        except TimeoutError:
            raise BedFailed(
                f"starting {len(nodes)} nodes took longer than {RAISE_WITHIN_S:g} s; "
                "is this machine overloaded?"
            ) from None
        finally:
            await asyncio.gather(*(node.release() for node in started))
            _remove_network()

    def folder(self, node: str) -> str:
        return str(self._folder / "nodes" / node)

    def python(self, node: str) -> PythonRuntime:
        return PythonRuntime(sys.executable, str(PACKAGES))

    def clock(self, node: str) -> ClockOffset:
        return ClockOffset()


class _NamespaceNode:
    """A node: an agent in a network namespace of its own, and the pipes to it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        theirs_in, to_agent = os.pipe()
        from_agent, theirs_out = os.pipe()
        with namespaces.elsewhere(namespaces.NEWNET, "net"):
            _disable_ipv6()
            self.pid = _spawn_agent(node.address, theirs_in, theirs_out)
        os.close(theirs_in)
        os.close(theirs_out)
        self._connection = PipeConnection(node.name, from_agent, to_agent)

    async def connect(self) -> PipeAgent:
        """Return the agent, when it answers and its node is on the network."""
        agent = self._connection.agent
        await self._connection.open()
        own = f"link set lo up\naddr add {self.node.address}/{NETWORK_BITS} dev eth0\n"
        done = await agent.run(["ip", "-batch", "-"], f"{own}link set eth0 up\n".encode())
        if done.code != 0:
            raise BedFailed(f"{self.node.name} has no network: ip printed {done.err.strip()}")
        await agent.links(())  # so that the first fault finds its chain
        return agent

    async def release(self) -> None:
        """Close the pipes: the agent ends what it started, and exits."""
        if not await self._connection.hang_up(LEAVE_WITHIN_S):
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _spawn_agent(node_address: str, stdin: int, stdout: int) -> int:
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-X",
        "frozen_modules=on",
        agent_program.__file__,
        node_address,
    ]
    files = [(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)]
    default = [signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD]
    return os.posix_spawn(
        argv[0], argv, os.environ, file_actions=files, setsid=True, setsigdef=default
    )


def _make_network(pids: Sequence[int]) -> None:
    """Make a bridge, and a pair of links from it into each node's namespace, in one batch."""
    script = [
        "link set lo up",
        f"link add {BRIDGE} type bridge forward_delay 0",
        f"addr add {BRIDGE_ADDRESS}/{NETWORK_BITS} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]
    for at, pid in enumerate(pids):
        script.append(f"link add node{at} type veth peer name eth0 netns {pid}")
        script.append(f"link set node{at} master {BRIDGE} up")
    _ip(script)


def _remove_network() -> None:
    with suppress(BedFailed):
        _ip([f"link del {BRIDGE}"])
    asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)


def _ip(script: Sequence[str]) -> None:
    text = "\n".join([*script, ""])
    done = subprocess.run(["ip", "-batch", "-"], input=text, text=True, capture_output=True)
    if done.returncode != 0:
        raise BedFailed(
            f"the network of the trial could not be created: ip printed {done.stderr.strip()}"
        )


def _reap() -> None:
    """Reap orphans, as process 1 of a pid namespace must."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_as_process_1() -> None:
    """Return in a child process, which is process 1 of the new pid namespace; this process waits
    outside."""
    alive, held = os.pipe()
    child = os.fork()
    if child:
        os.close(alive)
        _wait_outside(child)
    os.close(held)
    namespaces.die_with_parent()
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)  # the outer process ended before the death signal was set
    os.close(alive)


def _wait_outside(child: int) -> NoReturn:
    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, pass_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def _make_mounts(folder: Path) -> None:
    """Mount our own /proc, and an empty /run for the lock files of iptables and ip."""
    namespaces.make_mounts_private()
    namespaces.mount("proc", "/proc")
    needed = (folder, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    if not any(path.is_relative_to("/run") for path in needed):
        namespaces.mount("tmpfs", "/run")


def _disable_ipv6() -> None:
    """Disable IPv6: links are cut by IPv4 address, so there must be no other path."""
    for scope in ("all", "default"):
        with suppress(FileNotFoundError):  # a kernel without IPv6
            Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").write_text("1")
