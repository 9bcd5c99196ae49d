"""The driver of Kafka: brokers, which keep the replicas of partitions, and controllers.

A controller is a member of the Raft group that has the metadata: which broker leads each partition,
in which epoch, and which replicas are in sync with it. A record is acknowledged when the leader has
it (`acks = "1"`), or when all replicas in sync have it (`all`), of which there must be
`min.insync.replicas`. Brokers do not sync their files before that, unless `flush.messages` is 1.

Time-outs are shorter than Kafka's own, so that faults are noticed within seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from clusters.kit import Copy, NodeAccess, Profile, Service, View, plugin
from clusters.kit.java import FLAGS, JAVA
from clusters.supply import MavenJars, Program
from clusters.systems.kafka import wire
from clusters.systems.kafka.kafka_client import PORT, KafkaClient
from clusters.systems.kafka.records import entries_in
from clusters.systems.kafka.transactions import TransactionalClient
from harness.contracts import Node

BROKER, CONTROLLER = "broker", "controller"
CONTROLLER_PORT = 9093
FIRST_BROKER = 100  # numbers of brokers are larger; those of controllers are smaller
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
KEPT_BY_SYSTEM = 2**63 - 1  # Kafka's own default of flush.messages: the system writes to the disk
OF_CLIENT = ("acks", "replication.factor", "heap_mb", "transactions", "isolation.level")
OF_TOPIC = ("flush.messages",)  # brokers have another name for it
LOGGED = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSX",
)
PROGRAM = Program(
    name="kafka",
    sources=(
        MavenJars(coordinates=("org.apache.kafka:kafka_2.13", "org.slf4j:slf4j-simple:1.7.36")),
    ),
    version="4.3.1",
    version_argv=(),
    by_hand="unpack a release of apache/kafka and name its folder as supply",
)
FIXED = {
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "share.coordinator.state.topic.num.partitions": 3,
    "share.coordinator.state.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
    "group.share.min.record.lock.duration.ms": 1000,
    "group.share.delivery.count.limit": 10,
    "num.network.threads": 1,
    "num.io.threads": 2,
    "background.threads": 2,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "log.segment.bytes": 16777216,
    "log.index.size.max.bytes": 1048576,
    # so that a broker that is cut off or stands still is not waited for
    "replica.socket.timeout.ms": 3000,
    "controller.socket.timeout.ms": 3000,
}


class Kafka(Service):
    """Three controllers and three brokers by default; each partition has a replica on each."""

    name, programs, client = "kafka", (PROGRAM, JAVA), KafkaClient
    roles: ClassVar = {CONTROLLER: 3, BROKER: 3}
    data_role, own_leader = BROKER, (CONTROLLER,)
    copies_stopped = True
    attachable = False  # its nodes have the numbers that the driver gives them
    settings: ClassVar = {
        "acks": ("all", "1"),
        "replication.factor": 3,
        "min.insync.replicas": 2,
        "unclean.leader.election.enable": False,
        "flush.messages": KEPT_BY_SYSTEM,
        "replica.lag.time.max.ms": 3000,
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        "controller.quorum.election.timeout.ms": 1000,
        "controller.quorum.fetch.timeout.ms": 4000,
        "group.share.record.lock.duration.ms": 3000,  # before a record is given again
        "heap_mb": 256,
        "transactions": False,  # sets by transactions over two partitions, some of them aborted
        "isolation.level": ("read_committed", "read_uncommitted"),  # of their reads
    }
    smallest: ClassVar = {
        key: 64 if key == "heap_mb" else 1 for key, value in settings.items() if type(value) is int
    }
    profiles = (
        Profile(
            name="safe",
            about="acknowledged when two of three replicas have it; files are not synced",
            expected={
                "kafka-acks1": "valid",
                "kafka-unclean": "valid",
                "kafka-power": "LOST_ACKED",
            },
        ),
        Profile(
            name="acks1",
            about="acknowledged when the leader has it",
            settings={"acks": "1"},
            expected={"kafka-acks1": "LOST_ACKED"},
        ),
        Profile(
            name="min-isr-1",
            about="the last replica in sync acknowledges alone, and any replica may be elected",
            settings={"min.insync.replicas": 1, "unclean.leader.election.enable": True},
            expected={"kafka-unclean": "LOST_ACKED"},
        ),
        Profile(
            name="synced",
            about="as safe, and synced before each acknowledgement",
            settings={"flush.messages": 1},
            expected={"kafka-power": "valid"},
            claims={"power": "all", "unsynced": "all"},
        ),
        Profile(
            name="transactions",
            about="as safe; sets are kept by transactions over two partitions",
            settings={"transactions": True},
        ),
    )
    claims: ClassVar = dict.fromkeys(
        ("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "crash"), "all"
    )
    words: ClassVar = {"term": "epoch", "server": "broker", "set": "ISR"}
    start_s = 120.0

    @classmethod
    def client_of(cls, values: Mapping[str, Any]) -> type[KafkaClient]:
        return TransactionalClient if values["transactions"] else KafkaClient

    @classmethod
    def detects_within_s(cls, values: Mapping[str, Any]) -> float:
        return float(values["broker.session.timeout.ms"] / 1000 + 1)

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> dict[str, str]:
        role, address = here.node.role, here.node.address
        own = f"CONTROLLER://{address}:{CONTROLLER_PORT}"
        if role == BROKER:
            own = f"PLAINTEXT://{address}:{PORT}"
        voters = (
            f"{number}@{node.address}:{CONTROLLER_PORT}"
            for number, node in self._numbers().items()
            if node.role == CONTROLLER
        )
        lines = {
            "node.id": next(
                n for n, node in self._numbers().items() if node.name == here.node.name
            ),
            "process.roles": role,
            "listeners": own,
            **({"advertised.listeners": own} if role == BROKER else {}),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.voters": ",".join(voters),
            "log.dirs": f"{here.folder}/{self.data}",
            "default.replication.factor": self.values["replication.factor"],
            **FIXED,
            **{k: v for k, v in self.values.items() if k not in (*OF_CLIENT, *OF_TOPIC)},
        }
        words = {True: "true", False: "false"}
        text = "".join(
            f"{key}={words[value] if isinstance(value, bool) else value}\n"
            for key, value in lines.items()
        )
        return {"server.properties": text}

    def _numbers(self) -> dict[int, Node]:
        """Return the nodes by their number."""
        return {
            int(node.name.rpartition("-")[2]) + FIRST_BROKER * (node.role == BROKER): node
            for node in self.nodes
        }

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> list[str]:
        """A shell formats the folder of data if it is new, and becomes the server."""
        heap_mb = self.values["heap_mb"] if here.node.role == BROKER else 160
        java = [
            *(here.program["java"], *FLAGS, *LOGGED, f"-Xmx{heap_mb}m"),
            *(f"-Djava.io.tmpdir={here.folder}", f"-Duser.home={here.folder}"),
            *("-cp", f"{here.program['kafka']}/*"),
        ]
        properties = f"{here.folder}/server.properties"
        formats = f'"$@" kafka.tools.StorageTool format -t {CLUSTER_ID} -c "{properties}"'
        script = (
            # the tool does not sync what it writes, and a broker without it does not start
            f'test -e "$0/meta.properties" || {{ {formats} && sync "$0"/* "$0"; }} || exit; '
            f'exec "$@" kafka.Kafka "{properties}"'
        )
        return ["sh", "-c", script, f"{here.folder}/{self.data}", *java]

    async def ask(self, here: NodeAccess) -> View:
        names = {number: node.name for number, node in self._numbers().items()}
        if here.node.role == CONTROLLER:
            asked = wire.request(wire.FETCH, 1, wire.fetch_quorum(), wire.QUORUM_FETCH)
            frame = await here.agent.ask(CONTROLLER_PORT, asked, 1.0)
            leader, epoch = wire.quorum_leader(wire.answer(wire.FETCH, 1, frame, compact=True))
            return View(names.get(leader, ""), epoch, here.node.name)
        frame = await here.agent.ask(PORT, wire.request(wire.METADATA, 1, wire.metadata(None)), 1.0)
        known = wire.metadata_in(wire.answer(wire.METADATA, 1, frame))
        own = next(number for number, name in names.items() if name == here.node.name)
        return broker_view(here.node.name, own, known)

    async def copy(self, here: NodeAccess, keys: Sequence[str]) -> list[Copy]:
        """Return the records of a broker's replicas, from their segments."""
        rows = []
        for key in keys:
            listed = await here.agent.run(
                ["find", f"{here.folder}/{self.data}/{key}", "-name", "*.log"]
            )
            for name in sorted(listed.out.split()):
                for offset, epoch, body in entries_in(await here.agent.get(name)):
                    rows.append(Copy.of(key, offset, body, epoch))
        return rows

    async def rejoin(self, here: NodeAccess, others: Sequence[NodeAccess]) -> None:
        """Do nothing: a broker whose folder is formatted again copies its replicas from leaders."""


def broker_view(name: str, own: int, known: wire.Metadata) -> View:
    """Return a broker's view: the partitions that it leads, with their epochs. It serves once it is
    up and in sync, as far as it knows."""
    replicas = [state for state in known.partitions.values() if own in state.replicas]
    ready = own in known.brokers and all(own in state.in_sync for state in replicas)
    leads = {
        f"{topic}-{number}": state.epoch
        for (topic, number), state in known.partitions.items()
        if state.leader == own and not topic.startswith("__")
    }
    return View(name, -1, name, ready, leads)


PLUGIN = plugin(Kafka)
