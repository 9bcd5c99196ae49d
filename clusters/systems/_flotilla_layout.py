"""Which nodes a Flotilla cluster has, and each one's configuration file: pure.

Ports are RocketMQ's. Brokers are dealt to broker sets in blocks; a topic's queues are dealt to the
sets in the order of their names, as clients number them.
"""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from clusters.systems._flotilla_profiles import LEARNERS, MUTANT, Settings
from clusters.systems._flotilla_standing import BrokerSet
from harness.contracts import CLIENT, Node
from harness.errors import BadRequest, UnknownName
from harness.run.broker_sets import Dealt

NAMESERVER, CONTROLLER, BROKER = "nameserver", "controller", "broker"
COUNTS = {NAMESERVER: 1, CONTROLLER: 3, BROKER: 3, CLIENT: 2}  # in the order of starting
MOST = 100  # of a role
PORTS = {NAMESERVER: 9876, CONTROLLER: 9878, BROKER: 10911}
HA_PORT = 10912


def laid_out(counts: Mapping[str, Any]) -> list[Node]:
    """The nodes, without addresses. BadRequest when a count makes no sense."""
    for role, count in counts.items():
        if role not in COUNTS:
            raise UnknownName("role", role, COUNTS)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
            raise BadRequest(f"nodes.{role} must be a whole number from 1 to {MOST}, not {count!r}")
    wanted = {**COUNTS, **counts}
    return [Node(f"{r}-{n + 1}", r) for r in COUNTS for n in range(wanted[r])]


def broker_sets(nodes: Sequence[Node], settings: Settings) -> list[BrokerSet]:
    """The brokers dealt to sets. BadRequest when they do not fill them evenly, or when nobody of a
    set could be elected."""
    sets = settings.broker_sets
    brokers = [node for node in nodes if node.role == BROKER]
    if len(brokers) % sets:
        raise BadRequest(f"{len(brokers)} brokers cannot be dealt evenly to {sets} broker sets")
    size = len(brokers) // sets
    blocks = [brokers[at : at + size] for at in range(0, len(brokers), size)]
    if settings.learners >= size:
        raise BadRequest(
            f"the trial's settings: {LEARNERS} is {settings.learners}, but a broker set here has "
            f"{size}, so no broker could be elected; lower it, or raise nodes.broker"
        )
    whole = settings.whole(size)
    return [
        BrokerSet(f"set-{n}", [b.name for b in block], {address(b): b.name for b in block}, whole)
        for n, block in enumerate(blocks, start=1)
    ]


def address(node: Node) -> str:
    return f"{node.address}:{PORTS[node.role]}"


class Layout:
    """Configurations for nodes that have addresses now."""

    def __init__(
        self, nodes: Sequence[Node], settings: Settings, topics: Mapping[str, int], seed: int
    ) -> None:
        self.sets = broker_sets(nodes, settings)
        self._settings, self._seed = settings, seed
        self._nodes = [node for node in nodes if node.role != CLIENT]
        self._queues = {topic: -(-count // len(self.sets)) for topic, count in topics.items()}

    def config(self, node: Node, folder: str) -> str:
        """The node's TOML. Its keys are those of `clusters.flotilla.config`."""
        here = {
            "role": node.role,
            "nodeName": node.name,
            "listenHost": node.address,
            "listenPort": PORTS[node.role],
            "storePath": f"{folder}/store",
            "eventLogPath": f"{folder}/events.jsonl",
            "seed": self._seed * 1000 + [n.name for n in self._nodes].index(node.name),
        }
        return tomli_w.dumps({**self._settings.node, **here, **self._of_role(node)})

    def newcomer(self, node: Node, folder: str) -> str:
        """The TOML of a controller that has no peers yet: it waits until it is added."""
        config = tomllib.loads(self.config(node, folder))
        return tomli_w.dumps({**config, "controllerDLegerPeers": {}})

    def _of_role(self, node: Node) -> dict[str, Any]:
        if node.role == BROKER:
            return self._broker(node)
        return self._controller(node) if node.role == CONTROLLER else {}

    def client(self, nodes: Sequence[Node]) -> dict[str, Any]:
        """What a client needs. `nodes`: address -> index in names.json; `names`: -> name."""
        flaw = {MUTANT: self._settings.client_mutant} if self._settings.client_mutant else {}
        return {
            **self._settings.client,
            **flaw,
            "namesrvAddr": self._addresses(NAMESERVER),
            "controllerAddr": self._addresses(CONTROLLER),
            "nodes": {address(n): i for i, n in enumerate(nodes) if n.role in PORTS},
            "names": {address(n): n.name for n in nodes if n.role in PORTS},
        }

    def key(self, broker_set: BrokerSet, topic: str, queue: int) -> str:
        """The name of a queue among all of its topic's."""
        place = sorted(s.name for s in self.sets).index(broker_set.name)
        return f"{topic}-{place * self._queues.get(topic, 0) + queue}"

    def dealt(self, keys: Sequence[str]) -> dict[str, Dealt]:
        """The broker sets, and which of these queues live in each."""
        found = {}
        for each in self.sets:
            queues = [(topic, n) for topic, count in self._queues.items() for n in range(count)]
            mine = {self.key(each, *queue) for queue in queues}
            here = tuple(key for key in keys if key in mine)
            found[each.name] = Dealt(tuple(each.nodes), each.whole or len(each.nodes), here)
        return found

    def _controller(self, node: Node) -> dict[str, Any]:
        peers = {n.name: address(n) for n in self._nodes if n.role == CONTROLLER}
        return {"controllerDLegerSelfId": node.name, "controllerDLegerPeers": peers}

    def _broker(self, node: Node) -> dict[str, Any]:
        mine = next(s for s in self.sets if node.name in s.nodes)
        return {
            "haListenPort": HA_PORT,
            "namesrvAddr": self._addresses(NAMESERVER),
            "controllerAddr": self._addresses(CONTROLLER),
            "topics": self._queues,
            "brokerName": mine.name,
            "totalReplicas": len(mine.nodes),
            **({"asyncLearner": True} if node.name in self._learners(mine) else {}),
            **({"zone": node.zone} if node.zone else {}),
        }

    def _learners(self, mine: BrokerSet) -> Sequence[str]:
        """The last brokers of a set, so that the first one can become its first master."""
        return mine.nodes[len(mine.nodes) - self._settings.learners :]

    def _addresses(self, role: str) -> list[str]:
        return [address(n) for n in self._nodes if n.role == role]
