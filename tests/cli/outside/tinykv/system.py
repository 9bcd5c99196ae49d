"""Tinykv: one server that keeps whole numbers by key, in memory and in a file."""

import asyncio
import json
import struct
from pathlib import Path

from harness.contracts import CLIENT, BedFailed, ClusterState, Completion, Node, SystemPlugin, Type

PORT, SERVER = 7000, "kv-1"
NONE = -1


def system(trial):
    return TinyKv(bool(trial.settings.get("stale", False)))


def claims(trial):
    """A killed server loses nothing."""
    return {"kill": "all"}


PLUGIN = SystemPlugin(system=system, claims=claims)


class TinyKv:
    detection_s = 0.0
    log, data = "server.log", "data"

    def __init__(self, stale):
        self.stale = stale

    def nodes(self):
        return [Node(SERVER, "broker"), Node("client-1", CLIENT)]

    def process(self, node):
        return "server"

    async def install(self, bed):
        folder, agent = bed.hosts.folder(SERVER), bed.agents[SERVER]
        await agent.run(["mkdir", "-p", f"{folder}/{self.data}"])
        await agent.put(f"{folder}/server.py", Path(__file__).with_name("server.py").read_bytes())

    async def start(self, bed):
        await self.start_node(bed, SERVER)

    async def start_node(self, bed, node):
        folder = bed.hosts.folder(node)
        argv = [bed.hosts.python(node).executable, f"{folder}/server.py", bed.node(node).address]
        argv += [str(PORT), f"{folder}/{self.data}/log", *(["stale"] if self.stale else [])]
        await bed.agents[node].start("server", argv, log=f"{folder}/{self.log}")

    async def cluster_state(self, bed):
        try:
            await bed.agents[SERVER].ask(PORT, b'{"do": "get"}\n', 1.0)
        except ConnectionError:
            return ClusterState()
        return ClusterState(masters={"kv": SERVER}, epochs={"kv": 1}, redundant=True)

    async def healthy(self, bed, within_s):
        deadline_ns = bed.now_ns() + int(within_s * 1e9)
        while not (await self.cluster_state(bed)).redundant:
            if bed.now_ns() > deadline_ns:
                raise BedFailed(f"{SERVER} does not answer within {within_s:g} s")
            await bed.sleep(0.1)
        return {"answers": True}

    async def collect(self, bed):
        await bed.agents[SERVER].signal("server", 15)
        await bed.agents[SERVER].exited("server")

    def client_settings(self, nodes):
        return {"address": next(node.address for node in nodes if node.name == SERVER)}

    def client(self, settings):
        return Client(settings["address"])


class Client:
    def __init__(self, address):
        self.address, self.connections = address, []

    async def open(self):
        pass

    async def close(self):
        for connection in self.connections:
            connection.hang_up()

    def registers(self, client):
        self.connections.append(Registers(self.address))
        return self.connections[-1]


class Registers:
    """One client's connection: one request at a time."""

    def __init__(self, address):
        self.address, self.streams = address, None

    async def get(self, key):
        try:
            answer = await self._ask(do="get", key=key)
        except ConnectionError as e:
            return Completion(Type.FAIL, error=str(e)), NONE
        value = answer["value"]
        return Completion(Type.OK), NONE if value is None else value

    async def put(self, key, value):
        return await self._change(do="put", key=key, value=value)

    async def cas(self, key, expected, value):
        expected = None if expected == NONE else expected
        return await self._change(do="cas", key=key, expected=expected, value=value)

    async def _change(self, **request):
        try:
            answer = await self._ask(**request)
        except ConnectionRefusedError as e:
            return Completion(Type.FAIL, error=str(e))
        except ConnectionError as e:
            return Completion(Type.INFO, error=str(e))
        if "error" in answer:
            return Completion(Type.FAIL, error=answer["error"])
        return Completion(Type.OK) if answer["done"] else Completion(Type.FAIL, pos=0)

    async def _ask(self, **request):
        if self.streams is None:
            try:
                async with asyncio.timeout(1):
                    self.streams = await asyncio.open_connection(self.address, PORT)
            except OSError as e:
                raise ConnectionRefusedError(str(e)) from e
        reader, writer = self.streams
        try:
            async with asyncio.timeout(1):
                writer.write(json.dumps(request).encode() + b"\n")
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                return json.loads(await reader.readexactly(size))
        except (OSError, EOFError) as e:
            self.hang_up()
            raise ConnectionResetError(str(e)) from e

    def hang_up(self):
        if self.streams:
            self.streams[1].close()
        self.streams = None
