"""One host of a run: taken, manned by an agent, and given back as it was.

Setting up and cleaning up are errands (`remote_scripts`) that the host's own Python runs, one
command each; between them everything goes through the agent. Blocking functions run in threads of
their own, so a host that hangs holds up nobody but itself.
"""

import asyncio
import json
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import paramiko

from clusters.hosts._agent import archive as _archive
from clusters.hosts._agent import clock_sync as _clocks
from clusters.hosts._agent import download as _homecoming
from clusters.hosts._agent.driver import PipeAgent
from clusters.hosts._agent.errors import Unready
from clusters.hosts._agent.machine_id import driver
from clusters.hosts._agent.reconnecting_agent import LastingCarrier
from clusters.hosts._agent.stream_agent import Stream
from clusters.hosts._agent.threads import aside
from clusters.hosts.ssh import remote_scripts as _errands
from clusters.hosts.ssh.claims import Taken, owner
from clusters.hosts.ssh.connections import Fleet, Machine
from clusters.hosts.ssh.diagnosis import BROKEN
from harness.contracts import Clock, Node, Python
from harness.errors import BedFailed, SeatrialError
from harness.history.runs import is_over
from harness.text.parsing import json_of

ERRAND_WITHIN_S = 40.0
HOME_WITHIN_S = 30.0
CLEAR_WITHIN_S = 15.0
PORTION_BYTES = 1 << 18
MAX_SWEEPS = 64
MAX_GREETING_BYTES = 1 << 20
COUNTED = {"agents": "agent", "processes": "process", "rules": "link rule", "folder": "folder"}
GZIP = b"\x1f\x8b\x08"  # how what was packed begins
WAYS = ("-I", "-S")  # the host's Python: its standard library, and nothing of its users'


class Stuck(BedFailed):
    """Something of a run is still on a host."""


