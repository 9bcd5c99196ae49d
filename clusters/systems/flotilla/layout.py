"""The nodes of a Flotilla cluster and their configuration files. Pure.

Ports are RocketMQ's. Brokers are assigned to broker sets in blocks; the queues of a topic are
assigned to the sets in the order of the sets' names, as clients number them.
"""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from clusters.flotilla.client.settings import TOPICS
from clusters.systems.flotilla.cluster_state import BrokerSetLayout
from clusters.systems.flotilla.modes import BROKER, CONTROLLER, MODES, NAMESERVER, Mode
from clusters.systems.flotilla.profiles import LEARNERS, MUTANT, FlotillaSettings
from harness.contracts import CLIENT, Node
from harness.errors import BadRequest
from harness.run.broker_sets import BrokerSetData
from harness.trial import node_counts

PORTS = {NAMESERVER: 9876, CONTROLLER: 9878, BROKER: 10911}
HA_PORT = 10912


def cluster_nodes(counts: Mapping[str, Any], mode: Mode = MODES["controller"]) -> list[Node]:
    """Return the nodes, without addresses. Raises BadRequest if a count is invalid."""
    if CONTROLLER in counts and not mode.has_controllers:
        raise BadRequest(
            f"nodes.controller: a {mode.name} cluster has no controllers; leave it out, or choose "
            'another profile or haMode = "controller"'
        )
    wanted = node_counts(mode.counts, counts)
    return [Node(f"{role}-{n + 1}", role) for role, count in wanted.items() for n in range(count)]


def broker_sets(nodes: Sequence[Node], settings: FlotillaSettings) -> list[BrokerSetLayout]:
    """Return the broker sets. Raises BadRequest if the brokers do not fill them evenly, or if no
    broker of a set can be elected."""
    sets = settings.broker_sets
    brokers = [node for node in nodes if node.role == BROKER]
    if len(brokers) % sets:
        raise BadRequest(
            f"{len(brokers)} brokers cannot be distributed evenly over {sets} broker sets"
        )
    size = len(brokers) // sets
    blocks = [brokers[at : at + size] for at in range(0, len(brokers), size)]
    if settings.learners >= size:
        raise BadRequest(
            f"the trial's settings: {LEARNERS} is {settings.learners}, but a broker set here has "
            f"{size}, so no broker could be elected; lower it, or raise nodes.broker"
        )
    whole = settings.full_set_size(size)
    return [
        BrokerSetLayout(
            f"set-{n}", [b.name for b in block], {address(b): b.name for b in block}, whole
        )
        for n, block in enumerate(blocks, start=1)
    ]


def address(node: Node) -> str:
    return f"{node.address}:{PORTS[node.role]}"


class Layout:
    """Configurations of nodes that have addresses."""

    def __init__(
        self,
        nodes: Sequence[Node],
        settings: FlotillaSettings,
        topics: Mapping[str, int],
        seed: int,
    ) -> None:
        self.sets = broker_sets(nodes, settings)
        self._settings, self._seed = settings, seed
        self._nodes = [node for node in nodes if node.role != CLIENT]
        self._queues = {topic: -(-count // len(self.sets)) for topic, count in topics.items()}

    def config(self, node: Node, folder: str) -> str:
        """Return the node's TOML. Its keys are those of `clusters.flotilla.config`."""
        here = {
            "role": node.role,
            "nodeName": node.name,
            "listenHost": node.address,
            "listenPort": PORTS[node.role],
            "storePath": f"{folder}/store",
            "eventLogPath": f"{folder}/events.jsonl",
            "seed": self._seed * 1000 + [n.name for n in self._nodes].index(node.name),
        }
        return tomli_w.dumps({**self._settings.node, **here, **self._role_config(node)})

    def new_member_config(self, node: Node, folder: str) -> str:
        """Return the TOML of a controller that has no peers yet and waits until it is added."""
        config = tomllib.loads(self.config(node, folder))
        return tomli_w.dumps({**config, "controllerDLegerPeers": {}})

    def _role_config(self, node: Node) -> dict[str, Any]:
        if node.role == BROKER:
            return self._broker_config(node)
        return self._controller_config(node) if node.role == CONTROLLER else {}

    def client(self, nodes: Sequence[Node]) -> dict[str, Any]:
        """Return the settings of a client. `nodes`: address -> index in names.json; `names`: ->
        name."""
        flaw = {MUTANT: self._settings.client_mutant} if self._settings.client_mutant else {}
        return {
            **self._settings.client,
            **flaw,
            "namesrvAddr": self._addresses(NAMESERVER),
            "controllerAddr": self._addresses(CONTROLLER),
            TOPICS: {
                topic: {each.name: count for each in self.sets}
                for topic, count in self._queues.items()
            },
            "nodes": {address(n): i for i, n in enumerate(nodes) if n.role in PORTS},
            "names": {address(n): n.name for n in nodes if n.role in PORTS},
        }

    def queue_key(self, broker_set: BrokerSetLayout, topic: str, queue: int) -> str:
        """Return the name of a queue among all queues of its topic."""
        place = sorted(s.name for s in self.sets).index(broker_set.name)
        return f"{topic}-{place * self._queues.get(topic, 0) + queue}"

    def broker_sets_of_keys(self, keys: Sequence[str]) -> dict[str, BrokerSetData]:
        """Return the broker sets, each with those of these queues that it holds."""
        sets = {}
        for each in self.sets:
            queues = [(topic, n) for topic, count in self._queues.items() for n in range(count)]
            mine = {self.queue_key(each, *queue) for queue in queues}
            here = tuple(key for key in keys if key in mine)
            sets[each.name] = BrokerSetData(
                tuple(each.nodes), each.full_size or len(each.nodes), here
            )
        return sets

    def _controller_config(self, node: Node) -> dict[str, Any]:
        peers = {n.name: address(n) for n in self._nodes if n.role == CONTROLLER}
        return {"controllerDLegerSelfId": node.name, "controllerDLegerPeers": peers}

    def _broker_config(self, node: Node) -> dict[str, Any]:
        mine = next(s for s in self.sets if node.name in s.nodes)
        return {
            "haListenPort": HA_PORT,
            "namesrvAddr": self._addresses(NAMESERVER),
            "controllerAddr": self._addresses(CONTROLLER),
            "topics": self._queues,
            "brokerName": mine.name,
            "totalReplicas": len(mine.nodes),
            **({"brokerId": mine.nodes.index(node.name)} if self._settings.mode.numbered else {}),
            **(_raft_group(mine, node) if self._settings.mode.votes else {}),
            **({"asyncLearner": True} if node.name in self._learners(mine) else {}),
            **({"zone": node.zone} if node.zone else {}),
        }

    def _learners(self, mine: BrokerSetLayout) -> Sequence[str]:
        """Return the last brokers of a set, so that its first one can become the first master."""
        return mine.nodes[len(mine.nodes) - self._settings.learners :]

    def _addresses(self, role: str) -> list[str]:
        return [address(n) for n in self._nodes if n.role == role]


def _raft_group(mine: BrokerSetLayout, node: Node) -> dict[str, Any]:
    """Return the keys of a broker whose set elects its master."""
    ids = {at: f"n{mine.nodes.index(name)}" for at, name in mine.addresses.items()}
    return {
        "dLegerSelfId": ids[address(node)],
        "dLegerPeers": {peer: at for at, peer in ids.items()},
    }
