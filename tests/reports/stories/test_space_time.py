"""Space-time diagrams: what is drawn, what is left out, and what a hostile file cannot do."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.history.faults_and_events import ClusterEvent
from harness.history.messages import (
    MessageRecording,
    RecordedMessage,
    RecordingWindow,
    write_messages,
)
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding
from reports import page
from reports._run import read_run
from reports._stories.space_time import (
    MAX_ARROWS,
    MAX_DOTS,
    MAX_LINES,
    MAX_SHADES,
    SpaceTime,
    choose_arrows,
    space_time,
)

Written = Callable[..., RunDir]
S, MS = 1_000_000_000, 1_000_000
AT = 10 * S
HOSTILE = '</title></svg><script>alert(1)</script>" onload="x\x1b[31m'
FINDING = Finding(
    code="ONE_MASTER",
    count=1,
    message="Two masters.",
    demand="integrity",
    evidence=({"at_s": 10.0, "node": "broker-1"},),
)


def message(
    sent: int, source: str = "broker-1", target: str = "broker-2", kind: str = "send"
) -> RecordedMessage:
    return RecordedMessage(sent, sent + 3 * MS, False, source, target, kind, 131, False)


@pytest.fixture
def failed(written: Written) -> Callable[..., RunDir]:
    """`failed(messages)`: a simulated run that failed at 10 s, with these messages."""

    def write(messages: Sequence[RecordedMessage] | None = None, left_out: int = 0) -> RunDir:
        run = written((FINDING,), hosts="simulated")
        run.update_state(digest="d1", simulated={"seconds": 40.0})
        if messages is not None:
            window = RecordingWindow.around(AT, "d1")
            write_messages(run, MessageRecording(window, messages, left_out))
        return run

    return write


def drawn(run: RunDir) -> SpaceTime:
    return space_time(read_run(run))


def arrows(figure: object) -> list[str]:
    return re.findall(r'<g class="arrow ([^"]*)">', str(figure))


def test_a_message_is_an_arrow_between_two_lines(failed: Callable[..., RunDir]) -> None:
    """From send to receipt; the finding is marked on the line of its node."""
    messages = [message(AT - n * 500 * MS) for n in range(8)]
    run = failed(messages)
    whole, *_ = drawn(run).figures
    svg = str(whole.drawing)
    assert len(arrows(svg)) == 8
    assert set(arrows(svg)) == {"of-copies"}
    titles = {unescape(title) for title in re.findall("<title>(send.*?)</title>", svg)}
    sent = (AT - read_run(run).zero) / 1e9
    assert f"send, 131 bytes, broker-1 to broker-2, sent at {sent:.6f} s, after 3.000 ms" in titles
    assert f"ONE_MASTER at {sent:.6f} s" in svg
    assert 'class="client convicted">broker-1<' in svg
    assert svg.count("verdict-ring") == 1
    assert 'role="img"' in svg
    assert "8 messages between broker-1, broker-2" in svg
    assert whole.about == "8 messages."


def test_what_is_close_to_the_violation_is_drawn_once_more(failed: Callable[..., RunDir]) -> None:
    """With its messages as a table; not if the first drawing shows no more."""
    far = [message(AT - 4 * S + n * 30 * MS) for n in range(100)]
    close = [message(AT + n * MS // 10) for n in range(60)]
    whole, near = drawn(failed([*far, *close])).figures
    assert len(arrows(whole.drawing)) == 160
    assert len(arrows(near.drawing)) == len(near.rows) == 60
    assert near.rows[0][1:] == ("broker-1", "broker-2", "send", "131", "after 3.000 ms")


def test_one_drawing_is_enough_for_few_messages(failed: Callable[..., RunDir]) -> None:
    """They are in it, and in its table."""
    (whole,) = drawn(failed([message(AT - n * S - S // 2) for n in range(5)])).figures
    assert len(whole.rows) == 5


def test_lost_and_held_messages_end_in_a_cross(failed: Callable[..., RunDir]) -> None:
    """Even routine ones are drawn, however many others there are."""
    lost = replace(message(AT), received=None, lost=True, routine=True, kind="ping")
    held = replace(message(AT), received=None, kind="append")
    routine = [replace(message(AT - n * MS), routine=True) for n in range(2 * MAX_ARROWS)]
    whole, *_ = drawn(failed([lost, held, *routine])).figures
    svg = str(whole.drawing)
    assert len(arrows(svg)) == 2
    assert svg.count('class="end"') == 2
    assert svg.count('class="head"') == 0
    assert ", lost</title>" in svg
    assert ", held up</title>" in svg
    assert whole.about == (
        f"2 messages; 2 lost or held up; {2 * MAX_ARROWS} routine ones left out."
    )


def test_a_diagram_can_be_read(failed: Callable[..., RunDir]) -> None:
    """It has at most so many lines and arrows, and says what is missing."""
    nodes = [f"broker-{n}" for n in range(1, MAX_LINES + 5)]
    messages = [
        message(AT - n * MS, nodes[n % len(nodes)], nodes[0], f"kind {n % 3}") for n in range(3000)
    ]
    whole, near = drawn(failed(messages, left_out=77)).figures
    assert len(arrows(whole.drawing)) == MAX_ARROWS
    assert str(whole.drawing).count('class="client') == MAX_LINES
    assert "farther ones of frequent kinds left out" in whole.about
    assert "of nodes that are not shown" in whole.about
    assert "77 not recorded" in whole.about
    assert len(arrows(near.drawing)) < MAX_ARROWS


def test_faults_events_and_roles_are_on_the_lines(failed: Callable[..., RunDir]) -> None:
    """Of the run's own history: the fault in force, dots for events, the master's line."""
    run = failed([message(AT, f"broker-{n}", f"broker-{n + 1}") for n in (1, 2)])
    view = read_run(run)
    hits = [f for f in view.faults if f.applied is not None and f.applied < AT - view.zero]
    assert hits
    svg = str(space_time(view).figures[0].drawing)
    assert f"fault {hits[0].id}: {hits[0].label}" in svg
    assert 'class="hit kill"' in svg
    assert 'class="life gone"' in svg
    assert 'class="life charge"' in svg
    assert 'class="event election"' in svg


def test_however_many_events_and_faults_the_drawing_is_small(
    failed: Callable[..., RunDir],
) -> None:
    """The events nearest to the violation, and the first faults."""
    view = read_run(failed([message(AT)]))
    moment = AT - view.zero
    events = [ClusterEvent(moment - n * MS, "broker-1", "truncate", {}) for n in range(2000)]
    (hit,) = [f for f in view.faults if f.applied is not None and f.applied < moment][:1]
    faults = [replace(hit, id=n, targets={"master": ("broker-1",)}) for n in range(2000)]
    crowded = replace(view, events=tuple(events), faults=tuple(faults))
    svg = str(space_time(crowded).figures[0].drawing)
    assert svg.count('class="event truncate"') == MAX_DOTS
    assert f"{(moment - (MAX_DOTS - 1) * MS) / 1e9:.6f} s: truncate" in svg
    assert svg.count('class="hit kill"') == MAX_SHADES


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.sampled_from("abcd"), st.booleans(), st.booleans()),
        max_size=60,
    ),
    st.integers(0, 40),
)
def test_what_is_left_out(rows: list[tuple[int, str, bool, bool]], limit: int) -> None:
    """Routine messages first; then every kind keeps as many as any other, if it has them, and of a
    kind none is drawn that is farther from the moment than one left out."""
    every = [
        replace(message(sent, kind=kind), routine=routine, received=None if lost else 1001)
        for sent, kind, routine, lost in rows
    ]
    chosen = choose_arrows(every, 500, limit)
    assert len(chosen) <= limit
    assert chosen == sorted(chosen, key=lambda one: one.sent)
    assert not Counter(chosen) - Counter(every)
    if len(every) <= limit:
        assert len(chosen) == len(every)
        return
    left = list((Counter(every) - Counter(chosen)).elements())
    assert not any(one.routine and one.received for one in chosen)
    matter = [one for one in left if not one.routine or one.received is None]
    assert len(chosen) == limit or not matter
    drawn_of = Counter(one.kind for one in chosen)
    for one in matter:
        assert all(drawn_of[one.kind] >= count - 1 for count in drawn_of.values())
        same = [other for other in chosen if other.kind == one.kind]
        assert all(abs(other.sent - 500) <= abs(one.sent - 500) for other in same)


def test_a_failed_run_without_a_recording_says_how_to_get_one(
    failed: Callable[..., RunDir],
) -> None:
    """In one sentence; a run on other hosts, or one that did not fail, says nothing."""
    run = failed()
    assert re.fullmatch(
        r"Its messages were not recorded; seatrial replay \S+ records them\.", drawn(run).missing
    )
    assert "Its messages were not recorded" in page.page_html(read_run(run))
    run.update_state(simulated=None)
    assert drawn(run) == SpaceTime()
    assert 'id="messages"' not in page.page_html(read_run(run))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"<script>alert(1)</script>"])
def test_a_damaged_recording_is_a_doubt(failed: Callable[..., RunDir], data: bytes) -> None:
    """The page has everything else, and one sentence about it."""
    run = failed()
    run.messages_file.write_bytes(data)
    view = read_run(run)
    html = page.page_html(view)
    assert 'id="messages"' not in html
    (doubt,) = [doubt for doubt in view.doubts if doubt.startswith("the messages")]
    assert doubt.startswith("the messages could not be read: torn or foreign data")
    assert doubt.split("<")[0] in html


def test_another_runs_recording_is_not_drawn(failed: Callable[..., RunDir]) -> None:
    """It would show what did not happen."""
    run = failed([message(AT)])
    run.update_state(digest="d2")
    view = read_run(run)
    assert '<svg class="spacetime"' not in page.page_html(view)
    assert "the messages could not be read: it belongs to another run" in view.doubts


def test_hostile_names_stay_text(failed: Callable[..., RunDir]) -> None:
    """In arrows, lines, labels, the table and the alternative text; without control letters."""
    hostile = [message(AT - n * 100 * MS, HOSTILE, HOSTILE + "2", HOSTILE) for n in range(9)]
    run = failed(hostile)
    html = page.page_html(read_run(run))
    assert "alert(1)" in html
    run.messages_file.unlink()
    before = page.page_html(read_run(run))
    assert html.count("<script") == before.count("<script")
    assert 'onload="' not in html
    assert "\x1b" not in html
