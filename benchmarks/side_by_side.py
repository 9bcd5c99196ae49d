"""Real processes side by side, for claims about work and isolation:
`python benchmarks/side_by_side.py [EXPERIMENT ...] [--seconds 8]`.

Each experiment compares clusters, or times of one cluster, that are measured in turn, so that other
work of the machine meets all of them alike. Work is processor time of the nodes' processes.

    cold-standby  what slaves do: the work of the least busy of the nodes with copies, over that of
                  the busiest, under sends and reads; the share of messages that slaves give to
                  readers; and whether readers get any while the master is dead
    isolation     sends to one broker set while another one is sent as much as it takes: with
                  brokers of both sets in each process, and with a process for each broker
    slave-reads   a backlog is read while sends go on, with slaves that may be read and without
    raft-log      sends by a master with and without a pool of memory for the log, and by Raft in
                  the log; two of three replicas have a message before it is acknowledged

Clients that load a cluster are processes of their own. The last line has the figures as JSON.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from _cluster import Cluster, Load, alone, poured, raised, until
from _figures import above_zero, quantile

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient, Consumer
from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.net.wire import PullReply, PullRequest, Status
from clusters.systems.flotilla.modes import BROKER, CONTAINER
from harness.trial import Trial

TOPIC, TICKS = "orders", os.sysconf("SC_CLK_TCK")
CLIENT = "--as"  # first argument of a client process; its work follows
ROUNDS = 3  # of everything that is measured in turn
READ_LIMIT, READ_WAIT_S, PAUSE_S = 32, 0.2, 0.02
OF_CONTAINERS = {"timeScale": 1.0, "brokerSets": 2}
STORED, SKIPPED_S = 300, 3.0  # messages of a queue; from a kill until others may serve
BACKLOG_BYTES, BIG, POOL_BODY = 128 << 20, 16 << 10, 4 << 10
Figures = dict[str, float]


# ------------------------------------------------------------------------ client processes


class CountingConsumer(Consumer):
    """Counts the messages that it got, by the node that gave them."""

    def __init__(self, settings: ClientSettings, client: ClusterClient) -> None:
        super().__init__(settings, client.routes, client.calls)
        self.given: Counter[str] = Counter()

    async def _pull(self, address: str, request: PullRequest) -> PullReply:
        reply = await super()._pull(address, request)
        if reply.status is Status.SUCCESS:
            self.given[address] += len(reply.messages)
        return reply


async def read(settings: ClientSettings, client: ClusterClient, asked: Mapping[str, Any]) -> Any:
    """Read queues from their begin to `high` again and again, for some seconds; return how many
    messages came from each address, those of the first `skip_s` left out."""
    consumer, until_s = CountingConsumer(settings, client), time.monotonic() + asked["seconds"]

    async def follow(queue: int) -> None:
        at = 0
        while time.monotonic() < until_s:
            try:
                pulled = await consumer.pull(TOPIC, queue, at, READ_LIMIT, READ_WAIT_S)
            except CALL_ERRORS:
                await asyncio.sleep(PAUSE_S)
                continue
            at = pulled.next_offset if pulled.next_offset < asked["high"] else 0
            await asyncio.sleep(asked["pause_s"])

    asyncio.get_running_loop().call_later(asked.get("skip_s", 0), consumer.given.clear)
    await asyncio.gather(*map(follow, asked["queues"]))
    return consumer.given


async def flood(settings: ClientSettings, client: ClusterClient, asked: Mapping[str, Any]) -> Any:
    """Keep so many sends to a queue open for some seconds; return how many were acknowledged."""
    until_s, acked = time.monotonic() + asked["seconds"], 0

    async def sender() -> None:
        nonlocal acked
        while time.monotonic() < until_s:
            ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            client.producer.send(TOPIC, asked["queue"], b"key", body, ended.set_result)
            happened = (await ended).outcome is CallOutcome.HAPPENED
            acked += happened

    body = b"x" * asked["body_bytes"]
    await asyncio.gather(*(sender() for _ in range(asked["open"])))
    return acked


WORK: Mapping[str, Callable[..., Awaitable[Any]]] = {"read": read, "flood": flood}


async def as_client(name: str, given: Mapping[str, Any]) -> None:
    settings = ClientSettings.of(given["settings"])
    client = ClusterClient(settings)
    client.start()
    try:
        await until(lambda: _knows(client), "the client knows the topic")
        print("ready", flush=True)
        print(json.dumps(await WORK[name](settings, client, given)), flush=True)
    finally:
        client.close()


async def _knows(client: ClusterClient) -> bool:
    client.routes.refresh()
    return bool(client.routes.places(TOPIC))


def _started(words: Sequence[str]) -> "subprocess.Popen[str]":
    argv = [sys.executable, str(Path(__file__).resolve()), *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@asynccontextmanager
async def beside(cluster: Cluster, name: str, **asked: Any) -> AsyncIterator["asyncio.Task[Any]"]:
    """Have a client process at work, which has begun; its result is the task's."""
    settings = cluster.system.client_settings(cluster.bed.nodes)
    words = (CLIENT, name, json.dumps({"settings": settings, **asked}))
    with _started(words) as process:
        assert process.stdout
        if await asyncio.to_thread(process.stdout.readline) != "ready\n":
            raise SystemExit(f"the client process that is to {name} did not start")
        output = asyncio.ensure_future(asyncio.to_thread(process.stdout.read))

        async def result() -> Any:
            return json.loads(await asyncio.shield(output))

        try:
            yield (task := asyncio.create_task(result()))
            await task
        finally:
            process.kill()


