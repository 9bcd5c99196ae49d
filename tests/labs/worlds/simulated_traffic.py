"""Four simulated hosts that chat while everything is done to them: `python simulated_traffic.py
SEED` prints the digest of what happened. It runs on a bare interpreter.
"""

import asyncio
import sys
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from small_world import PORT, Ear, SmallWorld, serving

from clusters.hosts._world.network import Wire
from clusters.hosts._world.tcp import Kernel

NAMES = "abcd"
LASTS_S = 40.0
KERNEL = Kernel(syn_retries=2, retries=4)


def chatter(sea: SmallWorld, name: str, boot: int) -> None:
    """A server, and one line after the other to a peer chosen by luck."""
    luck = sea.world.random(f"chat/{name}/{boot}")

    async def chat() -> None:
        ears: list[Ear] = []
        serve = asyncio.ensure_future(serving(ears, sea.address(name), bytes.upper)())
        while not serve.done():
            peer = NAMES[int(luck.random() * 4)]
            try:
                async with asyncio.timeout(3):
                    reader, writer = await asyncio.open_connection(sea.address(peer), PORT)
                    with closing(writer):
                        for _ in range(int(luck.random() * 20)):
                            writer.write(b"x" * int(luck.random() * 5_000) + b"\n")
                            print(name, len(await reader.readline()))
                    await asyncio.sleep(luck.random() / 10)
            except (OSError, TimeoutError) as e:
                print(name, "failed with", type(e).__name__)
                await asyncio.sleep(luck.random() / 10)

    sea.start(name, chat, "chat")


async def trouble(sea: SmallWorld) -> None:
    """One fault at a time, undone after a while."""
    luck = sea.world.random("trouble")
    for boot in range(1, 1_000):
        await asyncio.sleep(luck.random())
        name = NAMES[int(luck.random() * 4)]
        host, lasts_s, kind = sea.hosts[name], luck.random() * 3, int(luck.random() * 5)
        others = [other for other in NAMES if other != name]
        link = sea.network.link(sea.address(name), sea.address(others[0]))
        if kind == 0:
            host.processes["chat"].kill()
            await asyncio.sleep(lasts_s)
            chatter(sea, name, boot)
        elif kind == 1:
            host.processes["chat"].pause()
            await asyncio.sleep(lasts_s)
            host.processes["chat"].resume()
        elif kind == 2:
            for other in others:
                sea.cut(name, other)
            await asyncio.sleep(lasts_s)
            for other in others:
                sea.heal(name, other)
        elif kind == 3:
            link.loss = 0.3
            await asyncio.sleep(lasts_s)
            link.loss = 0.0
        else:
            host.power_cut()
            await asyncio.sleep(lasts_s)
            host.power_on()
            chatter(sea, name, boot)


def digest(seed: int) -> str:
    sea = SmallWorld(seed, Wire(split=0.1, join=0.1), KERNEL)
    for name in NAMES:
        chatter(sea, name, 0)

    async def main() -> None:
        try:
            async with asyncio.timeout(LASTS_S):
                await trouble(sea)
        except TimeoutError:
            return

    sea.play(main, "driver")
    found = sea.world.digest()
    SmallWorld.close_all()
    return found


if __name__ == "__main__":
    print(digest(int(sys.argv[1])))