class Berth:
    """A node's host, while a run has it."""

    def __init__(
        self, fleet: Fleet, machine: Machine, node: Node, run: Path, folder: str, lease_s: float
    ) -> None:
        self.node, self.folder = node, folder
        self._owner = owner(run)
        self.python = Python(machine.host.python, f"{folder}/packages")
        self.clock = Clock()
        self._fleet, self._machine = fleet, machine
        self._lease_s = lease_s
        self._dials = 0
        self._occupying: asyncio.Future[None] | None = None
        self._touched = False  # there may be something of ours on the host
        self._carrier: LastingCarrier | None = None

    @property
    def agent(self) -> PipeAgent:
        assert self._carrier
        return self._carrier.agent

    @property
    def host(self) -> str:
        return str(self._machine.host)

    @property
    def taken(self) -> Taken:
        return Taken(self.node.name, self._machine.host, self.folder, self._owner)

    async def manned(self, for_s: float) -> None:
        """Take the host and wait until its agent answers, and what its clock reads."""
        self._occupying = asyncio.ensure_future(aside(self._occupy))
        await asyncio.shield(self._occupying)  # whoever leaves has to know what was done
        self._carrier = LastingCarrier(self.node.name, self._dial, self._lease_s)
        identity = await self.agent.hello()
        await self.agent.links(())  # so that the first fault finds its chain
        self.clock = await _clocks.compared(self.agent, identity, for_s)

    async def left(self, into: Path) -> str:
        """Bring home what the node wrote, and leave nothing; why something is left, if any is."""
        if self._carrier:
            await self._carrier.hang_up()
        stays = f"what {self.node.name} wrote is still in {self.folder} there"
        try:
            async with asyncio.timeout(HOME_WITHIN_S):
                if await self._is_taken():
                    await aside(lambda: self._bring_home(into))
            async with asyncio.timeout(CLEAR_WITHIN_S):
                if self._touched:
                    await aside(lambda: cleared(self._machine, self.folder, self._owner))
        except TimeoutError:
            return f"{self.host} took longer than {HOME_WITHIN_S:g} s to be given back; {stays}"
        except (SeatrialError, *BROKEN, tarfile.TarError, zlib.error) as e:
            return f"{_short(e)}; {stays}"
        return ""

    async def _is_taken(self) -> bool:
        """Whether there may be something of ours, once a taking that was broken off has ended."""
        if self._occupying:
            await asyncio.wait([self._occupying])
            self._occupying.exception()  # it was told of already, or nobody wants to know
        return self._touched

    # ------------------------------------------------------------------------- in threads

    def _occupy(self) -> None:
        """Make the folder, unpack our code, start the agent; first, sweep out what is over."""
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
            answer = errand(self._machine, "occupy", _archive.archive(), **order, known=known)
            others = answer["others"]
            self._touched = not others
            if self._touched:
                self.python = Python(str(answer["python"]), f"{self.folder}/packages")
                return
            for other in others:
                self._sweep(other["folder"], other["owner"], other["agents"] > 0)
                known.append(other["folder"])
        raise BedFailed(f"{self.host} always has another run's folder that is over; look at it")

    def _sweep(self, folder: str, theirs: Mapping[str, str], has_agent: bool) -> None:
        """Clean up after a run that is over; the folder of another machine's run stays, because
        only that machine knows. BedFailed when it is not over."""
        if theirs == self._owner:
            raise BedFailed(
                f"{self.host} is the same machine as another host of the inventory, or shares its "
                f"folder {self._machine.host.folder}; list each machine once"
            )
        state = _state(theirs)
        if state == "running" or (has_agent and state != "over"):
            raise BedFailed(_in_use(self.host, theirs, folder))
        if done := words([cleared(self._machine, folder, theirs, remove=state == "over")]):
            _log(f"{self.host}: removed what {Path(folder).name} left: {', '.join(done)}")

    def _dial(self) -> Stream:
        """A relay to the agent. After a break over a new connection: the old one is suspect."""
        try:
            if self._dials:
                self._machine = self._fleet.reconnect(self._machine)
            self._dials += 1
            relay = f"{self.folder}/packages/clusters/hosts/_agent/{_errands.RELAY}"
            argv = [self.python.executable, *WAYS, relay, self.folder]
            return _ChannelStream(self._machine.open_channel(argv))
        except Unready as e:
            raise BedFailed(_short(e)) from e
        except BROKEN as e:
            raise BedFailed(f"the connection to {self.host} broke: {e or 'it ended'}") from e

    def _bring_home(self, into: Path) -> None:
        """The end of the run there, and its files here. Where the connection is no good any more
        or the host was gone for a while, it is tried over a new one."""
        try:
            self._fetch(into)
        except (BedFailed, *BROKEN):
            self._machine = self._fleet.reconnect(self._machine)
            self._fetch(into)

    def _fetch(self, into: Path) -> None:
        limit = _homecoming.LARGEST_BYTES
        order = {"folder": self.folder, "owner": self._owner, "node": self.node.name}
        channel = self._machine.open_channel(_argv(self._machine))
        try:
            channel.settimeout(HOME_WITHIN_S)
            channel.sendall(_script("home", {**order, "largest_bytes": limit}))
            channel.shutdown_write()
            left_out = _homecoming.unpack(_homecoming.Portions(_inflated(channel)), into)
            for line in (*left_out, *_said(channel)):
                _log(f"{self.node.name}: {line}")
        except tarfile.ReadError as e:  # the tar broke off, or never began
            why = [str(e), *_said(channel)][-1]
            raise BedFailed(f"the files of {self.node.name} did not come home: {why}") from e
        finally:
            channel.close()


