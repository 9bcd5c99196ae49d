"""Server processes of a benchmark: started, waited for, and killed with the block they live in."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

PATIENCE_S = 60.0


class Failed(Exception):
    """A system did not do what was asked of it."""


class Servers:
    """Processes that end with the block that started them; nothing of them is worth keeping."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._running]

    def start(self, name: str, argv: Sequence[str], **env: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **env},
            )
        self._running.append(process)

    async def until(
        self, what: str, done: Callable[[], Awaitable[bool]], why: Callable[[], str] = str
    ) -> None:
        """Ask again and again whether it is done. Failed when a server ends, or it takes long."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await done():
                    self._check()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            late = f"{what}: not within {PATIENCE_S:g} s; {why()} {self._words()}"
            raise Failed(late) from None

    async def listening(self, host: str, port: int) -> None:
        async def connected() -> bool:
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError:
                return False
            writer.close()
            return True

        await self.until(f"to listen on {host}:{port}", connected)

    def _check(self) -> None:
        if any(process.poll() is not None for process in self._running):
            raise Failed(f"a server has ended; {self._words()}")

    def _words(self) -> str:
        """The last line of each log."""
        logs = {p.stem: p.read_text(errors="replace") for p in sorted(self._folder.glob("*.log"))}
        last = [f"{name}: {text.splitlines()[-1]}" for name, text in logs.items() if text]
        return "; ".join(last) or "they said nothing"

    def kill(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                process.kill()
        for process in self._running:
            process.wait()


@asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[Servers]:
    started = Servers(folder)
    try:
        yield started
    finally:
        started.kill()
