"""OpenMessaging DLedger by itself: servers that agree by Raft on one log, which clients append to.

An entry is acknowledged when a majority has it in mapped memory; a thread syncs the files every
10 ms. A group of servers has one log, and a trial one group. The leader answers what is in its own
log, committed or not: what a client reads before the end may be gone later. Source: DLedgerServer,
DLedgerEntryPusher and DLedgerMmapFileStore of openmessaging/dledger 0.2.7, the last version whose
jar has a program to start.
"""

import asyncio
import base64
import json
import re
import struct
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from clusters.kit import Copy, NodeAccess, Profile, Service, View, plugin, servers_in_turn
from clusters.kit.java import FLAGS, JAVA
from clusters.supply import MavenJars, Program
from clusters.systems.rocketmq.commit_log import raft_entries
from clusters.systems.rocketmq.remoting import (
    BUSY,
    LOG_METADATA,
    LOG_SUCCESS,
    Answer,
    RemotingError,
    RemotingLinks,
    decode,
    request,
)
from clusters.systems.rocketmq.service import answered_object, raft_view
from harness.contracts import Node
from harness.contracts.calls import LogEntries, Refused, Stored
from harness.errors import BadRequest

PORT, GROUP = 20911, "seatrial"
APPEND, GET = 50001, 50002  # requests; LOG_METADATA is the third
OUT_OF_RANGE = 410
# answers to an entry that was not appended: another group or member; no leader, or no longer, which
# is asked once more under the lock of the append; the disk is full; too many are waited for; the
# leader hands over
NOT_APPENDED = frozenset({400, 401, 404, 415, 503, 506})
WITHIN_S, METADATA_WITHIN_S = 3.0, 1.0
AT_ONCE = 64  # requests for entries, each of which answers one
PLACE = struct.Struct(">iqi")  # of the index: magic, place and size of an entry
INDEX_UNIT = 32
FILE = f"{0:020d}"
PROGRAM = Program(
    name="dledger",
    sources=(MavenJars(coordinates=("io.openmessaging.storage:dledger",)),),
    version="0.2.7",
    version_argv=(),
    by_hand="put the jars of openmessaging/dledger 0.2 and all they need into a folder as supply",
)
OPENED = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref")
LOGGING = """status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSX} %p %c{1} - %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
logger.remoting.name = RocketmqRemoting
logger.remoting.level = warn
"""


