"""Laws that are checked on the lines of the event logs: leaders, masters, elections, sets,
truncations; and which brokers a container has.

Lines arrive in the order in which they are written, on any node.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import normpath

from clusters.flotilla.ha_machine.machine import FOLLOWS, Phase
from clusters.systems.flotilla.cluster_state import INSIDE, host_of
from clusters.systems.flotilla.law_state import (
    MACHINE_MODE,
    Fields,
    Law,
    LawState,
    NodeLifetime,
    SetState,
    raft_group,
)
from clusters.systems.flotilla.modes import HA_CONTROLLER

SUCCESS = 0
PRESENT = "is in this container already"  # the end of a refusal


class InnerBrokers:
    """Which brokers a container has, from its own events `inner`, and what is wrong with that.

    An event has an action:

        restored   a process begins, with the brokers that were added (`brokers`) and removed
                   (`gone`)
        starting   a broker begins to start
        started    it serves
        added      an operator's request to add it was carried out, and is remembered
        removing   an operator's request to remove it is carried out
        removed    it has ended
        failed     it has ended by itself, or did not start
        refused    it was not accepted: one that is there, or the store of one

    What an operator asked for counts from the event on, which the container writes when the change
    is on its disk; a container that ends between the two may have made it. A container with
    `containerRemembers = false`, which promises nothing, says so in `remembers`.
    """

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.checked: tuple[Law, ...] = ()  # by the last event
        self._stores: dict[str, str] = {}  # of the brokers that are there
        self._added: set[str] = set()  # those that a restart must bring back
        self._removed: set[str] = set()  # those that it must not bring back
        self._damages = 0

    def read(self, fields: Fields, damages: int) -> Iterator[tuple[Law, str]]:
        """Read an event; yield violations. `damages`: how often the container's disk has lost what
        was synced."""
        name, store = str(fields.get("brokerName", "")), str(fields.get("storePath", ""))
        if damages != self._damages:
            self._damages = damages
            self._added.clear()
            self._removed.clear()
        self.checked = ()
        match fields["action"]:
            case "restored":
                yield from self._restored(fields)
            case "starting":
                self.gone.discard(name)
                self._removed.discard(name)
            case "started":
                yield from self._started(name, store)
            case "added":
                self._added.add(name)
            case "removing":
                self._added.discard(name)
            case "removed" | "failed":
                self._stores.pop(name, None)
                self.gone.add(name)
                if fields["action"] == "removed":
                    self._removed.add(name)
            case "refused":
                yield from self._refused(name, str(fields["why"]))

    def _restored(self, fields: Fields) -> Iterator[tuple[Law, str]]:
        self._stores.clear()
        self.gone.clear()
        if not fields["remembers"]:
            self._added.clear()
            self._removed.clear()
            return
        self.checked = (Law.INNER_FORGOTTEN,)
        for name in sorted(self._removed - set(fields["gone"])):
            yield Law.INNER_FORGOTTEN, f"{name} was removed, and is there after a restart"
        for name in sorted(self._added - set(fields["brokers"])):
            yield Law.INNER_FORGOTTEN, f"{name} was added, and is forgotten after a restart"
        self._added &= set(fields["brokers"])

    def _started(self, name: str, store: str) -> Iterator[tuple[Law, str]]:
        self.checked = (Law.STORE_SHARED,)
        for other, path in self._stores.items():
            one, two = (PurePosixPath(normpath(each)) for each in (path, store))
            if other != name and (one.is_relative_to(two) or two.is_relative_to(one)):
                yield Law.STORE_SHARED, f"{other} and {name} share a store: {path} and {store}"
        self._stores[name] = store

    def _refused(self, name: str, why: str) -> Iterator[tuple[Law, str]]:
        """A broker that is not there cannot be a reason to refuse one."""
        self.checked = (Law.GHOST_BROKER,)
        if why.endswith(PRESENT) and name not in self._stores:
            yield Law.GHOST_BROKER, f"{name} was refused because it is there, and it is not"


class SetGenerations:
    """The generations of one broker set that may be converted to another mode, by the event logs
    of its brokers (docs/flotilla-conversion.md).

    CONVERTED_UNEQUAL     all brokers begin a generation with logs that end at the same place
    CONVERTED_EARLY       no broker begins a generation before the one that leads it first, nor
                          begins another one than that
    GENERATION_WENT_BACK  no broker starts again in an earlier generation
    GENERATIONS_MIXED     a master copies its log only to slaves of its own generation
    PROMISE_BROKEN        no broker leads a generation that it has promised to leave

    A broker whose disk lost data may begin with a shorter log, and one whose disk was damaged may
    have forgotten its generation: both are exempt. Methods yield violations; `checked`: the laws
    that the last call has checked.
    """

    def __init__(self) -> None:
        self.checked: tuple[Law, ...] = ()
        self.mode = ""  # of the latest generation; empty before any was reported
        self.latest = 0
        self._begun: dict[int, tuple[str, int]] = {}  # generation -> its mode, where logs end
        self._of: dict[str, int] = {}  # broker -> its generation
        self._promised: dict[str, int] = {}  # broker -> the generation that it will leave

    def begins(self, broker: str, fields: Fields, exempt: bool) -> Iterator[tuple[Law, str]]:
        """A broker begins a generation, or starts again in one."""
        number, end, mode = int(fields["generation"]), int(fields["end"]), str(fields["mode"])
        before = self._of.get(broker, 0)
        self.checked = (Law.GENERATION_WENT_BACK,)
        self._of[broker] = number
        if number < before and not exempt:
            why = f"{broker} was in generation {before}, and started in {number}"
            yield Law.GENERATION_WENT_BACK, why
        if number > before:
            self._promised.pop(broker, None)
            self.checked = (Law.CONVERTED_EARLY, Law.CONVERTED_UNEQUAL)
            first = number not in self._begun
            known_mode, known_end = self._begun.setdefault(number, (mode, end))
            if first and fields["brokerId"] != fields["masterId"] and not exempt:
                why = f"{broker} began generation {number} before broker {fields['masterId']}"
                yield Law.CONVERTED_EARLY, why
            elif mode != known_mode:
                why = f"{broker} began generation {number} as {mode}, others as {known_mode}"
                yield Law.CONVERTED_EARLY, why
            if end != known_end and not exempt:
                why = f"the log of {broker} ended at {end} when it began generation {number}"
                yield Law.CONVERTED_UNEQUAL, f"{why}, and that of another one at {known_end}"
        if number >= self.latest:
            self.latest, self.mode = number, mode

    def promises(self, broker: str) -> None:
        self._promised[broker] = self._of.get(broker, 0)

    def withdraws(self, broker: str) -> None:
        self._promised.pop(broker, None)

    def leads(self, broker: str) -> Iterator[tuple[Law, str]]:
        """A broker becomes master."""
        self.checked = (Law.PROMISE_BROKEN,)
        if broker in self._promised and self._promised[broker] == self._of.get(broker, 0):
            why = f"{broker} became master in generation {self._promised[broker]}"
            yield Law.PROMISE_BROKEN, f"{why}, which it had promised to leave"

    def copies(self, master: str, slave: str, fields: Fields) -> Iterator[tuple[Law, str]]:
        """A master has answered a handshake."""
        self.checked = ()
        if fields["status"] != SUCCESS or "generation" not in fields:
            return
        self.checked = (Law.GENERATIONS_MIXED,)
        own, theirs = int(fields["generation"]), int(fields["slaveGeneration"])
        if own != theirs:
            why = f"{master}, in generation {own}, copies its log to {slave}, in {theirs}"
            yield Law.GENERATIONS_MIXED, why


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line of an event log."""

    t_ns: int
    node: str
    fields: Fields


