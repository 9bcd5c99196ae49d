"""Cold backup: `python benchmarks/cold_backup.py [ROUNDS]`; a real PostgreSQL without standbys.

One writer commits transactions of two rows, one after the other. The server is copied by
pg_basebackup, INTERVAL_S after the last copy. At a random moment before the next copy it is killed
and its data is deleted; the last copy is put in its place at once, as an operator without delay
would. Meanwhile a reader and a writer try. Prints a JSON object: medians over the rounds of rpo_s
(from the last commit that survived to the fault) and rto_s (from the fault to the next commit);
sums of lost and torn transactions, of rounds in which a read went back, and of reads and writes
served while it was down; latency and throughput over those between the copies.
"""

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

from _figures import quantile
from _postgres import FAILURES, PostgresServer, PostgresSession, in_folder, program, run_as_user

INTERVAL_S, COPIES = 4.0, 2
TABLE = "CREATE TABLE parts (n bigint, part text, PRIMARY KEY (n, part))"
WHOLE = "SELECT n, count(*) FROM parts GROUP BY n"


@dataclass
class Commits:
    """Acknowledged transactions: number -> when, in seconds; and their latencies in ms."""

    at_s: dict[int, float] = field(default_factory=dict)
    ms: list[float] = field(default_factory=list)

    def between(self, copies: Sequence[tuple[float, float]]) -> list[float]:
        """Return the latencies of those that were acknowledged while no copy was made."""
        moments = zip(self.at_s.values(), self.ms, strict=True)
        return [ms for at_s, ms in moments if not any(a < at_s <= b for a, b in copies)]

    async def write(self, session: PostgresSession, until: asyncio.Event) -> None:
        """Commit one after the other."""
        number = max(self.at_s, default=0)
        while not until.is_set():
            number += 1
            began_s = time.monotonic()
            rows = f"({number}, 'a'), ({number}, 'b')"
            await session.ask(f"INSERT INTO parts VALUES {rows}")
            self.at_s[number] = time.monotonic()
            self.ms.append(1000 * (self.at_s[number] - began_s))


class Backups:
    """The last complete copy of a server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server, self.last = server, Path()
        self.times: list[tuple[float, float]] = []

    async def take(self, number: int) -> None:
        target = self._server.folder / f"copy-{number}"
        words = ("-h", str(self._server.folder), "-U", "postgres", "-c", "fast")
        copy = (program("pg_basebackup"), "-D", str(target), *words)
        began_s = time.monotonic()
        await asyncio.to_thread(run_as_user, *copy)
        self.times.append((began_s, time.monotonic()))
        self.last = target


@dataclass
class Round:
    rpo_s: float = 0.0
    rto_s: float = 0.0
    lost: int = 0
    torn: int = 0
    went_back: int = 0
    tries_down: int = 0
    served_down: int = 0
    commits: Commits = field(default_factory=Commits)
    quiet_ms: Sequence[float] = ()  # latencies between the copies
    throughput_ratio: float = 0.0


async def _tries(server: PostgresServer, found: Round, until: asyncio.Event) -> None:
    """Read and write again and again while the server is down."""
    while not until.is_set():
        for sql in ("SELECT count(*) FROM parts", "INSERT INTO parts VALUES (0, 'a')"):
            found.tries_down += 1
            with suppress(*FAILURES):
                await (await server.session()).ask(sql)
                found.served_down += not until.is_set()
        await asyncio.sleep(0.02)


async def one_round(folder: Path, random: Random) -> Round:
    """Load, copies, a fault, and the restored server."""
    found, server = Round(), PostgresServer(folder)
    server.start()
    session = await server.serving()
    await session.ask(TABLE)
    backups, over = Backups(server), asyncio.Event()
    await backups.take(0)
    began_s = time.monotonic()
    writing = asyncio.create_task(found.commits.write(session, over))
    for number in range(1, 1 + COPIES):
        await asyncio.sleep(INTERVAL_S)
        await backups.take(number)
    await asyncio.sleep(INTERVAL_S * random.uniform(0.4, 0.9))
    over.set()
    await writing
    lasted_s = time.monotonic() - began_s
    quiet_s = lasted_s - sum(end - begin for begin, end in backups.times[1:])
    found.quiet_ms = found.commits.between(backups.times)
    found.throughput_ratio = len(found.commits.ms) / lasted_s / (len(found.quiet_ms) / quiet_s)
    server.kill()
    fault_s = time.monotonic()
    await asyncio.to_thread(shutil.rmtree, server.data)
    restored = asyncio.Event()
    trying = asyncio.create_task(_tries(server, found, restored))
    await asyncio.to_thread(run_as_user, "cp", "-a", str(backups.last), str(server.data))
    restored.set()
    await trying
    server.start()
    session = await server.serving()
    await session.ask("INSERT INTO parts VALUES (-1, 'a'), (-1, 'b')")
    found.rto_s = time.monotonic() - fault_s
    rows = {int(str(n)): int(str(parts)) for n, parts in await session.ask(WHOLE)}
    server.kill()
    kept = [number for number in found.commits.at_s if number in rows]
    found.rpo_s = fault_s - max(map(found.commits.at_s.__getitem__, kept), default=fault_s)
    found.lost = len(found.commits.at_s) - len(kept)
    found.torn = sum(parts != 2 for parts in rows.values())
    found.went_back = int(max(kept, default=0) < max(found.commits.at_s))
    return found


def figures(rounds: Sequence[Round]) -> dict[str, float]:
    """Return the figures of all rounds."""
    sums = ("lost", "torn", "went_back", "tries_down", "served_down")
    quiet = [ms for each in rounds for ms in each.quiet_ms]
    backed = [ms for each in rounds for ms in each.commits.ms]
    return {
        "rounds": len(rounds),
        "interval_s": INTERVAL_S,
        **{name: median(getattr(each, name) for each in rounds) for name in ("rpo_s", "rto_s")},
        **{name: sum(getattr(each, name) for each in rounds) for name in sums},
        "commits": len(backed),
        "p50_ms": quantile(backed, 0.5),
        "p99_ms": quantile(backed, 0.99),
        "latency_ratio": quantile(backed, 0.5) / quantile(quiet, 0.5),
        "throughput_ratio": median(each.throughput_ratio for each in rounds),
    }


async def measure(folder: Path) -> int:
    count, random = int(sys.argv[1]) if len(sys.argv) > 1 else 3, Random(1)
    rounds = [await one_round(folder / f"round-{n}", random) for n in range(count)]
    print(json.dumps({name: round(value, 3) for name, value in figures(rounds).items()}))
    return 0


if __name__ == "__main__":
    sys.exit(in_folder(measure))
