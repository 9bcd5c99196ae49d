"""The workload messages, run in one process against a store in memory, in its own client process.

The store is a few lists; a test may make it answer as a bad one would. What was journalled is
then read back from disk.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest
from small_world import SmallWorld

from harness.contracts import PollResult, ReceivedMessage
from harness.errors import BadRequest
from harness.history.journal import TableJournal, read_stream
from harness.operation import NONE, Completion, F, Type, producer_of, sequence_of
from harness.run.client_process import ClientProcess
from harness.trial import Trial
from harness.workloads._body import body_of, key_of
from harness.workloads.messages import MessageWorkload, workload

Row = Mapping[str, Any]


@pytest.fixture
def sea() -> Iterator[SmallWorld]:
    yield SmallWorld()
    SmallWorld.close_all()


@dataclass
class Store:
    """A message system in memory. `outcome` decides how each send completes."""

    outcome: Callable[[int], Type] = lambda number: Type.OK
    damage: Callable[[bytes], bytes] = lambda body: body
    key: Callable[[bytes], bytes | None] = lambda body: None  # that a reader is told of a message
    unreachable: frozenset[int] = frozenset()  # queues that nobody answers for
    answers_after_s: float = 0.0  # a poll
    gives: float = inf  # so many messages of a queue, and no more
    queues: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[tuple[str, int], int] = field(default_factory=dict)
    sends: int = 0
    open: int = 0
    most_open: int = 0

    async def close(self) -> None: ...

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        kind = self.outcome(self.sends)
        self.sends += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        if kind is not Type.FAIL:
            self.queues[queue].append(body)
        offset = len(self.queues[queue]) - 1 if kind is Type.OK else NONE

        def end() -> None:
            self.open -= 1
            done(Completion(kind, offset, error="" if kind is Type.OK else "as it was told"))

        asyncio.get_running_loop().call_later(0.001, end)

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> PollResult:
        if queue in self.unreachable:
            return PollResult(Completion(Type.FAIL, error="nobody there"))
        await asyncio.sleep(self.answers_after_s)
        found = self.queues[queue][offset : int(min(offset + limit, self.gives))]
        if not found:
            await asyncio.sleep(0.002)
        read = [
            ReceivedMessage(offset + i, 1, self.damage(body), self.key(body))
            for i, body in enumerate(found)
        ]
        return PollResult(Completion(Type.OK), read, offset + len(read), len(self.queues[queue]))

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        if queue in self.unreachable:
            raise ConnectionError("nobody there")
        return 0, len(self.queues[queue])

    async def committed(self, group: str, topic: str, queue: int) -> int:
        return self.groups.get((group, queue), -1)

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        self.groups[group, queue] = offset
        return Completion(Type.OK)


@dataclass
class Run:
    """A finished run: its workload and what its journals hold."""

    task: MessageWorkload
    ops: list[Row]
    notes: list[str]

    def of(self, f: F, kind: Type) -> list[Row]:
        return [row for row in self.ops if row["f"] == f and row["type"] == kind]

    def messages(self, f: F) -> list[Row]:
        return [row for row in self.of(f, Type.OK) if row["pos"] is not None]

    def said(self, word: str) -> list[Any]:
        return [json.loads(n.split(" ", 1)[1]) for n in self.notes if n.startswith(f"{word} ")]


def play(
    folder: Path,
    store: Store,
    enough: Callable[[], bool],
    *,
    recover_within_s: float = 60.0,
    **options: Any,
) -> Run:
    """Load until there is enough, drain, and read the journals back."""
    load = {"rate": 2000, **options}
    task = workload(Trial(seed=3, recover_within_s=recover_within_s, load=load))

    async def all_of_it() -> None:
        process = aboard(folder, store, task)
        process.begin(monotonic_ns())
        loading = asyncio.ensure_future(task.load(process))
        async with asyncio.timeout(120):
            while not enough():  # noqa: ASYNC110 - the condition is the store's, not an event
                await asyncio.sleep(0.001)
            process.stopping = True
            await loading
            await task.drain(process)
        process.close()

    asyncio.run(all_of_it())
    return journalled(task, folder)


def drained(folder: Path, store: Store, sea: SmallWorld, **options: Any) -> Run:
    """Drain what is there, in a world's time, where the cluster has 30 s to recover."""
    task = workload(Trial(seed=3, recover_within_s=30.0, load=options))
    process = aboard(folder, store, task)
    sea.play(lambda: task.drain(process))
    process.close()
    return journalled(task, folder)


def aboard(folder: Path, store: Store, task: MessageWorkload) -> ClientProcess:
    return ClientProcess(
        client=store,  # type: ignore[arg-type]  # it needs no open()
        ops=TableJournal(folder, "ops", "client-1"),
        notes=TableJournal(folder, "notes", "client-1"),
        index=0,
        client_processes=1,
        total_processes=task.processes,
        seed=3,
        clock_ns=monotonic_ns,
    )


def journalled(task: MessageWorkload, folder: Path) -> Run:
    return Run(task, list(_rows(folder, "ops")), [row["text"] for row in _rows(folder, "notes")])


