"""Flaws of a pair that is steered through ZooKeeper (haMode = zookeeper)."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from clusters.flotilla.ha_machine.machine import (
    BrokerReport,
    MachineState,
    MachineView,
    Phase,
    SlaveReport,
    next_state,
)
from clusters.flotilla.rules import RULES
from clusters.flotilla.zk.jute import ANY_VERSION

from .mutant import Mutant


def released_by_time(phase: Phase, held_s: float, limit_s: float) -> bool:
    return phase is not Phase.SEMI or held_s > limit_s


def alone_when_disconnected(members: tuple[int, ...], master: int) -> tuple[int, ...]:
    return (master,)


def any_version(version: int) -> int:
    return ANY_VERSION


def any_successor(view: MachineView) -> int | None:
    """The machine elects whichever broker is there, in every state."""
    return min(view.brokers, default=None)


def elect_any(view: MachineView) -> MachineState | None:
    return next_state(view, any_successor)


def watches_as_master(follows: bool) -> bool:
    return not follows


def life_that_was_found(own: str, found: str) -> str:
    return found


def whole_when_near(view: MachineView) -> MachineState | None:
    """A slave counts as whole as soon as it is near the end of the log."""
    return next_state(
        _with_reports(view, lambda report, seq: replace(report, slaves=_whole(report)))
    )


def obeys_at_once(view: MachineView) -> MachineState | None:
    """A master counts as holding its sends although it has not read SEMI yet."""
    return next_state(_with_reports(view, lambda report, seq: replace(report, obeys=seq)))


def emptied_is_new(view: MachineView) -> MachineState | None:
    """A broker that returns alone with an empty disk counts as one of a new set."""
    state = view.state
    return next_state(replace(view, state=state and replace(state, begun=False)))


def _with_reports(
    view: MachineView, change: Callable[[BrokerReport, int], BrokerReport]
) -> MachineView:
    seq = view.state.seq if view.state else 0
    return replace(view, brokers={i: change(each, seq) for i, each in view.brokers.items()})


def _whole(report: BrokerReport) -> Mapping[int, SlaveReport]:
    return {i: replace(each, whole=each.near) for i, each in report.slaves.items()}


MUTANTS = (
    Mutant(
        "hold-timeout-resumes",
        "a master that has held sends for zkHoldMax goes on alone, before the state says so",
        "LOST_ACKED",
        replace(RULES, may_release=released_by_time),
    ),
    Mutant(
        "acts-on-disconnect",
        "a master that lost its connection to ZooKeeper goes on alone",
        "LOST_ACKED",
        replace(RULES, members_when_disconnected=alone_when_disconnected),
    ),
    Mutant(
        "decide-without-check",
        "an HA controller overwrites a state that is not the one it decided from",
        "STATE_JUMPED",
        replace(RULES, counted_version=any_version),
    ),
    Mutant(
        "async-elects",
        "the slave becomes master although it lacks what the master acknowledged alone",
        "LOST_ACKED",
        replace(RULES, next_machine_state=elect_any),
    ),
    Mutant(
        "whole-when-near",
        "a slave that is near the end of the log becomes one that must have everything",
        "SET_LACKS_ACKED",
        replace(RULES, next_machine_state=whole_when_near),
    ),
    Mutant(
        "obeys-at-once",
        "the slave counts as whole before its master has read that it must hold sends",
        "LOST_ACKED",
        replace(RULES, next_machine_state=obeys_at_once),
    ),
    Mutant(
        "emptied-is-new",
        "a broker that lost its disk leads its set, whose other broker has everything",
        "LOST_ACKED",
        replace(RULES, next_machine_state=emptied_is_new),
    ),
    Mutant(
        "old-session-counts",
        "a broker that restarts takes its former process's node for its own",
        "ONE_MASTER",
        replace(RULES, life_of=life_that_was_found),
    ),
    Mutant(
        "slave-acks-while-promoting",
        "a slave that becomes master goes on acknowledging to the former one, beyond its own reign",
        "LOST_ACKED",
        replace(RULES, stops_acknowledging_first=False),
    ),
    Mutant(
        "watch-not-renewed",
        "a slave whose watch has fired reads the state, and watches no further",
        "NOT_RECOVERED",
        replace(RULES, watches_next_state=watches_as_master),
    ),
)