# ---------------------------------------------------------------------------- measuring


def of_copies(cluster: Cluster) -> list[str]:
    """The nodes with copies of the logs."""
    return [node.name for role in (BROKER, CONTAINER) for node in cluster.bed.of_role(role)]


async def cpu_s(cluster: Cluster) -> dict[str, float]:
    """Processor time so far of each node with copies."""
    return {node: _cpu_s(await cluster.pid(node)) for node in of_copies(cluster)}


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS  # utime and stime


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {node: after[node] - before[node] for node in before}


async def masters(cluster: Cluster) -> dict[str, str]:
    """Broker set -> node of its master."""
    return dict((await cluster.cluster_state()).masters)


def queues_of(cluster: Cluster) -> dict[str, int]:
    """Broker set -> a queue that it has."""
    return {p.broker_name: n for n, p in enumerate(cluster.client.routes.places(TOPIC))}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -------------------------------------------------------------------------- experiments


async def cold_standby(seconds: float, folder: Path) -> Figures:
    figures: Figures = {}
    for name, profile in (
        ("switchless", "switchless-sync"),
        ("acting", "switchless-acting"),
        ("containers", "container-cross"),
    ):
        trial = Trial(profile=profile, settings={"timeScale": 0.1})
        async with raised(folder / name, trial, {TOPIC: 4}) as cluster:
            figures |= {f"{name}_{k}": v for k, v in (await _standby(cluster, seconds)).items()}
            say(f"{name}: {figures}")
    return figures


async def _standby(cluster: Cluster, seconds: float) -> Figures:
    leads, places = await masters(cluster), cluster.client.routes.places(TOPIC)
    for queue in range(len(places)):
        await poured(cluster.client, [TOPIC], STORED, 64, queue)
    follow = {"queues": list(range(len(places))), "high": STORED, "pause_s": PAUSE_S}
    async with AsyncExitStack() as stack:
        for queue in queues_of(cluster).values():
            await stack.enter_async_context(Load(cluster.client, [TOPIC], 100.0, queue))
        async with beside(cluster, "read", seconds=seconds, **follow) as reading:
            before = await cpu_s(cluster)
            given = await reading
            work = spent(before, await cpu_s(cluster))
    leaders = {place.address for place in places}
    asked = {**follow, "skip_s": SKIPPED_S, "seconds": seconds + SKIPPED_S}
    async with beside(cluster, "read", **asked) as reading:
        await cluster.kill(leads[min(leads)])
        without = await reading
    return {
        "cpu_least_over_most": min(work.values()) / max(work.values()),
        "reads_by_slaves": 1 - sum(given.get(a, 0) for a in leaders) / sum(given.values()),
        "reads_while_dead": sum(without.values()) / sum(given.values()),
    }


async def isolation(seconds: float, folder: Path) -> Figures:
    kinds = {
        "together": Trial(profile="container-cross", settings=OF_CONTAINERS),
        "apart": Trial(profile="switchless-acting", settings=OF_CONTAINERS, nodes={"broker": 4}),
    }
    calm: dict[str, list[float]] = {name: [] for name in kinds}
    flooded: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(ROUNDS - 1):
        for name, trial in kinds.items():
            async with raised(folder / f"{name}-{number}", trial, {TOPIC: 4}) as cluster:
                for _ in range(ROUNDS - 1):
                    before, during = await _beside_flood(cluster, seconds)
                    calm[name] += before
                    flooded[name] += during
            words = [f"{quantile(times[name], 0.99):.1f}" for times in (calm, flooded)]
            say(f"{name}: p99 of {words[0]} ms, and {words[1]} ms beside the flood")
    figures: Figures = {}
    for word, part in (("p50", 0.5), ("p99", 0.99)):
        for name in kinds:
            quiet, busy = quantile(calm[name], part), quantile(flooded[name], part)
            figures |= {f"{name}_calm_ms_{word}": quiet, f"{name}_flooded_ms_{word}": busy}
            figures[f"{name}_slower_{word}"] = busy / quiet
    return figures


async def _both_known(cluster: Cluster) -> bool:
    cluster.client.routes.refresh()
    return len(queues_of(cluster)) == 2


