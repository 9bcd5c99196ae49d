"""Load on a cluster that is being upgraded, and what must be true of it in the end.

Each queue has a sender with one message under way, and a reader that follows it and keeps a group's
offset there. Messages are numbered, so in each queue the numbers of what was acknowledged must rise
with the offsets; a message that needed several tries may be there twice, since a try that got no
answer may have happened.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from upgrade_fleet import LOST, QUEUES, TOPIC, Deviation, until

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient, SendResult
from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.net.wire import Status
from clusters.flotilla.store.reader import messages

GROUP = "readers"
BETWEEN_SENDS_S = 0.02
COMMIT_EVERY = 20
FAILED = (*LOST, CallRefused)


class Sent(NamedTuple):
    """A message, its outcome, and the step of the upgrade."""

    step: str
    body: bytes
    result: SendResult


class Traffic:
    """Senders and readers of all queues."""

    def __init__(self, nameservers: Sequence[str]) -> None:
        self.step = "before"
        self.sent: dict[int, list[Sent]] = {queue: [] for queue in range(QUEUES)}
        self.read: dict[int, list[bytes]] = {queue: [] for queue in range(QUEUES)}
        self.committed: dict[int, int] = dict.fromkeys(range(QUEUES), 0)
        self._client = ClusterClient(
            ClientSettings.of({"namesrvAddr": nameservers, "sendMsgTimeout": 15_000})
        )
        self._sending = True
        self._tasks: list[asyncio.Task[None]] = []
        self._senders: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._client.start()
        self._senders = [asyncio.create_task(self._send(queue)) for queue in range(QUEUES)]
        self._tasks = [asyncio.create_task(self._read(queue)) for queue in range(QUEUES)]

    async def flows(self) -> None:
        """Every queue has had a send, a read and a commit."""

        async def look() -> bool | None:
            return min(self.committed.values()) > 0

        await until("traffic in all queues", look)

    async def stop(self) -> None:
        """End the sends, and read everything."""
        self._sending = False
        await asyncio.gather(*self._senders)

        async def look() -> bool | None:
            self._raise()
            try:
                ends = [await self._client.consumer.range(TOPIC, queue) for queue in self.read]
            except FAILED:
                return None
            return all(high == len(self.read[queue]) for queue, (_, high) in enumerate(ends))

        await until("readers that have read everything", look)

    async def offsets(self) -> list[int]:
        """Return the group's offsets by the cluster."""

        async def ask() -> list[int] | None:
            try:
                return [await self._client.consumer.committed(GROUP, TOPIC, q) for q in self.read]
            except FAILED:
                return None

        return await until("the group's offsets", ask)

    async def close(self) -> None:
        for task in (*self._tasks, *self._senders):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._senders, return_exceptions=True)
        self._client.close()

    def counts(self, step: str) -> Mapping[str, int]:
        """Return, for a step, the outcomes and how many sends needed several tries."""
        sent = [one for rows in self.sent.values() for one in rows if one.step == step]
        found = Counter(one.result.outcome for one in sent)
        return {
            "acked": found[CallOutcome.HAPPENED],
            "failed": found[CallOutcome.REFUSED],
            "unknown": found[CallOutcome.UNKNOWN],
            "retried": sum(one.result.attempts > 1 for one in sent),
        }

    # inside

    def _raise(self) -> None:
        for task in (*self._tasks, *self._senders):
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error

    async def _send(self, queue: int) -> None:
        while self._sending:
            body = b"%d/%d" % (queue, len(self.sent[queue])) + bytes(200)
            result = await self._client.producer.send_and_wait(TOPIC, body, b"key", queue)
            self.sent[queue].append(Sent(self.step, body, result))
            await asyncio.sleep(BETWEEN_SENDS_S)

    async def _read(self, queue: int) -> None:
        read, consumer = self.read[queue], self._client.consumer
        while True:
            try:
                pulled = await consumer.pull(TOPIC, queue, len(read), 32, wait_s=1.0)
                if pulled.status is Status.PULL_OFFSET_MOVED:
                    raise Deviation(f"queue {queue}: what was read up to {len(read)} is gone")
                for message in pulled.messages:
                    if message.queue_offset != len(read):
                        raise Deviation(f"queue {queue}: {message.queue_offset} behind {len(read)}")
                    read.append(message.body)
                if len(read) - self.committed[queue] >= COMMIT_EVERY:
                    offset = len(read)
                    await consumer.commit(GROUP, TOPIC, queue, offset)
                    self.committed[queue] = offset
            except FAILED:
                await asyncio.sleep(BETWEEN_SENDS_S)


# what must be true, each a list of sentences that say where it is not


def lost_or_moved(traffic: Traffic) -> Iterator[str]:
    """Every acknowledged message was read where the acknowledgement said, in the order of sending,
    and nothing was read that was not sent."""
    for queue, sent in traffic.sent.items():
        read, last = traffic.read[queue], -1
        for one in sent:
            if one.result.outcome is not CallOutcome.HAPPENED:
                continue
            offset = one.result.queue_offset
            if offset >= len(read) or read[offset] != one.body:
                yield f"queue {queue}: acknowledged at {offset} under {one.step!r}, and not there"
            elif offset <= last:
                yield f"queue {queue}: {offset} was acknowledged after {last}"
            last = max(last, offset)
        often = Counter(read)
        tries = {one.body: one.result.attempts for one in sent}
        for body, times in often.items():
            if times > tries.get(body, 0):
                yield f"queue {queue}: {body[:20]!r} is there {times} times"


def differing(traffic: Traffic, stores: Mapping[str, Path]) -> Iterator[str]:
    """The logs of all brokers are equal, and what was read is in them."""
    logs = {name: list(messages(str(store))) for name, store in stores.items()}
    first, *others = logs.items()
    for name, log in others:
        if log != first[1]:
            yield f"{name} has {len(log)} messages, {first[0]} has {len(first[1])} others"
    for queue, read in traffic.read.items():
        if [m.body for m in first[1] if (m.topic, m.queue) == (TOPIC, queue)] != read:
            yield f"queue {queue}: what was read is not what {first[0]} holds"