class EventLaws:
    """Checks the event logs of one cluster, line by line."""

    def __init__(self, book: LawState) -> None:
        self._state = book
        self._inside: dict[str, InnerBrokers] = {}  # by container
        self._generations: dict[str, SetGenerations] = {}  # by broker set
        # by broker set, or of the controllers, and term
        self._leaders: dict[tuple[str, int], tuple[str, int]] = {}

    def read(self, kind: str, line: EventLine) -> None:
        self._state.lines += 1
        try:
            missed = int(line.fields.get("missed", 0))
            self._state.lines += missed
            self._state.unreadable += missed
            if INSIDE in line.node:
                self.check_ghost(line.node, f"logged {kind!r}", line.t_ns)
            if look := _CHECKS.get(kind):
                look(self, line)
        except (KeyError, TypeError, ValueError):
            self._state.unreadable += 1

    def unreadable(self) -> None:
        """Count data in an event log that is not a line."""
        self._state.lines += 1
        self._state.unreadable += 1

    def _start(self, line: EventLine) -> None:
        """A process begins; `Laws.rules` has announced it if this node's decisions are watched."""
        life = self._state.process(line.node)
        if life.started:
            life = self._state.start_process(line.node, life.boot + 1)
        life.started = True
        self._state.checks[Law.UNACCEPTABLE] += not self._state.damaged

    def _inner(self, line: EventLine) -> None:
        """The brokers of a container change."""
        inside = self._inside.setdefault(line.node, InnerBrokers())
        for law, why in inside.read(line.fields, self._state.damages.get(line.node, 0)):
            self._state.report(law, line.node, f"{line.node}: {why}", {}, line.t_ns)
        for law in inside.checked:
            self._state.checks[law] += 1

    def check_ghost(self, broker: str, did: str, t_ns: int = -1) -> None:
        """A broker inside a container has done something."""
        self._state.checks[Law.GHOST_BROKER] += 1
        name = broker.partition(INSIDE)[2]
        inside = self._inside.get(host_of(broker))
        if inside is not None and name in inside.gone:
            why = f"{broker} {did} after it had left its container"
            self._state.report(Law.GHOST_BROKER, broker, why, {"broker": name}, t_ns)

    def _protocol_error(self, line: EventLine) -> None:
        """A node received a message that violates the protocol. Only our own nodes send messages in
        this world, and its wires change no bits."""
        if self._state.damaged:
            return
        self._state.checks[Law.UNACCEPTABLE] += 1
        peer, error = line.fields["peer"], line.fields["why"]
        why = f"{line.node} received a message that violates the protocol from {peer}: {error}"
        self._state.report(Law.UNACCEPTABLE, line.node, why, {"peer": peer}, line.t_ns)

    def _raft(self, line: EventLine) -> None:
        if line.fields["state"] != "leader":
            return
        self._state.checks[Law.ONE_LEADER] += 1
        term, life = int(line.fields["term"]), self._state.process(line.node)
        leads, group = (life.node, life.boot), str(line.fields.get("brokerName", ""))
        group = group or raft_group(life.node)
        recorded = self._leaders.setdefault((group, term), leads)
        if recorded != leads:
            why = f"{life.node} leads term {term}, which {_owner(recorded, life)} led already"
            fields = {"term": term, "other": recorded[0]}
            self._state.report(Law.ONE_LEADER, life.node, why, fields, line.t_ns)

    def _role(self, line: EventLine) -> None:
        of, life = self._set_of(line), self._state.process(line.node)
        self._state.log_changed(life)
        if line.fields["masterId"] is None:  # it stepped down, and knows no master yet
            life.master_since, life.follows = 0, False
            return
        life.epoch, life.acked, life.confirmed = int(line.fields["epoch"]), 0, -1
        life.master = of.by_address.get(str(line.fields.get("masterAddr")), "")
        of.ids[int(line.fields["brokerId"])] = line.node
        master = int(line.fields["masterId"])
        if life.master:
            of.ids.setdefault(master, life.master)
        life.follows = line.fields["role"] == "slave"
        if line.fields["role"] == "master":
            life.master_since = (
                life.master_since or life.epoch
            )  # elected again without a gap: it stays master
            self._check_one_master(of, life, line.t_ns)
            self._report_all(line, self._generations_of(of).leads(line.node), of)
        else:
            life.master_since = 0
        self._begin_epoch(of, master, life.epoch, line)

    def _escaped(self, line: EventLine) -> None:
        """An acting master has sent special messages to another set."""
        of, life, to = self._set_of(line), self._state.process(line.node), str(line.fields["to"])
        self._state.checks[Law.ESCAPED_HOME] += 1
        if to == of.name:
            why = f"{line.node} sent special messages of {of.name} to {of.name} itself"
            self._state.report(Law.ESCAPED_HOME, line.node, why, {"set": of.name}, line.t_ns)
        if line.fields["status"] != SUCCESS:
            return
        self._state.checks[Law.ESCAPED_TWICE] += 1
        for epoch, offset in line.fields["records"]:
            record = str(line.fields["topic"]), int(epoch), int(offset)
            if record in life.escaped:
                why = f"{line.node} sent record {offset} of {record[0]} twice, now to {to}"
                fields = {"set": of.name, "epoch": epoch, "offset": offset}
                self._state.report(Law.ESCAPED_TWICE, line.node, why, fields, line.t_ns)
            life.escaped.add(record)

    def _check_one_master(self, of: SetState, life: NodeLifetime, t_ns: int) -> None:
        self._state.checks[Law.ONE_MASTER] += 1
        reigns = (life.node, life.boot)
        recorded = of.masters.setdefault(life.epoch, reigns)
        if recorded != reigns:
            other = _owner(recorded, life)
            why = f"{life.node} is master of {of.name} in epoch {life.epoch}, and {other} was, too"
            fields = {"set": of.name, "epoch": life.epoch, "other": recorded[0]}
            self._state.report(Law.ONE_MASTER, life.node, why, fields, t_ns)

    def _election(self, line: EventLine) -> None:
        of = self._state.sets[str(line.fields["brokerName"])]
        if self._is_stray(of, line):
            return
        epoch, winner = int(line.fields["epoch"]), line.fields["masterId"]
        if line.fields.get("trigger") == "preferred" and epoch not in of.elections:
            self._check_return(of, line)
        recorded = of.elections.setdefault(epoch, winner)
        if recorded != winner:
            why = f"broker {recorded} was elected for epoch {epoch} of {of.name}, now {winner}"
            fields = {"set": of.name, "epoch": epoch}
            self._state.report(Law.COMMITTED_CHANGED, line.node, why, fields, line.t_ns)
        if winner is None:
            of.epoch = max(of.epoch, epoch)
            return
        if epoch > of.epoch:
            self._check_zone(of, line)
        self._check_elected_in_set(of, int(winner), line)
        self._begin_epoch(of, int(winner), epoch, line)

    def _zone(self, line: EventLine) -> None:
        """An operator closed a zone for masters, or returned it."""
        change = self._state.closed_zones.add if line.fields["closed"] else None
        (change or self._state.closed_zones.discard)(str(line.fields["zone"]))

    def _check_zone(self, of: SetState, line: EventLine) -> None:
        closed, zone = self._state.closed_zones, line.fields.get("zone", "")
        if not closed:
            return
        self._state.checks[Law.LED_IN_CLOSED_ZONE] += 1
        if zone in closed:
            node = of.ids.get(int(line.fields["masterId"]), f"broker {line.fields['masterId']}")
            why = f"{node} was elected master of {of.name} in zone {zone}, which is closed"
            fields = {"set": of.name, "epoch": line.fields["epoch"], "zone": zone}
            self._state.report(Law.LED_IN_CLOSED_ZONE, line.node, why, fields, line.t_ns)

    def _check_return(self, of: SetState, line: EventLine) -> None:
        """The mastership does not return to a preferred broker again and again."""
        self._state.checks[Law.RETURNED_TOO_SOON] += 1
        last_ns, of.returned_ns = of.returned_ns, line.t_ns
        if last_ns is not None and line.t_ns - last_ns < self._state.preferred_pause_ns:
            after_s = (line.t_ns - last_ns) / 1e9
            why = f"the mastership of {of.name} returned {after_s:.1f} s after the last return"
            fields = {"set": of.name, "epoch": line.fields["epoch"]}
            self._state.report(Law.RETURNED_TOO_SOON, line.node, why, fields, line.t_ns)

    def _check_elected_in_set(self, of: SetState, winner: int, line: EventLine) -> None:
        before = line.fields.get("previousSet") or ()
        if self._state.unclean:
            return
        self._state.checks[Law.ELECTED_OUTSIDE] += 1
        if before and winner not in before:
            node = of.ids.get(winner, f"broker {winner}")
            why = f"{node} was elected, from outside the SyncStateSet {list(before)} of {of.name}"
            fields = {"set": of.name, "epoch": line.fields["epoch"], "elected": winner}
            self._state.report(Law.ELECTED_OUTSIDE, line.node, why, fields, line.t_ns)

    def _begin_epoch(self, of: SetState, master: int, epoch: int, line: EventLine) -> None:
        """Begin an epoch with the first event about it: its set is the new master alone."""
        if epoch > of.epoch:
            of.epoch, of.members = epoch, (master,)
            self._check_all_hold(of, line)

    def _check_all_hold(self, of: SetState, line: EventLine) -> None:
        if of.exempt or of.votes:  # there a majority holds them: see `laws`
            return
        self._state.checks[Law.SET_LACKS_ACKED] += 1
        for member in of.members:
            if node := of.ids.get(member):
                self._state.check_holds(of, node, of.acked.end, node, line.t_ns)

    def _set(self, line: EventLine) -> None:
        """A new SyncStateSet, reported by a controller or by the master."""
        name = line.fields.get("brokerName")
        of = self._state.sets[str(name)] if name else self._set_of(line)
        if self._is_stray(of, line):
            return
        number, members = int(line.fields["setEpoch"]), sorted(line.fields["set"])
        recorded = of.sets.setdefault(number, members)
        if recorded != members:
            why = f"SyncStateSet {number} of {of.name} was {recorded}, and now {members}"
            fields = {"set": of.name, "setEpoch": number}
            self._state.report(Law.COMMITTED_CHANGED, line.node, why, fields, line.t_ns)
        if number > of.set_epoch:
            of.set_epoch, of.members = number, tuple(members)
            self._check_all_hold(of, line)

    def _handshake(self, line: EventLine) -> None:
        of = self._set_of(line)
        if line.fields["status"] == SUCCESS:
            slave = of.ids[line.fields["peer"]]
            of.handshakes[line.node, slave] = self._state.process(line.node).log_version
            copies = self._generations_of(of).copies(line.node, slave, line.fields)
            self._report_all(line, copies, of)

    def _recover(self, line: EventLine) -> None:
        of = self._state.set_of.get(line.node)
        if of is not None:  # else it is the log of a controller
            end, confirm = int(line.fields["max"]), int(line.fields["confirm"])
            of.acked.restart(line.node, end)
            confirmed = of.confirmed_by.get(line.node, 0)
            of.confirmed_by[line.node] = max(confirmed, min(confirm, end))
            self._check_still_holds(of, line)

    def _truncate(self, line: EventLine) -> None:
        of, fields = self._set_of(line), line.fields
        point, reported = int(fields["point"]), int(fields["confirm"])
        of.acked.cut(line.node, point)
        if of.exempt:
            return
        self._state.checks[Law.CUT_TOO_LOW] += 1
        confirm = max(
            reported, of.confirmed_by.get(line.node, 0)
        )  # an earlier process may have had more
        of.confirmed_by[line.node] = min(confirm, point)
        if point < confirm:
            why = f"{line.node} cut its log at {point}, below its confirm offset {confirm}"
            shown = {"set": of.name, "point": point, "confirm": confirm, "case": fields["case"]}
            self._state.report(Law.CUT_TOO_LOW, line.node, why, shown, line.t_ns)
        self._check_still_holds(of, line)

    def _machine(self, line: EventLine) -> None:
        """An HA controller switched a pair: by a SequenceID of its own, and from the state that was
        in force."""
        of, new = self._state.sets[str(line.fields["brokerName"])], line.fields
        seq, replaced = int(new["seq"]), int(new["replaces"])
        self._state.checks[Law.SEQUENCE_REUSED] += 1
        if self._state.sequence.setdefault(seq, new) is not new:
            why = f"SequenceID {seq} was given to two states"
            self._state.report(Law.SEQUENCE_REUSED, line.node, why, {"seq": seq}, line.t_ns)
        self._state.checks[Law.STATE_JUMPED] += 1
        before = of.machine
        if before and replaced < int(before["seq"]) < seq:
            why = f"state {seq} of {of.name} follows {replaced}, which {before['seq']} had replaced"
            self._state.report(Law.STATE_JUMPED, line.node, why, {"seq": seq}, line.t_ns)
        elif before and replaced == before["seq"] and not _may_follow(before, new):
            why = f"{new['state']} of {of.name} follows {before['state']}"
            self._state.report(Law.STATE_JUMPED, line.node, why, {"seq": seq}, line.t_ns)
        if not before or seq > int(before["seq"]):
            of.machine = new

    def _mode(self, line: EventLine) -> None:
        """A broker of a convertible set begins a generation, or starts again in one."""
        of = self._set_of(line)
        generations = self._generations_of(of)
        number, before = int(line.fields["generation"]), generations.latest
        exempt = of.excused or bool(self._state.damages[line.node])
        self._report_all(line, generations.begins(line.node, line.fields, exempt), of)
        if number > before:  # another authority numbers SyncStateSets now
            of.mode, of.set_epoch, of.members, of.sets = generations.mode, 0, (), {}
        of.mode = generations.mode

    def _promised(self, line: EventLine) -> None:
        self._generations_of(self._set_of(line)).promises(line.node)

    def _withdrawn(self, line: EventLine) -> None:
        self._generations_of(self._set_of(line)).withdraws(line.node)

    def _is_stray(self, of: SetState, line: EventLine) -> bool:
        """Return whether an HA controller decided about a set that was in another mode by then, so
        that no broker obeys."""
        decides = raft_group(line.node) == HA_CONTROLLER
        return decides and self._state.convertible and of.mode != MACHINE_MODE

    def _generations_of(self, of: SetState) -> SetGenerations:
        return self._generations.setdefault(of.name, SetGenerations())

    def _report_all(self, line: EventLine, found: Iterator[tuple[Law, str]], of: SetState) -> None:
        for law, why in found:
            self._state.report(law, line.node, why, {"set": of.name}, line.t_ns)
        if self._state.convertible:
            for law in self._generations_of(of).checked:
                self._state.checks[law] += 1

    def _set_of(self, line: EventLine) -> SetState:
        """Return the set of the node that wrote the line. Raises KeyError if it is not a broker."""
        return self._state.set_of[line.node]

    def _check_still_holds(self, of: SetState, line: EventLine) -> None:
        """Check a member of the set after its log was cut by the node or by a power cut."""
        if of.exempt or of.votes:
            return
        if line.node not in (of.ids.get(member) for member in of.members):
            return
        self._state.checks[Law.SET_LACKS_ACKED] += 1
        self._state.check_holds(of, line.node, of.acked.end, line.node, line.t_ns)


_CHECKS: Mapping[str, Callable[[EventLaws, EventLine], None]] = {
    "start": EventLaws._start,
    "raft": EventLaws._raft,
    "role": EventLaws._role,
    "election": EventLaws._election,
    "zone": EventLaws._zone,
    "set": EventLaws._set,
    "handshake": EventLaws._handshake,
    "recover": EventLaws._recover,
    "truncate": EventLaws._truncate,
    "machine": EventLaws._machine,
    "mode": EventLaws._mode,
    "promised": EventLaws._promised,
    "withdrawn": EventLaws._withdrawn,
    "escaped": EventLaws._escaped,
    "senseless": EventLaws._protocol_error,
    "inner": EventLaws._inner,
}


def _may_follow(before: Fields, new: Fields) -> bool:
    """Return whether a state of a pair may follow another one."""
    phase = Phase(new["state"])
    return phase is Phase.SINGLE or (
        phase in FOLLOWS[Phase(before["state"])] and before["epoch"] == new["epoch"]
    )


def _owner(known: tuple[str, int], life: NodeLifetime) -> str:
    return known[0] if known[0] != life.node else f"its process number {known[1]}"