async def _beside_flood(cluster: Cluster, seconds: float) -> tuple[list[float], list[float]]:
    """Times of sends to one set, in ms: alone, and while the other one is flooded."""
    await until(partial(_both_known, cluster), "routes to two broker sets")
    (_, other), (_, mine) = sorted(queues_of(cluster).items())
    async with Load(cluster.client, [TOPIC], 50.0, mine) as load:
        await asyncio.sleep(seconds / 2)
        alone_count = len(load.sent)
        asked = {"queue": other, "body_bytes": 100, "open": 64}
        async with beside(cluster, "flood", seconds=seconds / 2, **asked):
            begun_s = time.monotonic()
        during = [sent.ms for sent in load.sent[alone_count:] if sent.begun_s >= begun_s]
        return [sent.ms for sent in load.sent[:alone_count]], during


async def slave_reads(seconds: float, folder: Path) -> Figures:
    figures: Figures = {}
    parts: dict[str, list[Figures]] = {"off": [], "on": []}
    for number in range(ROUNDS - 1):
        for name, found in parts.items():
            more = {"slaveReadEnable": name == "on", "accessMessageInMemoryBytes": 16 << 20}
            trial = Trial(profile="allack-min2", settings={"timeScale": 1.0, **more})
            async with raised(folder / f"{name}-{number}", trial, {TOPIC: 4}) as cluster:
                found.append(await _backlog(cluster, seconds))
            say(f"{name}: {found[-1]}")
    for name, found in parts.items():
        figures |= {f"{name}_{key}": median(each[key] for each in found) for key in found[0]}
    return figures


async def _backlog(cluster: Cluster, seconds: float) -> Figures:
    each = BACKLOG_BYTES // BIG // 4
    for queue in range(4):
        if failed := await poured(cluster.client, [TOPIC], each, 64, queue, b"x" * BIG):
            raise SystemExit(f"{failed} of {each} messages of the backlog were not taken")
    master = await cluster.master()
    asked = {"queues": list(range(4)), "high": each * 3 // 4, "pause_s": PAUSE_S}
    async with Load(cluster.client, [TOPIC], 50.0) as load:
        await asyncio.sleep(1.0)
        first = len(load.sent)
        before = await cpu_s(cluster)
        async with beside(cluster, "read", seconds=seconds, **asked) as reading:
            given = await reading
        work = spent(before, await cpu_s(cluster))
        sends = [sent.ms for sent in load.sent[first:]]
    return {
        "by_slaves": 1 - given.get(cluster.address(master), 0) / max(1, sum(given.values())),
        "master_cpu_ms_a_message": 1000 * work[master] / max(1, sum(given.values())),
        "read": float(sum(given.values())),
        "send_ms_p50": quantile(sends, 0.5),
        "send_ms_p99": quantile(sends, 0.99),
    }


async def raft_log(seconds: float, folder: Path) -> Figures:
    pool = {"timeScale": 1.0, "transientStorePoolEnable": True}
    kinds = {
        "pool": Trial(profile="quorum2of3", settings=pool),
        "no_pool": Trial(profile="quorum2of3", settings={"timeScale": 1.0}),
        "raft": Trial(profile="raft-log", settings={"timeScale": 1.0}),
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    costs: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(ROUNDS - 1):
        for name, trial in kinds.items():
            async with raised(folder / f"{name}-{number}", trial, {TOPIC: 4}) as cluster:
                for _ in range(ROUNDS - 1):
                    before = await cpu_s(cluster)
                    asked = {"queue": 0, "body_bytes": POOL_BODY, "open": 128}
                    async with beside(cluster, "flood", seconds=seconds / 2, **asked) as sending:
                        acked = await sending
                    work = sum(spent(before, await cpu_s(cluster)).values())
                    rates[name].append(acked / (seconds / 2))
                    costs[name].append(1000 * work / max(1, acked))
            say(f"{name}: {median(rates[name]):.0f} a second, {median(costs[name]):.3f} ms each")
    figures = {f"{name}_per_s": median(found) for name, found in rates.items()}
    return figures | {f"{name}_cpu_ms": median(found) for name, found in costs.items()}


EXPERIMENTS: Mapping[str, Callable[[float, Path], Awaitable[Figures]]] = {
    "cold-standby": cold_standby,
    "isolation": isolation,
    "slave-reads": slave_reads,
    "raft-log": raft_log,
}


async def story(names: list[str], seconds: float, folder: Path) -> int:
    figures: Figures = {}
    for name in names:
        say(f"{name} ...")
        figures |= await EXPERIMENTS[name](seconds, folder / name)
    for name, value in figures.items():
        print(f"{name:32} {value:.4g}")
    print(json.dumps({name: round(value, 5) for name, value in figures.items()}))
    return 0


def main() -> int:
    if sys.argv[1:2] == [CLIENT]:
        asyncio.run(as_client(sys.argv[2], json.loads(sys.argv[3])))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--seconds", type=above_zero, default=8.0, help="of each phase")
    asked = parser.parse_args()
    if strange := set(asked.what) - EXPERIMENTS.keys():
        parser.error(f"no experiment is called {min(strange)}; there are: {', '.join(EXPERIMENTS)}")
    return alone(partial(story, asked.what or list(EXPERIMENTS), asked.seconds))


if __name__ == "__main__":
    sys.exit(main())
