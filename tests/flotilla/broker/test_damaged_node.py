"""A broker whose files are damaged: it comes back, or it says which file and stops."""

import asyncio
from random import Random

from simulated_fleet import HOME, Fleet, Sailor, acknowledged

from clusters.hosts._world.disk import Disk, Folder

STORE = f"{HOME}/store"


def files(disk: Disk, folder: str = STORE) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, node in disk.folder(folder).entries.items():
        path = f"{folder}/{name}"
        if isinstance(node, Folder):
            found |= files(disk, path)
        else:
            found[path] = node.read(node.size, 0)
    return found


def damages(data: bytes, dice: Random) -> list[bytes]:
    """Cut anywhere, emptied, a byte changed, and all of it nonsense."""
    flipped = bytearray(data)
    flipped[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return [data[: dice.randrange(len(data))], b"", bytes(flipped), b"\xff{nonsense"]


def test_no_damaged_file_is_met_with_a_traceback() -> None:
    """For each file of the store: the node serves again, with every acknowledged message in its
    log, or one sentence names the file. It never guesses who it is."""
    fleet = Fleet(seed=14, profile="sync-flush", settings={"mappedFileSizeCommitLog": 1 << 16})
    outcomes: dict[str, set[str]] = {}

    async def scenario(sailor: Sailor) -> None:
        slave = (await sailor.healthy()).slaves[0]
        disk, dice = fleet.aboard[slave].disk, Random(14)
        assert len(acknowledged(await sailor.send(200))) == 200
        await sailor.client.consumer.commit("g", "orders", 0, 3)
        await asyncio.sleep(3)
        await sailor.kill(slave)
        intact = files(disk)
        await sailor.send(4)
        for path, data in intact.items():
            for damaged in damages(data, dice) if data else []:
                for name in [*files(disk)]:
                    disk.remove(name)
                for name, content in intact.items():
                    disk.put(name, damaged if name == path else content)
                await sailor.start(slave)
                await asyncio.sleep(1.5)
                process = fleet.latest[slave]
                said = "\n".join(process.error_lines)
                assert "Traceback" not in said, (path, said)
                if process.alive:
                    assert (await sailor._described(slave) or {})["connected"] == "transfer", path
                    await sailor.kill(slave)
                else:
                    assert path in said, (path, said)
                outcomes.setdefault(path, set()).add("refused" if said else "served")

    fleet.sail(scenario)
    by_name = {path.removeprefix(f"{STORE}/"): found for path, found in outcomes.items()}
    assert by_name["broker.meta"] == {"refused"}
    assert by_name["checkpoint"] == {"served"}
    assert "refused" in by_name["epochFileCheckpoint"]
