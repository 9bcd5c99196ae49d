"""The workloads of plain calls, against a store in memory: a sound one is judged sound, and each
broken one is convicted by the finding that its flaw causes."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, starmap
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any

import pytest

from clusters.kit.clients import ServiceClient
from harness import registry
from harness.contracts.calls import (
    Changes,
    Delivery,
    Lease,
    LogEntries,
    MicroOperation,
    Refused,
    Versioned,
)
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.run.client_process import ClientProcess
from harness.trial import Trial

OPERATIONS = 250
LEASE_S = 0.05
RECOVER_S = 60.0  # the clients of a sound store end long before


class Store:
    """Objects in memory. Every call takes effect at one moment between its begin and its end."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.lists: defaultdict[str, list[int]] = defaultdict(list)
        self.holders: dict[str, tuple[str, float]] = {}  # lock -> owner, and end of its lease
        self.logs: defaultdict[str, list[bytes]] = defaultdict(list)
        # queue and group -> offset -> until when the group is not given it
        self.given: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        self.halves: dict[int, tuple[str, bytes, float]] = {}  # id -> key, body, when it is asked
        self.tokens = 0
        self.chance = random.Random(1)
        self.operations = 0

    def client(self, settings: Mapping[str, Any], number: int) -> "Store":
        return self

    def enough(self) -> bool:
        """Whether the load may end."""
        return self.operations >= OPERATIONS

    async def moment(self) -> None:
        self.operations += 1
        await asyncio.sleep(self.chance.random() * 0.002)

    async def add(self, key: str, member: int) -> None:
        await self.moment()
        self.lists[key].append(member)
        await self.moment()

    async def members(self, key: str) -> list[int]:
        await self.moment()
        found = list(self.lists[key])
        await self.moment()
        return found

    async def increment(self, key: str, by: int) -> None:
        await self.moment()
        self.values[key] = self.values.get(key, 0) + by
        await self.moment()

    async def count(self, key: str) -> int:
        await self.moment()
        found: int = self.values.get(key, 0)
        await self.moment()
        return found

    async def enqueue(self, key: str, value: int) -> None:
        await self.add(key, value)

    async def dequeue(self, key: str) -> int | None:
        await self.moment()
        found = self.lists[key].pop(0) if self.lists[key] else None
        await self.moment()
        return found

    async def acquire(self, key: str, owner: str) -> Lease:
        await self.moment()
        if self.holder(key):
            raise Refused("another owner has it")
        self.holders[key] = owner, monotonic() + LEASE_S
        return Lease(LEASE_S, self.next_token())

    async def release(self, key: str, owner: str) -> None:
        await self.moment()
        if self.holder(key) != owner:
            raise Refused("this owner does not have it")
        del self.holders[key]

    def holder(self, key: str) -> str:
        owner, end = self.holders.get(key, ("", 0.0))
        return owner if monotonic() < end else ""

    def next_token(self) -> int:
        self.tokens += 1
        return self.tokens

    async def transact(self, operations: Sequence[MicroOperation]) -> list[MicroOperation]:
        await self.moment()
        done = [self.step(each) for each in operations]
        await self.moment()
        return done

    def step(self, operation: MicroOperation) -> MicroOperation:
        f, key, value = operation
        if f == "append":
            assert isinstance(value, int)
            self.lists[key].append(value)
        elif f == "write":
            self.values[key] = value
        else:
            listed = key.startswith("list")
            return MicroOperation(f, key, list(self.lists[key]) if listed else self.values.get(key))
        return operation

    async def change(self, key: str, value: int) -> int:
        await self.moment()
        self.lists[key].append(value)
        version = len(self.lists[key])
        await self.moment()
        return version

    async def current(self, key: str) -> Versioned | None:
        await self.moment()
        versions = self.lists[key]
        return Versioned(len(versions), versions[-1]) if versions else None

    async def watch(self, key: str, after: int) -> Changes:
        """A connection is lost now and then; what it had carried is sent again after `after`."""
        await self.moment()
        if self.operations % 9 == 0:
            raise ConnectionError("lost")
        return Changes(self.events(key, after)[:3])

    def events(self, key: str, after: int) -> list[Versioned]:
        return list(starmap(Versioned, enumerate(self.lists[key], start=1)))[after:]

    async def append(self, key: str, body: bytes) -> int:
        await self.moment()
        self.logs[key].append(body)
        at = len(self.logs[key]) - 1
        await self.moment()
        return at

    async def end(self, key: str) -> int:
        await self.moment()
        return len(self.logs[key])

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        end = await self.end(key)
        return LogEntries([*enumerate(self.logs[key][:end])][offset : offset + limit], end)

    async def fetch(self, key: str, group: str, limit: int) -> list[Delivery]:
        """Messages come again when they were not acknowledged in time."""
        await self.moment()
        until = self.given[key, group]
        now = monotonic()
        free = (at for at in range(len(self.logs[key])) if until.get(at, 0.0) < now)
        found = [Delivery(at, self.logs[key][at], str(at)) for at in islice(free, limit)]
        until |= {each.offset: now + LEASE_S for each in found}
        await self.moment()
        return found

    async def acknowledge(self, key: str, group: str, handles: Sequence[str]) -> None:
        await self.moment()
        self.given[key, group] |= {int(handle): float("inf") for handle in handles}
        await self.moment()
        if self.operations % 7 == 0:
            raise TimeoutError

    async def read(self, key: str) -> int | None:
        await self.moment()
        found: int | None = self.values.get(key)
        return found

    async def write(self, key: str, value: int) -> None:
        await self.moment()
        self.values[key] = value

    async def append_later(self, key: str, body: bytes, delay_ms: int) -> None:
        await self.moment()
        asyncio.get_running_loop().call_later(delay_ms / 1000, self.logs[key].append, body)
        await self.moment()

    async def prepare(self, key: str, body: bytes, group: str) -> int:
        await self.moment()
        half = self.next_token()
        self.halves[half] = key, body, monotonic() + 4 * LEASE_S
        await self.moment()
        return half

    async def decide(self, key: str, half: int, commit: bool) -> None:
        await self.moment()
        if half not in self.halves:
            raise Refused("it is not open")
        key, body, _ = self.halves.pop(half)
        if commit:
            self.logs[key].append(body)
        await self.moment()

    async def questions(self, key: str, group: str) -> list[tuple[int, bytes]]:
        await self.moment()
        now = monotonic()
        found = [(half, body) for half, (_, body, at) in self.halves.items() if at < now]
        for half, body in found:
            self.halves[half] = self.halves[half][0], body, now + 4 * LEASE_S
        await asyncio.sleep(0 if found else LEASE_S)
        return found


