"""A crew as the runner sees it: what its lives counted, at every moment."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.contracts import CLIENT, Clock, Node
from harness.crews import Crew
from harness.rundir import RunDir

WORDS = {"load": "loading", "crash": "crashing"}


class Agent:
    """Starts a process that answers each order with its word, and dies when it is told to."""

    async def start(
        self, name: str, command: list[str], *, on_line: Callable[[str], None], **how: Any
    ) -> None:
        self.said, self._dead = on_line, asyncio.Event()
        on_line('{"is": "ready"}')

    async def state(self, name: str) -> Any:
        return SimpleNamespace(pid=7, state="running")

    async def tell(self, name: str, line: str) -> None:
        what = json.loads(line)["do"]
        self.said(json.dumps({"is": WORDS[what], "first": 4}))
        if what == "crash":
            self._dead.set()

    async def exited(self, name: str) -> int:
        await self._dead.wait()
        return -9

    def acknowledge(self, count: int) -> None:
        self.said(json.dumps({"stats": {"ok": count}}))


def told(story: Callable[[Crew, Agent], Awaitable[list[float]]], run: Path) -> list[float]:
    async def all_of_it() -> list[float]:
        agent = Agent()
        hosts = SimpleNamespace(shares_files=True, clock=lambda name: Clock())
        bed: Any = SimpleNamespace(agents={"client-1": agent}, hosts=hosts)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        crew = Crew(bed, Node("client-1", CLIENT, ""), RunDir(run), failed)
        await crew.start()
        await crew.load(0)
        return await story(crew, agent)

    return asyncio.run(all_of_it())


def test_what_a_life_counted_is_counted_once(tmp_path: Path) -> None:
    """Before the crash, between the crash and the new life, and after: `after 150 acks` of a plan
    must not come true because somebody died."""

    async def story(crew: Crew, agent: Agent) -> list[float]:
        counted = []
        agent.acknowledge(100)
        counted.append(crew.counted()["ok"])
        await crew.crash()
        counted.append(crew.counted()["ok"])
        await crew.begin_again()
        counted.append(crew.counted()["ok"])
        agent.acknowledge(10)
        return [*counted, crew.counted()["ok"]]

    assert told(story, tmp_path) == [100, 100, 100, 110]
