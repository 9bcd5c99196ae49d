"""One host of a run: occupied, served by an agent, and given back as it was.

Setting up and cleaning up are scripts (`remote_scripts`) that the host's own Python runs, one
command each; between them everything goes through the agent. Blocking functions run in threads of
their own, so a host that hangs delays no other.
"""

import asyncio
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import paramiko

from clusters.hosts._agent import archive, clock_sync, download
from clusters.hosts._agent.driver import PipeAgent
from clusters.hosts._agent.machine_id import driver_id
from clusters.hosts._agent.reconnecting_agent import ReconnectingConnection
from clusters.hosts._agent.stream_agent import Stream
from clusters.hosts._agent.threads import in_thread
from clusters.hosts._problems import Unready
from clusters.hosts.ssh import remote_scripts
from clusters.hosts.ssh.claims import HostClaim, owner
from clusters.hosts.ssh.connections import HostConnections, RemoteHost
from clusters.hosts.ssh.diagnosis import BROKEN
from harness.contracts import ClockOffset, Node, PythonRuntime
from harness.errors import BedFailed, SeatrialError
from harness.history.runs import is_over
from harness.run.parent_pipe import log
from harness.text.parsing import parse_json
from harness.text.plurals import quantity

SCRIPT_WITHIN_S = 40.0
DOWNLOAD_WITHIN_S = 30.0
CLEAR_WITHIN_S = 15.0
PORTION_BYTES = 1 << 18
MAX_SWEEPS = 64
MAX_GREETING_BYTES = 1 << 20
COUNTED_NOUNS = {
    "agents": ("agent", "agents"),
    "processes": ("process", "processes"),
    "rules": ("link rule", "link rules"),
    "folder": ("folder", "folders"),
}
GZIP = b"\x1f\x8b\x08"  # magic number
PYTHON_OPTIONS = ("-I", "-S")  # only the standard library, and nothing of the users'


class CleanupFailed(BedFailed):
    """Something of a run is still on a host."""


