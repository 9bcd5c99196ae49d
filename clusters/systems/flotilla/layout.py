"""The nodes of a Flotilla cluster and their configuration files. Pure.

Ports are RocketMQ's. Brokers are assigned to broker sets in blocks; the queues of a topic are
assigned to the sets in the order of the sets' names, as clients number them.

With `containerLayout = "cross"` there are as many broker sets as containers, and each container has
a broker of every set: the master of one, and slaves of the others.
"""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from clusters.flotilla.broker.topic_limits import SYSTEM_PREFIX
from clusters.flotilla.client.admin import share_of_sets
from clusters.flotilla.client.settings import TOPICS, ZONE_NAME
from clusters.systems.flotilla.cluster_state import BrokerSetLayout
from clusters.systems.flotilla.modes import (
    BROKER,
    CONTAINER,
    CONTROLLER,
    COORDINATOR,
    HA_CONTROLLER,
    MODES,
    NAMESERVER,
    Mode,
)
from clusters.systems.flotilla.profiles import (
    BROKER_SETS,
    CONTAINER_LAYOUT,
    CONTROL_ZONES,
    LEARNERS,
    MUTANT,
    RACKS,
    FlotillaSettings,
)
from harness.contracts import CLIENT, Node
from harness.errors import BadRequest, UnknownName
from harness.registry import OF_CLIENTS
from harness.run.broker_sets import BrokerSetData
from harness.trial import node_counts

PORTS = {
    NAMESERVER: 9876,
    CONTROLLER: 9878,
    COORDINATOR: 9880,
    HA_CONTROLLER: 9879,
    BROKER: 10911,
    CONTAINER: 10811,
}
HA_PORT = 10912
SESSIONS_PORT = 2181  # of coordinators, for ZooKeeper's protocol
INNER_PORTS = 10  # from one broker of a container to the next
MIN_CONTAINERS, MAX_CONTAINERS = 2, 3


def cluster_nodes(counts: Mapping[str, Any], mode: Mode = MODES["controller"]) -> list[Node]:
    """Return the nodes, without addresses. Raises BadRequest if a count is invalid."""
    for role in (COORDINATOR, HA_CONTROLLER):
        if role in counts and role not in mode.counts:
            raise BadRequest(
                f"nodes.{role}: a {mode.name} cluster has none; leave it out, or choose a profile "
                'with haMode = "zookeeper"'
            )
    if CONTROLLER in counts and not mode.has_controllers:
        raise BadRequest(
            f"nodes.controller: a {mode.name} cluster has no controllers; leave it out, or choose "
            'another profile or haMode = "controller"'
        )
    if CONTAINER in counts and CONTAINER not in mode.counts:
        raise BadRequest(
            f'nodes.container: brokers are in containers only where {CONTAINER_LAYOUT} = "cross"; '
            "set it, or choose the profile container-cross"
        )
    if BROKER in counts and CONTAINER in mode.counts:
        raise BadRequest(
            f"nodes.broker: with {CONTAINER_LAYOUT} all brokers are in containers; give "
            "nodes.container instead"
        )
    wanted = node_counts(mode.counts, counts)
    return [Node(f"{role}-{n + 1}", role) for role, count in wanted.items() for n in range(count)]


def broker_sets(nodes: Sequence[Node], settings: FlotillaSettings) -> list[BrokerSetLayout]:
    """Return the broker sets. Raises BadRequest if the brokers do not fill them evenly, or if no
    broker of a set can be elected."""
    if settings.in_containers:
        return _sets_of_containers(nodes, settings)
    sets = settings.broker_sets
    brokers = [node for node in nodes if node.role == BROKER]
    if len(brokers) % sets:
        raise BadRequest(
            f"{len(brokers)} brokers cannot be distributed evenly over {sets} broker sets; set "
            f"nodes.broker to {2 * sets}, or to another multiple of {sets}, or leave it out"
        )
    size = len(brokers) // sets
    if settings.mode.set_size not in (0, size):
        raise BadRequest(
            f"a {settings.mode.name} cluster has a master and a slave in each set, and nodes.broker"
            f" makes sets of {size}"
        )
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


