"""What the harness has to know of each way in which Flotilla's brokers get their roles (haMode)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from clusters.flotilla.config import convertible_modes
from harness.contracts import CLIENT
from harness.contracts.membership import CONSENSUS, CONTAINERS, CONVERSION, HOLDS, REJOIN, ZONES

NAMESERVER, CONTROLLER, BROKER = "nameserver", "controller", "broker"
COORDINATOR, HA_CONTROLLER = "coordinator", "hacontroller"
CONTAINER = "container"  # several brokers in one process
USUAL_CONTAINERS = 2
LEAST_BROKERS = 2  # of a set that outlives its master


@dataclass(frozen=True)
class Mode:
    """One haMode.

    `counts`: role -> usual number of nodes, in the order in which they start; a role that is
    missing does not exist. `detection`: settings in ms whose sum is the longest time to notice a
    silent master. `can`: abilities of the driver. `lacks`: calls that its clusters cannot serve.
    """

    name: str
    counts: Mapping[str, int]
    detection: tuple[str, ...]
    can: frozenset[str]
    lacks: frozenset[str] = frozenset()
    numbered: bool = False  # whether the configuration has each broker's id
    set_size: int = 0  # the number of brokers that each set must have; 0: any
    votes: bool = False  # whether the configuration has the Raft group of each broker set

    @property
    def has_controllers(self) -> bool:
        return CONTROLLER in self.counts

    def in_containers(self) -> "Mode":
        """Return the same mode with containers in the place of brokers."""
        counts = {
            CONTAINER if role == BROKER else role: USUAL_CONTAINERS if role == BROKER else count
            for role, count in self.counts.items()
        }
        return replace(
            self, counts=counts, can=self.can - {"handover", "members", ZONES} | {CONTAINERS}
        )

    def for_sets(self, sets: int) -> "Mode":
        """Return the same mode with a usual number of brokers that so many sets share evenly."""
        usual = self.counts[BROKER]
        if usual % sets == 0 and self.set_size in (0, usual // sets):
            return self
        return replace(
            self, counts={**self.counts, BROKER: sets * (self.set_size or LEAST_BROKERS)}
        )

    def convertible(self) -> "Mode":
        """Return the same mode for sets that may be converted to another one and back: what all of
        the modes have and can."""
        controller = MODES["controller"]
        each = [MODES[name] for name in convertible_modes(HA_CONTROLLER in self.counts)]
        lacks = frozenset[str]().union(*(mode.lacks for mode in each))
        can = frozenset({CONVERSION, *(self.can & {HOLDS})})
        # the controllers need longer than the others to notice a silent master
        return replace(
            controller,
            name=self.name,
            counts={**controller.counts, **self.counts} if self.set_size else controller.counts,
            can=can,
            lacks=lacks,
            set_size=self.set_size,
        )


MODES = {
    mode.name: mode
    for mode in (
        Mode(  # a heartbeat ages, then a scan follows
            "controller",
            {NAMESERVER: 1, CONTROLLER: 3, BROKER: 3, CLIENT: 2},
            ("controllerHeartBeatTimeoutMills", "scanNotActiveBrokerInterval"),
            frozenset({CONSENSUS, "handover", "members", REJOIN, ZONES}),
        ),
        Mode(  # nameservers notice it; the controllers would keep the registers
            "switchless",
            {NAMESERVER: 1, BROKER: 3, CLIENT: 2},
            ("brokerNotActiveTimeoutMillis", "brokerHeartbeatInterval"),
            frozenset({REJOIN}),
            frozenset({"cas"}),
            numbered=True,
        ),
        # a session ends after its timeout, noticed at a tick, and an HA controller decides; if the
        # coordinators have to elect a leader, after that
        Mode(
            "zookeeper",
            {NAMESERVER: 1, COORDINATOR: 3, HA_CONTROLLER: 3, BROKER: 2, CLIENT: 2},
            ("raftElectionTimeout", "zkSessionTimeout", "zkTickTime", "zkReportInterval"),
            frozenset({HOLDS, REJOIN}),
            frozenset({"cas"}),
            numbered=True,
            set_size=2,
        ),
        Mode(  # the other brokers miss its beats, and ask for votes
            "raft-log",
            {NAMESERVER: 1, BROKER: 3, CLIENT: 2},
            (*("heartBeatTimeIntervalMs",) * 3, *("maxVoteIntervalMs",) * 2),
            frozenset({REJOIN}),
            # votes compare logs, and topics are not in them: the next master may lack a new one
            frozenset({"cas", "create_topic"}),
            votes=True,
        ),
    )
}
