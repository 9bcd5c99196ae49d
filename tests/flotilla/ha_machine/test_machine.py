"""The machine of a pair: no view of brokers leads from a state to one that must not follow it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.ha_machine.machine import (
    FOLLOWS,
    NEW,
    BrokerReport,
    MachineState,
    MachineView,
    Phase,
    SlaveReport,
    hold_limit_s,
    last_sequence,
    next_state,
)
from clusters.flotilla.net.wire import from_json, to_json

LIVES, SEQS = st.sampled_from(["a", "b"]), st.integers(5, 6)
REPORTS = st.builds(SlaveReport, st.booleans(), st.booleans(), st.booleans())


def report(life: str = "a", obeys: int = 6, **slave: bool) -> BrokerReport:
    """A broker; as a master, with slave 2 in this condition."""
    condition = {"near": False, "whole": False, "late": False} | slave
    slaves = {2: SlaveReport(**condition)} if slave else {}
    return BrokerReport(life, "h:1", "h:2", obeys=obeys, slaves=slaves)


BROKERS = st.builds(
    BrokerReport,
    *(LIVES, st.just("h:1"), st.just("h:2"), st.just("z"), SEQS, st.integers(0, 2)),
    *(st.integers(0, 2), st.dictionaries(st.integers(1, 2), REPORTS)),
)


def state(phase: Phase, seq: int = 6, begun: bool = True) -> MachineState:
    """A state with master 1; in SYNC broker 2 must have every message, too."""
    sync = {1: "a", 2: "a"} if phase is Phase.SYNC else {1: "a"}
    return MachineState(seq, phase, 3, 1, "a", "h:1", "h:2", sync, begun=begun)


VIEWS = st.builds(
    MachineView,
    st.sampled_from(Phase).map(state),
    st.dictionaries(st.integers(1, 2), BROKERS),
    st.booleans(),
)


@given(VIEWS)
def test_only_what_is_safe_follows(view: MachineView) -> None:
    """A master is replaced only when it is gone, and only by a broker that has everything; the
    slave is waited for only when the master, which holds all sends, has reported that it has all.
    """
    before, after = view.state, next_state(view)
    assert before is not None
    if after is None:
        return
    former = view.brokers.get(1)
    gone = former is None or former.life != "a"
    assert (after.epoch == NEW) == gone
    assert after.seq == NEW
    if gone:
        assert after.master in before.sync
        assert after.phase is Phase.SINGLE
        assert after.life == view.brokers[after.master].life
        assert after.sync == {after.master: after.life}
        return
    assert former is not None
    assert (after.master, after.life, after.epoch) == (1, "a", 3)
    assert after.phase is Phase.SINGLE or after.phase in FOLLOWS[before.phase]
    if after.phase is Phase.SYNC:
        assert former.obeys == before.seq
        assert former.slaves[2].whole
        assert after.sync == {1: "a", 2: view.brokers[2].life}
    else:
        assert after.sync == {1: "a"}


@pytest.mark.parametrize(
    ("phase", "master", "follows"),
    [
        (Phase.SINGLE, report(), None),
        (Phase.SINGLE, report(near=False), Phase.ASYNC),
        (Phase.ASYNC, report(), Phase.SINGLE),
        (Phase.ASYNC, report(near=True), Phase.SEMI),
        (Phase.ASYNC, report(near=False), None),
        (Phase.ASYNC, report(near=True, late=True), None),
        (Phase.SEMI, report(whole=True), Phase.SYNC),
        (Phase.SEMI, report(whole=True, obeys=5), None),
        (Phase.SEMI, report(), Phase.ASYNC),
        (Phase.SYNC, report(whole=False), None),
        (Phase.SYNC, report(late=True), Phase.SINGLE),
        (Phase.SYNC, report(late=True, obeys=5), None),
        (Phase.SYNC, report(), Phase.SINGLE),
    ],
)
def test_the_way_up_and_down(phase: Phase, master: BrokerReport, follows: Phase | None) -> None:
    after = next_state(MachineView(state(phase), {1: master, 2: report()}))
    assert (after.phase if after else None) == follows


def test_a_hold_that_is_too_long_ends() -> None:
    view = MachineView(state(Phase.SEMI), {1: report(whole=True), 2: report()}, held_too_long=True)
    after = next_state(view)
    assert after is not None
    assert after.phase is Phase.ASYNC
    assert after.holds == 1


def test_sends_are_served_between_two_holds() -> None:
    """After a hold in vain the next one waits; it may last longer, up to a limit."""
    waits = MachineView(replace(state(Phase.ASYNC), holds=2), {1: report(near=True), 2: report()})
    assert next_state(replace(waits, rested=False)) is None
    after = next_state(waits)
    assert after is not None
    assert (after.phase, after.holds) == (Phase.SEMI, 2)
    assert [hold_limit_s(1.0, holds) for holds in range(6)] == [1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    ("phase", "master", "follows"),
    [(Phase.SEMI, report(whole=True), Phase.SYNC), (Phase.ASYNC, report(), Phase.SINGLE)],
)
def test_holds_are_counted_until_sync_or_single(
    phase: Phase, master: BrokerReport, follows: Phase
) -> None:
    after = next_state(MachineView(replace(state(phase), holds=3), {1: master, 2: report()}))
    assert after is not None
    assert (after.phase, after.holds) == (follows, 0)


@pytest.mark.parametrize("phase", [Phase.SINGLE, Phase.ASYNC, Phase.SEMI])
def test_only_the_former_master_has_everything(phase: Phase) -> None:
    """Unless the unclean may be elected."""
    view = MachineView(state(phase), {2: report()})
    assert next_state(view) is None
    unclean = next_state(replace(view, unclean=True))
    assert unclean is not None
    assert unclean.master == 2
    back = next_state(MachineView(state(phase), {1: replace(report("b"), epoch=3), 2: report()}))
    assert back is not None
    assert (back.master, back.life, back.epoch) == (1, "b", NEW)


def test_states_and_reports_are_read_as_they_were_written() -> None:
    whole = report(whole=True, near=True, late=False)
    for one in map(state, Phase):
        assert MachineState.of(from_json(to_json(one.fields()))) == one
    whole = replace(whole, generation=3, first=2, before=7, converting=True)
    assert BrokerReport.of(from_json(to_json(whole.fields()))) == whole


def test_a_set_that_never_had_data_goes_on() -> None:
    """Its master may have lost its power before anything was on its disk."""
    brokers = {1: report("b"), 2: report("b")}
    after = next_state(MachineView(state(Phase.SINGLE, begun=False), brokers))
    assert after is not None
    assert after.master == 1


def test_an_empty_disk_is_known_without_the_other_broker() -> None:
    """The state says that the set has had a master, as soon as that one has begun."""
    new = state(Phase.SINGLE, begun=False)
    assert next_state(MachineView(new, {1: report(obeys=0)})) is None
    begun = next_state(MachineView(new, {1: report(obeys=6)}))
    assert begun == replace(new, seq=NEW, begun=True)
    assert next_state(MachineView(begun, {1: report(obeys=6)})) is None
    assert next_state(MachineView(begun, {1: report("b")})) is None
    back = next_state(MachineView(begun, {1: replace(report("b"), epoch=3)}))
    assert back is not None
    assert (back.master, back.begun) == (1, True)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("emptied", [True, False])
def test_a_master_that_lost_its_disk_is_not_master_again(phase: Phase, emptied: bool) -> None:
    """Its slave would cut its log to match an empty one. In SYNC the slave has everything."""
    lost = {} if emptied else {"epoch": 3, "end": 70}
    brokers = {
        1: BrokerReport("b", "h:1", "h:2", **lost),
        2: BrokerReport("b", "h:3", "h:4", epoch=3),
    }
    after = next_state(MachineView(state(phase), brokers))
    if emptied:
        assert (after and after.master) == (2 if phase is Phase.SYNC else None)
    else:
        assert after is not None
        assert after.master == 1


def of_generation(number: int, life: str = "a", **more: int) -> BrokerReport:
    """A broker of a set whose generation broker 2 leads first, after epoch 9."""
    return replace(report(life), obeys=0, generation=number, first=2, before=9, **more)


def test_a_generation_begins_with_the_broker_that_was_master() -> None:
    """Whatever an earlier one has left in ZooKeeper, and not before that broker is there."""
    left, had = state(Phase.SYNC), {"epoch": 9, "end": 70}
    assert next_state(MachineView(left, {1: of_generation(4, **had)})) is None
    after = next_state(MachineView(left, {1: of_generation(4, **had), 2: of_generation(4, **had)}))
    assert after is not None
    assert (after.phase, after.master, after.generation) == (Phase.SINGLE, 2, 4)
    assert (after.epoch, after.begun) == (NEW, True)
    emptied = next_state(MachineView(left, {1: of_generation(4, **had), 2: of_generation(4)}))
    assert emptied is not None
    assert emptied.master == 1
    assert last_sequence(6, before=9) == 9
    assert last_sequence(12, before=9) == 12


def test_brokers_of_an_earlier_generation_do_not_count() -> None:
    now = replace(state(Phase.SYNC), generation=4)
    assert next_state(MachineView(now, {2: of_generation(2)})) is None
    heir = next_state(MachineView(now, {2: of_generation(4), 1: of_generation(0, "b")}))
    assert heir is not None
    assert heir.master == 2


def test_nothing_is_decided_about_a_broker_that_is_being_converted() -> None:
    """A slave that has promised is not elected; the state of a master that holds its sends stays;
    a master that has started again may be elected."""
    now = state(Phase.SYNC)
    slave = replace(report(), converting=True)
    assert next_state(MachineView(now, {2: slave})) is None
    assert next_state(MachineView(now, {1: replace(report(), converting=True)})) is None
    back = next_state(MachineView(now, {1: replace(report("b"), epoch=3), 2: slave}))
    assert back is not None
    assert back.master == 1
