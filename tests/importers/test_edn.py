"""EDN is read as it was printed, and what is wrong with a text is said with its place."""

import math
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.importers import _edn
from harness.importers._edn import Keyword, Malformed, Set, Symbol

words = st.from_regex(r"[a-z][a-z0-9*!_?<>=./-]{0,8}", fullmatch=True).filter(
    lambda word: word not in ("nil", "true", "false")
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    words.map(Keyword),
    words.map(Symbol),
)
forms = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(Set),
        st.dictionaries(st.one_of(st.integers(), words.map(Keyword)), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(form=forms)
def test_what_is_printed_is_read(form: Any) -> None:
    """Printing and reading gives the same form, of the same types."""
    again = _edn.read(_edn.write(form))
    assert again == form
    assert _kinds(again) == _kinds(form)


@given(form=forms, before=st.sampled_from(["", " ", ",", "; remark\n", "#_ gone ", "#_{:a [1]} "]))
def test_what_means_nothing_changes_nothing(form: Any, before: str) -> None:
    """White space, commas, comments, dropped forms and tags are not there."""
    assert _edn.read(f"{before}{_edn.write(form)} ; end") == form
    assert _edn.read(f"#jepsen.history.Op {before}{_edn.write(form)}") == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("#jepsen.history.Op{:index 3, :f :read}", {"index": 3, "f": "read"}),
        ("(1 2)", [1, 2]),
        ('#inst "2026-01-01"', "2026-01-01T00:00:00+00:00"),
        ("[1.5 -3 +4 2N 1e3 0.5M]", [1.5, -3, 4, 2, 1000.0, 0.5]),
        (r"[\a \newline \u0041]", ["a", "\n", "A"]),
        (r'"a\"b\n\u0041"', 'a"b\nA'),
        (r'"\ud83d\ude00"', "\U0001f600"),
        ("{[1 2] 3}", {"[1 2]": 3}),
        ("[:r 5 nil]", ["r", 5, None]),
    ],
)
def test_what_clojure_prints(text: str, form: Any) -> None:
    """Shapes that occur in histories."""
    assert _edn.read(text) == form


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("{:a 1", 1, "never closed"),
        ("[1 2}", 5, "} closes nothing; [ at column 1 is open"),
        ("1]", 2, "] closes nothing"),
        ("{:a 1 :b}", 9, "a key without a value"),
        ('{:a "x', 5, "a string is never closed"),
        ("{:a 1x2}", 5, "1x2 is no number"),
        ("[1] [2]", 1, "more than one form"),
        ("", 1, "nothing is there"),
        (r'[1 "\ud83d"]', 4, "half of a character"),
        ("[: 1]", 2, "a keyword has no name"),
        ("[" * 300, 201, "nested deeper than 200"),
    ],
)
def test_what_is_wrong_is_said_with_its_column(text: str, column: int, what: str) -> None:
    """A broken text names the first character that can not be."""
    with pytest.raises(Malformed) as raised:
        _edn.read(text)
    assert raised.value.at + 1 == column
    assert what in raised.value.message


@given(text=st.text(st.sampled_from('[]{}()#"\\:;, \n1a-_.'), max_size=30))
def test_no_text_is_too_odd(text: str) -> None:
    """Whatever a file holds, it is read or Malformed, and nothing else."""
    with suppress(Malformed):
        _edn.read(text)


vectors = st.recursive(
    st.one_of(
        st.integers(-5, 10**20).map(str),
        st.sampled_from(
            ["nil", "null", "NaN", "Infinity", "007", "-0", "1.5", "1e5", "5N", ":r", ":x", "true"]
        ),
    ),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda some: f"[{' '.join(some)}]")
        | st.lists(inner, max_size=3).map(lambda some: f"[:r {', '.join(some)}]")
        | st.lists(inner, max_size=3).map(lambda some: f"[:rest  {' '.join(some)}]")
    ),
    max_leaves=12,
)


@given(text=vectors)
def test_the_quick_reader_of_vectors_means_the_same(text: str) -> None:
    """Whatever JSON's reader takes over, it is what the reader reads, of the same types."""
    quick, slow = _edn.read_vectors(text, re.compile(r"\[:(r)(?=[ \]])")), _edn.read(text)
    assert quick == slow
    assert repr(quick) == repr(slow)


def test_the_forms_of_a_collection_come_one_by_one() -> None:
    """A vector of maps is handed out map by map, each with its end."""
    text = "[{:a 1}\n {:a 2}]"
    assert list(_edn.forms_in(text, inside=True)) == [(7, {"a": 1}), (15, {"a": 2})]


def _kinds(form: Any) -> Any:
    if isinstance(form, dict):
        return dict, [(_kinds(k), _kinds(v)) for k, v in form.items()]
    if isinstance(form, list):
        return type(form), [_kinds(each) for each in form]
    assert not (isinstance(form, float) and math.isnan(form))
    return type(form)
