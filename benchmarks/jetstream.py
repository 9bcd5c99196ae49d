"""Sends beside NATS JetStream: `python benchmarks/jetstream.py [--quick] [--nats-server PATH]`.

Acknowledged messages of 1 KB a second and the time each of them took, with 1, 64 and 512 sends in
flight. Three systems, each of three replicas in processes of their own on this machine's loopback
addresses:

    Flotilla    one broker set; a send is acknowledged when all three replicas have it: in the page
                cache (ASYNC_FLUSH), or after an fdatasync by each of the three (SYNC_FLUSH)
    JetStream   one stream of three replicas in files, published to by nats-py (`publish_async`, the
                quicker of its two ways) over a connection to the stream's leader; acknowledged by
                two of three. Synced to disk at its default interval, or after each write where the
                server knows `sync_interval: always`. Once more through the thinnest client one can
                write, to tell what nats-py costs
    echo        no replica, no disk: a process that sends 1 KB back. Python's own ceiling

The client is the same for all: one process, one event loop, one coroutine for each send in flight,
which awaits one answer and sends again. A round raises each system in turn, measures it at every
window, kills it and removes its files; then the next round begins. Medians over the rounds; ratios
are of the same round, and the median of those.
"""

import argparse
import asyncio
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import _echo
from _echo import BODY
from _servers import PATIENCE_S, Failed, Servers, servers
from _thin_nats import Thin
from _windowed import Running, Sample, windowed

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient
from clusters.systems.flotilla.layout import Layout, cluster_nodes
from clusters.systems.flotilla.modes import BROKER, CONTROLLER, NAMESERVER
from clusters.systems.flotilla.profiles import settings
from harness.contracts import CLIENT, Node
from harness.trial import Trial

try:
    import nats
    import nats.errors
    import nats.js.errors
except ImportError:
    nats = None

ROOT = Path(__file__).resolve().parents[1]
WINDOWS = (1, 64, 512)
TOPIC = "bench"

PAGE, SYNCED = "Flotilla, page cache", "Flotilla, fdatasync"
JETSTREAM, JETSTREAM_SYNCED = "JetStream R3", "JetStream R3, sync always"
JETSTREAM_THIN = "JetStream R3, thin client"
ECHO, PLAIN = "asyncio echo", "nats-py, plain publish"
# in the order of the table
SYSTEMS = (PAGE, SYNCED, JETSTREAM, JETSTREAM_SYNCED, JETSTREAM_THIN, ECHO, PLAIN)
GOALS = (  # system, in flight, at least so many times ..., that one
    (PAGE, 1, 1.0, JETSTREAM),
    (PAGE, 64, 3.0, JETSTREAM),
    (PAGE, 512, 3.0, JETSTREAM),
    (SYNCED, 64, 1.0, JETSTREAM),
    (SYNCED, 512, 1.0, JETSTREAM),
)


Raise = Callable[[Path], AbstractAsyncContextManager[Running]]
Samples = dict[tuple[str, int], list[Sample]]


# ------------------------------------------------------------------------------------ the systems


def flotilla(profile: str) -> Raise:
    """One broker set of three, of a profile in which all three must acknowledge."""
    quick_start = {"raftHeartbeatInterval": 200, "raftElectionTimeout": 1000}
    trial = Trial(
        profile=profile,
        settings={"timeScale": 1.0, "mappedFileSizeCommitLog": 64 << 20, **quick_start},
    )

    @asynccontextmanager
    async def up(folder: Path) -> AsyncIterator[Running]:
        nodes = [
            replace(node, address=f"127.88.1.{n}")
            for n, node in enumerate(cluster_nodes({CLIENT: 1}), start=1)
        ]
        layout = Layout(nodes, settings(trial), {TOPIC: 1}, trial.seed)
        async with servers(folder) as started:
            for role in (NAMESERVER, CONTROLLER, BROKER):
                for node in nodes:
                    if node.role == role:
                        start_node(started, layout, node, folder)
            client = ClusterClient(ClientSettings.of(layout.client(nodes)))
            client.start()
            try:
                yield await serving(started, client)
            finally:
                client.close()

    return up


