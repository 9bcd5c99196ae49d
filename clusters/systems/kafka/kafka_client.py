"""A client of Kafka of plain calls: each request goes once, to the broker that leads the partition.

A broker handles the requests of a connection one after the other, and an acknowledgement may wait
for other replicas, so each request has a connection to itself while it lasts. Who leads is asked of
one broker after the other, and again after each failure.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from clusters.kit import servers_in_turn
from clusters.systems.kafka import shares, wire
from clusters.systems.kafka.records import encode_batch, entries_in
from clusters.systems.kafka.wire import AnswerReader, KafkaError
from harness.contracts.calls import Delivery, LogEntries, Refused, Stored
from harness.operation import NONE

PORT = 9092
WITHIN_S = 3.0
ACKED_WITHIN_MS = 2500  # the broker's limit for an acknowledgement, less than WITHIN_S
SEEK_AGAIN_S = 0.1
SET_UP_S = 60.0
FETCHED = 256  # bytes asked for each record that is wanted; a larger one comes all the same
ACKS = {"all": -1, "1": 1}
OUT_OF_RANGE, ALREADY_EXISTS = 1, 36
NO_MEMBER = frozenset({25, 110})  # the coordinator does not know it, or it has another epoch
BEAT_EVERY_S = 1.0
FETCH_MS = 500  # how long a fetch of a share group waits for a record
# codes that come before anything is appended; with the offset of the record, they come after it
NEVER = frozenset({2, 3, 5, 6, 9, 10, 17, 18, 19, 21, 29, 37, 38, 41, 74, 87})
COORDINATOR_NEVER = frozenset({14, 24})  # it loads its groups; the name of a group is wrong


class KafkaLink:
    """A connection to a broker, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._number = 0

    @classmethod
    async def open(cls, address: str) -> "KafkaLink":
        async with asyncio.timeout(WITHIN_S):
            return cls(*await asyncio.open_connection(address, PORT))

    @property
    def closed(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    async def request(self, kind: int, body: bytes) -> AnswerReader:
        """Return the answer. The connection is of no use if none comes."""
        self._number += 1
        self._writer.write(wire.request(kind, self._number, body))
        size = int.from_bytes(await self._reader.readexactly(4))
        frame = await self._reader.readexactly(size)
        return wire.answer(kind, self._number, frame)

    def close(self) -> None:
        self._writer.close()


class ShareMember:
    """A consumer of a share group that takes records of one partition. `session`: the number of the
    next request on its connection to the leader."""

    def __init__(self) -> None:
        self.name = str(uuid4())
        self.epoch = shares.JOIN
        self.beat_s = 0.0  # when the coordinator last answered it
        self.session = shares.FIRST
        self.link: KafkaLink | None = None
        self.topic = b""  # its identifier

    def end_session(self) -> None:
        if self.link:
            self.link.close()
        self.link = None


class KafkaClient:
    """A client of one logical process."""

    coordinated = wire.OF_GROUP

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        self._servers = servers_in_turn(settings, number)
        self._values: Mapping[str, Any] = settings["settings"]
        self._names: dict[str, str] = {address: name for name, _, address in settings["nodes"]}
        self._idle: dict[str, list[KafkaLink]] = {}
        self._leaders: dict[str, str] = {}  # key -> address
        self._coordinators: dict[str, str] = {}  # group -> address
        self._seeking = asyncio.Lock()
        self._topic_ids: dict[str, bytes] = {}
        self._members: dict[tuple[str, str], ShareMember] = {}  # key, group
        self._configured: set[str] = set()  # groups that begin with the first record

    async def set_up(self, topics: Mapping[str, int]) -> None:
        """Create the topics, and wait until each partition has all of its replicas, and groups of
        consumers have a coordinator."""
        config = {
            key: str(self._values[key]).lower()
            for key in ("min.insync.replicas", "unclean.leader.election.enable", "flush.messages")
        }
        async with asyncio.timeout(SET_UP_S):
            for topic, count in topics.items():
                replicas = self._values["replication.factor"]
                asked = wire.create_topic(topic, count, replicas, config, ACKED_WITHIN_MS)
                await self._until_done(partial(self._create, topic, count, asked))
            await self._until_done(partial(self._coordinator, "seatrial"))

    async def _until_done(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                await call()
                return
            except (KafkaError, Refused, OSError, EOFError, TimeoutError):
                await asyncio.sleep(SEEK_AGAIN_S)

    async def _create(self, topic: str, count: int, asked: bytes) -> None:
        """Create a topic, if it does not exist. Raises KafkaError or ConnectionError if not all of
        its replicas are there yet."""
        try:
            wire.created_topic(await self._call(self._servers[0], wire.CREATE_TOPICS, asked))
        except KafkaError as e:
            if e.code != ALREADY_EXISTS:
                self._servers.append(self._servers.pop(0))
                raise
        known = await self._metadata(topic)
        states = [known.partitions.get((topic, number)) for number in range(count)]
        if not all(s and s.leader >= 0 and len(s.in_sync) == len(s.replicas) for s in states):
            raise ConnectionError(f"{topic} has not all of its replicas")

    async def close(self) -> None:
        for links in self._idle.values():
            for link in links:
                link.close()
        for member in self._members.values():
            member.end_session()

    async def _call(self, address: str, kind: int, body: bytes) -> AnswerReader:
        """Return a broker's answer. Raises Refused if nothing was sent."""
        idle = self._idle.setdefault(address, [])
        link = None
        while idle and (link is None or link.closed):
            link = idle.pop()
        if link is None or link.closed:
            try:
                link = await KafkaLink.open(address)
            except (OSError, TimeoutError) as e:
                raise Refused(f"{self._name(address)}: not connected: {e}") from e
        try:
            async with asyncio.timeout(WITHIN_S):
                answer = await link.request(kind, body)
        except BaseException:
            link.close()
            raise
        idle.append(link)
        return answer

    def _name(self, address: str) -> str:
        return self._names.get(address, address)

    # who leads

    async def _metadata(self, topic: str) -> wire.Metadata:
        """Ask the next broker about a topic."""
        self._servers.append(self._servers.pop(0))
        asked = wire.metadata([topic])
        return wire.metadata_in(await self._call(self._servers[0], wire.METADATA, asked))

    async def _leader(self, key: str) -> str:
        """Return the address of a partition's leader. Raises Refused if none is known."""
        async with self._seeking:
            if key in self._leaders:
                return self._leaders[key]
            topic, _, number = key.rpartition("-")
            try:
                known = await self._metadata(topic)
                state = known.partitions[topic, int(number)]
                self._topic_ids.update(known.topic_ids)
                self._leaders[key] = known.brokers[state.leader]
            except (Refused, OSError, EOFError, TimeoutError, LookupError) as e:
                await asyncio.sleep(SEEK_AGAIN_S)  # so that a caller who retries does not spin
                raise Refused(f"no leader of {key} is known: {type(e).__name__} {e}") from e
            return self._leaders[key]

    async def _of_leader(self, key: str, kind: int, body: bytes) -> tuple[AnswerReader, str]:
        """Return the answer of a partition's leader, and its address."""
        address = await self._leader(key)
        try:
            return await self._call(address, kind, body), address
        except BaseException:
            self._leaders.pop(key, None)
            raise

    # logs

    async def append(self, key: str, body: bytes) -> Stored:
        topic, number = _partition(key)
        acks = ACKS[self._values["acks"]]
        asked = wire.produce(topic, number, encode_batch([body]), acks, ACKED_WITHIN_MS)
        found, address = await self._of_leader(key, wire.PRODUCE, asked)
        try:
            return Stored(wire.produced(found), NONE, self._name(address))
        except KafkaError as e:
            self._leaders.pop(key, None)
            raise error_of(e, self._name(address)) from e

    async def end(self, key: str) -> int:
        topic, number = _partition(key)
        asked = wire.list_offsets(topic, number)
        found, address = await self._of_leader(key, wire.LIST_OFFSETS, asked)
        try:
            return wire.listed_offset(found)
        except KafkaError as e:
            self._leaders.pop(key, None)
            raise error_of(e, self._name(address)) from e

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        """Return records up to the high watermark. The workload verifies checksums of its own."""
        topic, number = _partition(key)
        asked = wire.fetch(topic, number, offset, limit * FETCHED)
        found, address = await self._of_leader(key, wire.FETCH, asked)
        try:
            end, records = wire.fetched(found)
        except KafkaError as e:
            if e.code == OUT_OF_RANGE:  # the log is shorter: read on from its end
                end = await self.end(key)
                return LogEntries([], end, min(offset, end))
            self._leaders.pop(key, None)
            raise error_of(e, self._name(address)) from e
        whole = [each for each in entries_in(records, verify=False) if each.offset >= offset]
        return LogEntries([(each.offset, each.value) for each in whole[:limit]], end)

    # offsets that groups commit: keys are offsets/GROUP/TOPIC-N

    async def read(self, key: str) -> int | None:
        _, group, partition = key.split("/")
        asked = wire.fetch_offset(group, *_partition(partition))
        offset = wire.fetched_offset(await self._of_group(group, wire.OFFSET_FETCH, asked))
        return None if offset < 0 else offset

    async def write(self, key: str, value: int) -> None:
        _, group, partition = key.split("/")
        asked = wire.commit_offset(group, *_partition(partition), value)
        found = await self._of_group(group, wire.OFFSET_COMMIT, asked)
        try:
            wire.committed_offset(found)
        except KafkaError as e:
            self._coordinators.pop(group, None)
            if e.code in COORDINATOR_NEVER:
                raise Refused(str(e)) from e
            raise

    async def _coordinator(self, group: str) -> str:
        """Return the address of the coordinator of a group, or of what the client coordinates.
        Raises Refused if none is known."""
        if group not in self._coordinators:
            self._servers.append(self._servers.pop(0))
            asked = wire.find_coordinator(group, self.coordinated)
            try:
                found = await self._call(self._servers[0], wire.FIND_COORDINATOR, asked)
                self._coordinators[group] = wire.coordinator(found)
            except (KafkaError, Refused, OSError, EOFError, TimeoutError) as e:
                await asyncio.sleep(SEEK_AGAIN_S)
                raise Refused(f"no coordinator of {group} is known: {e}") from e
        return self._coordinators[group]

    async def _of_group(self, group: str, kind: int, body: bytes) -> AnswerReader:
        address = await self._coordinator(group)
        try:
            return await self._call(address, kind, body)
        except BaseException:
            self._coordinators.pop(group, None)
            raise

    # share groups: handles are offsets

    async def fetch(self, key: str, group: str, limit: int) -> list[Delivery]:
        member = await self._joined(key, group)
        address = await self._leader(key)
        try:
            async with asyncio.timeout(WITHIN_S):
                if member.link is None or member.link.closed:
                    member.link, member.session = await KafkaLink.open(address), shares.FIRST
                    member.topic = self._topic_ids[key.rpartition("-")[0]]
                of = group, member.name, member.session, member.topic, _partition(key)[1]
                member.session += 1
                asked = shares.share_fetch(*of, limit, FETCH_MS)
                records = shares.acquired(await member.link.request(wire.SHARE_FETCH, asked))
        except BaseException:
            member.end_session()
            self._leaders.pop(key, None)
            raise
        return [Delivery(offset, body, str(offset)) for offset, body in records]

    async def acknowledge(self, key: str, group: str, handles: Sequence[str]) -> None:
        """Acknowledge in the session in which the records were taken. Raises Refused if it has
        ended."""
        member = self._members[key, group]
        if member.link is None or member.link.closed:
            raise Refused("the session has ended")
        of = group, member.name, member.session, member.topic, _partition(key)[1]
        member.session += 1
        asked = shares.acknowledge(*of, [int(handle) for handle in handles])
        try:
            async with asyncio.timeout(WITHIN_S):
                found = await member.link.request(wire.SHARE_ACKNOWLEDGE, asked)
            shares.acknowledged(found)
        except BaseException:
            member.end_session()
            self._leaders.pop(key, None)
            raise

    async def _joined(self, key: str, group: str) -> ShareMember:
        """Return the member, after its heartbeat was answered."""
        await self._configure(key, group)
        member = self._members.setdefault((key, group), ShareMember())
        now_s = asyncio.get_running_loop().time()
        if member.epoch != shares.JOIN and now_s < member.beat_s + BEAT_EVERY_S:
            return member
        topic = key.rpartition("-")[0]
        asked = shares.heartbeat(group, member.name, member.epoch, topic)
        try:
            found = await self._of_group(group, wire.SHARE_HEARTBEAT, asked)
            member.epoch, member.beat_s = shares.heartbeat_epoch(found), now_s
        except KafkaError as e:
            self._coordinators.pop(group, None)
            member.epoch = shares.JOIN if e.code in NO_MEMBER else member.epoch
            raise
        return member

    async def _configure(self, key: str, group: str) -> None:
        """Have a group begin with the first record of each partition. Raises Refused until the
        partition's leader knows that."""
        if (key, group) in self._members:
            return
        if group not in self._configured:
            asked = shares.begin_at_first(group)
            shares.altered(await self._call(self._servers[0], wire.ALTER_CONFIGS, asked))
            self._configured.add(group)
        asked = shares.describe_begin(group)
        found, _ = await self._of_leader(key, wire.DESCRIBE_CONFIGS, asked)
        if not shares.begins_at_first(found):
            await asyncio.sleep(SEEK_AGAIN_S)
            raise Refused(f"the leader of {key} does not know the configuration of {group} yet")


def _partition(key: str) -> tuple[str, int]:
    topic, _, number = key.rpartition("-")
    return topic, int(number)


def error_of(error: KafkaError, broker: str) -> Exception:
    """Return the exception for a broker's error: Refused if nothing was done."""
    refused = error.code in NEVER and not error.appended
    return (Refused if refused else ConnectionError)(f"{broker}: {error}")