class _ChannelStream:
    """A channel as a `Stream`."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self.recv, self.sendall = channel.recv, channel.sendall
        self.shutdown, self.close = channel.shutdown_write, channel.close


# ------------------------------------------------------------------------------------ errands


def errand(machine: Machine, do: str, payload: bytes = b"", **fields: Any) -> dict[str, Any]:
    """Have the host's Python do it; its answer. BedFailed when it can not."""
    done = machine.run(_argv(machine), _script(do, fields) + payload, ERRAND_WITHIN_S)
    if done.code != 0:
        said = done.err.strip().splitlines() or [f"exit code {done.code}"]
        raise BedFailed(f"{machine.host}: {said[-1]}")
    try:
        answer: dict[str, Any] = _answer(json_of(done.out.strip().rpartition("\n")[2]))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BedFailed(f"{machine.host} answered {do!r} with what is no answer") from None
    return answer


def _answer(answer: Any) -> dict[str, Any]:
    """Return an answer with its fields in the types that are used of it."""
    others = [
        {
            "folder": str(other["folder"]),
            "owner": {key: str(other["owner"][key]) for key in ("driver", "run")},
            "agents": int(other["agents"]),
        }
        for other in answer.get("others", ())
    ]
    counts = {key: int(answer[key]) for key in COUNTED if key in answer}
    return {**answer, **counts, "others": others}


def cleared(
    machine: Machine, folder: str, owner: Mapping[str, str], *, remove: bool = True
) -> dict[str, Any]:
    """Nothing of the run in this folder goes on there, or is left; what there was."""
    return errand(machine, "end", folder=folder, owner=owner, remove=remove)


def healed(fleet: Fleet, taken: Taken) -> dict[str, Any]:
    """The same for a host that this process has no connection to. Stuck when it can not be."""
    try:
        done = cleared(fleet.reach(taken.host), taken.folder, taken.owner)
    except (BedFailed, *BROKEN) as e:
        where = Path(taken.folder).parent  # its name is the run's, of which we speak
        raise Stuck(f"its folder in {where} is still on {taken.host}: {_short(e)}") from e
    if done.get("shared"):
        _log(f"{taken.host}: another run is at work there, so the link rules there are that run's")
    return done


def words(done: Sequence[dict[str, Any]]) -> list[str]:
    """What there was, added up."""
    found = []
    for key, one in COUNTED.items():
        count = sum(int(each[key]) for each in done)
        plural = f"{one}es" if one.endswith("s") else f"{one}s"
        found += [f"{count} {one if count == 1 else plural}"] if count else []
    return found


def _argv(machine: Machine) -> list[str]:
    return [machine.host.python, *WAYS, "-c", _errands.BOOT]


def _script(do: str, fields: Mapping[str, Any]) -> bytes:
    """Return what the host's Python reads: the errands, and which of them to do."""
    text = Path(_errands.__file__).read_bytes()
    return f"{len(text)}\n".encode() + text + json.dumps({"do": do, **fields}).encode() + b"\n"


def _short(error: Exception) -> str:
    """What is wrong with a host that was well before: how to set one up is of no help then."""
    return error.problem.what if isinstance(error, Unready) else str(error)


def _state(owner: Mapping[str, str]) -> Literal["running", "over", "unknown"]:
    """What this machine knows of a run, by what is written in its folder on a host."""
    if owner["driver"] != driver():
        return "unknown"
    over = is_over(Path(owner["run"]))
    return "unknown" if over is None else "over" if over else "running"


def _in_use(host: str, owner: Mapping[str, str], folder: str) -> str:
    whose = owner["run"] or folder
    elsewhere = owner["driver"] != driver()
    where = f" of the machine {owner['driver'].split('/')[0]}" if elsewhere else ""
    return (
        f"{host} is in use by the run {whose}{where}; wait for its end, or take other hosts. If "
        "that run was killed, the host frees itself within a minute"
    )


def _inflated(channel: paramiko.Channel) -> Iterator[bytes]:
    """What was packed, without what a .bashrc printed before it. In portions, however well it was
    packed: a host may be hostile."""
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


def _said(channel: paramiko.Channel) -> list[str]:
    """The first lines of the standard error of an errand that ended."""
    with channel.makefile_stderr("rb") as errors:
        return list(errors.read(PORTION_BYTES).decode(errors="replace").splitlines())


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