def _rows(folder: Path, table: str) -> Iterator[Row]:
    for path in sorted(folder.glob(f"{table}-*.arrows")):
        for batch in read_stream(path):
            yield from batch.to_pylist()


def test_everything_sent_is_read_by_the_group_and_by_fresh_readers(tmp_path: Path) -> None:
    """A sound store: each acknowledged value is polled and read at the offset it was given."""
    store = Store()
    run = play(tmp_path, store, lambda: store.sends >= 300)
    acknowledged = {(r["key"], r["offset"]): r["value"] for r in run.of(F.SEND, Type.OK)}
    for f in (F.READ, F.POLL):
        read = {(r["key"], r["offset"]): r["value"] for r in run.messages(f)}
        assert acknowledged.items() <= read.items()
    drained = run.said("DRAINED")
    assert len(drained) == 8, "four queues, by the group and by fresh readers"
    assert {d["key"]: d["to"] for d in drained} == {k: len(v) for k, v in store.queues.items()}
    assert all(d["from"] == 0 for d in drained if "group" not in d)


def test_every_operation_completes_once(tmp_path: Path) -> None:
    """One invocation, one row that completes it; messages of a batch are rows between them."""
    store = Store()
    run = play(tmp_path, store, lambda: store.sends >= 100)
    begun = [row["op"] for row in run.ops if row["type"] == Type.INVOKE]
    ended = [row["op"] for row in run.ops if row["type"] != Type.INVOKE and row["pos"] is None]
    assert len(begun) == len(set(begun))
    assert sorted(begun) == sorted(ended)
    assert {row["op"] for row in run.messages(F.READ)} <= set(begun)


def test_values_are_dense_and_journals_in_time_order(tmp_path: Path) -> None:
    store = Store()
    run = play(tmp_path, store, lambda: store.sends >= 200)
    sent = [row["value"] for row in run.of(F.SEND, Type.INVOKE)]
    for producer in range(4):
        mine = [sequence_of(v) for v in sent if producer_of(v) == producer]
        assert mine == list(range(len(mine)))
    times = [row["t"] for row in run.ops]
    assert times == sorted(times)


def test_the_outcome_is_journalled_as_the_client_said(tmp_path: Path) -> None:
    """ok, fail and info stay what they are, and the reason is a note."""
    kinds = (Type.OK, Type.FAIL, Type.INFO)
    store = Store(outcome=lambda number: kinds[number % 3])
    run = play(tmp_path, store, lambda: store.sends >= 60)
    assert len(run.of(F.SEND, Type.FAIL)) == store.sends // 3 + (store.sends % 3 > 1)
    assert all(row["offset"] is None for row in run.of(F.SEND, Type.INFO))
    assert run.notes.count("as it was told") == sum(
        len(run.of(F.SEND, kind)) for kind in (Type.FAIL, Type.INFO)
    )


def test_concurrency_bounds_what_is_open(tmp_path: Path) -> None:
    """Two producers of three slots never have more than six sends open, however fast they may."""
    store = Store()
    play(tmp_path, store, lambda: store.sends >= 200, rate=0, producers=2, concurrency=3)
    assert store.most_open == 6


def test_ordered_means_one_at_a_time_on_a_queue_of_ones_own(tmp_path: Path) -> None:
    """The queue then holds each producer's sequence in order."""
    store = Store()
    run = play(tmp_path, store, lambda: store.sends >= 100, rate=0, ordered=True, producers=3)
    assert store.most_open <= 3
    for producer in range(3):
        rows = [r for r in run.of(F.SEND, Type.OK) if producer_of(r["value"]) == producer]
        assert {r["key"] for r in rows} == {producer}
        assert [r["offset"] for r in rows] == sorted(r["offset"] for r in rows)


