"""Laws that the lines of the event logs show: who led, who was master, what was decided and cut.

Lines come in the order in which they are written, on whatever node.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusters.systems._flotilla_lawbook import Fields, Known, Law, Lawbook, Life

SUCCESS = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an event log."""

    t_ns: int
    node: str
    fields: Fields


class Told:
    """The event logs of one cluster, line by line."""

    def __init__(self, book: Lawbook) -> None:
        self._book = book
        self._leaders: dict[int, tuple[str, int]] = {}

    def saw(self, kind: str, line: Line) -> None:
        self._book.lines += 1
        try:
            missed = int(line.fields.get("missed", 0))
            self._book.lines += missed
            self._book.unseen += missed
            if look := _LOOKS.get(kind):
                look(self, line)
        except (KeyError, TypeError, ValueError):
            self._book.unseen += 1

    def unread(self) -> None:
        """Something that is no line."""
        self._book.lines += 1
        self._book.unseen += 1

    def _start(self, line: Line) -> None:
        """A process began; `rules` has announced it, if this node's decisions are seen."""
        life = self._book.life(line.node)
        if life.started:
            life = self._book.born(line.node, life.boot + 1)
        life.started = True
        self._book.looked[Law.UNACCEPTABLE] += not self._book.damaged

    def _senseless(self, line: Line) -> None:
        """There is nobody in this world but ours, and its wires turn no bits over."""
        if self._book.damaged:
            return
        self._book.looked[Law.UNACCEPTABLE] += 1
        peer, said = line.fields["peer"], line.fields["why"]
        why = f"{line.node} was sent what makes no sense by {peer}: {said}"
        self._book.breaks(Law.UNACCEPTABLE, line.node, why, {"peer": peer}, line.t_ns)

    def _raft(self, line: Line) -> None:
        if line.fields["state"] != "leader":
            return
        self._book.looked[Law.ONE_LEADER] += 1
        term, life = int(line.fields["term"]), self._book.life(line.node)
        leads = (life.node, life.boot)
        known = self._leaders.setdefault(term, leads)
        if known != leads:
            why = f"{life.node} leads term {term}, which {_who(known, life)} led already"
            fields = {"term": term, "other": known[0]}
            self._book.breaks(Law.ONE_LEADER, life.node, why, fields, line.t_ns)

    def _role(self, line: Line) -> None:
        of, life = self._of(line), self._book.life(line.node)
        self._book.renew(life)
        life.epoch, life.acked, life.confirmed = int(line.fields["epoch"]), 0, -1
        life.master = of.by_address.get(str(line.fields.get("masterAddr")), "")
        of.ids[int(line.fields["brokerId"])] = line.node
        master = int(line.fields["masterId"])
        if life.master:
            of.ids.setdefault(master, life.master)
        if line.fields["role"] == "master":
            life.reign = life.reign or life.epoch  # elected again without an interval: one reign
            self._reigns(of, life, line.t_ns)
        else:
            life.reign = 0
        self._elected(of, master, life.epoch, line)

    def _reigns(self, of: Known, life: Life, t_ns: int) -> None:
        self._book.looked[Law.ONE_MASTER] += 1
        reigns = (life.node, life.boot)
        known = of.masters.setdefault(life.epoch, reigns)
        if known != reigns:
            other = _who(known, life)
            why = f"{life.node} is master of {of.name} in epoch {life.epoch}, as {other} was"
            fields = {"set": of.name, "epoch": life.epoch, "other": known[0]}
            self._book.breaks(Law.ONE_MASTER, life.node, why, fields, t_ns)

    def _election(self, line: Line) -> None:
        of = self._book.sets[str(line.fields["brokerName"])]
        epoch, winner = int(line.fields["epoch"]), line.fields["masterId"]
        known = of.elections.setdefault(epoch, winner)
        if known != winner:
            why = f"broker {known} was elected for epoch {epoch} of {of.name}, and now {winner}"
            fields = {"set": of.name, "epoch": epoch}
            self._book.breaks(Law.COMMITTED_CHANGED, line.node, why, fields, line.t_ns)
        if winner is None:
            of.epoch = max(of.epoch, epoch)
            return
        self._outside(of, int(winner), line)
        self._elected(of, int(winner), epoch, line)

    def _outside(self, of: Known, winner: int, line: Line) -> None:
        before = line.fields.get("previousSet") or ()
        if self._book.unclean:
            return
        self._book.looked[Law.ELECTED_OUTSIDE] += 1
        if before and winner not in before:
            node = of.ids.get(winner, f"broker {winner}")
            why = f"{node} was elected, from outside the SyncStateSet {list(before)} of {of.name}"
            fields = {"set": of.name, "epoch": line.fields["epoch"], "elected": winner}
            self._book.breaks(Law.ELECTED_OUTSIDE, line.node, why, fields, line.t_ns)

    def _elected(self, of: Known, master: int, epoch: int, line: Line) -> None:
        """The first word of an epoch: its set is the new master alone."""
        if epoch > of.epoch:
            of.epoch, of.members = epoch, (master,)
            self._all_hold(of, line)

    def _all_hold(self, of: Known, line: Line) -> None:
        if of.excused:
            return
        self._book.looked[Law.SET_LACKS_ACKED] += 1
        for member in of.members:
            if node := of.ids.get(member):
                self._book.must_hold(of, node, of.acked.end, node, line.t_ns)

    def _set(self, line: Line) -> None:
        """A new SyncStateSet, told by a controller or by the master."""
        name = line.fields.get("brokerName")
        of = self._book.sets[str(name)] if name else self._of(line)
        number, members = int(line.fields["setEpoch"]), sorted(line.fields["set"])
        known = of.sets.setdefault(number, members)
        if known != members:
            why = f"SyncStateSet {number} of {of.name} was {known}, and now {members}"
            fields = {"set": of.name, "setEpoch": number}
            self._book.breaks(Law.COMMITTED_CHANGED, line.node, why, fields, line.t_ns)
        if number > of.set_epoch:
            of.set_epoch, of.members = number, tuple(members)
            self._all_hold(of, line)

    def _handshake(self, line: Line) -> None:
        of = self._of(line)
        if line.fields["status"] == SUCCESS:
            slave = of.ids[line.fields["peer"]]
            of.welcomes[line.node, slave] = self._book.life(line.node).turn

    def _recover(self, line: Line) -> None:
        of = self._book.set_of.get(line.node)
        if of is not None:  # else it is a controller's log
            end, confirm = int(line.fields["max"]), int(line.fields["confirm"])
            of.acked.restarted(line.node, end)
            known = of.confirmed_by.get(line.node, 0)
            of.confirmed_by[line.node] = max(known, min(confirm, end))
            self._still_holds(of, line)

    def _truncate(self, line: Line) -> None:
        of, fields = self._of(line), line.fields
        point, told = int(fields["point"]), int(fields["confirm"])
        of.acked.cut(line.node, point)
        if of.excused:
            return
        self._book.looked[Law.CUT_TOO_LOW] += 1
        confirm = max(told, of.confirmed_by.get(line.node, 0))  # a former life may have had more
        of.confirmed_by[line.node] = min(confirm, point)
        if point < confirm:
            why = f"{line.node} cut its log at {point}, below its confirm offset {confirm}"
            shown = {"set": of.name, "point": point, "confirm": confirm, "case": fields["case"]}
            self._book.breaks(Law.CUT_TOO_LOW, line.node, why, shown, line.t_ns)
        self._still_holds(of, line)

    def _of(self, line: Line) -> Known:
        """The set of who tells this. KeyError: nobody's."""
        return self._book.set_of[line.node]

    def _still_holds(self, of: Known, line: Line) -> None:
        """A log was cut, by its node or by a power cut. Was that allowed to a member?"""
        if of.excused or line.node not in (of.ids.get(member) for member in of.members):
            return
        self._book.looked[Law.SET_LACKS_ACKED] += 1
        self._book.must_hold(of, line.node, of.acked.end, line.node, line.t_ns)


_LOOKS: Mapping[str, Callable[[Told, Line], None]] = {
    "start": Told._start,
    "raft": Told._raft,
    "role": Told._role,
    "election": Told._election,
    "set": Told._set,
    "handshake": Told._handshake,
    "recover": Told._recover,
    "truncate": Told._truncate,
    "senseless": Told._senseless,
}


def _who(known: tuple[str, int], life: Life) -> str:
    return known[0] if known[0] != life.node else f"that node in its life {known[1]}"
