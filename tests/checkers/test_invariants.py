"""Laws of the cluster's inside: those that were watched, and those that event logs show."""

import json
from typing import Any

import pytest

from checkers import invariants
from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.judge.verdict import Judgement, Result

S = 1_000_000_000


def event(at: float, node: str, kind: str, **fields: Any) -> ClusterEvent:
    return ClusterEvent(int(at * S), node, kind, fields)


def master(at: float, node: str, epoch: int) -> ClusterEvent:
    return event(at, node, "role", role="master", epoch=epoch, masterId=1)


def leader(at: float, node: str, term: int) -> ClusterEvent:
    return event(at, node, "raft", state="leader", term=term, leader=node)


def election(
    at: float, node: str, epoch: int, winner: int | None, name: str = "set-1"
) -> ClusterEvent:
    fields = {"brokerName": name, "epoch": epoch, "masterId": winner, "set": [winner]}
    return event(at, node, "election", **fields)


SOUND = [
    event(0, "controller-1", "start"),
    event(0, "broker-1", "start"),
    leader(1, "controller-1", 1),
    election(2, "controller-1", 1, 1),
    master(2.1, "broker-1", 1),
    event(3, "controller-1", "set", brokerName="set-1", setEpoch=2, set=[1, 2]),
    event(3.1, "broker-1", "set", setEpoch=2, set=[1, 2]),
    leader(5, "controller-2", 2),
    election(5.1, "controller-2", 1, 1),
    event(5.2, "controller-2", "set", brokerName="set-1", setEpoch=2, set=[1, 2]),
    election(6, "controller-2", 2, 2),
    master(6.1, "broker-2", 2),
    event(7, "broker-1", "start"),
    master(9, "broker-1", 3),
]
LOOKED = {"ONE_LEADER": 3, "SET_LACKS_ACKED": 7, "CUT_TOO_LOW": 0}
WATCHED = event(30, "", "laws-watched", looked=LOOKED)


def judged(*told: ClusterEvent, faults: tuple[FaultInterval, ...] = ()) -> Result:
    return invariants.judge(sorted(told, key=lambda e: e.t), faults)


def codes(result: Result) -> list[tuple[str, int]]:
    return [(finding.code, finding.count) for finding in result.findings]


def test_a_sound_history_convicts_nobody() -> None:
    """The same thing told by two controllers is told twice, and that is all."""
    result = judged(*SOUND)
    assert result.judgement is Judgement.VALID
    looks = {"COMMITTED_CHANGED": 5, "ONE_LEADER": 2, "ONE_MASTER": 3}
    assert result.stats == {"looks": looks, "unseen": 0, "watched": False}


@pytest.mark.parametrize(
    ("planted", "code"),
    [
        (leader(8, "controller-3", 2), "ONE_LEADER"),
        (master(8, "broker-3", 2), "ONE_MASTER"),
        (master(8, "broker-1", 1), "ONE_MASTER"),  # in another life
        (election(8, "controller-3", 2, 3), "COMMITTED_CHANGED"),
        (election(8, "controller-3", 2, None), "COMMITTED_CHANGED"),
        (
            event(8, "controller-3", "set", brokerName="set-1", setEpoch=2, set=[1, 3]),
            "COMMITTED_CHANGED",
        ),
    ],
)
def test_what_event_logs_show(planted: ClusterEvent, code: str) -> None:
    """Two leaders of a term, two masters of an epoch, two decisions where one was committed."""
    result = judged(*SOUND, planted)
    assert codes(result) == [(code, 1)]
    assert result.judgement is Judgement.INVALID
    [finding] = result.findings
    assert finding.demand == "integrity"
    assert finding.evidence[0]["node"] == planted.node
    assert finding.evidence[0]["at_s"] == 8


def test_several_broker_sets() -> None:
    """Each has epochs of its own; whose master a broker is, its own log does not say."""
    result = judged(*SOUND, election(8, "controller-2", 1, 2, "set-2"), master(8, "broker-4", 1))
    assert not result.findings
    assert result.stats["looks"]["ONE_MASTER"] == 0


def test_nothing_told_proves_nothing() -> None:
    """No events: valid, and without a claim."""
    looks = {"ONE_LEADER": 0, "ONE_MASTER": 0, "COMMITTED_CHANGED": 0}
    stats = {"looks": looks, "unseen": 0, "watched": False}
    assert judged() == Result("invariants", stats=stats)


def test_laws_that_were_watched_and_held() -> None:
    """The claim names no law that was not looked at."""
    stats = judged(*SOUND, WATCHED).stats
    assert stats["proved"] == "2 internal invariants held in 10 checks"
    assert stats["looks"] == {"ONE_LEADER": 3, "SET_LACKS_ACKED": 7, "CUT_TOO_LOW": 0}
    assert stats["unseen"] == 0