def start_node(started: Servers, layout: Layout, node: Node, folder: Path) -> None:
    """As the harness starts one: the standard library and our packages are all it needs."""
    place = folder / node.name
    place.mkdir()
    (place / "node.toml").write_text(layout.config(node, str(place)))
    python = [sys.executable, "-S", "-s", "-X", "frozen_modules=on"]
    argv = [*python, "-m", "clusters.flotilla", str(place / "node.toml")]
    started.start(node.name, argv, PYTHONPATH=str(ROOT))


async def serving(started: Servers, client: ClusterClient) -> Running:
    """Once a first message has three copies."""
    producer = client.producer

    async def send() -> None:
        result = await producer.send_and_wait(TOPIC, BODY, queue=0)
        if result.outcome is not CallOutcome.HAPPENED:
            raise Failed(f"a send was not acknowledged: {result.error}")

    async def sent() -> bool:
        result = await producer.send_and_wait(TOPIC, BODY, queue=0)
        return result.outcome is CallOutcome.HAPPENED

    async def held() -> int:
        _, end = await client.consumer.range(TOPIC, 0)
        return end

    await started.until("a first acknowledgement", sent)
    return Running(send, started.pids, held)


def jetstream(program: str, *, sync_always: bool = False, thin: bool = False) -> Raise:
    """A stream of three replicas in files, and a client on the server that leads it."""
    hosts = {f"n{n}": f"127.88.2.{n}" for n in (1, 2, 3)}

    @asynccontextmanager
    async def up(folder: Path) -> AsyncIterator[Running]:
        async with servers(folder) as started:
            for name, host in hosts.items():  # one by one: routes that cross confuse 2.10
                path = folder / f"{name}.conf"
                path.write_text(configuration(name, hosts, folder, sync_always))
                started.start(name, [program, "-c", str(path)])
                await started.listening(host, 4222)
            async with connected(hosts["n1"]) as anywhere:
                leader = hosts[await lead(started, anywhere)]
            async with connected(leader) as connection:
                running = published(started, connection)
                yield replace(running, send=await thin_sender(leader)) if thin else running

    return up


def configuration(name: str, hosts: dict[str, str], folder: Path, sync_always: bool) -> str:
    known = [host for other, host in hosts.items() if other <= name]
    routes = ", ".join(f'"nats://{host}:6222"' for host in known)
    return f"""
server_name: {name}
listen: "{hosts[name]}:4222"
jetstream {{
  store_dir: "{folder / name}"
  max_file_store: 20GB
  {"sync_interval: always" if sync_always else ""}
}}
cluster {{
  name: bench
  listen: "{hosts[name]}:6222"
  routes: [{routes}]
}}
"""


@asynccontextmanager
async def connected(host: str) -> AsyncIterator[Any]:
    async def silent(error: Exception) -> None:
        """Calls raise what concerns them."""

    connection = await nats.connect(f"nats://{host}:4222", allow_reconnect=False, error_cb=silent)
    try:
        yield connection
    finally:
        await connection.close()


async def lead(started: Servers, connection: Any) -> str:
    """Make the stream; the name of its leader, once both others are abreast of it."""
    manager = connection.jetstream(timeout=2.0)
    refused = (nats.errors.Error, nats.js.errors.Error, asyncio.TimeoutError)
    leader = why = ""

    async def made() -> bool:
        nonlocal why
        try:
            await manager.add_stream(name=TOPIC, subjects=[TOPIC], storage="file", num_replicas=3)
        except refused as e:
            why = repr(e) + str(e)
            return await abreast()  # an answer that came too late is not given again
        return True

    async def abreast() -> bool:
        nonlocal leader
        with suppress(*refused):
            cluster = (await manager.stream_info(TOPIC)).cluster
            others = cluster.replicas or []
            leader = cluster.leader or ""
            return bool(leader) and len(others) == 2 and all(peer.current for peer in others)
        return False

    await started.until("to make a stream of three replicas", made, lambda: why)
    await started.until("the stream's replicas to be current", abreast)
    return leader


