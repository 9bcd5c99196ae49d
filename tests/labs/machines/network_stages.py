"""Two stages for network scenes: real processes in namespaces, and simulated ones.

On both, a party (`network_party.py`) runs on each of the nodes `a` and `b`, and everything that it
says is heard.
"""

import asyncio
import signal
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

import network_party

from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import World
from harness.contracts import Agent, LinkRule

Said = dict[str, list[str]]  # by node
PATIENCE_S = 30.0
NODES = ("a", "b")
ADDRESSES = {"a": "198.18.1.11", "b": "198.18.1.12"}
SYN_RETRIES, RETRIES = 1, 3
ESTABLISHED, LISTEN = "01", "0A"  # in /proc/net/tcp
OPEN = (ESTABLISHED, "08")  # and those that the peer has ended


class Condition(Enum):
    """What a kernel shows without any process saying so, as a number."""

    UNREAD = "holding bytes that nobody read"
    UNACCEPTED = "holding a connection that nobody accepted"
    DROPPING = "dropping what arrives"
    FORGETFUL = "without any connection"


class Stage(Protocol):
    """Two nodes with a party on each."""

    async def start(self, node: str) -> None: ...

    async def tell(self, node: str, order: str) -> None: ...

    async def says(self, node: str, line: str, times: int = 1) -> None:
        """Wait until it was said."""
        ...

    async def signal(self, node: str, number: int) -> None: ...

    async def cut(self, source: str, target: str) -> None: ...

    async def heal(self) -> None: ...

    async def until(self, node: str, holds: "Condition", size: int = 1) -> None:
        """Wait until the kernel of a node is so."""
        ...


class Ears:
    """What each node said, and who waits for what."""

    def __init__(self) -> None:
        self.said: Said = {node: [] for node in NODES}
        self._news = asyncio.Event()

    def hear(self, node: str, line: str) -> None:
        self.said[node].append(line)
        self._news.set()

    async def says(self, node: str, line: str, times: int = 1) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self.said[node].count(line) < times:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{node} never said {line!r}, only {self.said}") from None

    async def until(self, node: str, holds: Condition, size: int = 1) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while await self.measure(node, holds) < size:  # noqa: ASYNC110 - a kernel tells nobody
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{node} never came to be {holds.value}") from None

    async def measure(self, node: str, holds: Condition) -> int:
        raise NotImplementedError


class RealStage(Ears):
    """Processes in namespaces, sockets of this kernel, cuts by iptables."""

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        super().__init__()
        self._agents = agents
        self._rules: dict[str, list[LinkRule]] = {node: [] for node in NODES}

    async def prepare(self) -> None:
        settings = f"tcp_syn_retries={SYN_RETRIES} tcp_retries2={RETRIES} tcp_syn_linear_timeouts=0"
        script = "for s in $0; do echo ${s#*=} > /proc/sys/net/ipv4/${s%=*}; done"
        for agent in self._agents.values():
            await agent.run(["sh", "-c", script, settings])

    async def start(self, node: str) -> None:
        argv = [sys.executable, "-S", network_party.__file__]
        await self._agents[node].start("party", argv, on_line=lambda line: self.hear(node, line))
        await self.says(node, "here", self.said[node].count("here") + 1)

    async def tell(self, node: str, order: str) -> None:
        await self._agents[node].tell("party", order)

    async def signal(self, node: str, number: int) -> None:
        await self._agents[node].signal("party", number)
        if number == signal.SIGKILL:
            await self._agents[node].exited("party")

    async def cut(self, source: str, target: str) -> None:
        self._rules[target].append(LinkRule(ADDRESSES[source]))
        await self._agents[target].links(self._rules[target])

    async def heal(self) -> None:
        for node in NODES:
            self._rules[node] = []
            await self._agents[node].links(())

    async def measure(self, node: str, holds: Condition) -> int:
        agent = self._agents[node]
        if holds is Condition.DROPPING:
            return sum((await agent.dropped()).values())
        lines = (await agent.run(["cat", "/proc/net/tcp"])).out.splitlines()[1:]
        fields = [line.split() for line in lines]
        wanted = LISTEN if holds is Condition.UNACCEPTED else ESTABLISHED
        if holds is Condition.FORGETFUL:
            return int(not any(field[3] in OPEN for field in fields))
        return max((int(f[4].split(":")[1], 16) for f in fields if f[3] == wanted), default=0)

    async def over(self) -> Said:
        """End both parties; what they had said before."""
        said = {node: list(lines) for node, lines in self.said.items()}
        await self.heal()
        for node in NODES:
            state = (await self._agents[node].state("party")).state
            if state in ("running", "stopped"):
                await self.signal(node, signal.SIGKILL)
        return said


class SimStage(Ears):
    """Simulated processes, played from a simulated process too: its time is theirs."""

    def __init__(self, world: World, network: SimNetwork) -> None:
        super().__init__()
        self._network = network
        self._hosts = {node: SimHost(world, network, node, ADDRESSES[node]) for node in NODES}
        self._cuts: list[tuple[str, str]] = []
        self._parties: dict[str, SimProcess] = {}

    async def start(self, node: str) -> None:
        loop: Any = asyncio.get_running_loop()
        process = self._hosts[node].start("party", network_party.attend)
        process.on_line = lambda line: loop.enter(self.hear, node, line)
        self._parties[node] = process
        await self.says(node, "here", self.said[node].count("here") + 1)

    async def tell(self, node: str, order: str) -> None:
        self._parties[node].stdin.feed(f"{order}\n".encode())

    async def signal(self, node: str, number: int) -> None:
        self._parties[node].signal(number)

    async def cut(self, source: str, target: str) -> None:
        self._cuts.append((ADDRESSES[source], ADDRESSES[target]))
        self._network.cut(*self._cuts[-1])

    async def heal(self) -> None:
        for source, target in self._cuts:
            self._network.heal(source, target)
        self._cuts.clear()

    async def measure(self, node: str, holds: Condition) -> int:
        stack = self._hosts[node].stack
        if holds is Condition.DROPPING:
            return sum(self._network.link(*cut).dropped for cut in self._cuts)
        if holds is Condition.UNACCEPTED:
            return max(len(listener.waiting) for listener in stack.listeners.values())
        if holds is Condition.FORGETFUL:
            return int(not stack.sockets)
        return max((socket.unread for socket in stack.sockets), default=0)
