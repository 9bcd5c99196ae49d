"""PostgreSQL servers that a benchmark starts itself, on Unix sockets in its folder, and sessions.

The protocol is that of the driver (clusters.systems.postgres). A server refuses to run as root, so
root starts it as the user that owns PostgreSQL.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any

from clusters.systems.postgres import error_of, fields_of, message, query, row, startup
from harness.contracts.calls import Refused

PORT, USER = 5432, "postgres"
FAILURES = (OSError, EOFError, ConnectionError, Refused)  # a server that starts refuses
START_S, TRY_EVERY_S = 30.0, 0.02


def program(name: str) -> str:
    """Return the path of a program. Exits if it is not installed."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    found = shutil.which(name) or next(map(str, places), "")
    if not found:
        raise SystemExit(f"{name} is not installed: apt-get install postgresql")
    return found


def in_folder(main: Callable[[Path], Coroutine[Any, Any, int]]) -> int:
    """Run it with a folder that PostgreSQL's user may write to; return the exit code."""
    with tempfile.TemporaryDirectory() as name:
        if os.getuid() == 0:
            shutil.chown(name, USER)
        return asyncio.run(main(Path(name)))


def run_as_user(*argv: str) -> None:
    """Run a program as PostgreSQL's user. Raises CalledProcessError."""
    user = USER if os.getuid() == 0 else None
    subprocess.run(argv, user=user, check=True, capture_output=True, cwd="/")


class PostgresServer:
    """A server with its data in a folder, and its socket in the same folder."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder, self.data, self._settings = folder, folder / "data", settings
        run_as_user("mkdir", "-p", str(folder))
        trust = ("-U", USER, "--auth=trust", "-N")
        run_as_user(program("initdb"), "-D", str(self.data), *trust)

    def start(self) -> None:
        """Start the process, and do not wait until it serves."""
        fixed = ("listen_addresses=", f"unix_socket_directories={self.folder}")
        options = [word for each in (*fixed, *self._settings) for word in ("-c", each)]
        self._process = subprocess.Popen(
            [program("postgres"), "-D", str(self.data), *options],
            user=USER if os.getuid() == 0 else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )

    def kill(self) -> None:
        """Kill the process and those that it started, as a crash of the machine does."""
        pid = self._process.pid
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, started)):
            with suppress(ProcessLookupError):
                os.kill(each, SIGKILL)
        self._process.wait()

    async def session(self) -> "PostgresSession":
        """Connect. Raises one of FAILURES."""
        socket = self.folder / f".s.PGSQL.{PORT}"
        reader, writer = await asyncio.open_unix_connection(str(socket))
        session = PostgresSession(reader, writer)
        writer.write(startup())
        await session.answer()
        return session

    async def serving(self) -> "PostgresSession":
        """Return a session as soon as the server serves."""
        async with asyncio.timeout(START_S):
            while True:
                with suppress(*FAILURES):
                    return await self.session()
                await asyncio.sleep(TRY_EVERY_S)


class PostgresSession:
    """One connection; a query at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, sql: str) -> Sequence[Sequence[str | None]]:
        """Return the rows. Raises one of FAILURES."""
        self._writer.write(query(sql))
        return await self.answer()

    async def answer(self) -> Sequence[Sequence[str | None]]:
        """Return the rows until the server is ready again. Raises the server's first error."""
        rows, error = [], None
        while True:
            kind, body = await message(self._reader)
            if kind == b"D":
                rows.append(row(body))
            elif kind == b"E":
                error = error or error_of(fields_of(body))
            if kind == b"Z" or (kind == b"E" and fields_of(body).get("S") == "FATAL"):
                break
        if error:
            raise error
        return rows

    def close(self) -> None:
        self._writer.close()
