"""A client of RocketMQ: it asks the nameservers for the route, and sends to and reads from the
master, without hidden retries.

A message is stored for certain if the answer is SUCCESS. FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT
and SLAVE_NOT_AVAILABLE say that the master has it, and that what was asked for besides is not sure:
the outcome is unknown. So it is after other errors than those that come before anything is stored
(`remoting.NOT_STORED`). Source: SendMessageProcessor of apache/rocketmq.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from clusters.kit import servers_in_turn
from clusters.systems.rocketmq.commit_log import records
from clusters.systems.rocketmq.remoting import (
    CREATE_GROUP,
    CREATE_TOPIC,
    GET_TOPIC,
    MAX_OFFSET,
    NO_FILE,
    NO_GROUP,
    NOT_STORED,
    OFFSET_NOT_FOUND,
    PULL,
    PULL_AGAIN,
    PULL_MOVED,
    PULL_NOT_FOUND,
    QUERY_OFFSET,
    ROUTE,
    SEND,
    SUCCESS,
    SYSTEM_ERROR,
    TOO_FEW_REPLICAS,
    UPDATE_OFFSET,
    Answer,
    RemotingError,
    RemotingLinks,
    checked,
)
from harness.contracts.calls import LogEntries, Refused, Stored

NAMESERVER, BROKER = "nameserver", "broker"
NAMES_PORT, BROKER_PORT = 9876, 10911
WITHIN_S, ROUTE_WITHIN_S = 3.0, 1.0
SET_UP_S, AGAIN_S = 60.0, 0.2
GROUP = "seatrial"
OFFSETS = "offsets/"  # of the keys under which the harness keeps those of groups
READ_WRITE = 6  # permission
SUBSCRIBED = 4  # bit of a pull's sysFlag: it has a subscription
MOST = 32  # messages of an answer


class RocketClient:
    """A client of one logical process."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        nodes = settings["nodes"]
        named = [address for _, role, address in nodes if role == NAMESERVER]
        self._nameservers = servers_in_turn({"servers": named}, number)
        self._names = {address: name for name, role, address in nodes if role == BROKER}
        self._links = RemotingLinks()
        values = settings["settings"]
        self._raft = values["mode"] == "dledger"
        self._route_s: float = values["pollNameServerInterval"] * values["timeScale"] / 1000
        self._routes: dict[str, tuple[str, float]] = {}  # topic -> master, and until when

    async def set_up(self, topics: Mapping[str, int]) -> None:
        """Create the topics, and wait until all brokers have them with so many queues: every few
        seconds a slave overwrites its topics with the master's, possibly those from before."""
        async with asyncio.timeout(SET_UP_S):
            for topic, queues in topics.items():
                while True:
                    if await self._created(topic, queues):
                        break
                    await asyncio.sleep(AGAIN_S)

    async def _created(self, topic: str, queues: int) -> bool:
        wanted = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "perm": READ_WRITE,
            "order": False,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "topicSysFlag": 0,
            "topicFilterType": "SINGLE_TAG",
        }
        try:
            for address in self._names:
                await self._ask(address, BROKER_PORT, CREATE_TOPIC, wanted)
            there = {
                queues_in(await self._ask(address, BROKER_PORT, GET_TOPIC, {"topic": topic}))
                for address in self._names
            }
            return there == {queues} and bool(await self._master(topic))
        except (OSError, TimeoutError, ValueError, LookupError, TypeError, Refused):
            return False

    async def close(self) -> None:
        await self._links.close()

    # where to go

    async def _ask(
        self,
        address: str,
        port: int,
        code: int,
        fields: Mapping[str, Any],
        body: bytes = b"",
        within_s: float = WITHIN_S,
    ) -> Answer:
        link = await self._links.to(address, port)
        return await link.call(code, fields, body, within_s=within_s)

    async def _master(self, topic: str) -> str:
        """Return the master's address, as the nameservers know it. Raises Refused if they know
        none."""
        address, until = self._routes.get(topic, ("", 0.0))
        if _now() < until:
            return address
        why: Exception = Refused("there are no nameservers")
        for server in list(self._nameservers):
            fields = {"topic": topic, "acceptStandardJsonOnly": True}
            try:
                answer = await self._ask(server, NAMES_PORT, ROUTE, fields, b"", ROUTE_WITHIN_S)
                if found := master_of(json.loads(checked(answer).body)):
                    self._routes[topic] = found, _now() + self._route_s
                    return found
                raise Refused(f"{topic} has no master")
            except (OSError, TimeoutError, ValueError, RemotingError, Refused) as e:
                why = e
                self._nameservers.append(self._nameservers.pop(0))
        raise Refused(f"no route: {type(why).__name__} {why}") from why

    async def _ask_master(
        self, key: str, code: int, fields: Mapping[str, Any], body: bytes = b""
    ) -> tuple[str, Answer]:
        """Return the master's address and what it answers; after a failure the route is asked for
        again. Raises Refused if nothing was sent."""
        topic, _, _ = key.rpartition("-")
        address = await self._master(topic)
        try:
            answer = await self._ask(address, BROKER_PORT, code, fields, body)
        except (OSError, TimeoutError, Refused):
            self._routes.pop(topic, None)
            raise
        if answer.code != SUCCESS:
            self._routes.pop(topic, None)
        return address, answer

    # messages

    async def append(self, key: str, body: bytes) -> Stored:
        topic, _, queue = key.rpartition("-")
        properties = f"UNIQ_KEY\x01{body[:16].hex()}\x02WAIT\x01true\x02"
        fields = {
            "a": GROUP,
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": queue,
            "f": 0,
            "g": 0,
            "h": 0,
            "i": properties,
            "j": 0,
            "k": False,
            "m": False,
        }
        address, answer = await self._ask_master(key, SEND, fields, body)
        return Stored(stored_at(answer, raft=self._raft), node=self._names.get(address, ""))

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        fields = {
            **_queue(key),
            "consumerGroup": GROUP,
            "queueOffset": offset,
            "maxMsgNums": min(limit, MOST),
            "sysFlag": SUBSCRIBED,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        _, answer = await self._ask_master(key, PULL, fields)
        return pulled(answer, offset)

    async def end(self, key: str) -> int:
        _, answer = await self._ask_master(key, MAX_OFFSET, _queue(key))
        return int(checked(answer).fields["offset"])

    # offsets of groups, which brokers keep: `offsets/GROUP/TOPIC-QUEUE`

    async def read(self, key: str) -> int | None:
        fields = _of_group(key)
        _, answer = await self._ask_master(
            key.rpartition("/")[2], QUERY_OFFSET, fields | {"setZeroIfNotFound": False}
        )
        if answer.code in (OFFSET_NOT_FOUND, NO_GROUP):
            return None
        return int(checked(answer).fields["offset"])

    async def write(self, key: str, value: int) -> None:
        fields = _of_group(key) | {"commitOffset": value}
        queue = key.rpartition("/")[2]
        _, answer = await self._ask_master(queue, UPDATE_OFFSET, fields)
        if answer.code == NO_GROUP:
            group = json.dumps({"groupName": fields["consumerGroup"]}).encode()
            checked((await self._ask_master(queue, CREATE_GROUP, {}, group))[1])
            _, answer = await self._ask_master(queue, UPDATE_OFFSET, fields)
        checked(answer)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _of_group(key: str) -> dict[str, str]:
    if not key.startswith(OFFSETS):
        raise Refused("RocketMQ has no registers")
    group, _, rest = key.removeprefix(OFFSETS).partition("/")
    return {"consumerGroup": group, **_queue(rest)}


def _queue(key: str) -> dict[str, str]:
    """Return `TOPIC-QUEUE` as the fields of a request."""
    topic, _, queue = key.rpartition("-")
    return {"topic": topic, "queueId": queue}


def master_of(route: Mapping[str, Any]) -> str:
    """Return the master's address in a route: the broker of id 0."""
    for broker in route.get("brokerDatas", ()):
        if address := broker["brokerAddrs"].get("0"):
            return str(address).rpartition(":")[0]
    return ""


def queues_in(answer: Answer) -> int:
    """Return how many queues a topic has, by a broker's answer: 0 if it has no such topic."""
    return int(json.loads(answer.body)["writeQueueNums"]) if answer.code == SUCCESS else 0


def stored_at(answer: Answer, *, raft: bool = False) -> int:
    """Return the queue offset of a message that was stored. Raises Refused if it certainly was not,
    and RemotingError if its outcome is unknown. `raft`: the log has Raft in it; then it is stored
    first, and too few replicas are what it has waited for."""
    if answer.code == SUCCESS:
        return int(answer.fields["queueOffset"])
    never = answer.code in NOT_STORED or (
        answer.code == SYSTEM_ERROR
        and answer.remark.startswith(NO_FILE if raft else (NO_FILE, TOO_FEW_REPLICAS))
    )
    if never:
        raise Refused(f"code {answer.code}: {answer.remark[:200]}")
    raise RemotingError(answer)


def pulled(answer: Answer, offset: int) -> LogEntries:
    """Return what a pull answers. Raises RemotingError."""
    if answer.code not in (SUCCESS, PULL_NOT_FOUND, PULL_AGAIN, PULL_MOVED):
        raise RemotingError(answer)
    end, following = int(answer.fields["maxOffset"]), int(answer.fields["nextBeginOffset"])
    found = [(each.offset, each.body) for each in records(answer.body) if each.offset >= offset]
    return LogEntries(found, end, following)
