"""Two-phase commit: `python benchmarks/two_phase.py [KILLS]`; two real PostgreSQL servers.

A transaction puts a row into each of two servers. By two-phase commit, both prepare it, the
coordinator syncs its decision to a file, and both commit what was prepared; a control commits at
one and then at the other, without an agreement. One of the servers is killed again and again under
load and restarted after DOWN_S; then the coordinator ends what was prepared as its file says.
Prints a JSON object: transactions that one server has and the other one lacks (torn), acknowledged
ones that are not on both (lost), shares of the writes that were served while one server was down
and of such times in which the other one served reads, seconds from the kill to the next commit;
and, without kills, median latency of one worker and throughput of eight, over those of a commit at
a single server (rounds of both in turn).
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from statistics import median

from _figures import quantile
from _postgres import FAILURES, PostgresServer, PostgresSession, in_folder

WORKERS, ROUNDS, EACH_S, DOWN_S = 8, 3, 2.0, 1.0
GONE = "42704"  # undefined object
PREPARED = "SELECT gid FROM pg_prepared_xacts"
Sessions = Sequence[PostgresSession]
Commit = Callable[[Sessions, int], Awaitable[None]]


async def all_of(sessions: Sessions, sql: str) -> None:
    """Ask all at once, and wait for each. Raises the first failure."""
    answers = await asyncio.gather(*(s.ask(sql) for s in sessions), return_exceptions=True)
    for each in answers:
        if isinstance(each, BaseException):
            raise each


class Coordinator:
    """Commits transactions in two phases; its file has the numbers that are to be committed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self.decided: set[int] = set()
        self._open: set[int] = set()

    def close(self) -> None:
        self._file.close()

    async def commit(self, sessions: Sessions, number: int) -> None:
        insert = f"BEGIN; INSERT INTO parts VALUES ({number}); PREPARE TRANSACTION '{number}'"
        self._open.add(number)
        try:
            await all_of(sessions, insert)
            self._decide(number)
            await all_of(sessions, f"COMMIT PREPARED '{number}'")
        finally:
            self._open.discard(number)

    def _decide(self, number: int) -> None:
        self._file.write(b"%d\n" % number)
        self._file.flush()
        os.fdatasync(self._file.fileno())
        self.decided.add(number)

    async def recover(self, sessions: Sessions) -> None:
        """End what failed and is prepared: committed if it was decided, else rolled back."""
        for session in sessions:
            for (number,) in await session.ask(PREPARED):
                if int(str(number)) in self._open:
                    continue
                word = "COMMIT" if int(str(number)) in self.decided else "ROLLBACK"
                try:
                    await session.ask(f"{word} PREPARED '{number}'")
                except ConnectionError as e:
                    if GONE not in str(e):  # else a worker's last request ended it meanwhile
                        raise


async def commit_in_turn(sessions: Sessions, number: int) -> None:
    """The control: commit at each server, without an agreement."""
    for session in sessions:
        await session.ask(f"INSERT INTO parts VALUES ({number})")


@dataclass
class LoadResult:
    acknowledged: list[tuple[float, int]] = field(default_factory=list)  # when, in seconds; number
    failed: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)


async def worker(
    servers: Sequence[PostgresServer], commit: Commit, until: asyncio.Event, found: LoadResult
) -> None:
    """Commit one after the other; after a failure, with new sessions."""
    sessions: list[PostgresSession] = []
    while not until.is_set():
        number, began_s = next(NUMBERS), time.monotonic()
        try:
            if not sessions:
                sessions = [await server.session() for server in servers]
            await commit(sessions, number)
        except FAILURES:
            found.failed.append(began_s)
            for session in sessions:
                session.close()
            sessions = []
            await asyncio.sleep(0.02)
        else:
            ended_s = time.monotonic()
            found.acknowledged.append((ended_s, number))
            found.ms.append(1000 * (ended_s - began_s))
    for session in sessions:
        session.close()


NUMBERS = count(1)


async def loaded(
    servers: Sequence[PostgresServer], commit: Commit, workers: int, for_s: float
) -> LoadResult:
    """Let so many workers commit for so long."""
    found, over = LoadResult(), asyncio.Event()
    asyncio.get_running_loop().call_later(for_s, over.set)
    await asyncio.gather(*(worker(servers, commit, over, found) for _ in range(workers)))
    return found


