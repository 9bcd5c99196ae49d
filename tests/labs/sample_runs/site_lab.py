"""The site over a folder of runs: asked as a browser would, and over a socket as nobody should."""

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from starlette.applications import Starlette

from harness.history.rundir import RunDir
from reports._site import server
from reports._site.access import AllowedHosts
from reports._site.pages import application
from reports._site.run_index import RunIndex

WITHIN_S = 20.0
SECRET = "the captain's secret"


@dataclass(frozen=True)
class Browser:
    """Asks the application itself, without a socket."""

    app: Starlette

    def get(self, path: str) -> httpx.Response:
        return asyncio.run(self._get(path))

    async def _get(self, path: str) -> httpx.Response:
        way = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=way, base_url="http://127.0.0.1") as client:
            return await client.get(path)


def browser(runs: Path) -> Browser:
    """Comes by the right name, and follows no redirection."""
    return Browser(application(RunIndex.of(runs), AllowedHosts.of("127.0.0.1")))


@contextmanager
def served(runs: Path, token: str = "") -> Iterator[int]:
    """A real server on a free port of loopback, which must end when it is asked to."""
    answering = server(RunIndex.of(runs), AllowedHosts.of("127.0.0.1", token=token))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answering.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            answering.should_exit = True
            thread.join(WITHIN_S)
            assert not thread.is_alive()


def said(port: int, request: bytes, quiet_s: float = WITHIN_S) -> bytes:
    """What comes back for these bytes, until the server closes or says nothing for so long."""
    answer = b""
    address = ("127.0.0.1", port)
    with socket.create_connection(address, WITHIN_S) as wire, suppress(OSError):
        wire.settimeout(quiet_s)
        wire.sendall(request)
        while piece := wire.recv(65_536):
            answer += piece
    return answer


def get(port: int, path: str, host: str = "127.0.0.1") -> bytes:
    """A plain GET of exactly this path."""
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    return said(port, head.encode("latin-1"))


def shelved(run: RunDir, runs: Path, name: str) -> RunDir:
    """A copy of a run among others."""
    runs.mkdir(exist_ok=True)
    shutil.copytree(run.path, runs / name)
    return RunDir(runs / name)


def strange(run: RunDir, runs: Path) -> dict[str, str]:
    """Folders that somebody might have: by name, words of the note that each must have."""
    secret = runs.parent / "secret.txt"
    secret.write_text(SECRET)

    def copy(name: str) -> RunDir:
        return shelved(run, runs, f"20261101-000000-{name}")

    half = copy("half")
    half.verdict_file.write_text(half.verdict_file.read_text()[:200])
    (half.path / "run.json").write_text("{")
    copy("old").update_state(schema_version=0)
    copy("torn").trial_file.write_text("name = [")
    (runs / "holiday").mkdir()
    (runs / "holiday" / "beach.jpg").write_bytes(b"\xff\xd8")
    os.truncate(copy("huge").verdict_file, 1 << 34)
    copy("deep").verdict_file.write_text("[" * 200_000)
    log = copy("linked").node("broker-1") / "flotilla.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    log.symlink_to(secret)
    os.mkfifo(copy("piped").path / "nodes.log")
    trap = copy("trap").trial_file
    trap.unlink()
    os.mkfifo(trap)
    (runs / "20261101-000000-away").symlink_to(runs.parent)
    (runs / os.fsdecode(b"20261101-000000-bytes-\xff\xfe")).mkdir()
    notes = {
        "half": "could not be read",
        "old": "another version",
        "torn": "trial.toml could not be read",
        "huge": "too many to be shown",
        "deep": "could not be read",
        "trap": "not a plain file",
        "away": "a symbolic link",
        "bytes": "its name is not text",
    }
    told = {f"20261101-000000-{name}": note for name, note in notes.items()}
    return {**told, "holiday": "there is no trial.toml"}
