"""Star writing against Y writing: `python benchmarks/star.py [MESSAGES]`; simulated worlds.

Y: the client sends to a master, which copies to its slaves and answers when all three replicas have
the message, or any two. Star, as in Pulsar: the client writes to three logs itself, here three
broker sets of one broker each, and waits for all three answers, or for two. The client and the
brokers are in zones of their own, 0, 5 or 20 ms apart (one way), so the delay is the same whichever
broker is master; and then one that is no master of three copies is slow: 50 ms further away. No
processor is busy in a simulated world, so the times are those of the hops. Prints a JSON object:
medians and 99th percentiles in ms, and the sends of the client for each message.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations
from types import MappingProxyType
from typing import Any

from _figures import quantile

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient, SendResult
from clusters.flotilla.node import serve
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import SECOND, World
from clusters.systems.flotilla import layout
from clusters.systems.flotilla.modes import BROKER
from clusters.systems.flotilla.profiles import settings
from harness.contracts import CLIENT
from harness.trial import Trial

TOPIC, CONFIG, HOME = "orders", "/etc/node.toml", "/var/lib/node"
MS_NS = 1_000_000
SLOW_MS, BETWEEN_S, SETTLES_S, LONGEST_S = 50, 0.05, 20.0, 600.0
PATTERNS: Mapping[str, tuple[str, Mapping[str, Any], int, int]] = MappingProxyType(
    {  # profile, settings, sends for each message, answers to wait for
        "y_all": ("allack-min2", {"minInSyncReplicas": 3, "inSyncReplicas": 3}, 1, 1),
        "y_two": ("quorum2of3", {}, 1, 1),
        "star_all": ("allack-min1", {"brokerSets": 3}, 3, 3),
        "star_two": ("allack-min1", {"brokerSets": 3}, 3, 2),
    }
)


class Stage:
    """A cluster in a simulated world with delays between zones."""

    def __init__(self, pattern: str, delay_ms: int, slow: bool) -> None:
        profile, own, self.sends, self.answers = PATTERNS[pattern]
        self.world = World(1)
        self.network, self.slow = SimNetwork(self.world), slow
        network, self.delay_ms = self.network, delay_ms
        of_trial = settings(Trial(profile=profile, settings={"timeScale": 1.0, **own}))
        nodes = [
            replace(node, address=f"10.0.0.{number}")
            for number, node in enumerate(layout.cluster_nodes({CLIENT: 1}, of_trial.mode), 1)
        ]
        plan = layout.Layout(nodes, of_trial, {TOPIC: 3}, 1)
        self.settings = plan.client(nodes)
        self.hosts = {n.name: SimHost(self.world, network, n.name, n.address) for n in nodes}
        self.disks = {name: disk_of(host) for name, host in self.hosts.items()}
        for node in nodes:
            if node.role != CLIENT:
                disk = self.disks[node.name]
                disk.put(CONFIG, plan.config(node, HOME).encode())
                disk.put(f"{HOME}/events.jsonl", b"", spared=True)
        self.apart = [node for node in nodes if node.role in (CLIENT, BROKER)]
        self._delay("")
        for role in layout.PORTS:
            for node in nodes:
                if node.role == role:
                    self._start(node.name)

    def _start(self, name: str) -> None:
        host, disk = self.hosts[name], self.disks[name]

        async def node(process: SimProcess) -> int:
            return await serve([CONFIG], lambda seed: ports_of(process, disk))

        host.start(name, node)

    def _delay(self, slow: str) -> None:
        """Put the client and the brokers into zones; one of them may be slow."""
        for one, other in permutations(self.apart, 2):
            ms = self.delay_ms + SLOW_MS * (slow in (one.name, other.name))
            self.network.link(one.address, other.address).slow_down(ms * MS_NS, 0, 0.0)

    def _slave(self) -> str:
        """Return a broker that never was the master of the others, if there is one."""
        names = [node.name for node in self.apart if node.role == BROKER]
        for name in names:
            content = self.disks[name].file(f"{HOME}/events.jsonl")
            rows = map(json.loads, content.read(content.size, 0).splitlines())
            if not any(row["kind"] == "role" and row["role"] == "master" for row in rows):
                return name
        return names[-1]

    def measure(self, count: int) -> list[float]:
        """Return the latencies of so many messages in ms, one after the other."""
        found: list[float] = []

        async def main(process: SimProcess) -> int:
            client = ClusterClient(ClientSettings.of(self.settings))
            client.start()
            await asyncio.sleep(SETTLES_S)
            self._delay(self._slave() if self.slow else "")
            for number in range(count + 1):
                took_s = await self._message(client, number)
                found.extend([1000 * took_s] if number else [])  # the first one connects
                await asyncio.sleep(BETWEEN_S)
            return 0

        load = self.hosts["client-1"].start("load", main)
        load.on_exit(lambda code: self.world.stop())
        self.world.run(until_ns=int(LONGEST_S * SECOND))
        for host in self.hosts.values():
            for running in list(host.processes.values()):
                running.kill()
        self.world.close()
        if len(found) < count:
            why = "; ".join(load.error_lines[-1:])
            raise SystemExit(f"only {len(found)} of {count} messages were acknowledged: {why}")
        return found

    async def _message(self, client: ClusterClient, number: int) -> float:
        """Send one message, to one log or to three, and wait for its answers."""
        loop = asyncio.get_running_loop()
        began, enough, good = loop.time(), loop.create_future(), list[int]()

        def answered(queue: int, result: SendResult) -> None:
            if result.outcome is not CallOutcome.HAPPENED:
                raise RuntimeError(f"message {number} was not acknowledged: {result}")
            good.append(queue)
            if len(good) == self.answers:
                enough.set_result(loop.time())

        for queue in range(self.sends):
            done = partial(answered, queue)
            client.producer.send(TOPIC, queue, b"k", b"x" * 1024, done)
        took_s: float = await enough - began
        return took_s


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    figures: dict[str, float] = {}
    for pattern, (_, _, sends, _) in PATTERNS.items():
        figures[f"{pattern}_sends"] = sends
        for delay_ms, slow in ((0, False), (5, False), (20, False), (5, True)):
            times = Stage(pattern, delay_ms, slow).measure(count)
            name = f"{pattern}_{'slow' if slow else f'{delay_ms}ms'}"
            figures[f"{name}_p50"] = round(quantile(times, 0.5), 3)
            figures[f"{name}_p99"] = round(quantile(times, 0.99), 3)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
