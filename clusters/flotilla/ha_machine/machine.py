"""The state machine of a master/slave pair. Pure.

    SINGLE(m)    m acknowledges alone; the slave has no part in it
    ASYNC(m, s)  the same, and s copies the log
    SEMI(m, s)   m holds all sends until s has copied the rest
    SYNC(m, s)   a send is acknowledged when both have it

The way up is SINGLE, ASYNC, SEMI, SYNC. In SYNC the failure of either leads to SINGLE of the other.
In the other states only m has every acknowledged message, so only m may go on; it may do so for any
time, cut off from everything but its clients.

A broker is *gone* when its node in ZooKeeper is gone, never because it is silent, or when the node
is that of another process (`life`): a restart within the session timeout is the end of the former
process, whose memory may be lost.

Each state has a SequenceID, greater than those of all states before it of any set (`seq`). The
SequenceID of the state that made a process master is its `epoch`.

A set that may be converted to another mode has a machine for each of its generations in this one
(docs/flotilla-conversion.md). The machine of a new generation begins with the broker that was
master before, whatever an earlier machine has left, and its SequenceIDs follow the last epoch of
the mode that the set leaves. Brokers of earlier generations do not count. While a broker is being
converted, it is not elected, and nothing follows the state of a master that is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ..net.wire import Json


class Phase(StrEnum):
    SINGLE = "SINGLE"
    ASYNC = "ASYNC"
    SEMI = "SEMI"
    SYNC = "SYNC"


FOLLOWS = {  # state -> states that may follow it, of the same master; SINGLE of any may follow all
    Phase.SINGLE: frozenset({Phase.ASYNC}),
    Phase.ASYNC: frozenset({Phase.SEMI}),
    Phase.SEMI: frozenset({Phase.SYNC, Phase.ASYNC}),
    Phase.SYNC: frozenset[Phase](),
}
PAIR = 2  # brokers of a set
LONGEST_HOLD = 8  # a hold, in units of zkHoldMax
NEW = 0  # the seq of a wanted state, or its epoch if it begins one


@dataclass(frozen=True)
class MachineState:
    """A state of one set. `sync`: the brokers that must hold every acknowledged message, and the
    life of each. `holds`: how many holds in a row were too short since SINGLE or SYNC. `begun`: a
    master has served the set, so a broker whose store is empty when it starts has lost data."""

    seq: int
    phase: Phase
    epoch: int
    master: int
    life: str
    address: str
    ha_address: str
    sync: Mapping[int, str]
    holds: int = 0
    begun: bool = False
    generation: int = 0

    def fields(self) -> Json:
        return {
            "seq": self.seq,
            "state": self.phase.value,
            "epoch": self.epoch,
            "master": self.master,
            "life": self.life,
            "addr": self.address,
            "haAddr": self.ha_address,
            "sync": {str(i): x for i, x in self.sync.items()},
            "holds": self.holds,
            "begun": self.begun,
            "generation": self.generation,
        }

    @classmethod
    def of(cls, fields: Json) -> "MachineState":
        """Read a state. Raises KeyError, TypeError, ValueError."""
        return cls(
            *(int(fields["seq"]), Phase(fields["state"]), int(fields["epoch"])),
            *(int(fields["master"]), str(fields["life"]), str(fields["addr"])),
            str(fields["haAddr"]),
            {int(i): str(life) for i, life in fields["sync"].items()},
            int(fields.get("holds", 0)),
            bool(fields.get("begun", False)),
            int(fields.get("generation", 0)),
        )


@dataclass(frozen=True)
class SlaveReport:
    """What a master reports of a connected slave.

    `near`: it is within zkNearGap of the end of the log; `whole`: it has acknowledged all of it;
    `late`: it was not in step for zkSyncLag.
    """

    near: bool
    whole: bool
    late: bool

    def fields(self) -> Json:
        return {"near": self.near, "whole": self.whole, "late": self.late}


@dataclass(frozen=True)
class BrokerReport:
    """What a broker writes into its node. `obeys`: the SequenceID of the state that is in force
    there; `slaves`: by a master, those that are connected.

    Of a set that may be converted: its `generation`, the broker that leads that `first`, and the
    last epoch `before` it; `converting`: the broker will leave it.
    """

    life: str
    address: str
    ha_address: str
    zone: str = ""
    obeys: int = 0
    epoch: int = 0  # the last one of its log, when the process started; the same for the next
    end: int = 0
    slaves: Mapping[int, SlaveReport] = field(default_factory=dict)
    generation: int = 0
    first: int = 0
    before: int = 0
    converting: bool = False

    def fields(self) -> Json:
        return {
            "life": self.life,
            "addr": self.address,
            "haAddr": self.ha_address,
            "zone": self.zone,
            "obeys": self.obeys,
            "epoch": self.epoch,
            "end": self.end,
            "slaves": {str(i): slave.fields() for i, slave in self.slaves.items()},
            "generation": self.generation,
            "first": self.first,
            "before": self.before,
            "converting": self.converting,
        }

    @classmethod
    def of(cls, fields: Json) -> "BrokerReport":
        """Read a report. Raises KeyError, TypeError, ValueError."""
        slaves = {int(i): SlaveReport(**each) for i, each in fields["slaves"].items()}
        life, address, ha_address, zone = (
            str(fields[k]) for k in ("life", "addr", "haAddr", "zone")
        )
        obeys, epoch, end = (int(fields[k]) for k in ("obeys", "epoch", "end"))
        generation, first, before = (
            int(fields.get(k, 0)) for k in ("generation", "first", "before")
        )
        converting = bool(fields.get("converting", False))
        return cls(
            *(life, address, ha_address, zone, obeys, epoch, end, slaves),
            *(generation, first, before, converting),
        )


@dataclass(frozen=True)
class MachineView:
    """What a decision is made from. `state`: None before the first; `brokers`: those whose nodes
    are there; `held_too_long`: the present state is SEMI for longer than `hold_limit_s`; `rested`:
    it is not ASYNC after such a hold, or has lasted as long as that."""

    state: MachineState | None
    brokers: Mapping[int, BrokerReport]
    held_too_long: bool = False
    rested: bool = True
    unclean: bool = False


def may_succeed(view: MachineView) -> int | None:
    """Return the broker that becomes master after the former one is gone; None: none may.

    In SYNC both have everything: the slave, else the broker that comes back first, of two the one
    with the longer log. In other states only the former master has. One that returns with an empty
    store, although the set has had a master, has lost its disk: the other would cut its log to
    match.
    """
    state, brokers = view.state, view.brokers
    assert state is not None, "there was a master"
    stay = [i for i in sorted(brokers) if not brokers[i].converting]
    members = [i for i in stay if i in state.sync]
    living = [i for i in members if brokers[i].life == state.sync[i]]
    returned = [i for i in members if not is_emptied(i, brokers, state.begun)]
    if living or returned:
        return max(living or returned, key=lambda i: (brokers[i].epoch, brokers[i].end, -i))
    return stay[0] if view.unclean and stay else None


def is_emptied(broker: int, brokers: Mapping[int, BrokerReport], begun: bool) -> bool:
    """Return whether a process began with an empty store, and the set is not new: another process
    did not, or a master has served (`begun`)."""
    began_empty = {i: each.epoch == each.end == 0 for i, each in brokers.items()}
    return began_empty[broker] and (begun or not all(began_empty.values()))


def next_state(
    view: MachineView, succeeds: Callable[[MachineView], int | None] = may_succeed
) -> MachineState | None:
    """Return the state that must follow, None if the present one stays. Its seq is NEW, and so is
    its epoch if a process becomes master by it."""
    view = of_latest_generation(view)
    state, brokers = view.state, view.brokers
    if state is None:
        first = _first_master(brokers)
        return _single(first, brokers, brokers[first].generation > 0) if first in brokers else None
    master = brokers.get(state.master)
    if master is None or master.life != state.life:
        heir = succeeds(view)
        return None if heir is None else _single(heir, brokers, state.begun)
    if master.converting:
        return None
    state = replace(state, begun=state.begun or master.obeys >= state.epoch)
    slave = next((i for i in sorted(brokers) if i != state.master and i in master.slaves), None)
    if state.phase is Phase.SYNC:
        return _phase(state, Phase.SINGLE) if _out_of_step(state, master, brokers) else None
    if slave is None:
        below = {Phase.ASYNC: Phase.SINGLE, Phase.SEMI: Phase.ASYNC}.get(state.phase)
        if below is None and state != view.state:
            return _phase(state, Phase.SINGLE)
        return _phase(state, below) if below else None
    report, obeyed = master.slaves[slave], master.obeys == state.seq
    match state.phase:
        case Phase.SINGLE:
            return _phase(state, Phase.ASYNC)
        case Phase.ASYNC if report.near and not report.late and obeyed and view.rested:
            return _phase(state, Phase.SEMI)
        case Phase.SEMI if view.held_too_long:
            return replace(_phase(state, Phase.ASYNC), holds=state.holds + 1)
        case Phase.SEMI if report.whole and obeyed:
            both = {state.master: state.life, slave: brokers[slave].life}
            return replace(_phase(state, Phase.SYNC), sync=both, holds=0)
    return None


def _first_master(brokers: Mapping[int, BrokerReport]) -> int:
    """Return the broker that begins a machine, 0 if there is none: of a new set the first one, of
    a set that was converted its master. All logs were equal then, so another broker begins if the
    master has lost its disk since."""
    named = next((each.first for each in brokers.values()), 0)
    if not named:
        return min(brokers, default=0)
    whole = [i for i in sorted(brokers) if not is_emptied(i, brokers, begun=True)]
    return named if named not in brokers or named in whole or not whole else whole[0]


def _single(broker: int, brokers: Mapping[int, BrokerReport], begun: bool = False) -> MachineState:
    """Return the state in which a process begins to be master."""
    new = brokers[broker]
    who = (broker, new.life, new.address, new.ha_address)
    return MachineState(
        *(NEW, Phase.SINGLE, NEW, *who, {broker: new.life}),
        begun=begun,
        generation=new.generation,
    )


def of_latest_generation(view: MachineView) -> MachineView:
    """Return the view without brokers, or a state, of earlier generations than the latest."""
    state, brokers = view.state, view.brokers
    numbers = [each.generation for each in brokers.values()]
    latest = max([*numbers, state.generation if state else 0])
    return replace(
        view,
        state=state if state and state.generation == latest else None,
        brokers={i: each for i, each in brokers.items() if each.generation == latest},
    )


def last_sequence(last: int, before: int) -> int:
    """Return the number that the next SequenceID follows: the last one, or the last epoch of the
    mode from which the set comes (`before`)."""
    return max(last, before)


def _phase(state: MachineState, phase: Phase) -> MachineState:
    """Return another state of the same master, which alone must hold every message."""
    holds = 0 if phase is Phase.SINGLE else state.holds
    return replace(state, seq=NEW, phase=phase, sync={state.master: state.life}, holds=holds)


def _out_of_step(
    state: MachineState, master: BrokerReport, brokers: Mapping[int, BrokerReport]
) -> bool:
    """Return whether the slave of SYNC is gone, or the master reports that it lags or is not
    connected. The master must have read the state for that."""
    slaves = [i for i in state.sync if i != state.master]
    if any(i not in brokers or brokers[i].life != state.sync[i] for i in slaves):
        return True
    if master.obeys != state.seq:
        return False
    return any(i not in master.slaves or master.slaves[i].late for i in slaves)


def counted_version(version: int) -> int:
    """Return the version that a decision requires of what it replaces: the one that was read."""
    return version


def life_of(own: str, found: str) -> str:
    """Return the life of a process whose name another session's node (`found`) still has."""
    return own


def hold_limit_s(shortest_s: float, holds: int) -> float:
    """Return how long sends may be held, after so many holds that were too short.

    A hold takes a dozen messages between brokers, HA controllers and ZooKeeper. Where these need
    longer than zkHoldMax (`shortest_s`), the pair would change between ASYNC and SEMI without end.
    """
    return shortest_s * min(1 << holds, LONGEST_HOLD)


def may_release(phase: Phase, held_s: float, limit_s: float) -> bool:
    """Decide whether a master serves the sends that it holds. Only another state ends SEMI: a hold
    that has lasted too long is ended by writing ASYNC, or ZooKeeper might say SYNC meanwhile and
    elect a slave that lacks what was acknowledged alone."""
    return phase is not Phase.SEMI


def members_when_disconnected(members: tuple[int, ...], master: int) -> tuple[int, ...]:
    """Return the brokers that must acknowledge while a master has no connection to ZooKeeper: the
    same. Disconnected is not expired, and no broker changes the state by itself."""
    return members


def watches_next_state(follows: bool) -> bool:
    """Decide whether a broker watches for the state after the one that it reads. A watch fires
    once, and the next state may make a slave (`follows`) master: always."""
    return True