class DLedgerClient:
    """A client of one logical process: it asks the servers who leads, and that one for the rest."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        nodes = settings["nodes"]
        servers = [(name, address) for name, role, address in nodes if role == "server"]
        self._ids = {address: f"n{n}" for n, (_, address) in enumerate(servers)}
        self._names = {address: name for name, address in servers}
        self._turn = servers_in_turn({"servers": [*self._ids]}, number)
        self._leader = ""  # address
        self._links = RemotingLinks()

    async def close(self) -> None:
        await self._links.close()

    async def _ask(
        self, address: str, code: int, within_s: float = WITHIN_S, **fields: Any
    ) -> dict[str, Any]:
        """Return what a server answers. Raises Refused if nothing was sent or handled."""
        link = await self._links.to(address, PORT)
        body = _body(self._ids[address], **fields)
        return answered(await link.call(code, {}, body, within_s=within_s))

    async def _leads(self) -> str:
        """Return the leader's address. Raises Refused if no server knows one."""
        if self._leader:
            return self._leader
        why: Exception = Refused("there are no servers")
        for server in list(self._turn):
            try:
                found = await self._ask(server, LOG_METADATA, METADATA_WITHIN_S)
                leader = next((a for a, own in self._ids.items() if own == found["leaderId"]), "")
                if leader:
                    self._leader = leader
                    return leader
                raise Refused(f"{server} knows no leader")
            except (OSError, TimeoutError, ValueError, LookupError, RemotingError, Refused) as e:
                why = e
                self._turn.append(self._turn.pop(0))
        raise Refused(f"no leader: {type(why).__name__} {why}") from why

    async def _ask_leader(self, code: int, **fields: Any) -> tuple[str, dict[str, Any]]:
        """Return the leader's address and its answer; after a failure the servers are asked again.
        Raises Refused if nothing was sent or handled."""
        leader = await self._leads()
        try:
            answer = await self._ask(leader, code, **fields)
        except BaseException:
            self._forget(leader)
            raise
        if answer["code"] not in (LOG_SUCCESS, OUT_OF_RANGE):
            self._forget(leader)
        return leader, answer

    def _forget(self, leader: str) -> None:
        if self._leader == leader:
            self._leader = ""
            self._turn.append(self._turn.pop(0))

    async def append(self, key: str, body: bytes) -> Stored:
        entry = base64.b64encode(body).decode()
        leader, answer = await self._ask_leader(APPEND, body=entry)
        return Stored(*appended(answer), self._names[leader])

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        behind = offset + min(limit, AT_ONCE)
        asked = await asyncio.gather(*(self._entry(index) for index in range(offset, behind)))
        found = [(index, body) for index, body in enumerate(asked, offset) if body is not None]
        end = asked.index(None) if None in asked else len(asked)
        return LogEntries(found[:end], offset + end)

    async def _entry(self, index: int) -> bytes | None:
        """Return the body of an entry, or None if the log ends before it."""
        return got((await self._ask_leader(GET, beginIndex=index, maxSize=1))[1])

    async def end(self, key: str) -> int:
        """Return the log's end, which is found by halving: no request asks for it."""
        there, step = -1, 1
        while await self._entry(there + step) is not None:
            there, step = there + step, step * 2
        missing = there + step
        while missing - there > 1:
            middle = (missing + there) // 2
            if await self._entry(middle) is None:
                missing = middle
            else:
                there = middle
        return missing


def _body(own: str, **fields: Any) -> bytes:
    """Return the body of a request to the server that its peers call `own`."""
    return json.dumps({"group": GROUP, "remoteId": own, **fields}).encode()


def answered(answer: Answer) -> dict[str, Any]:
    """Return the object that a server answers, with its own `code`. Raises Refused if the server
    handled nothing, and RemotingError."""
    if answer.code == BUSY:
        raise Refused(f"code {answer.code}: {answer.remark[:200]}")
    if answer.code != LOG_SUCCESS:
        raise RemotingError(answer)
    return answered_object(answer.body)


