"""Serves requests about a running cluster on a Unix socket in its folder.

A request is one JSON line, and so is its answer: `{"do": "status"}`, `{"do": "log", "node":
"broker-1", "file": "", "from": 0}`, `{"do": "down"}`. A refusal is `{"error": "a sentence"}`. The
socket is bound and reached through its folder's descriptor, because the path of a socket is limited
to 107 bytes and the path of a run is longer.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.contracts import CLIENT, TestBed
from harness.errors import BadRequest, BedFailed

SOCKET = "desk.sock"
ANSWER_WITHIN_S = 30.0
MAX_BYTES = 1_000_000  # of a log in one answer
NO_FILE = 66  # sysexits.h: the input is not there
PART = f"""
test -f "$0" || exit {NO_FILE}
size=$(($(wc -c < "$0")))
first=$1
if [ "$first" -lt 0 ]; then
  first=$((size - $(head -c "$size" "$0" | tail -n "$((-first))" | wc -c)))
fi
part() {{ tail -c "+$((first + 1))" "$0" | head -c "$length"; }}
length=$((size - first))
if [ "$length" -lt 0 ]; then length=0; fi
if [ "$length" -gt "$2" ]; then
  length=$2
  torn=$(($(part | tail -n 1 | wc -c)))
  if [ "$torn" -lt "$length" ]; then length=$((length - torn)); fi
fi
echo "$((first + length)) $size"
part
"""

Json = Mapping[str, Any]


@asynccontextmanager
async def serving(folder: Path, bed: TestBed, stop: asyncio.Event) -> AsyncIterator[None]:
    """Serve requests while the block runs."""
    handler = _RequestHandler(bed, stop)
    with _short_path(folder) as path:
        server = await asyncio.start_unix_server(handler.serve, path)
        os.chmod(path, 0o600)
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()
        with suppress(FileNotFoundError):
            (folder / SOCKET).unlink()


def ask(folder: Path, **request: Any) -> Json:
    """Send a request to the process of a cluster. Raises BedFailed if it does not answer."""
    try:
        with socket.socket(socket.AF_UNIX) as wire, _short_path(folder) as path:
            wire.settimeout(ANSWER_WITHIN_S)
            wire.connect(path)
            wire.sendall(json.dumps(request).encode() + b"\n")
            with wire.makefile("rb") as lines:
                answer: Json = json.loads(lines.readline())
    except (OSError, ValueError) as e:
        raise BedFailed(f"the process of the cluster {folder} does not answer: {e}") from e
    if "error" in answer:
        raise BadRequest(answer["error"])
    return answer


class _RequestHandler:
    def __init__(self, bed: TestBed, stop: asyncio.Event) -> None:
        self._bed, self._stop = bed, stop

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(json.loads(await reader.readline()))
        except (BadRequest, BedFailed) as e:
            answer = {"error": str(e)}
        except (ValueError, KeyError, AttributeError) as e:
            answer = {"error": f"malformed request: {e!r}"}
        with suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> Json:
        match request.pop("do"):
            case "status":
                return await self._status()
            case "log":
                return await self._log(request["node"], request["file"], request["from"])
            case "down":
                self._stop.set()
                return {}
            case other:
                raise BadRequest(f"unknown request {other!r}")

    async def _status(self) -> Json:
        standing = await self._bed.system.cluster_state(self._bed)
        rows = [
            {
                "node": node.name,
                "role": node.role,
                "address": node.address,
                "state": await self._state(node.name) if node.role != CLIENT else "",
                "in_set": node.name in standing.in_set,
            }
            for node in self._bed.nodes
        ]
        return {
            "nodes": rows,
            "masters": dict(standing.masters),
            "epochs": dict(standing.epochs),
            "controller_leader": standing.controller_leader,
            "redundant": standing.redundant,
        }

    async def _state(self, node: str) -> str:
        try:
            agent, process = self._bed.agents[node], self._bed.system.process(node)
            return (await agent.state(process)).state
        except BedFailed:
            return "gone"

    async def _log(self, node: str, name: str, start: int) -> Json:
        """Return part of a file of a node's folder, by default its log: from a byte, or, if `start`
        is negative, the last lines. One answer holds at most MAX_BYTES, in whole lines; `end` is
        the size of the file."""
        if node not in self._bed.agents:
            raise BadRequest(f"there is no node {node!r}; there are: {', '.join(self._bed.agents)}")
        path = f"{self._bed.hosts.folder(node)}/{name or self._bed.system.log}"
        agent = self._bed.agents[node]
        done = await agent.run(["sh", "-c", PART, path, str(start), str(MAX_BYTES)])
        if done.code == NO_FILE:
            raise BadRequest(await self._absent(node, name))
        if done.code:
            raise BedFailed(f"the log cannot be read: {done.err.strip()}")
        places, _, text = done.out.partition("\n")
        after, end = map(int, places.split())
        return {"text": text, "next": after, "end": end}

    async def _absent(self, node: str, name: str) -> str:
        """Say that a node does not have a file, and which it has."""
        folder = self._bed.hosts.folder(node)
        listed = await self._bed.agents[node].run(["ls", "-p", folder])
        files = [entry for entry in listed.out.split() if not entry.endswith("/")]
        there = f"; there are: {', '.join(files)}" if files else ""
        return f"{node} has no file {name or self._bed.system.log}{there}"


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a short path of the socket in a folder."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
