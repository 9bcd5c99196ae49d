"""The harness's client, made of a client of plain calls."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from harness.contracts import Completion, HalfQuestion, PollResult, ReceivedMessage, Type
from harness.contracts.calls import CheckedCalls, Lease, MicroOperation, Stored, call_outcome
from harness.operation import NONE

POLL_AGAIN_S = 0.05
OF_A_KEY = (  # calls whose first argument is a key
    *("read", "write", "cas", "acquire", "release", "append", "entries", "end", "add", "members"),
    *("enqueue", "dequeue", "increment", "count", "change", "current", "watch"),
    *("fetch", "acknowledge", "append_later", "prepare", "decide", "questions"),
)
SHARED = 0  # the client that carries sends, polls and group offsets


def servers_in_turn(settings: Mapping[str, Any], number: int) -> list[str]:
    """Return the servers' addresses, beginning with another one for each logical process."""
    servers: list[str] = settings["servers"]
    first = number % len(servers)
    return [*servers[first:], *servers[:first]]


class ServiceClient:
    """A client process's client: `make(settings, number)` makes the client of plain calls of each
    logical process, when it is first used."""

    def __init__(
        self, make: Callable[[Mapping[str, Any], int], Any], settings: Mapping[str, Any]
    ) -> None:
        self._make, self._settings = make, settings
        self._clients: dict[int, Any] = {}
        self._sends: set[asyncio.Future[None]] = set()

    async def open(self) -> None:
        """Create what the workload needs, if the client can; connections are opened when they are
        used."""
        if hasattr(calls := self.calls(SHARED), "set_up"):
            await calls.set_up(self._settings["topics"])

    async def close(self) -> None:
        for sending in self._sends:
            sending.cancel()
        for client in self._clients.values():
            done = client.close() if hasattr(client, "close") else None
            if inspect.isawaitable(done):
                await done

    def calls(self, number: int) -> Any:
        """Return the client of plain calls of one logical process."""
        if number not in self._clients:
            made = self._make(self._settings, number)
            prefix = self._settings.get("prefix", "")
            self._clients[number] = CheckedCalls(PrefixedCalls(made, prefix) if prefix else made)
        return self._clients[number]

    # registers and locks

    def registers(self, client: int) -> "_Registers":
        return _Registers(self.calls(client))

    async def lock(self, group: str, client: str, topic: str, queue: int) -> Completion:
        calls = self.calls(_number(client))
        done, lease = await call_outcome(calls.acquire(f"{topic}-{queue}", client))
        if not isinstance(lease, Lease):
            return done
        return Completion(Type.OK, offset=int(lease.held_s * 1000), arg=lease.token)

    async def unlock(self, group: str, client: str, topic: str, queue: int) -> Completion:
        calls = self.calls(_number(client))
        return (await call_outcome(calls.release(f"{topic}-{queue}", client)))[0]

    # messages

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        async def sent() -> None:
            ended, at = await call_outcome(self.calls(SHARED).append(f"{topic}-{queue}", body))
            if ended.type is Type.OK:
                stored = at if isinstance(at, Stored) else Stored(at)
                ended = Completion(Type.OK, stored.offset, stored.term, self._index(stored.node))
            done(ended)

        self._start(sent())

    def send_delayed(
        self,
        topic: str,
        queue: int,
        key: bytes,
        body: bytes,
        delay_ms: int,
        done: Callable[[Completion], None],
    ) -> None:
        async def sent() -> None:
            asked = self.calls(SHARED).append_later(f"{topic}-{queue}", body, delay_ms)
            done((await call_outcome(asked))[0])

        self._start(sent())

    def prepare(
        self,
        topic: str,
        queue: int,
        key: bytes,
        body: bytes,
        group: str,
        done: Callable[[Completion], None],
    ) -> None:
        async def sent() -> None:
            asked = self.calls(SHARED).prepare(f"{topic}-{queue}", body, group)
            ended, id_ = await call_outcome(asked)
            done(Completion(Type.OK, id_) if ended.type is Type.OK else ended)

        self._start(sent())

    def decide(
        self,
        topic: str,
        queue: int,
        half: int,
        key: bytes,
        commit: bool,
        done: Callable[[Completion], None],
    ) -> None:
        async def sent() -> None:
            asked = self.calls(SHARED).decide(f"{topic}-{queue}", half, commit)
            done((await call_outcome(asked))[0])

        self._start(sent())

    async def questions(
        self, group: str, topic: str, queue: int, wait_s: float
    ) -> Sequence[HalfQuestion]:
        found = await _answer(self.calls(SHARED).questions(f"{topic}-{queue}", group))
        return [HalfQuestion(id_, b"", body) for id_, body in found]

    def _start(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(sending)
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> PollResult:
        asked = self.calls(SHARED).entries(f"{topic}-{queue}", offset, limit)
        done, answer = await call_outcome(asked, read=True)
        if done.type is not Type.OK:
            return PollResult(done, next_offset=offset)
        if not answer.entries:
            await asyncio.sleep(min(wait_s, POLL_AGAIN_S))
            resume = offset if answer.resume == NONE else answer.resume
            return PollResult(done, (), resume, answer.end)
        messages = [ReceivedMessage(at, NONE, body) for at, body in answer.entries]
        return PollResult(done, messages, messages[-1].offset + 1, answer.end)

    def _index(self, node: str) -> int:
        """Return the index of a node in names.json."""
        names = [name for name, _, _ in self._settings["nodes"]] if node else []
        return names.index(node) if node in names else NONE

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        return 0, await _answer(self.calls(SHARED).end(f"{topic}-{queue}"))

    async def committed(self, group: str, topic: str, queue: int) -> int:
        value = await _answer(self.calls(SHARED).read(_group_key(group, topic, queue)))
        return NONE if value is None else int(value)

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        key = _group_key(group, topic, queue)
        return (await call_outcome(self.calls(SHARED).write(key, offset)))[0]


class PrefixedCalls:
    """A client of plain calls that puts a prefix before every key, so that objects of this run are
    none that the cluster had before. Topics have it already."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client, self._prefix = client, prefix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name == "transact":
            return self._transact
        own = name in OF_A_KEY and callable(found)
        return (lambda key, *rest: found(self._prefix + key, *rest)) if own else found

    async def _transact(self, operations: Sequence[MicroOperation]) -> list[MicroOperation]:
        done = await self._client.transact(
            [each._replace(key=self._prefix + each.key) for each in operations]
        )
        return [each._replace(key=each.key.removeprefix(self._prefix)) for each in done]


class _Registers:
    """`harness.workloads.register.RegisterAccess` on plain calls."""

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    async def get(self, key: str) -> tuple[Completion, int]:
        done, value = await call_outcome(self._calls.read(key), read=True)
        return done, NONE if value is None else int(value)

    async def put(self, key: str, value: int) -> Completion:
        return (await call_outcome(self._calls.write(key, value)))[0]

    async def cas(self, key: str, expected: int, value: int) -> Completion:
        old = None if expected == NONE else expected
        done, was_it = await call_outcome(self._calls.cas(key, old, value))
        return Completion(Type.FAIL, pos=0) if done.type is Type.OK and not was_it else done


def _number(client: str) -> int:
    """Return the number of a lock's client, which its name ends with."""
    return int(client.rpartition("-")[2])


def _group_key(group: str, topic: str, queue: int) -> str:
    return f"offsets/{group}/{topic}-{queue}"


async def _answer(asked: Awaitable[Any]) -> Any:
    """Return the answer. Raises ConnectionError if there is none."""
    done, answer = await call_outcome(asked, read=True)
    if done.type is not Type.OK:
        raise ConnectionError(done.error)
    return answer