class SshNode:
    """A node's host, while a run occupies it."""

    def __init__(
        self,
        connections: HostConnections,
        remote: RemoteHost,
        node: Node,
        run: Path,
        folder: str,
        lease_s: float,
    ) -> None:
        self.node, self.folder = node, folder
        self._owner = owner(run)
        self.python = PythonRuntime(remote.host.python, f"{folder}/packages")
        self.clock = ClockOffset()
        self._pool, self._remote = connections, remote
        self._lease_s = lease_s
        self._dials = 0
        self._occupying: asyncio.Future[None] | None = None
        self._touched = False  # something of ours may be on the host
        self._connection: ReconnectingConnection | None = None

    @property
    def agent(self) -> PipeAgent:
        assert self._connection
        return self._connection.agent

    @property
    def host(self) -> str:
        return str(self._remote.host)

    @property
    def claim(self) -> HostClaim:
        return HostClaim(self.node.name, self._remote.host, self.folder, self._owner)

    async def connect(self, for_s: float) -> None:
        """Occupy the host, wait until its agent answers, and compare its clock."""
        self._occupying = asyncio.ensure_future(in_thread(self._occupy))
        await asyncio.shield(self._occupying)  # `left` must know what was done
        self._connection = ReconnectingConnection(self.node.name, self._dial, self._lease_s)
        identity = await self.agent.hello()
        await self.agent.links(())  # so that the first fault finds its chain
        self.clock = await clock_sync.compare_clock(self.agent, identity, for_s)

    async def release(self, into: Path) -> str:
        """Copy the node's files and clean up; return why something is left, or an empty string."""
        if self._connection:
            await self._connection.hang_up()
        stays = f"what {self.node.name} wrote is still in {self.folder} there"
        try:
            async with asyncio.timeout(DOWNLOAD_WITHIN_S):
                if await self._is_occupied():
                    await in_thread(lambda: self._download(into))
            async with asyncio.timeout(CLEAR_WITHIN_S):
                if self._touched:
                    await in_thread(lambda: clean_up(self._remote, self.folder, self._owner))
        except TimeoutError:
            return f"cleaning up {self.host} took longer than {DOWNLOAD_WITHIN_S:g} s; {stays}"
        except (SeatrialError, *BROKEN, tarfile.TarError, zlib.error) as e:
            return f"{_short(e)}; {stays}"
        return ""

    async def _is_occupied(self) -> bool:
        """Return whether something of ours may be on the host, once an interrupted `_occupy` has
        ended."""
        if self._occupying:
            await asyncio.wait([self._occupying])
            self._occupying.exception()  # retrieved, so that asyncio does not report it
        return self._touched

    # ------------------------------------------------------------------------- in threads

    def _occupy(self) -> None:
        """Make the folder, unpack our code and start the agent; before that, clean up after
        finished runs."""
        order = {
            "folder": self.folder,
            "node": self.node.name,
            "owner": self._owner,
            "address": self.node.address,
            "lease_s": self._lease_s,
        }
        known: list[str] = []
        for _ in range(MAX_SWEEPS):
            self._touched = True
            answer = run_script(self._remote, "occupy", archive.archive(), **order, known=known)
            others = answer["others"]
            self._touched = not others
            if self._touched:
                self.python = PythonRuntime(str(answer["python"]), f"{self.folder}/packages")
                return
            for other in others:
                self._sweep(other["folder"], other["owner"], other["agents"] > 0)
                known.append(other["folder"])
        raise BedFailed(f"{self.host} has too many folders of finished runs; remove them")

    def _sweep(self, folder: str, theirs: Mapping[str, str], has_agent: bool) -> None:
        """Clean up after a finished run. The folder of another machine's run stays, because only
        that machine knows if it has finished. Raises BedFailed if the run has not finished."""
        if theirs == self._owner:
            raise BedFailed(
                f"{self.host} is the same machine as another host of the inventory, or shares its "
                f"folder {self._remote.host.folder}; list each machine once"
            )
        state = _run_state(theirs)
        if state == "running" or (has_agent and state != "over"):
            raise BedFailed(_in_use(self.host, theirs, folder))
        if done := summary([clean_up(self._remote, folder, theirs, remove=state == "over")]):
            log(f"{self.host}: removed what {Path(folder).name} left: {', '.join(done)}")

    def _dial(self) -> Stream:
        """Open a relay to the agent; after a break, over a new connection, because the old one may
        be broken."""
        try:
            if self._dials:
                self._remote = self._pool.reconnect(self._remote)
            self._dials += 1
            relay = f"{self.folder}/packages/clusters/hosts/_agent/{remote_scripts.RELAY}"
            argv = [self.python.executable, *PYTHON_OPTIONS, relay, self.folder]
            return _ChannelStream(self._remote.open_channel(argv))
        except Unready as e:
            raise BedFailed(_short(e)) from e
        except BROKEN as e:
            raise BedFailed(f"the connection to {self.host} broke: {e or 'it ended'}") from e

    def _download(self, into: Path) -> None:
        """End the run on the host and copy its files. If the connection is broken, it tries again
        over a new one."""
        try:
            self._fetch(into)
        except (BedFailed, *BROKEN):
            self._remote = self._pool.reconnect(self._remote)
            self._fetch(into)

    def _fetch(self, into: Path) -> None:
        limit = download.MAX_FILE_BYTES
        order = {"folder": self.folder, "owner": self._owner, "node": self.node.name}
        channel = self._remote.open_channel(_argv(self._remote))
        try:
            channel.settimeout(DOWNLOAD_WITHIN_S)
            channel.sendall(_script("home", {**order, "largest_bytes": limit}))
            channel.shutdown_write()
            left_out = download.unpack(download.IterableReader(_inflate(channel)), into)
            for line in (*left_out, *_error_lines(channel)):
                log(f"{self.node.name}: {line}")
        except tarfile.ReadError as e:  # the tar is incomplete or missing
            why = [str(e), *_error_lines(channel)][-1]
            raise BedFailed(f"the files of {self.node.name} could not be copied: {why}") from e
        finally:
            channel.close()


class _ChannelStream:
    """An SSH channel as a `Stream`."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self.recv, self.sendall = channel.recv, channel.sendall
        self.shutdown, self.close = channel.shutdown_write, channel.close


# ------------------------------------------------------------------------------------ scripts


def run_script(remote: RemoteHost, do: str, payload: bytes = b"", **fields: Any) -> dict[str, Any]:
    """Have the host's Python run a script; return its answer. Raises BedFailed if it fails."""
    done = remote.run(_argv(remote), _script(do, fields) + payload, SCRIPT_WITHIN_S)
    if done.code != 0:
        lines = done.err.strip().splitlines() or [f"exit code {done.code}"]
        raise BedFailed(f"{remote.host}: {lines[-1]}")
    try:
        answer: dict[str, Any] = _parse_answer(parse_json(done.out.strip().rpartition("\n")[2]))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BedFailed(f"{remote.host} gave an invalid answer to {do!r}") from None
    return answer


