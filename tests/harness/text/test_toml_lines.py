"""On which line of a TOML file a value is written, whichever way it is."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from harness.text import toml_lines as places

WAYS = """\
name = "a # no comment, and no [header]"
settings = { haAckTimeoutMs = 500, "odd.key" = [
    1, # one
    [2, { deep = '''
        two = 2
''' }],
] }
load.rate = 5
load.ack.all = true

[rhythm] # how it goes
fault_s = 2.0

[[fault]]
kind = "kill"
when = 1979-05-27 07:32:00.5

[fault.params]
shape = "ring"

[[ fault ]]
params.cut = { broker-1 = ["broker-2"] }
[fault.repeat]
times = 3
[[fault.more]]
x = "]]"
[[fault.more]]
y = \"\"\"=\"\"\"
"""


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (("name",), 1),
        (("settings",), 2),
        (("settings", "haAckTimeoutMs"), 2),
        (("settings", "odd.key"), 2),
        (("settings", "odd.key", 0), 3),
        (("settings", "odd.key", 1), 4),
        (("settings", "odd.key", 1, 1, "deep"), 4),
        (("load",), 8),
        (("load", "rate"), 8),
        (("load", "ack", "all"), 9),
        (("rhythm",), 11),
        (("rhythm", "fault_s"), 12),
        (("fault",), 14),
        (("fault", 0), 14),
        (("fault", 0, "when"), 16),
        (("fault", 0, "params"), 18),
        (("fault", 0, "params", "shape"), 19),
        (("fault", 1), 21),
        (("fault", 1, "params"), 22),
        (("fault", 1, "params", "cut", "broker-1", 0), 22),
        (("fault", 1, "repeat"), 23),
        (("fault", 1, "repeat", "times"), 24),
        (("fault", 1, "more", 0, "x"), 26),
        (("fault", 1, "more", 1), 27),
        (("fault", 1, "more", 1, "y"), 28),
    ],
)
def test_a_value_is_found(path: tuple[str | int, ...], number: int) -> None:
    """Under headers, with dots, inline, and after strings that look like marks."""
    assert places.line_numbers(WAYS)[path] == number


def test_all_is_found_and_nothing_else() -> None:
    """What the reader of TOML reads is what has a place."""
    assert set(places.line_numbers(WAYS)) == set(_paths(tomllib.loads(WAYS)))


def test_what_is_not_there_is_told_with_what_holds_it() -> None:
    """The line of the innermost that is there."""
    assert places.line_suffix(WAYS, "fault", 1, "params", "shape") == " line 22"
    assert places.line_suffix(WAYS, "fault", 0, "target") == " line 14"
    assert places.line_suffix(WAYS, "nowhere") == ""


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    held = dict(enumerate(value)) if isinstance(value, list) else value
    for step, under in held.items() if isinstance(held, dict) else ():
        yield (*path, step)
        yield from _paths(under, (*path, step))


KEYS = st.text("ab-_.[]={}#' ", min_size=1, max_size=5)
LEAVES = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text())
TABLES = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=3)
)


@given(table=st.dictionaries(KEYS, TABLES, max_size=4), multiline=st.booleans())
def test_everything_that_is_written_has_a_place(table: dict[str, Any], multiline: bool) -> None:
    """Whatever it is, and on a line that there is."""
    text = tomli_w.dumps(table, multiline_strings=multiline)
    found = places.line_numbers(text)
    assert set(found) == set(_paths(tomllib.loads(text)))
    assert set(found.values()) <= set(range(1, text.count("\n") + 2))
