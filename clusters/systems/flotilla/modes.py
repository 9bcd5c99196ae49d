"""What the harness has to know of each way in which Flotilla's brokers get their roles (haMode)."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.contracts import CLIENT
from harness.contracts.membership import REJOIN

NAMESERVER, CONTROLLER, BROKER = "nameserver", "controller", "broker"


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
    votes: bool = False  # whether the configuration has the Raft group of each broker set

    @property
    def has_controllers(self) -> bool:
        return CONTROLLER in self.counts


MODES = {
    mode.name: mode
    for mode in (
        Mode(  # a heartbeat ages, then a scan follows
            "controller",
            {NAMESERVER: 1, CONTROLLER: 3, BROKER: 3, CLIENT: 2},
            ("controllerHeartBeatTimeoutMills", "scanNotActiveBrokerInterval"),
            frozenset({"handover", "members", REJOIN}),
        ),
        Mode(  # nameservers notice it; the controllers would keep the registers
            "switchless",
            {NAMESERVER: 1, BROKER: 3, CLIENT: 2},
            ("brokerNotActiveTimeoutMillis", "brokerHeartbeatInterval"),
            frozenset({REJOIN}),
            frozenset({"cas"}),
            numbered=True,
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