def _parse_answer(answer: Any) -> dict[str, Any]:
    """Return an answer whose fields have the expected types."""
    others = [
        {
            "folder": str(other["folder"]),
            "owner": {key: str(other["owner"][key]) for key in ("driver", "run")},
            "agents": int(other["agents"]),
        }
        for other in answer.get("others", ())
    ]
    counts = {key: int(answer[key]) for key in COUNTED_NOUNS if key in answer}
    return {**answer, **counts, "others": others}


def clean_up(
    remote: RemoteHost, folder: str, owner: Mapping[str, str], *, remove: bool = True
) -> dict[str, Any]:
    """End everything of the run in this folder; return what there was."""
    return run_script(remote, "end", folder=folder, owner=owner, remove=remove)


def heal_host(connections: HostConnections, claim: HostClaim) -> dict[str, Any]:
    """Clean up on a host that this process has no connection to. Raises CleanupFailed if that is
    impossible."""
    try:
        done = clean_up(connections.reach(claim.host), claim.folder, claim.owner)
    except (BedFailed, *BROKEN) as e:
        where = Path(claim.folder).parent  # the run's name is in the message already
        raise CleanupFailed(f"its folder in {where} is still on {claim.host}: {_short(e)}") from e
    if done.get("shared"):
        log(f"{claim.host}: another run is using it, so the link rules there are that run's")
    return done


def summary(done: Sequence[dict[str, Any]]) -> list[str]:
    """Return the sums of what was removed, as phrases."""
    counts = {key: sum(int(each[key]) for each in done) for key in COUNTED_NOUNS}
    return [quantity(count, *COUNTED_NOUNS[key]) for key, count in counts.items() if count]


def _argv(remote: RemoteHost) -> list[str]:
    return [remote.host.python, *PYTHON_OPTIONS, "-c", remote_scripts.BOOT]


def _script(do: str, fields: Mapping[str, Any]) -> bytes:
    """Return the input of the host's Python: the scripts, and which of them to run."""
    text = Path(remote_scripts.__file__).read_bytes()
    return f"{len(text)}\n".encode() + text + json.dumps({"do": do, **fields}).encode() + b"\n"


def _short(error: Exception) -> str:
    """Return what is wrong with a host that was ready before; advice on setting it up does not help
    then."""
    return error.problem.what if isinstance(error, Unready) else str(error)


def _run_state(owner: Mapping[str, str]) -> Literal["running", "over", "unknown"]:
    """Return what this machine knows of a run, by the owner.json of its folder on a host."""
    if owner["driver"] != driver_id():
        return "unknown"
    over = is_over(Path(owner["run"]))
    return "unknown" if over is None else "over" if over else "running"


def _in_use(host: str, owner: Mapping[str, str], folder: str) -> str:
    whose = owner["run"] or folder
    elsewhere = owner["driver"] != driver_id()
    where = f" of the machine {owner['driver'].split('/')[0]}" if elsewhere else ""
    return (
        f"{host} is in use by the run {whose}{where}; wait for its end, or take other hosts. If "
        "that run was killed, the host frees itself within a minute"
    )


def _inflate(channel: paramiko.Channel) -> Iterator[bytes]:
    """Yield unpacked data, without what a .bashrc printed in front. Portions are limited even if
    the data is extremely compressed: a host may be hostile."""
    inflate = zlib.decompressobj(31)
    data = b""
    while GZIP not in data and len(data) < MAX_GREETING_BYTES:
        if not (more := channel.recv(PORTION_BYTES)):
            break
        data += more
    data = data[data.find(GZIP) :] if GZIP in data else b""
    while data:
        if plain := inflate.decompress(data, PORTION_BYTES):
            yield plain
        data = inflate.unconsumed_tail or channel.recv(PORTION_BYTES)


def _error_lines(channel: paramiko.Channel) -> list[str]:
    """Return the lines of the standard error of a script that has ended, up to a limit."""
    with channel.makefile_stderr("rb") as errors:
        return list(errors.read(PORTION_BYTES).decode(errors="replace").splitlines())