def _sets_of_containers(nodes: Sequence[Node], settings: FlotillaSettings) -> list[BrokerSetLayout]:
    """Return one set for each container, whose first node has its master."""
    if (mode := settings.mode).votes or mode.set_size:
        raise BadRequest(
            f"the trial's settings: brokers of a {mode.name} cluster are not put in containers; "
            f'leave {CONTAINER_LAYOUT} out, or set haMode to "controller" or "switchless"'
        )
    containers = [node for node in nodes if node.role == CONTAINER]
    count = len(containers)
    if not MIN_CONTAINERS <= count <= MAX_CONTAINERS:
        raise BadRequest(
            f"nodes.container is {count}; {CONTAINER_LAYOUT} is for {MIN_CONTAINERS} or "
            f"{MAX_CONTAINERS} containers"
        )
    if settings.values.get(BROKER_SETS, count) != count:
        raise BadRequest(
            f"the trial's settings: {BROKER_SETS} is {settings.broker_sets}, but {count} "
            "containers have a broker set each; leave it out"
        )
    if settings.learners:
        raise BadRequest(f"the trial's settings: {LEARNERS} are not for containers")
    whole = settings.full_set_size(count)
    sets = []
    for at in range(count):
        turned = [*containers[at:], *containers[:at]]
        port = PORTS[BROKER] + at * INNER_PORTS
        addresses = {f"{node.address}:{port}": node.name for node in turned}
        names = [node.name for node in turned]
        sets.append(BrokerSetLayout(f"set-{at + 1}", names, addresses, whole, port))
    return sets


def refuse_too_few_zones(nodes: Sequence[Node], settings: FlotillaSettings) -> None:
    """Raise BadRequest if ackZones asks for more zones than the brokers of a set that can be
    elected are in."""
    wanted = int(settings.values.get("ackZones", 1))
    zone = {node.name: node.zone for node in nodes}
    for each in broker_sets(nodes, settings):
        electable = each.nodes[: len(each.nodes) - settings.learners]
        zones = {zone[name] for name in electable} - {""}
        if wanted > max(1, len(zones)):
            raise BadRequest(
                f"the trial's settings: ackZones is {wanted}, but the brokers of {each.name} are "
                f"in {len(zones)} zones, so nothing could ever be acknowledged; lower it, or set "
                f"zones = {wanted}, or --zones {wanted}"
            )


def refuse_unknown_brokers(nodes: Sequence[Node], settings: FlotillaSettings) -> None:
    """Raise UnknownName if preferredMaster or racks, which name nodes in a trial, have one that is
    no broker."""
    brokers = [node.name for node in nodes if node.role == BROKER]
    holders = [node.name for node in nodes if node.role in (BROKER, CONTAINER)]
    for key, known in (("preferredMaster", brokers), (RACKS, holders)):
        for name in settings.values.get(key, ()):
            if name not in known:
                raise UnknownName(f"broker in {key}", name, known)


def refuse_brokers_for_control(nodes: Sequence[Node], settings: FlotillaSettings) -> None:
    """Raise BadRequest if a broker is in a zone that is for control only, or if no node is."""
    control = settings.values.get(CONTROL_ZONES, ())
    for node in nodes:
        if node.role in (BROKER, CONTAINER) and node.zone in control:
            raise BadRequest(
                f"the trial's settings: zone {node.zone} is for control only (controlZones), and "
                f"{node.name} is in it; set another zone for it in zones"
            )
    if unknown := sorted(set(control) - {node.zone for node in nodes}):
        raise BadRequest(
            f"the trial's settings: controlZones names {unknown[0]!r}, and no node is in it; set "
            "zones"
        )