def published(started: Servers, connection: Any) -> Running:
    stream = connection.jetstream(timeout=PATIENCE_S)

    async def send() -> None:
        await (await stream.publish_async(TOPIC, BODY))

    async def held() -> int:
        return int((await stream.stream_info(TOPIC)).state.messages)

    async def plain(seconds: float) -> float:
        """Messages a second that nobody acknowledges and nobody keeps."""
        count, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            for _ in range(64):
                await connection.publish("nobody", BODY)
            count += 64
            await asyncio.sleep(0)
        await connection.flush()
        return count / (time.perf_counter() - began)

    return Running(send, started.pids, held, plain)


async def thin_sender(host: str) -> Callable[[], Awaitable[None]]:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(Thin, host, 4222)
    return client.sender(TOPIC, BODY)


def knows_sync_interval(program: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.conf"
        path.write_text(configuration("n1", {"n1": "127.88.2.1"}, Path(folder), True))
        probe = [program, "-t", "-c", str(path)]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@asynccontextmanager
async def echo(folder: Path) -> AsyncIterator[Running]:
    host, port = "127.88.3.1", 7007
    async with servers(folder) as started:
        started.start("echo", [sys.executable, _echo.__file__, host, str(port)])
        await started.listening(host, port)
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_connection(_echo.Echoed, host, port)
        yield Running(client.send, started.pids)
        transport.close()


# --------------------------------------------------------------------------------------- a round


async def measured(name: str, up: Raise, folder: Path, seconds: float, into: Samples) -> None:
    """Raise a system, measure it at every window, and check that it has what it acknowledged."""
    folder.mkdir()
    acknowledged = 0
    async with up(folder) as running:
        for window in WINDOWS:
            seen, count = await windowed(running, window, seconds)
            acknowledged += count
            into[name, window].append(seen)
            print(
                f"  {name:<26}{window:>4} in flight {seen.per_s:>9,.0f} msgs/s  "
                f"p50 {seen.p50_ms:.2f}  p99 {seen.p99_ms:.2f} ms",
                flush=True,
            )
        if running.held is not None and (held := await running.held()) < acknowledged:
            raise Failed(f"{name} acknowledged {acknowledged} messages and has {held}")
        if running.plain is not None and name == JETSTREAM:
            into[PLAIN, 0].append(Sample(await running.plain(seconds)))
    shutil.rmtree(folder)
    os.sync()  # what one system left to be written is not the next one's burden


def bare_sync_ms(folder: Path) -> float:
    """What the disk itself needs for 1 KB at the end of a file: the median of a few."""
    times = []
    descriptor = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(descriptor, 0, 1 << 20)
    os.fsync(descriptor)
    for n in range(200):
        began = time.perf_counter()
        os.pwrite(descriptor, BODY, n * len(BODY))
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - began)
    os.close(descriptor)
    return median(times) * 1e3


# ----------------------------------------------------------------------------------------- the end


def ratio(samples: Samples, one: str, other: str, window: int) -> float | None:
    """Of messages a second in the same round, the median; None where one was not measured."""
    pairs = zip(samples.get((one, window), ()), samples.get((other, window), ()), strict=False)
    found = [mine.per_s / theirs.per_s for mine, theirs in pairs]
    return median(found) if found else None


