"""What scripts do not show of Raft's core: the packing of messages and snapshots, and long streams.

The core's behaviour, section by section, is in `scripts/`.
"""

from collections import deque

import pytest

from clusters.flotilla.raft.core import Raft, RaftTiming
from clusters.flotilla.raft.effects import RaftState
from clusters.flotilla.raft.journal import RaftJournal
from clusters.flotilla.raft.log import START, RaftLog
from clusters.flotilla.raft.membership import Add, ChangeRefused, Configuration, Remove, changed
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
    pack,
    unpack,
)
from clusters.flotilla.raft.snapshot import Snapshot, SnapshotDamaged, parse
from clusters.flotilla.rules import RULES

TIMING = RaftTiming(heartbeat_s=1, election_s=4)
MEMBERS = ("a", "b", "c")


def raft(me: str) -> Raft:
    """A member with an empty log; its timeouts are the minimum."""
    return Raft(me, RaftJournal(voters(*MEMBERS)), TIMING, lambda a, b: a, RULES, 0)


def voters(*names: str) -> Configuration:
    return Configuration({name: f"at {name}" for name in names})


def elected(me: Raft, now: float = 9) -> Raft:
    """The same member, elected by all votes."""
    me.tick(now)
    for pre in (True, False):
        for peer in me.peers:
            term = me.term + 1 if pre else me.term
            me.step(now, VoteReply(term=term, source=peer, granted=True, pre=pre))
    assert me.state is RaftState.LEADER
    return me


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(term=3, source="n0", last_index=7, last_term=2, pre=True),
        VoteReply(term=3, source="n0", granted=True, pre=False),
        Append(term=1, source="é", prev_index=1, prev_term=1, commit=0, stamp=1.5),
        Append(
            term=2**40,
            source="n0",
            prev_index=1,
            prev_term=1,
            commit=1,
            stamp=2.0,
            entries=(LogEntry(1, b""), LogEntry(2, b"data")),
        ),
        AppendReply(
            term=1,
            source="n",
            matched=False,
            index=4,
            stamp=0.1,
            round=3,
            hint_index=2,
            hint_term=1,
        ),
        SnapshotPart(
            term=1, source="n", index=7, offset=2, total=5, stamp=0.1, round=3, data=b"abc"
        ),
        SnapshotReply(term=1, source="n", index=7, received=5, stamp=0.1, round=3),
    ],
)
def test_what_is_packed_is_unpacked(message: Message) -> None:
    """Packing loses nothing, and a shortened message is refused."""
    packed = pack(message)
    assert unpack(packed) == message
    with pytest.raises((ValueError, Exception)):
        unpack(packed[:-1])


def test_a_configuration_that_is_none_is_refused_before_it_is_stored() -> None:
    """The connection of such a peer is closed, and no log has changed."""
    fields = {"term": 1, "source": "b", "prev_index": 0, "prev_term": 0, "commit": 0, "stamp": 0}
    for data, kind in (
        (b"{}", EntryKind.MEMBERS),
        (b"[1]", EntryKind.MEMBERS),
        (b"{", EntryKind.MEMBERS),
        (b"", 9),
    ):
        lie = Append(**fields, entries=(LogEntry(1, data, kind),))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r".+"):
            unpack(pack(lie))
    truth = Append(**fields, entries=(LogEntry(1, voters("a").pack(), EntryKind.MEMBERS),))  # type: ignore[arg-type]
    assert unpack(pack(truth)) == truth


@pytest.mark.parametrize("one_way_s", [0.25, 1.25])
def test_late_answers_start_no_more_streams(one_way_s: float) -> None:
    """Each entry goes to each follower once, whether answers take less than a heartbeat or more."""
    lives = {name: raft(name) for name in MEMBERS}
    leader, wires = elected(lives["a"], 9), deque[tuple[float, str, Message]]()
    for name in "bc":
        vote = VoteRequest(term=leader.term, source="a", last_index=99, last_term=99, pre=False)
        lives[name].step(9, vote)
        lives[name].take_effects()
    sent, now = 0, 9.0
    while now < 60:
        now += 0.125
        leader.propose(now, b"x")
        leader.tick(now)
        while wires and wires[0][0] <= now:
            _, name, message = wires.popleft()
            lives[name].step(now, message)
        for life in lives.values():
            messages = life.take_effects().messages
            sent += sum(len(m.entries) for p, m in messages if p == "b" and isinstance(m, Append))
            wires.extend((now + one_way_s, peer, message) for peer, message in messages)
    assert leader.commit > 300
    assert leader.commit <= sent <= leader.log.last_index


def test_batches_are_capped() -> None:
    """A follower far behind gets the log in frames that fit."""
    log = RaftLog([LogEntry(1, bytes(100_000))] * 10)
    assert len(log.entries_from(1, 256 * 1024)) == 2
    assert len(RaftLog([LogEntry(1, bytes(10**6))]).entries_from(1, 256 * 1024)) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Add("b", "elsewhere"), "b is a member at at b"),
        (Add("x", "at b"), "another member"),
    ],
)
def test_a_change_without_sense_is_refused(change: Add, why: str) -> None:
    """One sentence gives the reason."""
    with pytest.raises(ChangeRefused, match=why):
        changed(voters("a", "b"), change)
    with pytest.raises(ChangeRefused, match="last voter"):
        changed(voters("a"), Remove("a"))


def test_a_damaged_snapshot_names_the_byte_from_which_on() -> None:
    """For any flipped bit, and any truncation."""
    packed = Snapshot(START, voters("a"), b"the state").packed
    assert parse(packed).data == b"the state"
    for bit in range(len(packed) * 8):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SnapshotDamaged, match=r"byte \d+: "):
            parse(bytes(damaged))
    for length in range(len(packed)):
        with pytest.raises(SnapshotDamaged, match=r"byte \d+: "):
            parse(packed[:length])
