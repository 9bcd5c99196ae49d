"""Completions find their invocations; what breaks a rule proves no more than the file does."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.importers._pairing import UNPAIRED, Pairing, pair_events
from harness.importers._recording import UNTIMED, Events, Slips
from harness.operation import Type

INVOKE, OK, FAIL, INFO = Type.INVOKE, Type.OK, Type.FAIL, Type.INFO


def events(*rows: tuple[Any, ...]) -> Events:
    """Rows of type and process, perhaps with time and kind."""
    full = [(*row, *(UNTIMED, 0)[len(row) - 2 :]) for row in rows]
    kind, process, t, f = (np.array(column, np.int64) for column in zip(*full, strict=True))
    n = len(rows)
    return Events(np.arange(1, n + 1), t, kind, process, f, np.zeros(n, np.bool_))


def judged(*rows: tuple[Any, ...]) -> tuple[Pairing, Slips]:
    slips = Slips()
    return pair_events(events(*rows), slips), slips


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([OK, FAIL, INFO])), max_size=40))
def test_a_sound_history_has_no_slips(script: list[tuple[int, Type]]) -> None:
    """Processes that invoke and complete in turn are all paired, however they interleave."""
    rows: list[tuple[Any, ...]] = [(INVOKE, 9)]
    opened: dict[int, int] = {}
    expected = [0]
    for process, outcome in script:
        if process in opened:
            expected.append(opened.pop(process))
            rows.append((outcome, process))
        else:
            opened[process] = len(rows)
            expected.append(len(rows))
            rows.append((INVOKE, process))
    pairs, slips = judged(*rows)
    assert not slips
    assert pairs.invoke.tolist() == expected


@pytest.mark.parametrize(
    ("rows", "invoke", "rule"),
    [
        ([(INVOKE, 1), (OK, 1), (OK, 1)], [0, 0, UNPAIRED], "COMPLETED_TWICE"),
        ([(INVOKE, 1), (FAIL, 1), (OK, 1)], [0, UNPAIRED, UNPAIRED], "COMPLETED_TWICE"),
        ([(OK, 1), (INVOKE, 1), (OK, 1)], [0, 1, 1], "NOT_INVOKED"),
        ([(INVOKE, 1), (INVOKE, 1), (OK, 1)], [0, 1, UNPAIRED], "OVERLAP"),
        (
            [(INVOKE, 1), (INVOKE, 1), (OK, 1), (OK, 1), (INVOKE, 1), (OK, 1)],
            [0, 1, UNPAIRED, UNPAIRED, 4, 4],
            "OVERLAP",
        ),
        (
            [(INVOKE, 1), (INVOKE, 1), (OK, 1), (INVOKE, 1), (OK, 1)],
            [0, 1, UNPAIRED, 3, UNPAIRED],
            "OVERLAP",
        ),
        ([(INVOKE, 1, 5, 0), (OK, 1, 6, 1)], [0, UNPAIRED], "OTHER_KIND"),
    ],
)
def test_what_breaks_a_rule_is_named_and_harmless(
    rows: list[tuple[Any, ...]], invoke: list[int], rule: str
) -> None:
    """Each rule has its name, and its line; events of other processes are not touched."""
    pairs, slips = judged(*rows, (INVOKE, 7), (OK, 7))
    n = len(rows)
    assert pairs.invoke.tolist() == [*invoke, n, n]
    assert set(slips.counts) == {rule}
    assert all(0 < slip.line <= n for slip in slips.first)
    assert pairs.orphans.tolist() == [rule == "NOT_INVOKED", *[False] * (n + 1)]


def test_times_that_go_back_are_raised() -> None:
    """The order of the lines is the order of events; the first line that went back is named."""
    pairs, slips = judged((INVOKE, 1, 50), (INVOKE, 2, 40), (OK, 1, 60), (OK, 2, 55))
    assert pairs.t.tolist() == [0, 0, 10, 10]
    assert slips.counts == {"TIME_WENT_BACK": 2}
    assert slips.first[0].line == 2
    assert not slips.gaps


@pytest.mark.parametrize("first", [-7, 0, 1, 1_763_720_000_000_000_005])
def test_times_are_told_since_the_first(first: int) -> None:
    """Whatever a clock begins with: the year 1970, the start of a machine, or that of a test."""
    rows = [(INVOKE, 1, first), (OK, 1, first + 4), (INVOKE, 1, UNTIMED), (OK, 1, first + 20)]
    pairs, slips = judged(*rows)
    assert pairs.t.tolist() == [0, 4, 4, 20]
    assert not slips


def test_a_history_without_times_has_its_lines() -> None:
    """Where nobody tells a time, lines are apart, in their order."""
    pairs, slips = judged((INVOKE, 1), (OK, 1), (INVOKE, 1))
    assert not slips
    assert (np.diff(pairs.t) > 0).all()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Type)), st.integers(0, 2), st.integers(-1, 9), st.integers(0, 1)
        ),
        min_size=1,
        max_size=25,
    )
)
def test_no_history_is_too_broken(rows: list[tuple[Any, ...]]) -> None:
    """Whatever order events come in: an operation is one invocation with at most one completion of
    its own process and kind, or a completion that nobody invoked."""
    told = events(*rows)
    pairs, slips = judged(*rows)
    completions: list[int] = []
    for event, invoke in enumerate(pairs.invoke.tolist()):
        if told.type[event] == Type.INVOKE or pairs.orphans[event]:
            assert invoke == event
        elif invoke != UNPAIRED:
            assert told.type[invoke] == Type.INVOKE
            assert told.process[invoke] == told.process[event]
            assert told.f[invoke] == told.f[event]
            assert invoke < event
            completions.append(invoke)
        else:
            assert slips
    assert len(set(completions)) == len(completions)
    assert (np.diff(pairs.t) >= 0).all()
    assert pairs.t[0] >= 0
