"""Which queues of a group had an owner, and how long each had none.

A run lasts 100 s, and the final phase begins at 80 s. Each row is an operation of a member: `join`,
`leave`, `lock` for a lease, `unlock`, at a second.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers import assignment
from checkers.assignment import _common, _without
from harness.history.faults_and_events import TimeWindow, merge_windows
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.verdict import Judgement, Result
from harness.operation import NONE, F, Type
from harness.trial import Trial
from harness.workloads.rebalance import RebalanceOptions, RebalanceWorkload

S = 1_000_000_000
TRIAL = Trial(workload="rebalance", load={"queues": 1, "members": 2}, recover_within_s=10.0)
PHASES = ((0, "load"), (80, "drain"), (99, "collected"), (100, "ended"))
ENDED = {"ended": True, "interrupted": False}
QUEUE, LOCK, GROUP = 0, 1, 2  # keys
FIRST, SECOND = 3, 4  # processes of members: 2 producers and a reader are before them
Row = tuple[F, int, float, float]  # what, process, second; a lock's lease in seconds


def judged(
    folder: Path, rows: Sequence[Row], faults: Sequence[tuple[int, int]] = (), **state: Any
) -> Result:
    """The checker on a run with these operations."""
    load = RebalanceWorkload(RebalanceOptions.of(TRIAL.load), TRIAL)
    assert load.keys[LOCK] == f"group-0 on {load.keys[QUEUE]}"
    assert load.keys[GROUP] == "group-0"
    assert load.process_name(FIRST) == "consumer 0 of group-0"
    folder.mkdir(exist_ok=True)
    run = RunDir(folder)
    run.trial_file.write_text(TRIAL.to_toml())
    run.write_names({"keys": load.keys, "processes": {}, "roles": {}, "nodes": []})
    run.update_state(**{**ENDED, **state})
    _write(run, "notes", [(at * S, NONE, NONE, phase) for at, phase in PHASES])
    _write(run, "ops", sorted(_events(rows)))
    _write(run, "faults", [_fault(begin, heal) for begin, heal in faults])
    return assignment.check(History.open(run), TRIAL, None)


def _write(run: RunDir, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    journal = TableJournal(run.journal, table, "w")
    for row in rows:
        journal.append(row)
    journal.close()


def _fault(begin: int, heal: int) -> tuple[Any, ...]:
    times = (0, 0, begin * S, begin * S, begin * S, heal * S, heal * S)
    return (0, "partition", "{}", "master", "{}", *times, "installed", "{}")


def _events(rows: Sequence[Row]) -> Iterator[tuple[int, ...]]:
    nothing = (NONE,) * 5
    for op, (f, process, second, lease_s) in enumerate(rows):
        key = GROUP if f in (F.JOIN, F.LEAVE) else LOCK
        lease = int(lease_s * 1000) if f is F.LOCK else NONE
        t = int(second * S)
        yield (t, process, op, Type.INVOKE, f, key, NONE, NONE, NONE, *nothing)
        yield (t + 1, process, op, Type.OK, f, key, NONE, NONE, lease, *nothing)


JOINED: list[Row] = [(F.JOIN, FIRST, 0, 0), (F.LEAVE, FIRST, 79, 0), (F.JOIN, SECOND, 81, 0)]
IN_THE_END: list[Row] = [(F.LOCK, SECOND, 85, 10)]


def codes(result: Result) -> list[str]:
    return [finding.code for finding in result.findings]


def test_a_queue_with_an_owner_is_content(tmp_path: Path) -> None:
    """As long as nobody is without for longer than the bound."""
    found = judged(tmp_path, [*JOINED, (F.LOCK, FIRST, 9, 62), *IN_THE_END])
    assert found.judgement is Judgement.VALID
    assert "each of 1 queues had one owner" in found.stats["proved"]


def test_a_queue_that_no_member_owned_convicts(tmp_path: Path) -> None:
    """Longer than the bound, while a member belonged to the group and nothing was broken."""
    found = judged(tmp_path, [*JOINED, (F.LOCK, FIRST, 0, 40), *IN_THE_END])
    assert codes(found) == ["QUEUE_WITHOUT_OWNER"]
    (finding,) = found.findings
    assert "no member owned it for 39.0 s" in finding.message
    assert finding.demand == "recovers"


def test_a_fault_that_lasts_explains_it(tmp_path: Path) -> None:
    """What is left of it before and after the fault is shorter than the bound."""
    rows = [*JOINED, (F.LOCK, FIRST, 0, 40), *IN_THE_END]
    assert codes(judged(tmp_path, rows, [(45, 72)])) == []


def test_where_no_member_is_there_is_no_owner(tmp_path: Path) -> None:
    """Neither before the first joins nor after the last has left, or died without a word."""
    rows: list[Row] = [(F.JOIN, FIRST, 30, 0), (F.LOCK, FIRST, 35, 20)]
    assert codes(judged(tmp_path / "died", [*rows, *IN_THE_END])) == []
    left: list[Row] = [*rows, (F.LEAVE, FIRST, 58, 0), *IN_THE_END]
    assert codes(judged(tmp_path / "left", left)) == []


def test_all_queues_have_an_owner_in_the_end(tmp_path: Path) -> None:
    """A queue that finds none in the final phase convicts, unless that was cut short."""
    rows: list[Row] = [*JOINED, (F.LOCK, FIRST, 5, 70)]
    found = judged(tmp_path / "whole", rows)
    assert codes(found) == ["QUEUE_WITHOUT_OWNER"]
    assert "in the final phase" in found.findings[0].message
    cut = judged(tmp_path / "cut", rows, interrupted=True)
    assert codes(cut) == []
    assert [reason.code for reason in cut.reasons] == ["NO_FINAL_LOOK"]


def test_two_owners_convict(tmp_path: Path) -> None:
    """However short the time is in which both believe in the lock."""
    rows = [*JOINED, (F.LOCK, FIRST, 5, 70), (F.LOCK, SECOND, 74, 20), *IN_THE_END]
    assert codes(judged(tmp_path, rows)) == ["QUEUE_OWNED_TWICE"]


def test_without_members_nothing_is_proven(tmp_path: Path) -> None:
    found = judged(tmp_path, [])
    assert [reason.code for reason in found.reasons] == ["NO_MEMBERS"]


SECONDS = st.integers(0, 30)
WINDOWS = st.lists(
    st.tuples(SECONDS, SECONDS).map(lambda p: TimeWindow(min(p), max(p))), max_size=5
)


def moments(windows: Sequence[TimeWindow]) -> set[int]:
    """The unit stretches that they cover."""
    return {at for window in windows for at in range(window.begin, window.end)}


@given(WINDOWS, WINDOWS, st.tuples(SECONDS, SECONDS))
def test_windows_are_sets_of_moments(
    some: list[TimeWindow], others: list[TimeWindow], ends: tuple[int, int]
) -> None:
    """Union, intersection and difference, against sets."""
    whole = TimeWindow(min(ends), max(ends))
    assert moments(merge_windows(some)) == moments(some)
    common = list(_common(merge_windows(some), merge_windows(others)))
    assert moments(common) == moments(some) & moments(others)
    left = list(_without(whole, merge_windows(some)))
    assert moments(left) == moments([whole]) - moments(some)


@pytest.mark.parametrize(
    ("load_options", "why"),
    [({"member": 1}, "load.member"), ({"members": 0}, "load.members"), ({"rate": -1}, "load.rate")],
)
def test_a_load_that_makes_no_sense_names_the_key(
    load_options: Mapping[str, Any], why: str
) -> None:
    from harness.errors import BadRequest

    with pytest.raises(BadRequest, match=why):
        RebalanceOptions.of(load_options)
