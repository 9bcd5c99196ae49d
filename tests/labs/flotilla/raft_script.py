"""Scripts for Raft's core: commands, each with the transcript of its effects beneath.

A script is a text file in tests/flotilla/raft/scripts, in the manner of etcd-io/raft's testdata:

    campaign a
    ----
    a: pre-candidate in term 0

Lines that begin with # are comments. `pytest --rewrite` writes the transcripts; review them as a
diff. Members are bare cores that share a clock and a network without loss.

    new a,b,c               forget everything before; members of one group, with empty logs
    new                     forget everything before
    add a of a,b log=1,1,2 vote=2:b     one member as recovered from disk
    add d of -              a member of no group
    new careless a,b,c      the same with a wrong rule: `careless` or `hasty`
    quiet COMMAND           without a transcript
    campaign a              let the time pass after which it hears no leader, then tick it
    lead a                  campaign, and deliver messages until it leads
    elect a                 the same, then deliver everything
    tick a +1.5             let time pass, then tick one member
    beat                    let a heartbeat interval pass, tick all leaders, and deliver everything
    deliver [N]             deliver N messages, or all, in order
    messages                list the messages in flight
    link a,b                let these talk and no others; messages in flight are lost
    step a>b TYPE name=value ...    hand b a message, whatever was sent; stamp=-2: of 2 s ago
    propose a TEXT [xBYTES] propose an entry
    change a add d [ADDRESS]        change the members; or: change a remove c
    read a                  start a linearizable read
    snapshot a              a takes a snapshot of what it has applied
    state                   show all members
    log a                   show a's log

A transcript has a line for each message delivered and for each effect, in the order in which the
driver carries them out. After each command two of Raft's laws are checked: one leader a term (5.2),
and the same entry at the same committed index (5.4.3). A violation is a line that begins with
LAW BROKEN.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from clusters.flotilla.raft import messages
from clusters.flotilla.raft.core import Raft, RaftTiming
from clusters.flotilla.raft.effects import RaftEffects, RaftState
from clusters.flotilla.raft.journal import RaftBroken, RaftJournal
from clusters.flotilla.raft.membership import (
    Add,
    ChangeMustWait,
    ChangeRefused,
    Configuration,
    Remove,
)
from clusters.flotilla.raft.messages import (
    Append,
    AppendReply,
    EntryKind,
    LogEntry,
    Message,
    SnapshotPart,
    SnapshotReply,
    VoteReply,
    VoteRequest,
)
from clusters.flotilla.raft.votes import Vote
from clusters.flotilla.rules import RULES, Rules

FOLDER = Path(__file__).resolve().parents[2] / "flotilla/raft/scripts"
HEARTBEAT_S, ELECTION_S = 1.0, 4.0
MANY = 10_000  # messages of one command; more is an endless loop


def careless(matches: Sequence[int], term_at: Callable[[int], int | None], term: int) -> int:
    """A wrong rule: counts copies without regard to their term (Raft 5.4.2)."""
    return sorted(matches, reverse=True)[len(matches) // 2]


WRONG = {
    "careless": replace(RULES, commit_index=careless),
    "hasty": replace(RULES, may_change_members=lambda commit, changed_at, first: True),
}


def run(text: str) -> str:
    """Return the script with the transcripts of its commands."""
    cast, out = Cast(), []
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        head = lines[: lines.index("----")] if "----" in lines else lines
        out += head
        if commands := [line for line in head if not line.startswith("#")]:
            shown = [line for command in commands for line in cast.carry_out(command)]
            out += ["----", *shown] if shown else []
        out.append("")
    return "\n".join(out).rstrip("\n") + "\n"


class Cast:
    """The members of a script, and their messages in flight."""

    def __init__(self, rules: Rules = RULES) -> None:
        self._now = 0.0
        self._rules = rules
        self._cores: dict[str, Raft] = {}
        self._applied: dict[str, list[str]] = {}
        self._linked: set[str] = set()
        self._in_flight: deque[tuple[str, str, Message]] = deque()
        self._leaders: dict[int, set[str]] = {}
        self._committed: dict[int, LogEntry] = {}

    def carry_out(self, command: str) -> Iterator[str]:
        name, *words = command.split()
        commands = {
            "new": self._new,
            "add": self._add,
            "quiet": self._quiet,
            "campaign": self._campaign,
            "lead": self._lead,
            "elect": self._elect,
            "tick": self._tick,
            "beat": self._beat,
            "deliver": self._deliver,
            "messages": self._messages,
            "link": self._link,
            "step": self._step,
            "propose": self._propose,
            "change": self._change,
            "read": self._read,
            "snapshot": self._snapshot,
            "state": self._show,
            "log": self._log,
        }
        try:
            yield from commands[name](*words)
        except (RaftBroken, ChangeMustWait, ChangeRefused) as e:
            yield f"{type(e).__name__}: {e}"
        yield from self._collect()

    # commands

    def _new(self, *words: str) -> Iterator[str]:
        *rules, names = words or ("",)
        self.__init__(WRONG[rules[0]] if rules else RULES)  # type: ignore[misc]
        if names:
            yield from self._add(names, "of", names)

    def _quiet(self, *words: str) -> Iterator[str]:
        deque(self.carry_out(" ".join(words)), maxlen=0)
        yield from ()

    def _add(self, names: str, of: str, group: str, *options: str) -> Iterator[str]:
        given = dict(option.split("=") for option in options)
        members = Configuration({} if group == "-" else _addresses(group))
        entries = [LogEntry(int(t), b"x" + t.encode()) for t in _listed(given.get("log", ""))]
        term, _, voted_for = given.get("vote", "").partition(":")
        vote = Vote(int(term), voted_for or None) if term else None
        if vote is None and entries:
            vote = Vote(entries[-1].term)
        for name in _listed(names):
            journal = RaftJournal(members, entries=entries)
            timing = RaftTiming(HEARTBEAT_S, ELECTION_S)
            self._cores[name] = Raft(
                name, journal, timing, lambda least, most: least, self._rules, self._now, vote=vote
            )
            self._applied[name] = []
            self._linked.add(name)
        yield from ()

    def _campaign(self, name: str) -> Iterator[str]:
        self._now += 3 * ELECTION_S
        self._cores[name].tick(self._now)
        yield from ()

    def _lead(self, name: str) -> Iterator[str]:
        for _ in range(5):  # an old leader steps down first; terms catch up
            yield from self._campaign(name)
            yield from self._deliver_until(lambda: self._leads(name))
            if self._leads(name):
                return
        yield f"{name} is not elected"

    def _elect(self, name: str) -> Iterator[str]:
        yield from self._lead(name)
        if self._leads(name):
            yield from self._deliver()

    def _tick(self, name: str, after: str = "+0") -> Iterator[str]:
        self._now += float(after)
        self._cores[name].tick(self._now)
        yield from ()

    def _beat(self) -> Iterator[str]:
        self._now += HEARTBEAT_S
        for core in self._cores.values():
            if core.leading:
                core.tick(self._now)
        yield from self._deliver()

    def _deliver(self, count: str = "") -> Iterator[str]:
        left = int(count) if count else MANY
        yield from self._collect()
        while self._in_flight and left:
            left -= 1
            yield from self._deliver_one()
        if not count and not left:
            yield f"more than {MANY} messages"

    def _messages(self) -> Iterator[str]:
        yield from self._collect()
        yield from (f"{a}>{b} {_message(m)}" for a, b, m in self._in_flight)

    def _link(self, names: str = "") -> Iterator[str]:
        yield from self._collect()
        self._linked = set(_listed(names))
        self._in_flight.clear()

    def _step(self, way: str, kind: str, *values: str) -> Iterator[str]:
        source, _, target = way.partition(">")
        given = dict(value.split("=") for value in values)
        cls = getattr(messages, kind)
        defaults: dict[str, Any] = {"stamp": self._now, "commit": 0, "prev_index": 0, "round": 0}
        defaults |= {"prev_term": 0, "pre": False, "hint_index": 0, "hint_term": 0}
        names = {field.name for field in fields(cls)}
        filled = {key: value for key, value in defaults.items() if key in names}
        filled |= {key: _value(key, value) for key, value in given.items()}
        filled |= {"stamp": self._now + float(given["stamp"])} if "stamp" in given else {}
        self._cores[target].step(self._now, cls(source=source, **filled))
        yield from ()

    def _propose(self, name: str, text: str, times: str = "") -> Iterator[str]:
        data = text.encode() * (int(times[1:]) if times else 1)
        if self._cores[name].propose(self._now, data) is None:
            yield f"{name} does not lead"

    def _change(self, name: str, verb: str, member: str, address: str = "") -> Iterator[str]:
        added = Add(member, address or f"at-{member}")
        change = added if verb == "add" else Remove(member)
        index = self._cores[name].change(self._now, change)
        yield f"{name} does not lead" if index is None else f"the configuration is entry {index}"

    def _read(self, name: str) -> Iterator[str]:
        number = self._cores[name].read(self._now)
        yield f"{name} does not lead" if number is None else f"read {number}"

    def _snapshot(self, name: str) -> Iterator[str]:
        core = self._cores[name]
        data = " ".join(self._applied[name]).encode()
        core.compact(core.journal.snapshot_at(core.commit, data))
        yield from ()

    def _show(self) -> Iterator[str]:
        for name, core in self._cores.items():
            last = f"{core.log.last_index}/{core.log.last_term}"
            vote = f", voted for {core.vote.voted_for}" if core.vote.voted_for else ""
            yield (
                f"{name}: {core.state.value} in term {core.term}{vote}; log {core.log.base.index} "
                f"to {last}, committed {core.commit}; {_members(core.members)}; "
                f"state [{' '.join(_text(word) for word in self._applied[name])}]"
            )

    def _log(self, name: str) -> Iterator[str]:
        log = self._cores[name].log
        yield _entries(log.base.index + 1, log.entries_from(log.base.index + 1))

    # effects

    def _leads(self, name: str) -> bool:
        return self._cores[name].state is RaftState.LEADER

    def _deliver_until(self, done: Callable[[], bool]) -> Iterator[str]:
        yield from self._collect()
        while self._in_flight and not done():
            yield from self._deliver_one()

    def _deliver_one(self) -> Iterator[str]:
        source, target, message = self._in_flight.popleft()
        yield f"{source}>{target} {_message(message)}"
        self._cores[target].step(self._now, message)
        yield from self._collect()

    def _collect(self) -> Iterator[str]:
        for name, core in self._cores.items():
            effects = core.take_effects()
            for peer, message in effects.messages:
                if {name, peer} <= self._linked and peer in self._cores:
                    self._in_flight.append((name, peer, message))
            yield from (f"{name}: {line}" for line in _effects(effects))
            if effects.log.install:
                self._applied[name] = effects.log.install.data.decode().split()
            yield from self._check(name, effects)

    def _check(self, name: str, effects: RaftEffects) -> Iterator[str]:
        core = self._cores[name]
        leaders = self._leaders.setdefault(core.term, set())
        if self._leads(name) and name not in leaders:
            leaders.add(name)
            if len(leaders) > 1:
                yield f"LAW BROKEN: {' and '.join(sorted(leaders))} lead term {core.term}"
        for index, entry in effects.committed:
            if self._committed.setdefault(index, entry) != entry:
                yield f"LAW BROKEN: {name} commits another entry {index}"
            if entry.data and entry.kind == EntryKind.DATA:
                self._applied[name].append(entry.data.decode())


def _effects(effects: RaftEffects) -> Iterator[str]:
    if role := effects.role:
        leader = f", leader {role.leader}" if role.leader else ""
        yield f"{role.state.value} in term {role.term}{leader}"
    if effects.log.install:
        yield f"installs the snapshot up to {effects.log.install.index}"
    if effects.vote:
        candidate = effects.vote.voted_for
        yield f"writes term {effects.vote.term}" + (f", vote for {candidate}" if candidate else "")
    if base := effects.log.base:
        yield f"writes a log behind {base.index}/{base.term}"
    if effects.log.first and effects.log.entries:
        yield f"writes {_entries(effects.log.first, effects.log.entries)}"
    if effects.log.members:
        yield _members(effects.log.members)
    if effects.committed:
        first, entries = effects.committed[0][0], [entry for _, entry in effects.committed]
        yield f"commits {_entries(first, entries)}"
    if effects.readable:
        yield f"answers reads up to {effects.readable}"


def _message(message: Message) -> str:
    head = f"{type(message).__name__} term {message.term}"
    match message:
        case VoteRequest():
            pre = ", pre-vote" if message.pre else ""
            return f"{head}, log to {message.last_index}/{message.last_term}{pre}"
        case VoteReply():
            answer = "granted" if message.granted else "refused"
            return f"{head}, {answer}{', pre-vote' if message.pre else ''}"
        case Append():
            after = f"{message.prev_index}/{message.prev_term}"
            entries = _entries(message.prev_index + 1, message.entries) or "nothing"
            return f"{head}, after {after} {entries}, commit {message.commit}{_stamp(message)}"
        case AppendReply(matched=True):
            return f"{head}, matches up to {message.index}{_stamp(message)}"
        case AppendReply():
            hint = f"{message.hint_index} in term {message.hint_term}"
            return f"{head}, differs at {message.index}, hint {hint}{_stamp(message)}"
        case SnapshotPart():
            part = f"bytes {message.offset} to {message.offset + len(message.data)}"
            return f"{head}, {part} of {message.total} up to {message.index}{_stamp(message)}"
        case SnapshotReply():
            return f"{head}, has {message.received} up to {message.index}{_stamp(message)}"


def _stamp(message: Append | AppendReply | SnapshotPart | SnapshotReply) -> str:
    return f", at {message.stamp:g}" + (f", round {message.round}" if message.round else "")


def _entries(first: int, entries: Sequence[LogEntry]) -> str:
    return " ".join(f"{i}/{e.term} {_data(e)}" for i, e in enumerate(entries, first))


def _data(entry: LogEntry) -> str:
    if entry.kind == EntryKind.MEMBERS:
        return f"({_members(Configuration.unpack(entry.data))})"
    return repr(_text(entry.data.decode()))


def _text(text: str) -> str:
    return text if len(text) < 20 else f"{text[:5]}...{len(text)}"


def _members(members: Configuration) -> str:
    learners = f", learners {' '.join(members.learners)}" if members.learners else ""
    return f"members {' '.join(members.voters) or 'none'}{learners}"


def _addresses(names: str) -> dict[str, str]:
    return {name: f"at-{name}" for name in _listed(names)}


def _listed(text: str) -> list[str]:
    return text.split(",") if text else []


def _value(key: str, text: str) -> Any:
    if key == "entries":
        rows = (row.split(":") for row in _listed(text))
        return tuple(LogEntry(int(term), data.encode()) for term, data in rows)
    if key == "data":
        return text.encode()
    if text in ("yes", "no"):
        return text == "yes"
    return int(text) if key != "stamp" else 0.0
