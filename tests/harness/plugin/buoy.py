"""Buoy: the smallest message system, one process with one file, as a plug-in from outside.

It is here to try the runner: a real process on a real node, that appends every message to a file
before it answers, so that a kill loses nothing. Settings make it misbehave: `exit_after` (sends),
`never_ready`; `log` puts the file elsewhere.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.contracts import (
    CLIENT,
    ClusterState,
    Node,
    PollResult,
    ReceivedMessage,
    SystemPlugin,
    TestBed,
)
from harness.operation import Completion, Type
from harness.trial import Trial

PORT = 7000
SERVER = "buoy"


def system(trial: Trial) -> "Buoy":
    return Buoy(trial)


PLUGIN = SystemPlugin(system=system)


class Buoy:
    detection_s = 0.1
    log, data = "events.jsonl", "log.jsonl"

    def __init__(self, trial: Trial) -> None:
        self._settings = trial.settings

    def nodes(self) -> Sequence[Node]:
        clients = [Node(f"client-{n}", CLIENT) for n in (1, 2)]
        return [Node("buoy-1", "broker"), *clients]

    def process(self, node: str) -> str:
        return SERVER

    async def install(self, bed: TestBed) -> None:
        config = json.dumps(dict(self._settings)).encode()
        await bed.agents["buoy-1"].put(f"{bed.hosts.folder('buoy-1')}/config.json", config)

    async def start(self, bed: TestBed) -> None:
        await self.start_node(bed, "buoy-1")

    async def start_node(self, bed: TestBed, node: str) -> None:
        folder = bed.hosts.folder(node)
        argv = [sys.executable, str(Path(__file__).resolve()), folder, bed.node(node).address]
        await bed.agents[node].start(SERVER, argv, log=f"{folder}/buoy.log")

    async def cluster_state(self, bed: TestBed) -> ClusterState:
        try:
            frame = json.dumps({"do": "ping"}).encode() + b"\n"
            await bed.agents["buoy-1"].ask(PORT + 1, frame, 0.5)
        except ConnectionError:
            return ClusterState()
        return ClusterState(masters={"buoy": "buoy-1"}, epochs={"buoy": 1}, redundant=True)

    async def healthy(self, bed: TestBed, within_s: float) -> Mapping[str, Any]:
        while not (await self.cluster_state(bed)).redundant or self._settings.get("never_ready"):
            await bed.sleep(0.05)
        return {"masters": ["buoy-1"]}

    async def collect(self, bed: TestBed) -> None:
        agent = bed.agents["buoy-1"]
        await agent.signal(SERVER, signal.SIGTERM)
        await agent.exited(SERVER)
        path = self._settings.get("log", f"{bed.hosts.folder('buoy-1')}/log.jsonl")
        log = await agent.get(path)
        rows = [json.loads(line) for line in log.splitlines()]
        offsets: dict[str, int] = {}
        for row in rows:
            row["offset"] = offsets[row["queue"]] = offsets.get(row["queue"], -1) + 1
        values = [(r["queue"], r["offset"], _value(r["body"]), 1, 0) for r in rows]
        bed.record.replicas("buoy-1", values)

    def client_settings(self, nodes: Sequence[Node]) -> Mapping[str, Any]:
        return {"address": next(node.address for node in nodes if node.name == "buoy-1")}

    def client(self, settings: Mapping[str, Any]) -> "Client":
        return Client(settings["address"])


class Client:
    """Answers come in the order of questions; a lost connection leaves every open send unknown."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connecting = asyncio.Lock()
        self._waiting: list[asyncio.Future[Any]] = []
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None: ...

    async def close(self) -> None:
        if self._reading:
            self._reading.cancel()

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        task = asyncio.ensure_future(self._send(f"{topic}-{queue}", body))
        task.add_done_callback(lambda task: done(task.result()))

    async def _send(self, queue: str, body: bytes) -> Completion:
        try:
            answer = await self._ask(do="send", queue=queue, body=body.hex())
        except ConnectionRefusedError as e:
            await asyncio.sleep(0.02)
            return Completion(Type.FAIL, error=str(e))
        except (OSError, TimeoutError) as e:
            return Completion(Type.INFO, error=str(e))
        return Completion(Type.OK, offset=answer["offset"], epoch=1)

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> PollResult:
        try:
            name = f"{topic}-{queue}"
            answer = await self._ask(do="read", queue=name, offset=offset, limit=limit)
        except (OSError, TimeoutError) as e:
            return PollResult(Completion(Type.FAIL, error=str(e)))
        bodies = [bytes.fromhex(body) for body in answer["bodies"]]
        if not bodies:
            await asyncio.sleep(0.02)
        messages = [ReceivedMessage(offset + at, 1, body) for at, body in enumerate(bodies)]
        end = offset + len(bodies)
        return PollResult(Completion(Type.OK), messages, next_offset=end, max_offset=answer["end"])

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        try:
            name = f"{topic}-{queue}"
            return 0, (await self._ask(do="read", queue=name, offset=0, limit=0))["end"]
        except (OSError, TimeoutError) as e:
            raise ConnectionError(str(e)) from e

    async def committed(self, group: str, topic: str, queue: int) -> int:
        return 0

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        return Completion(Type.OK)

    async def _ask(self, **request: Any) -> Any:
        async with self._connecting:
            if self._writer is None:
                reader, self._writer = await asyncio.open_connection(self._address, PORT)
                self._reading = asyncio.create_task(self._read(reader))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._writer.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(2.0):
            return await future

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                future = self._waiting.pop(0)
                if not future.done():
                    future.set_result(json.loads(line))
        except OSError:
            pass
        if self._writer:
            self._writer.close()
        self._writer = None
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionError("the connection was lost"))


def _value(body: str) -> int:
    return int.from_bytes(bytes.fromhex(body)[:8], "big")


# ----------------------------------------------------------------------------------- the server


class Server:
    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self._exit_after = config.get("exit_after", 0)
        self._queues: dict[str, list[str]] = {}
        path = Path(config.get("log", folder / "log.jsonl"))
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            self._queues.setdefault(row["queue"], []).append(row["body"])
        self._log = path.open("a")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
        writer.close()

    async def ping(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(len(b"here").to_bytes(4, "big") + b"here")
        writer.close()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        bodies = self._queues.setdefault(request["queue"], [])
        if request["do"] == "read":
            start = request["offset"]
            return {"bodies": bodies[start : start + request["limit"]], "end": len(bodies)}
        bodies.append(request["body"])
        self._log.write(json.dumps({"queue": request["queue"], "body": request["body"]}) + "\n")
        self._log.flush()
        if self._exit_after and sum(map(len, self._queues.values())) >= self._exit_after:
            sys.exit(3)
        return {"offset": len(bodies) - 1}


async def main() -> None:
    folder, address = Path(sys.argv[1]), sys.argv[2]
    server = Server(folder)
    await asyncio.start_server(server.serve, address, PORT)
    await asyncio.start_server(server.ping, address, PORT + 1)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