@dataclass
class Selecting(Store):
    """A store whose client selects the queue: each time the next one."""

    def send_to_any(
        self, topic: str, queues: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        queue = self.sends % queues

        def ended(completion: Completion) -> None:
            known = queue if completion.type is Type.OK else NONE
            done(replace(completion, queue=known))

        self.send(topic, queue, key, body, ended)

    def selections(self) -> Mapping[str, int]:
        return {"detours": self.sends}


def test_a_client_may_select_the_queue(tmp_path: Path) -> None:
    """The invocation has no key; an acknowledgement has that of the queue with the message."""
    kinds = (Type.OK, Type.FAIL, Type.OK, Type.INFO, Type.OK)
    store = Selecting(outcome=lambda number: kinds[number % 5])
    run = play(tmp_path, store, lambda: store.sends >= 100, client_selects=True)
    for kind in (Type.INVOKE, Type.FAIL, Type.INFO):
        assert {row["key"] for row in run.of(F.SEND, kind)} == {None}
    acknowledged = {(r["key"], r["offset"]): r["value"] for r in run.of(F.SEND, Type.OK)}
    assert {key for key, _ in acknowledged} == {0, 1, 2, 3}
    read = {(r["key"], r["offset"]): r["value"] for r in run.messages(F.READ)}
    assert acknowledged.items() <= read.items()
    assert run.said("SELECTIONS") == [{"detours": store.sends}]


def test_a_client_that_selects_can_keep_no_producers_order() -> None:
    """Both options name the queue of a send."""
    task = workload(Trial(load={"ordered": True, "client_selects": True}))
    with pytest.raises(BadRequest, match=r"load\.client_selects"):
        task.check_options()


def test_a_damaged_body_is_reported_and_has_no_value(tmp_path: Path) -> None:
    store = Store(damage=lambda body: body[:-1] + bytes([body[-1] ^ 1]))
    run = play(tmp_path, store, lambda: store.sends >= 20)
    assert {row["value"] for row in run.messages(F.READ)} == {None}
    assert len(run.said("CORRUPTED")) >= 2 * store.sends, "by the group and by fresh readers"


def test_a_damaged_key_is_reported_and_the_value_stays(tmp_path: Path) -> None:
    """The body is sound, so the message is not lost; a client that knows no keys verifies none."""
    store = Store(key=lambda body: bytes(8))
    run = play(tmp_path, store, lambda: store.sends >= 20)
    assert {note["damaged"] for note in run.said("CORRUPTED")} == {"key"}
    assert len({row["value"] for row in run.messages(F.READ)}) == store.sends
    sound = Store(key=key_of)
    assert play(tmp_path / "sound", sound, lambda: sound.sends >= 20).said("CORRUPTED") == []


def test_what_could_not_be_drained_is_said(tmp_path: Path) -> None:
    """A queue nobody answers for ends at the deadline with a note, and hides no other queue."""
    store = Store()
    store.unreachable = frozenset({2})
    run = play(tmp_path, store, lambda: store.sends >= 50, recover_within_s=2.0)
    assert {n["key"] for n in run.said("NOT_DRAINED")} == {2}
    assert {n["key"] for n in run.said("DRAINED")} == {0, 1, 3}


def test_a_reader_that_gets_on_is_not_given_up(tmp_path: Path, sea: SmallWorld) -> None:
    """Four messages in two seconds, so all of it takes longer than a cluster may to recover."""
    store = Store(answers_after_s=2.0)
    store.queues[0] = [body_of(value, 64) for value in range(100)]
    run = drained(tmp_path, store, sea, queues=1, producers=1, consumers=1, poll_limit=4)
    assert run.said("NOT_DRAINED") == []
    assert [(d["from"], d["to"]) for d in run.said("DRAINED")] == [(0, 100)] * 2
    assert sea.now_s > 30


def test_a_reader_that_stands_still_is_given_up(tmp_path: Path, sea: SmallWorld) -> None:
    """However often it is answered, and however far it had come."""
    store = Store(answers_after_s=2.0, gives=40)
    store.queues[0] = [body_of(value, 64) for value in range(100)]
    run = drained(tmp_path, store, sea, queues=1, producers=1, consumers=1, poll_limit=4)
    assert run.said("DRAINED") == []
    assert [(d["to"], d["high"]) for d in run.said("NOT_DRAINED")] == [(40, 100)] * 2


def test_each_group_reads_everything(tmp_path: Path) -> None:
    store = Store()
    run = play(tmp_path, store, lambda: store.sends >= 50, groups=2, consumers=3)
    drained = run.said("DRAINED")
    for group in ("group-0", "group-1"):
        assert {d["key"] for d in drained if d.get("group") == group} == {0, 1, 2, 3}
    assert {key: offset for (_, key), offset in store.groups.items()} == {
        key: len(bodies) for key, bodies in store.queues.items()
    }


def test_processes_are_producers_then_consumers_then_readers() -> None:
    task = workload(Trial(load={"producers": 2, "groups": 2, "consumers": 2, "queues": 3}))
    assert [task.process_name(p) for p in range(task.processes)] == [
        "producer 0",
        "producer 1",
        "consumer 0 of group-0",
        "consumer 1 of group-0",
        "consumer 0 of group-1",
        "consumer 1 of group-1",
        "reader 0",
        "reader 1",
        "reader 2",
    ]
    assert task.keys == ["orders-0", "orders-1", "orders-2"]


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"quues": 3}, "load.quues"),
        ({"queues": 0}, "load.queues"),
        ({"queues": 2.5}, "load.queues"),
        ({"queues": True}, "load.queues"),
        ({"queues": 1000, "topics": 1000}, "load.topics times load.queues"),
        ({"rate": -1}, "load.rate"),
        ({"rate": "fast"}, "load.rate"),
        ({"rate": 1e-323}, "load.rate must be 0"),
        ({"body_bytes": 8}, "load.body_bytes"),
        ({"ordered": 1}, "load.ordered"),
    ],
)
def test_nonsense_is_refused_by_name(load: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        workload(Trial(load=load))


def test_more_ordered_producers_than_queues_are_refused() -> None:
    task = workload(Trial(load={"ordered": True, "producers": 9}))
    with pytest.raises(BadRequest, match=r"load\.ordered"):
        task.check_options()
