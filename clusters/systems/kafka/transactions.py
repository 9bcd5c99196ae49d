"""Sets of integers by Kafka's transactions: an element is a record in each of two partitions, sent
in one transaction, and one transaction in five is aborted.

A transaction is atomic over partitions, and readers with `isolation.level=read_committed` see
nothing of one that was aborted. They see a committed one when all that began earlier in the
partition have ended, too: the offset up to where all have is the last stable one. So a read first
asks for the high watermarks, and lasts until the last stable offsets have reached them; then it
shows all that was committed before it began. Reads within a transaction and the order of
transactions are no part of Kafka's promises (write cycles are allowed), so the workload `append`,
which judges both, would convict what is allowed.

A commit that was asked for and not answered may have happened. Without one a transaction has
certainly not: the client aborts it, or the coordinator does that after TRANSACTION_MS, or when the
client begins again under the same name.
"""

import asyncio
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

from clusters.systems.kafka import wire
from clusters.systems.kafka.kafka_client import ACKED_WITHIN_MS, SEEK_AGAIN_S, SET_UP_S, KafkaClient
from clusters.systems.kafka.records import Producer, committed_in, encode_batch
from clusters.systems.kafka.wire import AnswerReader, KafkaError
from harness.contracts.calls import Refused

TOPIC, PARTITIONS = "transactional-sets", (0, 1)
ABORTED = 0.2  # share of the transactions
TRANSACTION_MS = 5000
READ_WITHIN_S = 10.0  # longer than TRANSACTION_MS: an open transaction holds up readers
READ_BYTES = 1 << 20
STILL_ENDING = 51  # the coordinator still writes that the transaction before has ended
BEGIN_WITHIN_S, BEGIN_AGAIN_S = 3.0, 0.02
# codes of an end of a transaction that has ended already, without a commit: fenced, or timed out
NOT_COMMITTED = frozenset({47, 48, 49, 90})
FAILURES = (KafkaError, Refused, OSError, EOFError, TimeoutError)
T = TypeVar("T")


# ------------------------------------------------------------------------------ requests, answers


def init_producer(name: str) -> bytes:
    return wire.string(name) + struct.pack(">i", TRANSACTION_MS)


def producer_in(found: AnswerReader) -> Producer:
    """Return a producer with a new epoch. Raises KafkaError."""
    found.i32()
    code = found.i16()
    if code:
        raise KafkaError(code)
    return Producer(found.i64(), found.i16(), 0)


def add_partitions(name: str, producer: Producer) -> bytes:
    numbers = wire.array(struct.pack(">i", n) for n in PARTITIONS)
    head = wire.string(name) + struct.pack(">qh", producer.number, producer.epoch)
    return head + wire.array([wire.string(TOPIC) + numbers])


def added_partitions(found: AnswerReader) -> None:
    """Raises KafkaError."""
    found.i32()

    def topic() -> list[int]:
        found.string()
        return found.array(lambda: (found.i32(), found.i16())[1])

    for code in (code for codes in found.array(topic) for code in codes):
        if code:
            raise KafkaError(code)


def end_transaction(name: str, producer: Producer, commit: bool) -> bytes:
    return wire.string(name) + struct.pack(">qhb", producer.number, producer.epoch, commit)


def ended_transaction(found: AnswerReader) -> None:
    """Raises KafkaError."""
    found.i32()
    if code := found.i16():
        raise KafkaError(code)


# ----------------------------------------------------------------------------------------- client


class PartitionReader:
    """What a client has read of a partition: the elements of each set, and the next offset."""

    def __init__(self) -> None:
        self.sets: dict[str, set[int]] = defaultdict(set)
        self.offset = 0


