"""Masters: who acknowledged in which epoch, who was elected and why, whom clients were shown
(spec 12: ONE-MASTER, 3S, LIVENESS)."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from checkers import masters
from checkers._run.leader_terms import headless, needless, outside, stretches, went_back
from checkers._spark import spark_stages as _units
from checkers.masters import EpochWriter, epoch_writers
from harness.history.faults_and_events import ClusterEvent, FaultInterval, TimeWindow
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.operation import NONE, F, Type
from harness.trial import Trial

S = 1_000_000_000
ROLES = {f"{role}-{n}": role for role in ("broker", "controller") for n in (1, 2, 3)}


def event(at: float, node: str, kind: str, **fields: Any) -> ClusterEvent:
    return ClusterEvent(int(at * S), node, kind, fields)


def election(
    at: float, epoch: int, winner: int | None, before: list[int], **more: Any
) -> ClusterEvent:
    fields: Mapping[str, Any] = {"brokerName": "set-1", "epoch": epoch, "masterId": winner}
    fields = {**fields, "set": [winner], "previousSet": before, "unclean": False, **more}
    return event(at, "controller-1", "election", **fields)


def members(at: float, *who: int) -> ClusterEvent:
    return event(at, "controller-1", "set", brokerName="set-1", setEpoch=1, set=list(who))


def slave(node: str, number: int, of: str = "set-1") -> ClusterEvent:
    return event(0, node, "role", role="slave", brokerName=of, brokerId=number, epoch=1)


IDS = [slave(f"broker-{n}", n) for n in (1, 2, 3)]
RAISED = [*IDS, election(1, 1, 1, []), members(2, 1, 2, 3)]


def fault(
    number: int, begin: float, healed: float, *nodes: str, kind: str = "pause"
) -> FaultInterval:
    begun, ended = int(begin * S), int(healed * S)
    return FaultInterval(
        number,
        kind,
        targets={"any": nodes},
        begin=begun,
        applied=begun,
        observed=begun,
        heal=ended,
        healed=ended,
        state="installed",
    )


def left_alone(told: list[ClusterEvent], *faults: FaultInterval) -> int:
    return len(list(headless(told, faults, ROLES, 5 * S, 60 * S)))


# ------------------------------------------------------------------------------------ liveness


def test_a_silent_master_is_replaced() -> None:
    """An election within the patience; without it the set is HEADLESS (apache/rocketmq#9717)."""
    hung = fault(0, 10, 20, "broker-1")
    assert left_alone([*RAISED, election(12, 2, 2, [1, 2, 3])], hung) == 0
    assert left_alone([*RAISED, election(15.5, 2, 2, [1, 2, 3])], hung) == 1
    assert left_alone(RAISED, hung) == 1


@pytest.mark.parametrize(
    ("elections", "count"),
    [
        ([(12, None, [1, 2, 3])], 1),  # held, and nobody was elected
        ([(12, None, [])], 1),  # its set stays what it was
        ([(12, None, [1, 2, 3]), (14, 2, [2])], 0),
        ([(12, 1, [1])], 1),  # the silent one again
        ([(9.9, None, [1, 2, 3])], 1),  # who was master before is to be replaced
        ([(9.9, None, [1])], 0),  # nobody else may be elected
        ([(12, 4, [4, 2])], 1),  # nobody knows who that is, and there is one who could be
        ([(12, 4, [4])], 0),
    ],
)
def test_only_a_living_winner_replaces_a_master(
    elections: list[tuple[float, int | None, list[int]]], count: int
) -> None:
    """That an election was held is not enough."""
    held = [
        election(at, 2 + n, winner, [1, 2, 3], set=who)
        for n, (at, winner, who) in enumerate(elections)
    ]
    assert left_alone([*RAISED, *held], fault(0, 10, 20, "broker-1")) == count


@pytest.mark.parametrize(("silent", "count"), [((1,), 1), ((1, 2), 0)])
def test_where_brokers_vote_each_set_needs_its_own_majority(
    silent: tuple[int, ...], count: int
) -> None:
    """Two sets of three without controllers: four of six are no help for one of a set."""
    roles = {f"broker-{n}": "broker" for n in range(1, 7)}
    told = [slave(f"broker-{n}", (n - 1) % 3 + 1, f"set-{(n + 2) // 3}") for n in range(1, 7)]
    told += [election(1, 1, 1, [1, 2, 3], set=[1, 2, 3], brokerName=f"set-{n}") for n in (1, 2)]
    hung = fault(0, 10, 20, *(f"broker-{n}" for n in silent))
    assert len(list(headless(told, [hung], roles, 5 * S, 60 * S))) == count


@pytest.mark.parametrize(("winner", "count"), [(2, 0), (3, 0), (None, 1)])
def test_who_falls_silent_with_the_master_may_be_elected_before_it_is_missed(
    winner: int | None, count: int
) -> None:
    """The set is the winner alone then, so that no other may be elected, lawfully."""
    members = [winner] if winner else [1, 2, 3]
    told = [*RAISED, election(12, 2, winner, [1, 2, 3], set=members)]
    assert left_alone(told, fault(0, 10, 20, "broker-1", "broker-2")) == count


def test_each_set_has_a_broker_1() -> None:
    """Ids count within a set: what falls silent in one set is not the master of another."""
    second = [slave(f"broker-{n}", n - 3, "set-2") for n in (4, 5, 6)]
    told = [*IDS, *second, election(1, 1, 1, []), members(2, 1, 2, 3)]
    told.append(election(2, 1, 2, [], brokerName="set-2", set=[1, 2, 3]))
    assert left_alone(told, fault(0, 10, 20, "broker-4")) == 0
    assert left_alone(told, fault(0, 10, 20, "broker-5")) == 1
    assert left_alone(told, fault(0, 10, 20, "broker-1")) == 1


def test_whoever_had_no_chance_is_no_finding() -> None:
    """Too short, nobody left to elect, controllers without a majority, or another fault besides."""
    assert left_alone(RAISED, fault(0, 10, 14, "broker-1")) == 0
    assert left_alone([*RAISED, members(3, 1)], fault(0, 10, 20, "broker-1")) == 0
    assert left_alone(RAISED, fault(0, 10, 20, "broker-1", "controller-1", "controller-2")) == 0
    cut = fault(1, 11, 19, "broker-2", kind="partition")
    assert left_alone(RAISED, fault(0, 10, 20, "broker-1"), cut) == 0
    assert left_alone(RAISED, fault(0, 10, 20, "broker-2")) == 0


def test_nobody_tried_again() -> None:
    """The master died while the controllers had no majority; they are back, and it is not
    (apache/rocketmq#5009)."""
    away = fault(0, 9, 15, "controller-1", "controller-2")
    killed = fault(1, 10, 30, "broker-1", kind="kill")
    assert left_alone(RAISED, away, killed) == 1
    assert left_alone([*RAISED, election(17, 2, 3, [1, 2, 3])], away, killed) == 0


def test_stretches_end_where_faults_do() -> None:
    """Each piece of the run with the faults that touch it."""
    one, two = fault(7, 10, 20, "broker-1"), fault(8, 15, 30, "broker-2")
    found = [(w.begin // S, w.end // S, set(ids)) for w, ids in stretches([one, two], 40 * S)]
    assert found == [
        (0, 10, set()),
        (10, 15, {7}),
        (15, 20, {7, 8}),
        (20, 30, {8}),
        (30, 40, set()),
    ]


@pytest.mark.parametrize(
    ("at", "trigger", "more", "count"),
    [
        (5, "expired", [], 1),
        (5, "operator", [], 0),
        (5, "expired", [event(4, "broker-1", "start")], 0),  # somebody died by itself
        (5, "expired", [event(4, "broker-1", "exit", code=70)], 0),
        (15, "expired", [], 0),  # a fault is in force
        (22, "expired", [], 0),  # the cluster is still busy with it
        (28, "scan", [], 1),
    ],
)
def test_nobody_is_elected_without_need(
    at: float, trigger: str, more: list[ClusterEvent], count: int
) -> None:
    """NEEDLESS_ELECTION: all was well, and had been for long (apache/rocketmq#8380)."""
    told = [*RAISED[:-1], *more, election(at, 2, 2, [1, 2, 3], trigger=trigger)]
    load = TimeWindow(3 * S, 40 * S)
    assert len(list(needless(told, [fault(0, 10, 20, "broker-2")], load, 5 * S))) == count


# ------------------------------------------------------------------------------- who may reign


def test_a_master_comes_from_the_set() -> None:
    """3S: the elected was in the previous SyncStateSet, unless the configuration lets others."""
    assert not list(outside([*RAISED, election(9, 2, 2, [1, 2])]))
    assert len(list(outside([*RAISED, election(9, 2, 3, [1, 2])]))) == 1
    assert not list(outside([*RAISED, election(9, 2, 3, [1, 2], unclean=True)]))


def route(at: float, epoch: int, node: str = "nameserver-1") -> ClusterEvent:
    return event(at, node, "route", brokerName="set-1", stateVersion=epoch, masterAddr="a")


def test_a_nameserver_shows_the_newest_master() -> None:
    """ROUTE_WENT_BACK (apache/rocketmq#6316); another nameserver may be late, and one that has
    started again knows no better. One that has seen the newer one go does."""
    assert not list(went_back([route(1, 1), route(2, 2), route(3, 2), route(4, 1, "ns-2")]))
    assert len(list(went_back([route(1, 1), route(2, 2), route(3, 1)]))) == 1
    assert not list(went_back([route(2, 2), event(3, "nameserver-1", "start"), route(4, 1)]))
    killed = event(3, "nameserver-1", "exit", code=-9)
    assert not list(went_back([route(2, 2), killed, route(4, 1)])), "its disk refused the start"
    other = event(3, "broker-1", "exit", code=-9)
    assert len(list(went_back([route(2, 2), other, route(4, 1)]))) == 1
    gone = event(3, "nameserver-1", "expired", brokerName="set-1", brokerId=0)
    assert len(list(went_back([route(2, 2), gone, route(4, 1)]))) == 1


@pytest.mark.parametrize("torn", [False, True])
def test_a_life_that_is_not_recorded_convicts_no_nameserver(written: Any, torn: bool) -> None:
    """The event of its new start may be what the record lacks; nothing else would explain it."""
    history = acked(written, SOUND, [*RAISED, route(3, 2), route(4, 1)])
    journal = TableJournal(history.run.journal, "events" if torn else "faults", "other")
    journal.append((1, "", "start", "{}") if torn else (0, "pause", *[None] * 12))
    journal.close()
    for path in history.run.journal.glob("*-other-*.arrows"):
        path.unlink()
    history = History.open(history.run)
    assert not history.complete
    codes = [finding.code for finding in masters.check(history, Trial(), None).findings]
    assert codes == ([] if torn else ["ROUTE_WENT_BACK"])


# --------------------------------------------------------------------------- who acknowledged


def acked(
    written: Any,
    sends: list[tuple[int, int, int]],
    told: list[ClusterEvent] | None = None,
    files: int = 1,
) -> History:
    """A run with acknowledged sends: at which second, in which epoch, by which broker."""
    run = written("").run
    rows = [
        (t * S, 0, n, Type.OK, F.SEND, 0, n, NONE, n, NONE, NONE, epoch, node, 1)
        for n, (t, epoch, node) in enumerate(sends)
    ]
    for number in range(files):
        _write(run, "ops", f"client-{number + 2}", rows[number::files])
    text = [(e.t, e.node, e.kind, json.dumps(dict(e.fields))) for e in told or RAISED]
    _write(run, "events", "runner", text)
    return History.open(run)


def _write(run: Any, table: str, writer: str, rows: list[Any]) -> None:
    journal = TableJournal(run.journal, table, writer)
    for row in rows:
        journal.append(row)
    journal.close()


SOUND = [(1, 1, 0), (2, 1, 0), (5, 2, 1), (6, 2, 1), (9, 3, 0)]


@pytest.mark.parametrize("files", [1, 3])
def test_one_broker_acknowledges_in_an_epoch(written: Any, files: int) -> None:
    """EPOCH_SHARED: two brokers acknowledged in epoch 2."""
    sound = masters.check(acked(written, SOUND, files=files), Trial(), None)
    assert (sound.findings, sound.stats) == ((), {"writers": 3, "overlap_s": 0.0})
    result = masters.check(acked(written, [*SOUND, (7, 2, 0)], files=files), Trial(), None)
    [finding] = result.findings
    assert (finding.code, finding.demand) == ("EPOCH_SHARED", "integrity")
    row = {"set": "set-1", "epoch": 2, "brokers": "broker-1, broker-2", "acks": "1, 2"}
    assert finding.evidence == (row,)


def test_each_set_counts_its_epochs(written: Any) -> None:
    """Brokers of two sets acknowledge in epoch 2 of their own; two of one set may not."""
    told = [slave("broker-1", 1), slave("broker-2", 1, "set-2"), members(2, 1)]
    told.append(event(2, "controller-1", "set", brokerName="set-2", setEpoch=1, set=[1]))
    sends = [*SOUND, (7, 2, 0)]
    sound = masters.check(acked(written, sends, told), Trial(), None)
    assert (sound.findings, sound.stats["overlap_s"]) == ((), 0.0)
    together = masters.check(acked(written, sends, [slave("broker-1", 1), *RAISED]), Trial(), None)
    assert [finding.code for finding in together.findings] == ["EPOCH_SHARED"]


def test_who_says_so_is_not_convicted_twice(written: Any) -> None:
    """Where both tell that they are master of the epoch, that is ONE_MASTER's finding."""
    both = [event(4, f"broker-{n}", "role", role="master", brokerId=n, epoch=2) for n in (1, 2)]
    history = acked(written, [*SOUND, (7, 2, 0)], [*RAISED, *both])
    assert not masters.check(history, Trial(), None).findings
    assert not masters.check(history, Trial(checkers=("masters", "invariants")), None).findings
    [finding] = masters.check(history, Trial(checkers=("masters",)), None).findings
    assert finding.code == "EPOCH_SHARED", "nobody asks for the other"


@pytest.mark.parametrize(
    ("checkers", "codes"), [((), []), (("masters",), ["ELECTED_OUTSIDE"]), (("invariants",), [])]
)
def test_laws_that_were_watched_count_where_they_are_judged(
    written: Any, checkers: tuple[str, ...], codes: list[str]
) -> None:
    """ELECTED_OUTSIDE is a law of simulated worlds, too."""
    told = [*RAISED, election(3, 2, 3, [1, 2]), event(4, "", "laws-watched", looked={})]
    result = masters.check(acked(written, SOUND, told), Trial(checkers=checkers), None)
    assert [finding.code for finding in result.findings] == codes


def test_two_writers_at_once_are_measured(written: Any) -> None:
    """The old master's last answer came two seconds after the new one's first: no finding."""
    result = masters.check(acked(written, [*SOUND, (7, 1, 0)]), Trial(), None)
    assert (result.findings, result.stats["overlap_s"]) == ((), 2.0)


@pytest.mark.spark
def test_spark_and_the_kernel_agree_on_writers(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three files, a task each: the same writers, each once."""
    from harness.spark.session import session

    monkeypatch.setattr(_units, "ONE_TASK_BYTES", 0)
    history = acked(written, SOUND, files=3)
    with session() as spark:
        spread = epoch_writers(history, (), spark)
    assert spread == epoch_writers(history, (), None)
    assert spread[0] == EpochWriter(0, 1, 0, 1 * S, 2 * S, 2)