class DeliversAtOnce(Store):
    """Delays are not kept."""

    async def append_later(self, key: str, body: bytes, delay_ms: int) -> None:
        await super().append_later(key, body, 0)


class LosesDelayed(Store):
    """A message with a delay of an odd number of ms is accepted, and never delivered."""

    async def append_later(self, key: str, body: bytes, delay_ms: int) -> None:
        await super().append_later(key, body, delay_ms if delay_ms % 2 == 0 else 1_000_000)


class ShowsHalves(Store):
    """What is prepared can be read at once."""

    async def prepare(self, key: str, body: bytes, group: str) -> int:
        self.logs[key].append(body)
        return await super().prepare(key, body, group)


class LosesCommits(Store):
    """Every third commit is answered, and its message is nowhere."""

    async def decide(self, key: str, half: int, commit: bool) -> None:
        await super().decide(key, half, commit and half % 3 != 0)


class NeverAsks(Store):
    """What producers forget stays open."""

    async def questions(self, key: str, group: str) -> list[tuple[int, bytes]]:
        await asyncio.sleep(LEASE_S)
        return []


class ForgetsAcknowledgements(Store):
    """Every third acknowledgement is answered and not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledgements = 0

    def enough(self) -> bool:
        return super().enough() and self.acknowledgements >= 9

    async def acknowledge(self, key: str, group: str, handles: Sequence[str]) -> None:
        self.acknowledgements += 1
        if self.acknowledgements % 3:
            await super().acknowledge(key, group, handles)


class PassesOver(Store):
    """A group is never given every seventh message."""

    async def fetch(self, key: str, group: str, limit: int) -> list[Delivery]:
        self.given[key, group] |= {at: float("inf") for at in range(0, len(self.logs[key]), 7)}
        return await super().fetch(key, group, limit)


class NewestOnly(Store):
    """Watches tell the newest value; what was before it is left out."""

    async def watch(self, key: str, after: int) -> Changes:
        return (await super().watch(key, after))._replace(newest=True)

    def events(self, key: str, after: int) -> list[Versioned]:
        return super().events(key, after)[-1:]


class EarlyEvents(Store):
    """Reads lack the newer half of the values, which watches tell already; `early`: it says so."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early = early

    async def watch(self, key: str, after: int) -> Changes:
        return (await super().watch(key, after))._replace(early=self.early)

    async def current(self, key: str) -> Versioned | None:
        await self.moment()
        values = super().events(key, 0)
        before = values[: len(values) // 2]
        return before[-1] if before else None


class DropsAtReconnect(Store):
    """After a lost connection the event that was on its way does not come again."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped = 0

    def enough(self) -> bool:
        return super().enough() and self.dropped >= 3

    async def watch(self, key: str, after: int) -> Changes:
        try:
            return await super().watch(key, after)
        except ConnectionError:
            left = self.events(key, after + 1)[:1]
            self.dropped += len(left)
            return Changes(left)


class RepeatsEvents(Store):
    """Now and then a watch begins with the last event that it had brought."""

    def events(self, key: str, after: int) -> list[Versioned]:
        return super().events(key, after - (after > 0 and self.operations % 5 == 0))


class SwapsEvents(Store):
    """Now and then two events come in the wrong order."""

    def events(self, key: str, after: int) -> list[Versioned]:
        first, *rest = super().events(key, after) or [Versioned(0, 0)]
        if rest and self.operations % 4 == 0:
            return [rest[0], first]
        return [first, *rest] if first.version else []


class ReadsStaleMember(Store):
    """Reads are answered by a member that lags behind."""

    async def current(self, key: str) -> Versioned | None:
        await self.moment()
        versions = self.lists[key][:-20]
        return Versioned(len(versions), versions[-1]) if versions else None


class WatchesStaleMember(NewestOnly):
    """Some watches are of a member that lags behind."""

    def events(self, key: str, after: int) -> list[Versioned]:
        lags = after > 9 and self.operations % 4 == 0
        return Store.events(self, key, after - 5)[:1] if lags else super().events(key, after)


class LosesChanges(Store):
    """Every tenth change is acknowledged, and the next one takes its place."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def enough(self) -> bool:
        return super().enough() and self.changes >= 50

    async def change(self, key: str, value: int) -> int:
        version = await super().change(key, value)
        self.changes += 1
        if self.changes % 10 == 0:
            self.lists[key].remove(value)
        return version


class LosesAdds(Store):
    """Every twentieth element is acknowledged and not kept."""

    async def add(self, key: str, member: int) -> None:
        await self.moment()
        if self.operations % 20:
            self.lists[key].append(member)


class LosesIncrements(Store):
    """It reads and writes without holding others off."""

    async def increment(self, key: str, by: int) -> None:
        before = await self.count(key)
        await self.moment()
        self.values[key] = before + by


class GivesTwice(Store):
    """Now and then an element stays in the queue that was taken."""

    async def dequeue(self, key: str) -> int | None:
        await self.moment()
        if not self.lists[key]:
            return None
        return self.lists[key][0] if self.operations % 9 == 0 else self.lists[key].pop(0)


class LocksTwice(Store):
    """Every third request gets the lock, whoever has it."""

    def holder(self, key: str) -> str:
        return "" if self.operations % 3 == 0 else super().holder(key)


class RepeatsTokens(Store):
    """Each holder gets the token of the one before."""

    def next_token(self) -> int:
        return 1


class ReadsEarly(Store):
    """A transaction's reads are of the state before those that overlap it (write skew)."""

    def enough(self) -> bool:
        return self.operations >= 3 * OPERATIONS

    async def transact(self, operations: Sequence[MicroOperation]) -> list[MicroOperation]:
        seen = [self.step(each) if each.f == "read" else each for each in operations]
        await self.moment()
        await self.moment()
        return [each if each.f == "read" else self.step(each) for each in seen]


class Refuses(Store):
    """Every third change is refused, and did nothing; every seventh times out, and did it."""

    async def add(self, key: str, member: int) -> None:
        await self.moment()
        if self.operations % 3 == 0:
            raise Refused("not now")
        self.lists[key].append(member)
        if self.operations % 7 == 0:
            raise TimeoutError


@pytest.fixture(autouse=True)
def _soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of this store come again after LEASE_S."""
    monkeypatch.setattr("harness.workloads.consume.QUIET_S", 4 * LEASE_S)


OWN_LOAD: Mapping[str, Mapping[str, Any]] = {
    "watch": {},
    "consume": {},
    "delayed": {"delay_ms": 1500, "late_s": 1.0},
    "transactional": {"think_ms": 20, "asked_within_s": 2.5},
}


def judged(folder: Path, name: str, store: Store, checker: str, within_s: float = RECOVER_S) -> Any:
    """Run a workload on a store, and have what was journalled checked."""
    load = {"rate": 2000.0, **OWN_LOAD.get(name, {"clients": 8})}
    load |= {"hold_ms": 5} if name == "lock" else {}
    trial = Trial(
        system="etcd", workload=name, load=load, recover_within_s=within_s, duration_s=1.0
    )
    workload = registry.load("workload", name)(trial)
    run = RunDir(folder)
    run.journal.mkdir(parents=True)

    async def play() -> None:
        process = ClientProcess(
            client=ServiceClient(store.client, {"topics": {}}),
            ops=TableJournal(run.journal, "ops", "client-1"),
            notes=TableJournal(run.journal, "notes", "client-1"),
            index=0,
            client_processes=1,
            total_processes=workload.processes,
            seed=1,
            clock_ns=monotonic_ns,
        )
        process.begin(monotonic_ns())
        loading = asyncio.ensure_future(workload.load(process))
        async with asyncio.timeout(120):
            while not store.enough() and not loading.done():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            process.stopping = True
            await loading
            process.note("drain")
            await workload.drain(process)
        process.close()

    asyncio.run(play())
    run.write_names({"keys": list(workload.keys), "nodes": [], "roles": {}})
    run.update_state(ended=True)
    return registry.load("checker", checker)(History.open(run), trial, None)


SOUND = [
    ("set", "objects"),
    ("counter", "objects"),
    ("queue", "objects"),
    ("lock", "objects"),
    ("append", "transactions"),
    ("read-write", "transactions"),
    ("watch", "watches"),
    ("consume", "redelivery"),
    ("consume", "loss"),
    ("delayed", "delays"),
    ("transactional", "halves"),
]


@pytest.mark.parametrize(("workload", "checker"), SOUND)
def test_a_sound_store_is_judged_sound(tmp_path: Path, workload: str, checker: str) -> None:
    result = judged(tmp_path / "run", workload, Store(), checker)
    assert not result.findings
    assert not result.reasons
    assert sum(result.decided.values()) > 50


@pytest.mark.parametrize(
    ("workload", "checker", "store", "code"),
    [
        ("set", "objects", LosesAdds, "ELEMENT_LOST"),
        ("counter", "objects", LosesIncrements, "COUNTER_OUT_OF_RANGE"),
        ("queue", "objects", GivesTwice, "DUPLICATE_ELEMENT"),
        ("lock", "objects", LocksTwice, "LOCK_HELD_TWICE"),
        ("lock", "objects", RepeatsTokens, "FENCING_BROKEN"),
        ("append", "transactions", ReadsEarly, "G"),
        ("read-write", "transactions", ReadsEarly, "G"),
        ("consume", "redelivery", ForgetsAcknowledgements, "ACKED_AGAIN"),
        ("consume", "loss", PassesOver, "UNREAD_ACKED"),
        ("delayed", "delays", DeliversAtOnce, "DELIVERED_EARLY"),
        ("delayed", "delays", LosesDelayed, "DELAY_LOST"),
        ("transactional", "halves", ShowsHalves, "HALF_SEEN"),
        ("transactional", "halves", ShowsHalves, "ROLLED_BACK_SEEN"),
        ("transactional", "halves", LosesCommits, "COMMIT_LOST"),
        ("transactional", "halves", NeverAsks, "HALF_STUCK"),
        ("watch", "watches", DropsAtReconnect, "EVENT_MISSED"),
        ("watch", "watches", RepeatsEvents, "EVENT_TWICE"),
        ("watch", "watches", SwapsEvents, "EVENT_OUT_OF_ORDER"),
        ("watch", "watches", ReadsStaleMember, "EVENT_STALE"),
        ("watch", "watches", WatchesStaleMember, "EVENT_STALE"),
        ("watch", "watches", LosesChanges, "VERSION_CONFLICT"),
    ],
)
def test_a_broken_store_is_convicted(
    tmp_path: Path, workload: str, checker: str, store: Callable[[], Store], code: str
) -> None:
    within_s = 2.0 if workload == "watch" else RECOVER_S  # some watchers never catch up
    result = judged(tmp_path / "run", workload, store(), checker, within_s)
    assert any(finding.code.startswith(code) for finding in result.findings)


@pytest.mark.parametrize("locks", [1, 2, 3, 4])
def test_clients_of_a_lock_run_on_several_nodes(locks: int) -> None:
    """So the pause of one node never stops all clients of a lock."""
    workload = registry.load("workload", "lock")(Trial(workload="lock", load={"locks": locks}))
    homes = {(workload.place(p)[0], p % 2) for p in range(workload.processes)}
    assert homes == {(lock, node) for lock in range(locks) for node in (0, 1)}


def test_watches_may_leave_out_all_but_the_newest_value(tmp_path: Path) -> None:
    """If that is what the system promises."""
    result = judged(tmp_path / "run", "watch", NewestOnly(), "watches")
    assert not result.findings
    assert not result.reasons
    assert result.stats["events"] > 10


@pytest.mark.parametrize(("early", "codes"), [(True, set()), (False, {"EVENT_STALE"})])
def test_events_may_come_before_reads_show_them(
    tmp_path: Path, early: bool, codes: set[str]
) -> None:
    """If the answers of the watch say so."""
    result = judged(tmp_path / "run", "watch", EarlyEvents(early), "watches")
    assert {finding.code for finding in result.findings} == codes
    assert result.stats["reads"] > 10


def test_refused_and_unknown_calls_are_no_evidence(tmp_path: Path) -> None:
    """What was refused need not be there, and what timed out may be."""
    result = judged(tmp_path / "run", "set", Refuses(), "objects")
    assert not result.findings
    assert not result.reasons