class TransactionalClient(KafkaClient):
    """A client whose sets are kept by transactions, as a producer with a name of its own. It reads
    on from where it has read before."""

    coordinated = wire.OF_TRANSACTIONS

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        super().__init__(settings, number)
        self._name_of_producer = f"seatrial-{number}-{uuid4()}"
        self._producer: Producer | None = None
        self._random = Random(number)
        self._committed = self._values["isolation.level"] == "read_committed"
        self._readers = [PartitionReader() for _ in PARTITIONS]
        self._reads = 0

    async def set_up(self, topics: Mapping[str, int]) -> None:
        """Create the topic, and wait until the coordinator has loaded its transactions."""
        await super().set_up({**topics, TOPIC: len(PARTITIONS)})
        asked = init_producer(self._name_of_producer)
        async with asyncio.timeout(SET_UP_S):
            await self._until_done(
                partial(self._coordinate, wire.INIT_PRODUCER, asked, producer_in)
            )

    async def add(self, key: str, member: int) -> None:
        """Raises Refused if the transaction was not committed, some of them on purpose."""
        commits = self._random.random() >= ABORTED
        try:
            producer = await self._send(f"{key} {member}".encode())
            if not commits:
                await self._end(producer, commit=False)
        except FAILURES as e:
            raise Refused(f"not committed: {type(e).__name__} {e}") from e
        if not commits:
            raise Refused("aborted on purpose")
        try:
            await self._end(producer, commit=True)
        except KafkaError as e:
            if e.code in NOT_COMMITTED:
                raise Refused(f"not committed: {e}") from e
            raise

    async def _send(self, body: bytes) -> Producer:
        """Send a record to each partition in a new transaction. After a failure the client begins
        again as a producer, which aborts what it has open."""
        name, producer = self._name_of_producer, self._producer
        self._producer = None
        if producer is None:
            asked = init_producer(name)
            producer = await self._begin(wire.INIT_PRODUCER, asked, producer_in)
        asked = add_partitions(name, producer)
        await self._begin(wire.ADD_PARTITIONS, asked, added_partitions)
        batch = encode_batch([body], producer)
        sent = (self._produce(number, batch) for number in PARTITIONS)
        for failure in await asyncio.gather(*sent, return_exceptions=True):
            if failure is not None:
                raise failure
        return producer

    async def _produce(self, number: int, batch: bytes) -> None:
        key = f"{TOPIC}-{number}"
        asked = wire.produce(TOPIC, number, batch, -1, ACKED_WITHIN_MS, self._name_of_producer)
        found, _ = await self._of_leader(key, wire.PRODUCE, asked)
        try:
            wire.produced(found)
        except KafkaError:
            self._leaders.pop(key, None)
            raise

    async def _end(self, producer: Producer, *, commit: bool) -> None:
        asked = end_transaction(self._name_of_producer, producer, commit)
        await self._coordinate(wire.END_TRANSACTION, asked, ended_transaction)
        self._producer = producer._replace(sequence=producer.sequence + 1)

    async def _begin(self, kind: int, body: bytes, read: Callable[[AnswerReader], T]) -> T:
        """Ask the coordinator, and again while it still ends the transaction before."""
        async with asyncio.timeout(BEGIN_WITHIN_S):
            while True:
                try:
                    return await self._coordinate(kind, body, read)
                except KafkaError as e:
                    if e.code != STILL_ENDING:
                        raise
                await asyncio.sleep(BEGIN_AGAIN_S)

    async def _coordinate(self, kind: int, body: bytes, read: Callable[[AnswerReader], T]) -> T:
        """Return what the coordinator of the client's transactions answers. Raises KafkaError."""
        found = await self._of_group(self._name_of_producer, kind, body)
        try:
            return read(found)
        except KafkaError as e:
            if e.code != STILL_ENDING:
                self._coordinators.pop(self._name_of_producer, None)
            raise

    async def members(self, key: str) -> Collection[int]:
        """Return what is in both partitions, and at every second read what is in any of them: of a
        transaction that is torn the one shows what is missing, the other what must not be."""
        async with asyncio.timeout(READ_WITHIN_S):
            await asyncio.gather(*(self._read_on(number) for number in PARTITIONS))
        self._reads += 1
        found = [reader.sets[key] for reader in self._readers]
        return set.union(*found) if self._reads % 2 else set.intersection(*found)

    async def _read_on(self, number: int) -> None:
        """Read up to the present high watermark, once the last stable offset is there."""
        key, reader = f"{TOPIC}-{number}", self._readers[number]
        end = await self.end(key)
        while reader.offset < end:
            asked = wire.fetch(TOPIC, number, reader.offset, READ_BYTES, self._committed)
            found, _ = await self._of_leader(key, wire.FETCH, asked)
            try:
                _, aborted, records = wire.fetched_transactions(found)
            except KafkaError:
                self._leaders.pop(key, None)
                raise
            entries, after = committed_in(records, aborted)
            for entry in entries:
                if entry.offset >= reader.offset:
                    name, _, member = entry.value.decode().rpartition(" ")
                    reader.sets[name].add(int(member))
            if after <= reader.offset:
                await asyncio.sleep(SEEK_AGAIN_S)  # a transaction is open
            reader.offset = max(reader.offset, after)
