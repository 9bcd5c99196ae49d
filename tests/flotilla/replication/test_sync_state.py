"""The SyncStateSet: in step, leaving, entering, and the union while a change is open
("SyncStateSet" in docs/flotilla-design.md)."""

from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.replication.sync_state import (
    SlaveProgress,
    SyncState,
    confirm_offset,
    counted_members,
    may_enter,
    may_join,
    may_leave,
    set_size,
)

ALONE = SyncState(1, (1,), 5)
THREE = SyncState(1, (1, 2, 3), 5)


def test_the_union_counts_until_the_outcome_is_certain() -> None:
    """Old members and new ones alike: the controllers may have agreed to either
    (apache/rocketmq#5663)."""
    growing = ALONE.propose((1, 2))
    assert (counted_members(growing), set_size(growing)) == ((2,), 2)
    shrinking = THREE.propose((1, 3))
    assert (counted_members(shrinking), set_size(shrinking)) == ((2, 3), 3)
    assert counted_members(shrinking.install((1, 3), 6)) == (3,)
    assert counted_members(growing.settle()) == ()


def test_an_entering_slave_counts_but_is_no_member() -> None:
    """New messages wait for it; minInSyncReplicas does not count it yet."""
    joining = ALONE.join(2, 900)
    assert (counted_members(joining), set_size(joining)) == ((2,), 1)
    assert counted_members(joining.forget(2)) == ()
    assert joining.propose((1, 2)).entering == {}


def test_an_installed_set_ends_a_proposal() -> None:
    """Proposals name the epoch that they replace, so an older one cannot be accepted any more."""
    state = ALONE.propose((1, 2)).install((1,), 9)
    assert (state.members, state.epoch, state.proposed) == ((1,), 9, None)


def test_a_slave_at_the_end_is_in_step_now() -> None:
    """It has all there is."""
    assert SlaveProgress().acked(100, 100, 7.0) == SlaveProgress(100, 7.0)


def test_a_slave_under_load_is_in_step_as_of_the_mark_it_reached() -> None:
    """It never reaches the moving end, but what was the end a moment ago."""
    p = SlaveProgress().acked(0, 100, 1.0)
    assert (p.caught_up_at, p.mark) == (None, (100, 1.0))
    p = p.acked(50, 200, 2.0)
    assert p.caught_up_at is None
    p = p.acked(120, 300, 3.0)
    assert (p.caught_up_at, p.mark) == (1.0, (300, 3.0))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20))
def test_in_step_is_never_claimed_too_late(steps: list[tuple[int, int]]) -> None:
    """If `caught_up_at` is T, the slave holds everything that the master had at T."""
    end, ack, progress = 0, 0, SlaveProgress()
    ends = {}
    for now, (written, copied) in enumerate(steps):
        end += written
        ends[float(now)] = end
        ack = min(end, ack + copied)
        progress = progress.acked(ack, end, float(now))
        if progress.caught_up_at is not None:
            assert ack >= ends[progress.caught_up_at]


def test_who_must_leave() -> None:
    """Not connected, never in step, or not for too long. Silence is not being in step."""
    assert may_leave(None, 100.0, 15.0)
    assert may_leave(SlaveProgress(50), 100.0, 15.0)
    assert may_leave(SlaveProgress(50, 84.0), 100.0, 15.0)
    assert not may_leave(SlaveProgress(50, 85.0), 100.0, 15.0)


def test_who_may_enter() -> None:
    """Only a slave with every message that may have been acknowledged, in this reign."""
    assert may_enter(900, 900, 800)
    assert not may_enter(899, 900, 800)
    assert not may_enter(900, 700, 901)


def test_who_may_be_waited_for() -> None:
    """A slave within one batch of the end; one that is far behind would delay every send."""
    assert may_join(800, 900, 500, 100)
    assert not may_join(799, 900, 500, 100)
    assert not may_join(800, 900, 850, 100)


def test_the_confirm_offset_is_the_least_of_the_set() -> None:
    """Alone, or without allAck, it is the master's own position."""
    assert confirm_offset(100, 900, {2: 500, 3: 400}, (2, 3), True) == 400
    assert confirm_offset(100, 900, {}, (), True) == 900
    assert confirm_offset(100, 900, {2: 500}, (2,), False) == 900


def test_a_member_without_connection_holds_the_confirm_offset() -> None:
    """An isolated master with one slave confirms nothing that the other does not have
    (apache/rocketmq#6662)."""
    assert confirm_offset(100, 900, {2: 500}, (2, 3), True) == 100
    assert confirm_offset(100, 900, {2: 500, 3: None}, (2, 3), True) == 100


@given(st.integers(0, 50), st.dictionaries(st.integers(2, 4), st.integers(0, 99)))
def test_the_confirm_offset_never_goes_back(stored: int, acks: dict[int, int]) -> None:
    """What consumers have seen stays seen."""
    known: dict[int, int | None] = dict(acks)
    assert confirm_offset(stored, 99, known, tuple(acks), True) >= stored
