"""The agent of a node whose process exists already.

Faults and systems name processes that an agent started. Here every name means the node's one
process, which is observed, signalled and started again by the way in which it exists
(`ExistingProcess`): a container by its engine, a process of a machine by its pid. All other calls
are passed on to the agent on the node, or beside it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from clusters.hosts._agent.driver import PipeAgent
from harness.contracts import LinkRule, ProcessState
from harness.errors import BedFailed

LOOK_EVERY_S = 0.2
STARTED_WITHIN_S = 30.0
ALIVE = ("running", "stopped")


class ExistingProcess(Protocol):
    """A node's process that Seatrial has not started."""

    node: str

    @property
    def agent(self) -> PipeAgent:
        """The agent in the node's network now."""
        ...

    async def state(self) -> ProcessState:
        """Return its state; `exited` also if it has never run, with the pid it had last."""
        ...

    async def signal(self, number: int) -> None:
        """Signal it and its descendants; do nothing if it has ended."""
        ...

    @property
    def network_ends_with_process(self) -> bool:
        """Whether the node has no network while its process does not run."""
        ...

    async def start(self) -> None:
        """Start it again, in its own way."""
        ...

    async def links(self, rules: Sequence[LinkRule]) -> None:
        """Replace the rules of its links."""
        ...


class AttachedAgent:
    """An agent of an attached node (`harness.contracts.Agent`)."""

    def __init__(self, process: ExistingProcess) -> None:
        self._process = process

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._process.agent, verb)

    async def state(self, name: str) -> ProcessState:
        return await self._process.state()

    async def signal(self, name: str, number: int) -> None:
        await self._process.signal(number)

    async def exited(self, name: str) -> int:
        first = now = await self._process.state()
        while now.state in ALIVE and now.pid == first.pid:
            await asyncio.sleep(LOOK_EVERY_S)
            now = await self._process.state()
        return now.code

    async def lacks(self, ability: str) -> str:
        process = self._process
        if ability != "network":
            return await process.agent.lacks(ability)
        if not process.network_ends_with_process or (await process.state()).state in ALIVE:
            return ""
        return f"{process.node} has no network, because its container does not run"

    async def links(self, rules: Sequence[LinkRule]) -> None:
        await self._process.links(rules)

    async def start(self, name: str, *_: Any, **__: Any) -> int:
        raise BedFailed(f"{self._process.node}: {name} is not started on an attached node")


async def start_again(process: ExistingProcess) -> None:
    """Start a process again, if it does not run, and wait until it does."""
    if (await process.state()).state in ALIVE:
        return
    await process.start()
    end_s = asyncio.get_running_loop().time() + STARTED_WITHIN_S
    while True:
        if (await process.state()).state in ALIVE:
            return
        if asyncio.get_running_loop().time() > end_s:
            raise BedFailed(
                f"{process.node} did not start within {STARTED_WITHIN_S:g} s; start it by hand"
            )
        await asyncio.sleep(LOOK_EVERY_S)


async def refuse_stopped(processes: Sequence[ExistingProcess]) -> None:
    """Raise BedFailed if one of these does not run."""
    states = await asyncio.gather(*(each.state() for each in processes))
    down = [p.node for p, now in zip(processes, states, strict=True) if now.state != "running"]
    if down:
        raise BedFailed(f"{', '.join(down)} does not run; start it, then attach")