def appended(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Return the index and the term of an entry that a majority has. Raises Refused if it was not
    appended, and RemotingError if its outcome is unknown: after 502 (a majority did not have it in
    time), 501 (the term has changed), 414 (of the disk) and all others."""
    if answer["code"] == LOG_SUCCESS:
        return int(answer["index"]), int(answer["term"])
    if answer["code"] in NOT_APPENDED:
        raise Refused(f"code {answer['code']}")
    raise RemotingError(Answer(int(answer["code"]), "", {}, b""))


def got(answer: Mapping[str, Any]) -> bytes | None:
    """Return the body of the entry that was asked for; None behind the end. Raises
    RemotingError."""
    if answer["code"] == OUT_OF_RANGE or (answer["code"] == LOG_SUCCESS and not answer["entries"]):
        return None
    if answer["code"] != LOG_SUCCESS:
        raise RemotingError(Answer(int(answer["code"]), "", {}, b""))
    return base64.b64decode(answer["entries"][0]["body"])


class DLedger(Service):
    """Three servers by default."""

    name, programs, client = "dledger", (PROGRAM, JAVA), DLedgerClient
    copies_stopped = True  # a server that ends writes where its log ends
    attachable = False  # its nodes have the names in their group that the driver gives them
    settings: ClassVar = {"heap_mb": 128}
    smallest: ClassVar = {"heap_mb": 32}
    profiles = (
        Profile(
            name="default",
            about="acknowledged when a majority has an entry in memory; synced every 10 ms",
        ),
    )
    claims: ClassVar = dict.fromkeys(
        ("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "crash"), "all"
    )
    became = r"\[ChangeRoleTo(?P<role>Leader|Follower)\] from term: (?P<term>\d+)"
    leading = "Leader"
    detection_s = 8.0  # three heartbeats of 2 s, and an election
    start_s = 120.0

    @classmethod
    def groups(
        cls, values: Mapping[str, Any], nodes: Sequence[str], keys: Sequence[str]
    ) -> Mapping[str, tuple[Sequence[str], Sequence[str]]]:
        """Raises BadRequest if there are several logs."""
        if len(keys) > 1:
            raise BadRequest(f"dledger has one log, not {len(keys)}: set load.objects to 1")
        return super().groups(values, nodes, keys)

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> dict[str, str]:
        return {"log4j2.properties": LOGGING}

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> list[str]:
        opened = [word for part in OPENED for word in ("--add-opens", f"{part}=ALL-UNNAMED")]
        return [
            *(here.program["java"], *FLAGS, f"-Xmx{self.values['heap_mb']}m", "-Xms32m", *opened),
            # so that a disk that is 85 % full takes entries
            *("-Ddledger.disk.ratio.check=0.99", "-Ddledger.disk.ratio.clean=0.99"),
            f"-Dlog4j.configurationFile={here.folder}/log4j2.properties",
            "-Dtls.server.mode=disabled",
            *(f"-Djava.io.tmpdir={here.folder}", f"-Duser.home={here.folder}"),
            *("-cp", f"{here.program['dledger']}/*", "io.openmessaging.storage.dledger.DLedger"),
            *("--group", GROUP, "--id", self._id(here)),
            *("--peers", ";".join(f"n{n}-{p.address}:{PORT}" for n, p in enumerate(peers))),
            *("--store-base-dir", f"{here.folder}/{self.data}"),
        ]

    def _id(self, here: NodeAccess) -> str:
        """Return what a server's peers call it: `n0` for the first."""
        return f"n{[node.name for node in self.nodes].index(here.node.name)}"

    def _store(self, here: NodeAccess) -> str:
        return f"{here.folder}/{self.data}/dledger-{self._id(here)}"

    async def ask(self, here: NodeAccess) -> View:
        frame = await here.agent.ask(PORT, request(LOG_METADATA, {}, _body(self._id(here))), 1.0)
        found = answered(decode(frame)[2])
        term = await here.agent.get(f"{self._store(here)}/currterm")
        return raft_view(here.node.name, found, term, self.nodes)

    async def copy(self, here: NodeAccess, keys: Sequence[str]) -> list[Copy]:
        """Return what a server's log has, up to the end that its checkpoint names:
        bytes behind that may be of entries that were cut."""
        store, out = self._store(here), f"{here.folder}/copied"
        last = last_index(await here.agent.get(f"{store}/checkpoint"))
        if last < 0:
            return []
        head = f'dd if="{store}/index/{FILE}" bs={INDEX_UNIT} skip={last} count=1 status=none'
        await here.run("sh", "-c", f'{head} > "{out}"')
        _, place, size = PLACE.unpack_from(await here.agent.get(out))
        await here.run("sh", "-c", f'head -c {place + size} "{store}/data/{FILE}" > "{out}"')
        return copies_in(await here.agent.get(out), last, keys[0])


def last_index(checkpoint: bytes) -> int:
    """Return the index of the last entry by a server's checkpoint; -1 if there is none."""
    found = re.search(rb"endIndex=(-?\d+)", checkpoint)
    return int(found[1]) if found else -1


def copies_in(data: bytes, last: int, key: str) -> list[Copy]:
    """Return the entries of a file of a server's log, up to the one of index `last`."""
    entries = enumerate(islice(raft_entries(data), last + 1))
    return [Copy.of(key, index, body, term) for index, (term, body) in entries]


PLUGIN = plugin(DLedger)
