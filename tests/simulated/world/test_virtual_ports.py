"""A node's process in the simulated world: its start, its signals, its stop and its death."""

import asyncio
import errno
import json
import signal
from collections.abc import Awaitable, Callable

import pytest
from simulated_fleet import BROKER_SET, CONFIG, HOME, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.events import EventLog
from clusters.flotilla.node import SOFTWARE, UNAVAILABLE, USAGE, serve
from clusters.flotilla.world.ports import Ports
from clusters.hosts._world.disk import Disk
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import SECOND, World

Main = Callable[[Ports], Awaitable[None]]


class Alone:
    """One host with a disk."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.host = SimHost(self.world, SimNetwork(self.world), "a", "10.0.0.1")
        self.disk: Disk = disk_of(self.host)

    def start(self, main: Main, name: str = "p") -> SimProcess:
        async def whole(process: SimProcess) -> int:
            await main(ports_of(process, self.disk))
            return 0

        return self.host.start(name, whole)

    def node(self, config: str, name: str = "node") -> SimProcess:
        self.disk.put(CONFIG, config.encode())

        async def whole(process: SimProcess) -> int:
            return await serve([CONFIG], lambda seed: ports_of(process, self.disk))

        return self.host.start(name, whole)

    def run(self, seconds: float = 60.0) -> None:
        self.world.run(until_ns=self.world.now_ns + int(seconds * SECOND))

    def text(self, path: str) -> bytes:
        content = self.disk.file(path)
        return content.read(content.size, 0)


NAMESERVER = f"""
role = "nameserver"
nodeName = "ns"
listenHost = "10.0.0.1"
listenPort = 9876
storePath = "{HOME}/store"
eventLogPath = "{HOME}/events.jsonl"
"""


def test_a_node_says_that_it_is_ready_and_stops_when_told_to() -> None:
    """The line on standard output, the events on its disk, exit code 0 after SIGTERM."""
    alone = Alone()
    node = alone.node(NAMESERVER)
    alone.run(1)
    assert node.printed == ["ready nameserver ns 10.0.0.1:9876"]
    node.signal(signal.SIGTERM)
    alone.run(1)
    assert node.code == 0
    kinds = [line.split(b'"kind": ')[1].split(b'"')[1] for line in _lines(alone)]
    assert kinds == [b"start", b"stop"]
    alone.world.close()


def _lines(alone: Alone) -> list[bytes]:
    return alone.text(f"{HOME}/events.jsonl").splitlines()


@pytest.mark.parametrize(
    ("config", "code", "word"),
    [
        ('role = "x"', USAGE, "nodeName"),
        (NAMESERVER.replace("10.0.0.1", "10.0.0.9"), UNAVAILABLE, "no such address"),
    ],
)
def test_a_node_that_can_not_be_says_so(config: str, code: int, word: str) -> None:
    """The exit codes and messages of a real process."""
    alone = Alone()
    node = alone.node(config)
    alone.run(1)
    assert node.code == code
    assert [word in line for line in node.error_lines] == [True]
    alone.world.close()


def test_a_second_node_finds_the_port_taken() -> None:
    """Exit code 69, as on a real machine; the first one goes on."""
    alone = Alone()
    first = alone.node(NAMESERVER)
    alone.run(1)
    second = alone.node(NAMESERVER, "second")
    alone.run(1)
    assert (first.code, second.code) == (None, UNAVAILABLE)
    first.kill()
    alone.world.close()


def test_nothing_is_written_after_fatal() -> None:
    """Neither by the code behind it, nor by `finally` on the way out, nor by other tasks."""
    alone = Alone()

    async def main(ports: Ports) -> None:
        async def later() -> None:
            await asyncio.sleep(1)
            ports.files.append("/log", b"too late")

        asyncio.ensure_future(later()).add_done_callback(lambda task: task.exception())
        await asyncio.sleep(0)
        try:
            ports.exit.fatal("the disk failed")
        finally:
            ports.files.append("/log", b"on the way out")

    process = alone.start(main)
    alone.run()
    assert process.code == SOFTWARE
    assert process.error_lines == ["FATAL the disk failed"]
    assert "log" not in alone.disk.folder("/").entries
    alone.world.close()


def test_a_paused_process_hears_of_its_sync_later() -> None:
    """The disk goes on without it, so the sync covers; the process learns of it when it resumes."""
    alone = Alone()
    ended: list[float] = []

    async def main(ports: Ports) -> None:
        file = ports.files.open("/f")
        await ports.files.sync_folder("/")
        file.pwrite(b"x", 0)
        begun.append(alone.world.now_ns)
        await file.sync()
        ended.append(asyncio.get_running_loop().time())

    begun: list[int] = []
    process = alone.start(main)
    while not begun:
        alone.run(0.0001)
    process.pause()
    alone.run(10)
    assert not ended
    process.resume()
    alone.run(1)
    assert ended[0] >= 10
    alone.host.power_cut()
    assert alone.text("/f") == b"x"
    alone.world.close()


def test_a_sync_ends_for_the_disk_although_the_process_is_dead() -> None:
    """fdatasync is the kernel's work."""
    for seed in range(20):
        alone = Alone(seed)
        begun: list[int] = []
        process = alone.start(_syncing(begun))
        while not begun:
            alone.run(0.0001)
        process.kill()
        alone.run(1)
        alone.host.power_cut()
        assert alone.text("/f") == b"x"
        alone.world.close()


def _syncing(begun: list[int]) -> Main:
    async def main(ports: Ports) -> None:
        file = ports.files.open("/f")
        await ports.files.sync_folder("/")
        file.pwrite(b"x", 0)
        begun.append(1)
        await file.sync()

    return main