def refuse_clients_without_zone(
    nodes: Sequence[Node], settings: FlotillaSettings, selects: bool
) -> None:
    """Raise BadRequest if clients shall send to their own zone and have none, or shall send to a
    given queue wherever it is. `selects`: clients select the queues."""
    if not settings.zone_mode:
        return
    if not selects:
        raise BadRequest(
            "the trial's settings: zoneMode lets clients select queues in their zone, and this load"
            " names the queues; set load.client_selects = true, which the workload messages has"
        )
    lacking = [node.name for node in nodes if node.role == CLIENT and not node.zone]
    if lacking and ZONE_NAME not in settings.client:
        raise BadRequest(
            f"the trial's settings: zoneMode needs to know where clients are, and {lacking[0]} is "
            "in no zone; set zones, or zoneName for all of them"
        )


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
        names = [each.name for each in self.sets]
        self._queues = {topic: share_of_sets(count, names) for topic, count in topics.items()}

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
        return tomli_w.dumps({**self._settings.node, **here, **self._role_config(node, folder)})

    def inner_config(self, node: Node, of: BrokerSetLayout, folder: str) -> dict[str, Any]:
        """Return the configuration of a container's broker of this set."""
        return {
            **self._settings.node,
            "storePath": f"{folder}/{of.store(node.name)}",
            "listenPort": of.inner_port,
            **self._broker_config(node, of),
            "haListenPort": of.inner_port + HA_PORT - PORTS[BROKER],
        }

    def inner_files(self, node: Node, folder: str) -> dict[str, str]:
        """Return the configuration files of a container's brokers, by path."""
        return {
            f"{folder}/{of.name}.toml": tomli_w.dumps(self.inner_config(node, of, folder))
            for of in self.sets
            if of.inner_port and node.name in of.nodes
        }

    def new_member_config(self, node: Node, folder: str, consensus: str) -> str:
        """Return the TOML of a controller that has no peers yet and waits until it is added."""
        config = tomllib.loads(self.config(node, folder))
        own = {"controllerDLegerPeers": {}, "controllerType": consensus}
        return tomli_w.dumps({**config, **own})

    def _role_config(self, node: Node, folder: str) -> dict[str, Any]:
        if node.role == BROKER:
            return self._broker_config(node, next(s for s in self.sets if node.name in s.nodes))
        if node.role == COORDINATOR:
            peers = {n.name: address(n) for n in self._nodes if n.role == COORDINATOR}
            return {"clientPort": SESSIONS_PORT, "coordinatorPeers": peers}
        if node.role == HA_CONTROLLER:
            return {"zkServers": self._session_addresses()}
        if node.role == CONTAINER:
            return {
                "namesrvAddr": self._addresses(NAMESERVER),
                "controllerAddr": self._addresses(CONTROLLER),
                "brokerConfigPaths": sorted(self.inner_files(node, folder)),
            }
        return self._controller_config(node) if node.role == CONTROLLER else {}

    def client(self, nodes: Sequence[Node]) -> dict[str, Any]:
        """Return the settings of a client. `nodes`: address -> index in names.json; `names`: ->
        name."""
        flaw = {MUTANT: self._settings.client_mutant} if self._settings.client_mutant else {}
        zones = {node.name: node.zone for node in nodes if node.role == CLIENT and node.zone}
        near = self._settings.zone_mode and ZONE_NAME not in self._settings.client
        return {
            **self._settings.client,
            **flaw,
            **({OF_CLIENTS: {name: {ZONE_NAME: at} for name, at in zones.items()}} if near else {}),
            "namesrvAddr": self._addresses(NAMESERVER),
            "controllerAddr": self._addresses(CONTROLLER),
            TOPICS: self._queues,
            "nodes": {
                each: at
                for at, node in enumerate(nodes)
                if node.role in PORTS
                for each in self._addresses_of(node)
            },
            "names": {
                each: node.name
                for node in nodes
                if node.role in PORTS
                for each in self._addresses_of(node)
            },
        }

    def queue_key(self, broker_set: BrokerSetLayout, topic: str, queue: int) -> str:
        """Return the name of a queue among all queues of its topic."""
        names = sorted(s.name for s in self.sets)
        shares = dict.fromkeys(names, 1) if topic.startswith(SYSTEM_PREFIX) else {}
        shares = self._queues.get(topic, shares)
        before = names[: names.index(broker_set.name)]
        return f"{topic}-{sum(shares.get(name, 0) for name in before) + queue}"

    def _topics_of(self, of: BrokerSetLayout) -> dict[str, int]:
        """Return the set's topics, with how many queues it has of each."""
        shares = {topic: shares.get(of.name, 0) for topic, shares in self._queues.items()}
        return {topic: count for topic, count in shares.items() if count}

    def broker_sets_of_keys(self, keys: Sequence[str]) -> dict[str, BrokerSetData]:
        """Return the broker sets, each with those of these queues that it holds."""
        sets = {}
        for each in self.sets:
            counts = self._topics_of(each)
            queues = [(topic, n) for topic, count in counts.items() for n in range(count)]
            mine = {self.queue_key(each, *queue) for queue in queues}
            here = tuple(key for key in keys if key in mine)
            sets[each.name] = BrokerSetData(
                tuple(each.nodes), each.full_size or len(each.nodes), here
            )
        return sets

    def _controller_config(self, node: Node) -> dict[str, Any]:
        peers = {n.name: address(n) for n in self._nodes if n.role == CONTROLLER}
        brokers = {n.name: address(n) for n in self._nodes if n.role == BROKER}
        preferred = self._settings.values.get("preferredMaster", ())
        return {
            "controllerDLegerSelfId": node.name,
            "controllerDLegerPeers": peers,
            **({"preferredMaster": [brokers[name] for name in preferred]} if preferred else {}),
        }

    def _broker_config(self, node: Node, mine: BrokerSetLayout) -> dict[str, Any]:
        racks = self._settings.values.get(RACKS, {})
        return {
            "haListenPort": HA_PORT,
            "namesrvAddr": self._addresses(NAMESERVER),
            "controllerAddr": self._addresses(CONTROLLER),
            "topics": self._topics_of(mine),
            "brokerName": mine.name,
            "totalReplicas": len(mine.nodes),
            **({"brokerId": mine.nodes.index(node.name)} if self._has_ids else {}),
            **(_raft_group(mine, node) if self._has_votes else {}),
            **({"asyncLearner": True} if node.name in self._learners(mine) else {}),
            **({"zkServers": servers} if (servers := self._session_addresses()) else {}),
            **({"zone": node.zone} if node.zone else {}),
            **({"rack": racks[node.name]} if node.name in racks else {}),
        }

    @property
    def _has_ids(self) -> bool:
        return self._settings.mode.numbered or self._settings.convertible

    @property
    def _has_votes(self) -> bool:
        return self._settings.mode.votes or self._settings.convertible

    def _session_addresses(self) -> list[str]:
        coordinators = [node for node in self._nodes if node.role == COORDINATOR]
        return [f"{node.address}:{SESSIONS_PORT}" for node in coordinators]

    def _learners(self, mine: BrokerSetLayout) -> Sequence[str]:
        """Return the last brokers of a set, so that its first one can become the first master."""
        return mine.nodes[len(mine.nodes) - self._settings.learners :]

    def _addresses_of(self, node: Node) -> list[str]:
        """Return where the node listens: a container at its own address and its brokers'."""
        inside = [
            where
            for of in self.sets
            if of.inner_port
            for where, name in of.addresses.items()
            if name == node.name
        ]
        return [address(node), *inside]

    def _addresses(self, role: str) -> list[str]:
        return [address(n) for n in self._nodes if n.role == role]


def _raft_group(mine: BrokerSetLayout, node: Node) -> dict[str, Any]:
    """Return the keys of a broker whose set elects its master."""
    ids = {at: f"n{mine.nodes.index(name)}" for at, name in mine.addresses.items()}
    return {
        "dLegerSelfId": ids[address(node)],
        "dLegerPeers": {peer: at for at, peer in ids.items()},
    }
