"""Invariants of the controllers' state, after any requests in any order, with any brokers alive."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.controllers.controller_requests import (
    DECISIONS,
    Decision,
    DecisionContext,
    replace_master,
)
from clusters.flotilla.controllers.controller_state import (
    AlterSyncStateSet,
    ApplyBrokerId,
    BrokerSets,
    BrokerSetState,
    ElectMaster,
    apply,
    apply_all,
    decode,
    encode,
)
from clusters.flotilla.controllers.elect import BrokerStatus, Candidate
from clusters.flotilla.net.wire import Op, Status
from clusters.flotilla.rules import RULES

IDS = (1, 2, 3)
STANDINGS = st.tuples(*(st.sampled_from(BrokerStatus) for _ in IDS))
OFFSETS = st.tuples(*(st.integers(0, 3) for _ in IDS))


@dataclass(frozen=True)
class Step:
    """A request, and the brokers' status and logs when it was decided. Without op: the controllers'
    own election."""

    op: Op | None
    broker_id: int
    members: frozenset[int]
    stale: int
    designate: bool
    statuses: tuple[BrokerStatus, ...]
    offsets: tuple[int, ...]


FULL: BrokerSets = apply_all(
    {},
    [
        *(ApplyBrokerId("f", "b", i, "a", "h", f"code{i}") for i in IDS),
        ElectMaster("b", 1, "broker"),
        AlterSyncStateSet("b", (1, 2)),
    ],
)
STARTS = st.sampled_from([{}, FULL, FULL])
REGISTERS = {Op.KV_GET, Op.KV_PUT, Op.KV_CAS}
ELSEWHERE = (Op.DRILL_ZONE, Op.RETURN_ZONE, Op.CONVERT_SET)  # their own tests give them fields
OF_SETS = [op for op in DECISIONS if op not in (*REGISTERS, *ELSEWHERE)]
STEPS = st.builds(
    Step,
    st.sampled_from([*OF_SETS, None, Op.ELECT_MASTER, Op.ALTER_SYNC_STATE_SET]),
    st.sampled_from(IDS),
    st.frozensets(st.sampled_from(IDS)),
    st.sampled_from([0, 0, 0, 1]),
    st.booleans(),
    STANDINGS,
    OFFSETS,
)


def decide(state: BrokerSets, step: Step, *, unclean: bool = False) -> Decision:
    def candidate(name: str, broker_id: int) -> Candidate:
        at = IDS.index(broker_id)
        return Candidate(broker_id, step.statuses[at], 1, step.offsets[at])

    context = DecisionContext(state, candidate, RULES, unclean)
    if step.op is None:
        return replace_master(context, "b", "scan")
    row = state.get("b", BrokerSetState("f"))
    fields: dict[str, Any] = {
        "cluster": "f",
        "brokerName": "b",
        "brokerNames": ["b"],
        "brokerId": step.broker_id,
        "brokerIds": sorted(step.members) if step.op == Op.CLEAN_BROKER_DATA else [],
        "addr": "a",
        "haAddr": "h",
        "checkCode": f"code{step.broker_id}",
        "designate": step.designate,
        "masterId": row.master_id if row.master_id is not None else step.broker_id,
        "masterEpoch": row.master_epoch - step.stale,
        "set": sorted(step.members),
        "setEpoch": row.set_epoch,
    }
    return DECISIONS[step.op](context, fields)


@given(STARTS, st.lists(STEPS, max_size=40))
def test_the_state_stays_sound(state: BrokerSets, steps: list[Step]) -> None:
    """A master is in its set; epochs only rise, and with every change; the winner was a member of
    the set before; a refusal changes nothing."""
    for step in steps:
        decision = decide(state, step)
        events = decode(encode(decision.events)) if decision.events else []
        code = decision.reply.get("code", Status.SUCCESS)
        assert not events or code in (Status.SUCCESS, Status.MASTER_NOT_AVAILABLE)
        for event in events:
            before, state = state.get("b"), apply(state, event)
            after = state.get("b")
            assert after is not None, "a set that is cleaned away leaves its ids and epochs"
            if after.master_id is not None:
                assert after.master_id in after.sync_set
            assert set(after.sync_set) <= set(after.members)
            if before is None:
                continue
            assert after.next_id >= before.next_id
            changed = after.master_id != before.master_id
            assert after.master_epoch - before.master_epoch == int(
                changed or isinstance(event, ElectMaster)
            )
            assert after.set_epoch - before.set_epoch == int(
                after.sync_set != before.sync_set
                or (isinstance(event, ElectMaster) and event.winner is not None)
            )
            if isinstance(event, ElectMaster) and event.winner is not None:
                first = before.master_changes == 0
                assert first or event.winner in before.sync_set


@given(STARTS, st.lists(STEPS, max_size=30), STEPS)
def test_a_second_look_finds_nothing_to_do(
    state: BrokerSets, steps: list[Step], last: Step
) -> None:
    """The controllers' own election is idempotent: the scan may run again and again."""
    for step in steps:
        state = apply_all(state, decide(state, step).events)
    scan = Step(None, 1, frozenset(), 0, False, last.statuses, last.offsets)
    once = apply_all(state, decide(state, scan).events)
    assert decide(once, scan).events == ()
