"""A store alone on a virtual disk: opened, used, and left by a kill, by a power cut or in order.

    lone = LoneStore()
    lone.live(story)          # a life: `await story(life)`, then the process is killed
    lone.power_cut()
    lone.live(other_story)    # what is found now

A process that stopped itself is reported by `Life.complaint`; anything else that ends a story early
fails the test.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from clusters.flotilla.rules import RULES, Rules
from clusters.flotilla.store import recovery
from clusters.flotilla.store.commit_log import StoreError
from clusters.flotilla.store.message_store import MessageStore
from clusters.flotilla.world.ports import Ports
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import SECOND, World

SEGMENT = 4096
PLACE = recovery.StoreOptions("/store", SEGMENT, 1024)
KEY = (b"t", 0)


@dataclass
class Life:
    """One process and its store."""

    found: recovery.StoreRecovery
    ports: Ports

    @property
    def store(self) -> MessageStore:
        return self.found.store

    def fill(self, count: int, epoch: int = 1, size: int = 40, queue: int = 0) -> list[int]:
        """Write messages with recognisable bodies. Return where they begin."""
        starts = []
        for _ in range(count):
            number = self.store.index.queue((b"t", queue)).end
            body = f"{epoch}-{number}-".encode().ljust(size, b".")
            key = b"k%d" % number
            starts.append(self.store.append((b"t", queue), key, body, epoch).start)
        self.store.log.write_out()
        return starts

    def bodies(self, queue: int = 0) -> list[bytes]:
        """Return what consumers may see of a queue."""
        low, high = self.store.range((b"t", queue))
        found = self.store.fetch((b"t", queue), low, high - low, 1 << 30)
        return [payload.body.rstrip(b".") for payload in found]

    async def settle(self) -> None:
        """Confirm everything, put it on disk, and write the files of full segments."""
        self.store.confirm(self.store.log.max_offset)
        await self.store.flush()
        await self.store.seal()


Story = Callable[[Life], Awaitable[None]]


class LoneStore:
    """The host and its disk, which outlive the processes."""

    def __init__(
        self, seed: int = 1, place: recovery.StoreOptions = PLACE, rules: Rules = RULES
    ) -> None:
        self.world = World(seed)
        self.host = SimHost(self.world, SimNetwork(self.world), "a", "10.0.0.1")
        self.disk = disk_of(self.host)
        self.place, self.rules = place, rules
        self.refusal = ""

    def live(self, story: Story, seconds: float = 60.0) -> str:
        """Run a story in a process. Return its complaint, or "" if it came to its end."""
        self.refusal = ""

        async def whole(process: SimProcess) -> int:
            ports = ports_of(process, self.disk)
            try:
                found = await recovery.recover(self.place, ports, self.rules)
            except StoreError as e:
                self.refusal = str(e)
                ports.exit.fatal(str(e))
            await story(Life(found, ports))
            self.world.after(0, process.kill)
            await asyncio.get_running_loop().create_future()
            return 0

        process = self.host.start("p", whole)
        self.world.run(until_ns=self.world.now_ns + int(seconds * SECOND))
        assert not process.alive, "the story did not end in time"
        return "\n".join(process.error_lines)

    def power_cut(self) -> None:
        self.host.power_cut()
        self.host.power_on()

    def image(self, path: str) -> bytes:
        content = self.disk.file(path)
        return content.read(content.size, 0)

    def files(self, folder: str = "/store") -> dict[str, bytes]:
        """Return everything in the store, by path."""
        found: dict[str, bytes] = {}
        for name, node in self.disk.folder(folder).entries.items():
            path = f"{folder}/{name}"
            if hasattr(node, "entries"):
                found |= self.files(path)
            else:
                found[path] = self.image(path)
        return found

    def with_files(self, files: dict[str, bytes]) -> "LoneStore":
        """Return a new host whose disk holds these files."""
        other = LoneStore(place=self.place, rules=self.rules)
        for path, data in files.items():
            other.disk.put(path, data)
        return other

    def close(self) -> None:
        self.world.close()


def with_flushing(place: recovery.StoreOptions, **flushing: float | bool) -> recovery.StoreOptions:
    return replace(place, flushing=replace(place.flushing, **flushing))  # type: ignore[arg-type]


def segment_path(base: int) -> str:
    return f"/store/commitlog/{base:020d}"
