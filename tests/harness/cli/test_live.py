"""The live view: told by status lines, harmless whatever they say, plain where nobody looks."""

import errno
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.cli.live_view import TrialScreen, draw
from harness.run.progress import TrialProgress
from harness.trial import Trial


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


STORY: list[dict[str, Any]] = [
    {"said": "building an image"},
    {"phase": "raised"},
    {"standing": {"masters": {"a": "broker-1"}, "epochs": {"a": 1}, "in_set": ["broker-1"]}},
    {"phase": "load"},
    {"fault": {"id": 0, "kind": "kill", "targets": {}, "state": "planned", "stage": "planned"}},
    {"fault": {"id": 0, "kind": "kill", "targets": {"master": ["broker-1"]}, "stage": "begin"}},
    {"fault": {"id": 0, "kind": "kill", "state": "installed", "stage": "observed"}},
    {"standing": {"masters": {"a": "broker-2"}, "epochs": {"a": 2}, "in_set": ["broker-2"]}},
    {"stats": {"ok": 100, "fail": 1, "info": 2, "polled": 90, "p50_ms": 1.5, "p99_ms": 8.0}},
    {"fault": {"id": 0, "kind": "kill", "state": "installed", "stage": "healed"}},
    {"failed": "the disk is full"},
]


def test_plain_lines_where_there_is_no_terminal() -> None:
    """One line for each phase, fault stage and new master, with the seconds since the load began;
    no counts, no escape codes."""
    out, clock = StringIO(), Clock()
    with TrialScreen(Trial(name="t"), Console(file=out, width=100), clock) as live:
        for status in STORY:
            clock.now_s += 1
            live.update(status)
    lines = [line.split(" s  ", 1) for line in out.getvalue().splitlines()]
    before, after = [since for since, _ in lines[:5]], [float(since) for since, _ in lines[5:]]
    assert {since.strip() for since in before} == {"-"}
    assert after[0] == 0.0
    assert after == sorted(after)
    assert after[-1] > 1.0
    assert [line for _, line in lines] == [
        "trial t: messages on flotilla (local), seed 1",
        "times are seconds since the load began",
        "building an image",
        "phase: raised",
        "a: master broker-1, epoch 1",
        "phase: load",
        "fault 0: kill on broker-1: begin",
        "fault 0: kill on broker-1: observed",
        "a: master broker-2, epoch 2",
        "fault 0: kill on broker-1: healed",
        "failed: the disk is full",
    ]
    assert "\x1b" not in out.getvalue()


def test_a_panel_in_a_terminal() -> None:
    """Everything one looks for is in the panel, at the moment it is true."""
    out, clock = StringIO(), Clock()
    console = Console(file=out, width=110, force_terminal=True, legacy_windows=False)
    with TrialScreen(Trial(name="t", profile="allack-min2"), console, clock) as live:
        for status in STORY[:9]:
            clock.now_s += 1
            live.update(status)
        text = _drawn(live.progress, clock.now_s)
    for words in ("kill on broker-1", "observed", "master broker-2  epoch 2", "100 acknowledged"):
        assert words in text
    assert "5 s of 60 s" in text
    assert "p99 8.0 ms" in text


def test_rates_are_differences() -> None:
    """Cumulative counts become a rate over the last moments; a pause shows as zero."""
    progress = TrialProgress(began_s=0.0)
    for tick in range(40):
        progress.update({"stats": {"ok": 100 * tick}}, tick * 0.25)
    assert progress.rate("ok") == 400
    assert sum(progress.rates("ok", 60)) * 1.0 == 3900
    for tick in range(40, 60):
        progress.update({"stats": {"ok": 3900}}, tick * 0.25)
    assert progress.rate("ok") == 0


def test_load_clock_stops_at_the_drain() -> None:
    """The load lasts from its mark to the drain's, whatever comes between."""
    progress = TrialProgress(began_s=0.0)
    for at_s, phase in ((1, "raised"), (2, "load"), (60, "healed"), (62, "drain")):
        progress.update({"phase": phase}, at_s)
    assert progress.load_s(100.0) == 60


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KNOWN = st.sampled_from(
    ["ok", "p50_ms", "id", "kind", "targets", "stage", "state", "masters", "epochs", "in_set"]
)
STATUS = st.dictionaries(
    st.sampled_from(["phase", "stats", "fault", "standing", "failed", "else"]),
    JUNK | st.dictionaries(KNOWN, JUNK, max_size=4),
    max_size=3,
)


