"""A cluster of real processes on loopback, each started from a folder of code of its own.

    async with Fleet(folder).raised(code) as fleet:
        await fleet.replace("broker-2", newer_code)     # stopped in order, started, whole again
        await fleet.hand_over(newer_code, "broker-2")

`code` is a folder with `clusters/` in it. Configurations keep to keys that every edition knows.
What is waited for is always a state of the cluster.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from loopback import free_port

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Pool, Unreachable
from clusters.flotilla.net.wire import Json, Op

ROOT = Path(__file__).resolve().parents[3]
SET, TOPIC, QUEUES = "set-1", "orders", 8
COUNTS = {"nameserver": 2, "controller": 3, "broker": 3}
PATIENCE_S = 120.0  # of a starved machine
T = TypeVar("T")
LOST = (Unreachable, ConnectionLost, CallTimeout)
COMMON = {"timeScale": 0.3}
BROKERS = {
    "brokerName": SET,
    "topics": {TOPIC: QUEUES},
    "allAckInSyncStateSet": True,
    "inSyncReplicas": 2,
    "minInSyncReplicas": 2,
    "totalReplicas": 3,
    "slaveTimeout": 50_000,
    "mappedFileSizeCommitLog": 256 * 1024,
    "maxMessageSize": 64 * 1024,
}


class Deviation(Exception):
    """The cluster violated a requirement."""


@dataclass
class Node:
    """One process, and its folder."""

    name: str
    role: str
    folder: Path
    settings: dict[str, Any]
    address: str
    code: Path = ROOT
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    async def start(self, code: Path) -> None:
        """Start it. Raises Deviation with its last output if it does not listen."""
        self.code, config = code, self.folder / "node.toml"
        config.write_text("".join(f"{k} = {_toml(v)}\n" for k, v in self.settings.items()))
        with (self.folder / "flotilla.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-S", "-s", "-m", "clusters.flotilla", str(config)),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self.folder,
                env={"PYTHONPATH": str(code), "PYTHONUNBUFFERED": "1"},
            )
        assert self.process.stdout
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S)
        if not line.startswith(b"ready "):
            words = (self.folder / "flotilla.log").read_text().strip().splitlines()
            raise Deviation(f"{self.name} does not start: {words[-1] if words else 'no word'}")

    async def stop(self) -> None:
        """Stop it in order."""
        assert self.process
        process, self.process = self.process, None
        if process.returncode is None:
            process.terminate()
        code = await asyncio.wait_for(process.wait(), PATIENCE_S)
        if code:
            raise Deviation(f"{self.name} ended with {code}")

    def kill(self) -> None:
        if self.process and self.process.returncode is None:
            self.process.kill()


class Fleet:
    """The nodes and their roles."""

    def __init__(self, folder: Path) -> None:
        self.nodes: dict[str, Node] = {}
        self._pool = Pool(2)
        hosts = {
            f"{role}-{n}": f"127.0.{number}.{n}"
            for number, role in enumerate(COUNTS, start=20)
            for n in range(1, COUNTS[role] + 1)
        }
        addresses = {name: f"{host}:{free_port(host)}" for name, host in hosts.items()}
        for name in hosts:
            self.nodes[name] = _node(folder / name, name, addresses)

    @asynccontextmanager
    async def raised(self, code: Path) -> AsyncIterator["Fleet"]:
        try:
            for node in self.nodes.values():
                await node.start(code)
            await self.whole()
            yield self
        finally:
            self._pool.close()
            for node in self.nodes.values():
                node.kill()
                if node.process:
                    await node.process.wait()

    def of_role(self, role: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.role == role]

    def addresses(self, role: str) -> list[str]:
        return [node.address for node in self.of_role(role)]

    # what they say

    async def described(self, node: Node) -> Json | None:
        try:
            return await self._pool.ask(node.address, Op.DESCRIBE, {}, 2)
        except LOST:
            return None

    async def brokers(self) -> dict[str, Json]:
        answers = [(node.name, await self.described(node)) for node in self.of_role("broker")]
        return {name: answer for name, answer in answers if answer}

    async def master(self) -> str:
        async def find() -> str | None:
            answers = await self.brokers()
            masters = [name for name, answer in answers.items() if answer["role"] == "master"]
            return masters[0] if len(masters) == 1 else None

        return await until("one master", find)

    async def controller_leader(self) -> str:
        async def find() -> str | None:
            for node in self.of_role("controller"):
                answer = await self.described(node)
                if answer and answer["state"] == "leader":
                    return node.name
            return None

        return await until("a leading controller", find)

    async def whole(self) -> None:
        """All nodes serve, every broker is in step, and every nameserver shows it."""

        async def look() -> bool | None:
            return await self._controllers_agree() and await self._brokers_are_in_step()

        await until("a whole cluster", look)

    async def abreast(self) -> None:
        """All replicas have the same log, and all of it is confirmed."""

        async def look() -> bool | None:
            answers = [*(await self.brokers()).values()]
            ends = {answer[key] for answer in answers for key in ("maxOffset", "confirmOffset")}
            return len(answers) == COUNTS["broker"] and len(ends) == 1

        await until("replicas that are abreast", look)

    async def _controllers_agree(self) -> bool:
        answers = [await self.described(node) for node in self.of_role("controller")]
        if not all(answers):
            return False
        answer = [s for s in answers if s]
        same = all(
            len({s[key] for s in answer}) == 1 for key in ("leaderId", "term", "commitIndex")
        )
        return same and answer[0]["leaderId"] is not None

    async def _brokers_are_in_step(self) -> bool:
        answers = await self.brokers()
        masters = {name: answer for name, answer in answers.items() if answer["role"] == "master"}
        if len(answers) != COUNTS["broker"] or len(masters) != 1:
            return False
        [(name, master)] = masters.items()
        slaves = [answer for other, answer in answers.items() if other != name]
        if len(master["set"]) != COUNTS["broker"] or master["synchronizing"]:
            return False
        if any(answer["connected"] != "transfer" for answer in slaves):
            return False
        routes = [await self.described(node) for node in self.of_role("nameserver")]
        known = [answer["brokers"].get(SET, {"addrs": {}})["addrs"] for answer in routes if answer]
        ours = set(self.addresses("broker"))
        right = [a for a in known if a.get("0") == self.nodes[name].address]
        return len(right) == COUNTS["nameserver"] and all(set(a.values()) == ours for a in right)

    # changing them

    async def replace(self, name: str, code: Path) -> None:
        """Run other code on the same folder, and wait until all nodes serve again."""
        node = self.nodes[name]
        await node.stop()
        await node.start(code)
        await self.whole()

    async def hand_over(self, code: Path, to: str) -> None:
        """Move the mastership to this slave by a planned handover, with the tool in `code`."""
        broker_id = (await self.brokers())[to]["controllerBrokerId"]
        await self._order(code, to, "drill", SET, "--to", str(broker_id))

    async def elect(self, code: Path, to: str) -> None:
        """The same by an election, where not all editions know handovers."""
        broker_id = (await self.brokers())[to]["controllerBrokerId"]
        await self._order(code, to, "electMaster", SET, str(broker_id))

    async def _order(self, code: Path, to: str, *words: str) -> None:
        """Repeat a command until it is carried out, as a busy machine may refuse it; then wait
        until all nodes know."""
        where = ("--controllers", ",".join(self.addresses("controller")))

        async def ordered() -> bool | None:
            tool = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "clusters.flotilla", "admin", *words, *where),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(code)},
            )
            return await tool.wait() == 0 or await self.master() == to

        await until(" ".join(words), ordered)
        await self.whole()
        if await self.master() != to:
            raise Deviation(f"{await self.master()} is the master, not {to}")

    async def keeps_offset(self, name: str, group: str, queue: int, least: int) -> None:
        """Wait until this broker has the group's offset on disk."""
        path = self.nodes[name].store / "consumerOffset.json"

        async def look() -> bool | None:
            kept = json.loads(path.read_text()) if path.exists() else []
            rows = kept["is"]["offsets"] if isinstance(kept, dict) else kept
            return any(row[:3] == [group, TOPIC, queue] and row[3] >= least for row in rows)

        await until(f"{name} keeping the offset of {group}", look)