@pytest.mark.parametrize(
    ("lines", "unseen", "enough"), [(40, 10, True), (40, 11, False), (5000, 90, True)]
)
def test_what_nobody_could_make_anything_of(lines: int, unseen: int, enough: bool) -> None:
    """A few torn lines are nothing; when many are lost, laws may have been broken unseen."""
    looked = {"ONE_LEADER": 3}
    watched = event(30, "", "laws-watched", looked=looked, lines=lines, unseen=unseen)
    result = judged(watched)
    assert result.stats["unseen"] == unseen
    assert [reason.code for reason in result.reasons] == ([] if enough else ["LAWS_UNSEEN"])
    assert result.judgement is (Judgement.VALID if enough else Judgement.UNKNOWN)


def test_lines_of_event_logs_that_are_not_whole() -> None:
    """They are no claims, of two leaders of no term; and a node tells what its disk refused."""
    halves = [event(1, node, "raft", state="leader") for node in ("controller-1", "controller-2")]
    result = judged(*halves, event(2, "broker-1", "start", missed=12))
    assert not result.findings
    assert (result.stats["unseen"], result.stats["looks"]["ONE_LEADER"]) == (14, 0)
    assert [reason.code for reason in result.reasons] == ["LAWS_UNSEEN"]


def test_only_chiefs_have_terms_and_epochs() -> None:
    """Other systems tell of a slave that it is one, and of no epoch."""
    slaves = [event(at, "redis-1", "role", role="slave") for at in range(30)]
    result = judged(*slaves, event(40, "redis-2", "role", role="master", epoch=2))
    assert result.stats["unseen"] == 0
    assert not result.reasons


def test_broken_laws() -> None:
    """Exact counts, also of those that nobody told of in full; evidence; the faults meanwhile."""
    first = {"law": "CUT_TOO_HIGH", "why": "it kept too much", "point": 9, "untold": 12}
    broken = [
        event(4, "broker-2", "broken-law", **first),
        event(5, "broker-2", "broken-law", law="CUT_TOO_HIGH", why="again", point=10),
        event(6, "broker-1", "broken-law", law="SET_LACKS_ACKED", why="it lacks", member="b"),
    ]
    fault = FaultInterval(id=3, kind="kill", begin=int(3.9 * S), healed=int(4.5 * S))
    result = judged(*SOUND, WATCHED, *broken, faults=(fault,))
    assert codes(result) == [("CUT_TOO_HIGH", 14), ("SET_LACKS_ACKED", 1)]
    high, lacks = result.findings
    assert high.message.startswith("a slave kept bytes that differ from its master's (14 times)")
    assert high.message.endswith("first: it kept too much")
    assert high.evidence[0] == {
        "node": "broker-2",
        "at_s": 4.0,
        "why": "it kept too much",
        "point": 9,
    }
    assert (high.faults, lacks.faults) == ((3,), ())
    assert "proved" not in result.stats


def test_what_is_watched_is_not_judged_twice() -> None:
    """Two leaders of a term are found by whoever watched, and counted once."""
    twice = event(8, "controller-3", "broken-law", law="ONE_LEADER", why="two")
    assert codes(judged(*SOUND, WATCHED, leader(8, "controller-3", 2), twice)) == [
        ("ONE_LEADER", 1)
    ]


def test_nobody_watched_where_somebody_had_to() -> None:
    """Unknown, whatever event logs show; elsewhere event logs have to do."""
    nothing_seen = event(30, "", "laws-watched", looked={"ONE_LEADER": 0})
    for told in (SOUND, [], [*SOUND, nothing_seen]):
        result = invariants.judge(told, (), overseen=True)
        assert [reason.code for reason in result.reasons] == ["LAWS_NOT_WATCHED"]
        assert result.judgement is Judgement.UNKNOWN
        assert invariants.judge(told, ()).judgement is Judgement.VALID
    assert invariants.judge([*SOUND, WATCHED], (), overseen=True).judgement is Judgement.VALID


@pytest.mark.parametrize(
    ("hosts", "ended"), [("simulated", True), ("simulated", False), ("", True)]
)
def test_who_has_to_watch(tmp_path: Any, hosts: str, ended: bool) -> None:
    """A simulated run that came to its end."""
    from harness.history.reader import History
    from harness.history.rundir import RunDir
    from harness.trial import Trial

    run = RunDir(tmp_path)
    run.journal.mkdir(parents=True)
    (tmp_path / "names.json").write_text(json.dumps({"nodes": [], "keys": [], "processes": []}))
    run.update_state(ended=ended)
    trial = Trial(hosts=hosts) if hosts else Trial()
    result = invariants.check(History.open(run), trial, None)
    assert bool(result.reasons) == (hosts == "simulated" and ended)


def test_as_it_is_in_a_history(tmp_path: Any) -> None:
    """From the tables of a run folder."""
    from harness.history.journal import TableJournal
    from harness.history.reader import History
    from harness.history.rundir import RunDir
    from harness.trial import Trial

    run = RunDir(tmp_path)
    run.journal.mkdir(parents=True)
    (tmp_path / "names.json").write_text(json.dumps({"nodes": [], "keys": [], "processes": []}))
    journal = TableJournal(run.journal, "events", "runner")
    for each in [*SOUND, leader(8, "controller-3", 2)]:
        journal.append((each.t, each.node, each.kind, json.dumps(dict(each.fields))))
    journal.close()
    assert codes(invariants.check(History.open(run), Trial(), None)) == [("ONE_LEADER", 1)]
