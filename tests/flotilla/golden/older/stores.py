"""The folders of a controller and a broker of the first edition: `stores.py CODE`.

CODE: a folder with that edition's `clusters/`; see README.md beside this. The broker has three
lives, so its log has several epochs, and segments that are full. What the folders hold is written
to `expected.json`.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from loopback import free_port
from upgrade_fleet import LOST, Node, until

from clusters.flotilla.client import ClientSettings, ClusterClient
from clusters.flotilla.client.calls import CallRefused

HERE = Path(__file__).resolve().parent
LIVES, EACH, TOPIC = 3, 20, "orders"
SPARE = 64  # zeros that stay behind the Raft log, of 256 KiB


def nodes(folder: Path) -> dict[str, Node]:
    address = {role: f"127.0.0.1:{free_port()}" for role in ("nameserver", "controller", "broker")}
    own: dict[str, dict[str, Any]] = {
        "nameserver": {},
        "controller": {
            "controllerDLegerSelfId": "n1",
            "controllerDLegerPeers": {"n1": address["controller"]},
        },
        "broker": {
            "haListenPort": free_port(),
            "brokerName": "set-1",
            "namesrvAddr": [address["nameserver"]],
            "controllerAddr": [address["controller"]],
            "topics": {TOPIC: 2},
            "mappedFileSizeCommitLog": 4096,
            "maxMessageSize": 1024,
        },
    }
    found = {}
    for role, at in address.items():
        (folder / role).mkdir()
        settings = {
            "role": role,
            "nodeName": role,
            "listenHost": "127.0.0.1",
            "listenPort": int(at.split(":")[1]),
            "storePath": str(folder / role / "store"),
            "timeScale": 0.2,
            **own[role],
        }
        found[role] = Node(role, role, folder / role, settings, at)
    return found


async def live(client: ClusterClient, life: int) -> list[dict[str, Any]]:
    """Messages of one life, as they were acknowledged."""
    rows = []
    for n in range(EACH):
        queue, body = n % 2, f"{life}/{n}".ljust(100, ".")

        async def sent(queue: int = queue, body: str = body) -> Any:
            result = await client.producer.send_and_wait(TOPIC, body.encode(), b"key", queue)
            return result if result.outcome.name == "HAPPENED" else None

        result = await until("an acknowledgement", sent)
        at = {"queue": queue, "offset": result.queue_offset, "epoch": result.epoch}
        rows.append({**at, "body": body})
    return rows


async def committed(client: ClusterClient) -> bool | None:
    try:
        await client.consumer.commit("readers", TOPIC, 1, 7)
    except (*LOST, CallRefused):
        return None
    return True


async def made(folder: Path, code: Path) -> list[dict[str, Any]]:
    cluster, rows = nodes(folder), []
    for node in cluster.values():
        await node.start(code)
    client = ClusterClient(ClientSettings.of({"namesrvAddr": [cluster["nameserver"].address]}))
    client.start()
    for life in range(1, LIVES + 1):
        rows += await live(client, life)
        await until("a commit", lambda: committed(client))
        await cluster["broker"].stop()
        if life < LIVES:
            await cluster["broker"].start(code)
    client.close()
    for role in ("controller", "nameserver"):
        await cluster[role].stop()
    return rows


def keep(folder: Path, rows: list[dict[str, Any]]) -> None:
    for role in ("broker", "controller"):
        shutil.rmtree(HERE / role, ignore_errors=True)
        shutil.copytree(folder / role / "store", HERE / role)
    wal = HERE / "controller" / "raft.wal"
    wal.write_bytes(wal.read_bytes().rstrip(b"\0") + bytes(SPARE))
    expected = {"messages": rows, "group": "readers", "topic": TOPIC, "committed": [-1, 7]}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        keep(Path(folder), asyncio.run(made(Path(folder), Path(sys.argv[1]).resolve())))


if __name__ == "__main__":
    main()