async def pace(servers: Sequence[PostgresServer], coordinator: Coordinator) -> dict[str, float]:
    """Return latency and throughput over those of a single server."""
    both, one = servers, servers[:1]
    kinds = (("single", one, commit_in_turn), ("two_phase", both, coordinator.commit))
    ms: dict[str, list[float]] = {"single": [], "two_phase": []}
    rates: dict[str, list[float]] = {"single": [], "two_phase": []}
    for _ in range(ROUNDS):
        for name, which, commit in kinds:
            ms[name] += (await loaded(which, commit, 1, EACH_S)).ms
            rates[name].append(len((await loaded(which, commit, WORKERS, EACH_S)).ms) / EACH_S)
    ratios = [two / one for one, two in zip(rates["single"], rates["two_phase"], strict=True)]
    return {
        "p50_ms": quantile(ms["two_phase"], 0.5),
        "p99_ms": quantile(ms["two_phase"], 0.99),
        "latency_ratio": quantile(ms["two_phase"], 0.5) / quantile(ms["single"], 0.5),
        "throughput_ratio": median(ratios),
        "throughput_ratio_min": min(ratios),
        "throughput_ratio_max": max(ratios),
    }


async def _reads(server: PostgresServer, until: asyncio.Event, found: LoadResult) -> None:
    """Read from the server that stays."""
    session = await server.serving()
    while not until.is_set():
        with suppress(*FAILURES):
            await session.ask("SELECT count(*) FROM parts")
            found.reads.append(time.monotonic())
        await asyncio.sleep(0.02)


async def killed(
    servers: Sequence[PostgresServer],
    commit: Commit,
    recover: Callable[[Sessions], Awaitable[None]],
    kills: int,
) -> dict[str, float]:
    """Kill the first server again and again under load, and compare both at the end."""
    found, over, random = LoadResult(), asyncio.Event(), Random(1)
    for server in servers:
        await (await server.serving()).ask("TRUNCATE parts")
    load = asyncio.gather(*(worker(servers, commit, over, found) for _ in range(WORKERS)))
    reading = asyncio.create_task(_reads(servers[1], over, found))
    downs, back_s = [], []
    for _ in range(kills):
        await asyncio.sleep(random.uniform(0.5, 1.0))
        servers[0].kill()
        killed_s = time.monotonic()
        await asyncio.sleep(DOWN_S)
        downs.append((killed_s, time.monotonic()))
        servers[0].start()
        sessions = [await server.serving() for server in servers]
        await recover(sessions)
        await commit(sessions, next(NUMBERS))
        back_s.append(time.monotonic() - killed_s)
    over.set()
    await asyncio.gather(load, reading)
    sessions = [await server.serving() for server in servers]
    await recover(sessions)
    rows = [await session.ask("SELECT n FROM parts") for session in sessions]
    one, other = ({int(str(n)) for (n,) in each} for each in rows)
    acknowledged = {number for _, number in found.acknowledged}
    written = _inside(downs, [when for when, _ in found.acknowledged])
    read = [_inside([down], found.reads) > 0 for down in downs]
    return {
        "torn": len(one ^ other),
        "lost": len(acknowledged - (one & other)),
        "acknowledged": len(acknowledged),
        "writes_down": written / max(1, written + _inside(downs, found.failed)),
        "reads_down": sum(read) / len(read),
        "rto_s": median(back_s),
    }


def _inside(intervals: Sequence[tuple[float, float]], moments: Sequence[float]) -> int:
    """Return how many moments are in an interval, without its first 20 ms: answers on their way."""
    return sum(any(a + 0.02 < when <= b for a, b in intervals) for when in moments)


async def nothing(_: Sessions) -> None:
    """The control has nothing to recover."""


async def measure(folder: Path) -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    servers = [PostgresServer(folder / name, "max_prepared_transactions=64") for name in "ab"]
    for server in servers:
        server.start()
    for server in servers:
        await (await server.serving()).ask("CREATE TABLE parts (n bigint PRIMARY KEY)")
    coordinator = Coordinator(folder / "decisions")
    figures = await pace(servers, coordinator)
    figures |= await killed(servers, coordinator.commit, coordinator.recover, kills)
    control = await killed(servers, commit_in_turn, nothing, kills)
    figures |= {f"control_{name}": control[name] for name in ("torn", "lost", "acknowledged")}
    for server in servers:
        server.kill()
    coordinator.close()
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(in_folder(measure))