def table(samples: Samples) -> str:
    """One row for each system and window."""
    lines = [
        "| system | in flight | msgs/s | least to most | p50 ms | p99 ms "
        "| client us | servers us | to JetStream | to its sync always |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (name, window), seen in sorted(samples.items(), key=_order):
        rates = [one.per_s for one in seen]
        ratios = [ratio(samples, name, to, window) for to in (JETSTREAM, JETSTREAM_SYNCED)]
        lines.append(
            f"| {name} | {window or ''} | {median(rates):,.0f} "
            f"| {min(rates):,.0f} to {max(rates):,.0f} "
            f"| {_middle(seen, 'p50_ms')} | {_middle(seen, 'p99_ms')} "
            f"| {_middle(seen, 'client_us')} | {_middle(seen, 'servers_us')} "
            f"| {' | '.join('' if r is None else f'{r:.2f}' for r in ratios)} |"
        )
    return "\n".join(lines)


def _order(row: tuple[tuple[str, int], object]) -> tuple[int, int]:
    (name, window), _ = row
    return (*WINDOWS, 0).index(window), SYSTEMS.index(name)


def _middle(seen: Sequence[Sample], field: str) -> str:
    value = median(getattr(one, field) for one in seen)
    return f"{value:.2f}" if value else ""


def judged(samples: Samples) -> bool:
    """Says of each goal whether it is reached; are all that could be measured?"""
    reached = True
    for one, window, wanted, other in GOALS:
        found = ratio(samples, one, other, window)
        if found is None:
            continue
        word = "reached" if found >= wanted else "NOT reached"
        print(f"{one}, {window} in flight: {found:.2f} times {other}, goal {wanted:g}: {word}")
        reached = reached and found >= wanted
    return reached


def systems(program: str | None) -> dict[str, Raise]:
    """What is measured, in this order. Says what can not be, and why."""
    chosen = {
        PAGE: flotilla("sync-replication-async-flush"),
        SYNCED: flotilla("sync-replication-sync-flush"),
    }
    if program is None or not shutil.which(program):
        print(
            f"JetStream is not measured: there is no {program or 'nats-server'} (Debian has it: "
            "apt-get install --no-install-recommends nats-server)"
        )
    elif nats is None:
        print("JetStream is not measured: nats-py is missing (pip install nats-py)")
    else:
        chosen[JETSTREAM] = jetstream(program)
        chosen[JETSTREAM_THIN] = jetstream(program, thin=True)
        if knows_sync_interval(program):
            chosen[JETSTREAM_SYNCED] = jetstream(program, sync_always=True)
        else:
            print(
                "JetStream is measured with page cache alone: this nats-server is too old to "
                "know sync_interval (2.9.22 does)"
            )
    return {**chosen, ECHO: echo}


def heading(program: str | None, folder: Path) -> str:
    told = ["no nats-server"]
    if program and shutil.which(program):
        told = [subprocess.check_output([program, "--version"], text=True).strip()]
    if nats is not None:
        told.append(f"nats-py {version('nats-py')}")
    return (
        f"{os.cpu_count()} cores, CPython {platform.python_version()}, {', '.join(told)}\n"
        f"bodies of {len(BODY):,} bytes; a bare write of one and fdatasync in {folder.parent}: "
        f"{bare_sync_ms(folder):.2f} ms\n"
        "Nobody batches messages: each is a frame and an acknowledgement of its own. Flotilla's "
        "client and brokers, nats-py and the echo all join what is sent in one turn of their "
        "event loop into one write to the socket"
    )


async def rounds(chosen: dict[str, Raise], folder: Path, count: int, seconds: float) -> Samples:
    samples: Samples = defaultdict(list)
    for number in range(1, count + 1):
        print(f"round {number} of {count}", flush=True)
        for name, up in chosen.items():
            await measured(name, up, folder / name, seconds, samples)
    return samples


def found_program() -> str | None:
    """Debian keeps it where only root looks."""
    return shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each window in each round")
    parser.add_argument("--nats-server", default=found_program(), metavar="PATH")
    options = parser.parse_args()
    count, seconds = (1, 0.5) if options.quick else (options.rounds, options.seconds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(heading(options.nats_server, folder))
        chosen = systems(options.nats_server)
        try:
            samples = asyncio.run(rounds(chosen, folder, count, seconds))
        except Failed as e:
            print(f"jetstream: {e}", file=sys.stderr)
            return 1
    print(f"\nmedians of {count} rounds of {seconds:g} s, in {time.monotonic() - began:.0f} s\n")
    print(table(samples), end="\n\n")
    return 0 if judged(samples) else 1


if __name__ == "__main__":
    sys.exit(main())