@given(st.lists(STATUS, max_size=5))
def test_a_strange_line_does_no_harm(statuses: list[dict[str, Any]]) -> None:
    """A runner of another version may say anything; the view shows what it understands."""
    progress = TrialProgress(began_s=0.0)
    for at_s, status in enumerate(statuses):
        progress.update(status, float(at_s))
    assert _drawn(progress, 10.0)


def _drawn(progress: TrialProgress, now_s: float) -> str:
    console = Console(file=StringIO(), width=110)
    with console.capture() as capture:
        console.print(draw(Trial(), progress, now_s))
    return capture.get()


def test_an_alarm_is_told_on_every_kind_of_terminal() -> None:
    """A line of its own, also beside the panel, which does not stay."""
    for terminal in (False, True):
        out = StringIO()
        console = Console(file=out, width=100, force_terminal=terminal)
        with TrialScreen(Trial(name="t"), console, Clock()) as live:
            live.update({"alarm": "NOT HEALED: fault 3"})
        assert "NOT HEALED: fault 3" in out.getvalue()


def test_words_of_hosts_do_not_command_the_terminal() -> None:
    """What a machine answered may be in colour."""
    out = StringIO()
    with TrialScreen(Trial(name="t"), Console(file=out, width=100), Clock()) as live:
        live.update({"failed": "ssh: \x1b[2J\x9b31mno\rroute"})
        assert "\x1b[2J" not in _drawn(live.progress, 100.0)
    assert "failed: ssh: \ufffd[2J\ufffd31mno\ufffdroute\n" in out.getvalue()


# ------------------------------------------------------------------ whatever happens to the view


@pytest.fixture
def full() -> Iterator[TextIO]:
    """A file on a disk that is full."""
    with suppress(OSError), Path("/dev/full").open("w", buffering=1) as file:
        yield file


@pytest.mark.parametrize("terminal", [False, True])
def test_what_can_not_be_shown_changes_no_run(full: TextIO, terminal: bool) -> None:
    """From the first line to the end: who tells a run's story to a full disk tells it on."""
    console = Console(file=full, width=100, force_terminal=terminal, legacy_windows=False)
    with TrialScreen(Trial(name="t"), console, Clock()) as live:
        for status in STORY:
            live.update(status)
    assert live.progress.failed == "the disk is full"


class Refusing(StringIO):
    """Takes nothing while it is refused, and all of it later."""

    refuses = False

    def write(self, text: str, /) -> int:
        if self.refuses:
            raise OSError(errno.ENOSPC, "no space left")
        return super().write(text)


def test_what_could_be_shown_again_is_not_shown_twice() -> None:
    """A line that was refused is gone; the next ones are there, once."""
    out = Refusing()
    with TrialScreen(Trial(name="t"), Console(file=out, width=100), Clock()) as live:
        out.refuses = True
        live.update({"phase": "raised"})
        live.update({"phase": "load"})
        out.refuses = False
        live.update({"phase": "healed"})
        live.update({"phase": "drain"})
    lines = [line.split(" s  ", 1)[1] for line in out.getvalue().splitlines()]
    assert lines[2:] == ["phase: healed", "phase: drain"]


@pytest.fixture
def busy() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy")
def test_the_panel_is_drawn_while_it_is_told() -> None:
    """A thread redraws it; what the other is told meanwhile does not end the drawing."""
    clock, failed = Clock(), list[BaseException]()
    live = TrialScreen(Trial(name="t"), Console(file=StringIO()), clock)
    for number in range(300):
        clock.now_s += 0.2
        live.update({"stats": {"ok": number}, "fault": {"id": number, "stage": "begin"}})

    def redrawn() -> None:
        try:
            for _ in range(20):
                live.panel()
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=redrawn)
    thread.start()
    while thread.is_alive():
        number += 1
        clock.now_s += 0.2
        stage = ("begin", "healed")[number % 2]
        live.update({"stats": {"ok": number}, "fault": {"id": 0, "stage": stage}})
    thread.join()
    assert not failed