async def until(what: str, find: Callable[[], Awaitable[T | None]]) -> T:
    """Return what `find` returns once it is not empty. Raises Deviation on timeout."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if found := await find():
                    return found
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Deviation(f"no sign of {what} within {PATIENCE_S:g} s") from None


def _node(folder: Path, name: str, addresses: dict[str, str]) -> Node:
    """Write a node's folder and configuration."""
    folder.mkdir(parents=True)
    role, number = name.split("-")
    host, port = addresses[name].split(":")
    of = {r: [a for n, a in addresses.items() if n.startswith(r)] for r in COUNTS}
    peers = {f"n{n}": address for n, address in enumerate(of["controller"], start=1)}
    own: dict[str, dict[str, Any]] = {
        "nameserver": {},
        "controller": {"controllerDLegerSelfId": f"n{number}", "controllerDLegerPeers": peers},
        "broker": {
            **BROKERS,
            "haListenPort": free_port(host),
            "namesrvAddr": of["nameserver"],
            "controllerAddr": of["controller"],
        },
    }
    settings = {
        "role": role,
        "nodeName": name,
        "listenHost": host,
        "listenPort": int(port),
        "storePath": str(folder / "store"),
        "eventLogPath": str(folder / "events.jsonl"),
        **COMMON,
        **own[role],
    }
    return Node(name, role, folder, settings, addresses[name])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)