def test_each_boot_has_luck_of_its_own() -> None:
    """Otherwise every restart would repeat the election timeouts of the one before."""
    alone = Alone()
    drawn: list[int] = []

    async def main(ports: Ports) -> None:
        drawn.append(ports.randomness.getrandbits(64))

    for _ in range(2):
        alone.start(main)
        alone.run(1)
    assert len(set(drawn)) == 2


def test_the_wall_clock_is_the_hosts() -> None:
    """It passes with the world's time, and can be wrong."""
    alone = Alone()
    read: list[int] = []

    async def main(ports: Ports) -> None:
        read.append(ports.clock.wall_ms())
        await asyncio.sleep(5)
        read.append(ports.clock.wall_ms())
        alone.host.clock.set_error(-3600 * SECOND, 1.0)
        read.append(ports.clock.wall_ms())

    alone.start(main)
    alone.run()
    assert read[1] - read[0] == 5000
    assert read[2] - read[1] == -3_600_000


# a cluster on bad disks


@pytest.mark.parametrize("fault", ["write_error", "sync_error"])
def test_a_master_whose_disk_fails_stops_and_is_replaced(fault: str) -> None:
    """It never goes on after a failed write or sync; nothing acknowledged is lost."""
    fleet = Fleet(seed=2)

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        process, disk = fleet.process(old), fleet.aboard[old].disk
        assert process
        sending = asyncio.ensure_future(sailor.send(200))
        await asyncio.sleep(0.5)
        setattr(disk, fault, errno.EIO)
        await sailor.new_master(old)
        assert process.code == SOFTWARE
        assert [line.startswith("FATAL the commit log") for line in process.error_lines] == [True]
        setattr(disk, fault, 0)
        await sailor.start(old)
        got = acknowledged(await sending)
        await sailor.healthy()
        assert got <= set(await sailor.read_all())

    fleet.sail(scenario)


@pytest.mark.parametrize("fault", ["write_error", "sync_error"])
@pytest.mark.parametrize("role", ["leading controller", "slave"])
def test_a_node_whose_disk_fails_stops_whatever_it_was_doing(role: str, fault: str) -> None:
    """Even in the middle of a peer's frame: a failure of the disk is never taken for a malformed
    peer, and an event log that cannot be written keeps no node from stopping."""
    fleet = Fleet(seed=8)

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        name = now.slaves[0] if role == "slave" else now.controller_leader
        process, master = fleet.process(name), now.masters[BROKER_SET]
        sending = asyncio.ensure_future(sailor.send(200))
        setattr(fleet.aboard[name].disk, fault, errno.EIO)
        if role != "slave":
            await sailor.kill(master)  # something to decide

        async def stopped() -> bool:
            return process is not None and process.code == SOFTWARE

        await eventually(stopped)
        setattr(fleet.aboard[name].disk, fault, 0)
        await sailor.start(name)
        if role != "slave":
            await sailor.start(master)
        got = acknowledged(await sending)
        await sailor.healthy()
        assert got <= set(await sailor.read_all())

    fleet.sail(scenario)


def test_an_event_that_the_disk_refuses_is_counted_and_nothing_else() -> None:
    """An event log decides nothing; the next event says how many are missing."""
    alone = Alone()

    async def main(ports: Ports) -> None:
        events = EventLog("/events", "a", ports)
        events.write("start")
        alone.disk.write_error = errno.ENOSPC
        events.write("role")
        events.write("set")
        alone.disk.write_error = 0
        events.write("stop")

    process = alone.start(main)
    alone.run()
    assert process.code == 0
    rows = [json.loads(line) for line in alone.text("/events").splitlines() if line]
    assert [(row["kind"], row.get("missed")) for row in rows] == [("start", None), ("stop", 2)]


def test_a_slow_disk_slows_the_cluster() -> None:
    """One slave's syncs take 50 ms more: every send waits for it, as it is in the set."""
    fleet = Fleet(seed=2)
    took_s: list[float] = []

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        disk = fleet.aboard[now.slaves[0]].disk
        loop = asyncio.get_running_loop()
        for disk.delay_ns in (0, 50_000_000):
            began = loop.time()
            assert len(acknowledged(await sailor.send(1))) == 1
            took_s.append(loop.time() - began)

    fleet.sail(scenario)
    assert took_s[0] < 0.05 <= took_s[1]


def test_a_flipped_bit_in_the_log_is_never_served() -> None:
    """A slave whose log lost a record that was on disk does not start, since it might be elected;
    it prints the byte's offset. With an empty store it returns as a new member and copies
    everything."""
    fleet = Fleet(seed=6)

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        results = await sailor.send(40)
        await asyncio.sleep(2)  # the checkpoint knows what is on disk
        slave = now.slaves[0]
        await sailor.kill(slave)
        log, disk = f"{HOME}/store/commitlog/{0:020d}", fleet.aboard[slave].disk
        disk.flip_bit(log, 8 * 300)
        await sailor.start(slave)

        async def refused() -> bool:
            return any(log in event["why"] for event in fleet.events(slave, "fatal"))

        await eventually(refused)
        assert fleet.process(slave) is None
        fleet.empty(slave)
        await sailor.start(slave)
        await sailor.healthy()
        await sailor.kill(now.masters[BROKER_SET])
        await sailor.new_master(now.masters[BROKER_SET])

        async def all_read() -> bool:
            return acknowledged(results) == set(await sailor.read_all())

        await eventually(all_read)

    fleet.sail(scenario)
