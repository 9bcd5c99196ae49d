"""Node events around a time: all of them, no others, in order, and not too many."""

from collections.abc import Callable
from random import Random

import pytest

from harness.history.faults_and_events import ClusterEvent
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding
from reports import page
from reports._stories.page_findings import MAX_LINES, finding_views, nearby_events

S = 1_000_000_000
AT = 10 * S


@pytest.mark.parametrize(
    ("apart_s", "there"), [(0, True), (-1, True), (1, True), (-1.001, False), (1.001, False)]
)
def test_within_a_second(apart_s: float, there: bool) -> None:
    """Before or after, and not a millisecond more."""
    event = ClusterEvent(AT + round(apart_s * S), "broker-1", "role", {"epoch": 2})
    found = nearby_events([event], [AT])
    assert [line.fields for line in found.lines] == ["epoch 2"] * there
    assert [line.apart_s for line in found.lines] == [apart_s] * there


def test_a_story_has_many_moments() -> None:
    """A truncation long after the acknowledgement is shown with its distance in time; events
    between the two are not."""
    times = {"acknowledged": 0.5, "nothing": 5.0, "truncate": 9.5}
    events = [ClusterEvent(AT + round(s * S), "broker-1", kind) for kind, s in times.items()]
    found = nearby_events(events, [AT, AT + 9 * S])
    assert [(line.kind, line.apart_s) for line in found.lines] == [
        ("acknowledged", 0.5),
        ("truncate", 9.5),
    ]
    assert nearby_events(events, []).lines == ()


def test_the_order_is_that_of_time_whatever_it_came_in() -> None:
    """Events of several nodes come file by file; the same events are the same lines."""
    events = [ClusterEvent(AT + n * 1000, f"broker-{n % 3}", "role", {"n": n}) for n in range(20)]
    shuffled = Random(1).sample(events, len(events))
    assert nearby_events(shuffled, [AT]) == nearby_events(events, [AT])
    assert [line.fields for line in nearby_events(shuffled, [AT]).lines] == [
        f"n {n}" for n in range(20)
    ]


def test_of_a_busy_second_the_nearest_are_kept() -> None:
    """Connection events are left out first, and the number of lines is shown."""
    steps = [
        ClusterEvent(AT + n * 1_000_000, "broker-1", "role", {"n": n}) for n in range(MAX_LINES + 5)
    ]
    chatter = [ClusterEvent(AT, "broker-2", "connection", {"peer": n}) for n in range(7)]
    found = nearby_events([*chatter, *steps], [AT])
    assert [line.fields for line in found.lines] == [f"n {n}" for n in range(MAX_LINES)]
    assert found.left_out == 12


def test_what_is_nobodys_is_not_told() -> None:
    """The harness's own remarks are no lines of a node."""
    assert (
        nearby_events(
            [ClusterEvent(AT, "", "recovery"), ClusterEvent(AT, "broker-1", "")], [AT]
        ).lines
        == ()
    )


def test_the_page_has_them_beside_the_story(written: Callable[..., RunDir], lost: Finding) -> None:
    """Of a message that was acknowledged at 7.9 s: the exit, the expiry and the election before."""
    run = written((lost,))
    (finding, *_) = finding_views(page.read_run(run))
    kinds = [line.kind for line in finding.witnesses[0].nearby.lines]
    assert kinds == ["exit", "expired", "election", "role", "set"]
    path = page.render(run)
    assert path is not None
    assert "Node events within a second of its moments, 5 lines" in path.read_text()
