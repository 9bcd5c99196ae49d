"""What a client may conclude: the one table, and how attempts add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.client.outcomes import (
    RETRIED,
    STATUS_OUTCOMES,
    CallOutcome,
    outcome_of_error,
    outcome_of_status,
    overall,
)
from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.net.wire import Status

H, R, U = CallOutcome.HAPPENED, CallOutcome.REFUSED, CallOutcome.UNKNOWN


@pytest.mark.parametrize(
    "status",
    [Status.FLUSH_DISK_TIMEOUT, Status.FLUSH_SLAVE_TIMEOUT, Status.SLAVE_NOT_AVAILABLE],
)
def test_appended_but_not_confirmed_is_unknown(status: Status) -> None:
    """These three were appended and may survive or vanish; they are never retried."""
    assert outcome_of_status(status) is U
    assert status not in RETRIED


@pytest.mark.parametrize(
    "status",
    [
        Status.IN_SYNC_REPLICAS_NOT_ENOUGH,
        Status.SERVICE_NOT_AVAILABLE,
        Status.SYSTEM_BUSY,
        Status.MESSAGE_ILLEGAL,
        Status.TOPIC_NOT_EXIST,
        Status.NO_PERMISSION,
    ],
)
def test_refused_on_admission_is_definite(status: Status) -> None:
    """Nothing was appended."""
    assert outcome_of_status(status) is R


@pytest.mark.parametrize("status", sorted(set(Status) - set(STATUS_OUTCOMES)))
def test_what_the_table_does_not_know_proves_nothing(status: Status) -> None:
    """A status that no send should get is no proof of anything."""
    assert outcome_of_status(status) is U


def test_only_what_never_left_is_a_definite_failure() -> None:
    """No connection: certainly not carried out. Any later failure: unknown."""
    assert outcome_of_error(Unreachable("x")) is R
    assert outcome_of_error(ConnectionLost("x")) is U
    assert outcome_of_error(CallTimeout("x")) is U
    assert outcome_of_error(KeyError("a bug of ours")) is U


@given(st.lists(st.sampled_from(CallOutcome), min_size=1))
def test_an_outcome_covers_all_attempts(attempts: list[CallOutcome]) -> None:
    """Happened if any did; else open if any was; refused only if every single one was."""
    total = CallOutcome.REFUSED
    for attempt in attempts:
        total = overall(total, attempt)
    if H in attempts:
        assert total is H
    else:
        assert total is (U if U in attempts else R)
