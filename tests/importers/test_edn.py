"""EDN is read as it was printed, and what is wrong with a text is said with its place."""

import math
import re
import tracemalloc
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.importers import _edn
from harness.importers._edn import Character, Keyword, Malformed, Set, Symbol, Unreadable

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
    st.characters(exclude_categories=["Cs", "Zs", "Cc"]).map(Character),
    st.sampled_from("\n\t\r \b\f").map(Character),
    st.fractions().filter(lambda f: f.denominator > 1),
    st.decimals(allow_nan=False, allow_infinity=False).map(lambda d: _edn._exact(str(d))),
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
    """White space, commas, comments and dropped forms are not there, nor tags of collections."""
    assert _edn.read(f"{before}{_edn.write(form)} ; end") == form
    tagged = _edn.read(f"#jepsen.history.Op {before}{_edn.write(form)}")
    is_collection = isinstance(form, list | dict)
    assert tagged == (form if is_collection else f"#jepsen.history.Op {_edn.write(form)}")


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
        ("", 1, "no form found"),
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


@pytest.mark.parametrize(
    ("text", "form"),
    [
        *(("0x1f", 31), ("0X1F", 31), ("-0xff", -255), ("0x1fN", 31), ("017", 15), ("+017", 15)),
        *(("2r101", 5), ("36rZ", 35), ("-8r17", -15), ("12N", 12), ("0N", 0), ("00", 0)),
        *(("1/3", Fraction(1, 3)), ("-2/4", Fraction(-1, 2)), ("4/2", 2)),
        *(("1.5M", Decimal("1.5")), ("1.50M", Decimal("1.5")), ("100M", Decimal(100))),
        *(("1e400", math.inf), ("##Inf", math.inf), ("##-Inf", -math.inf), ("-0.0", 0.0)),
        *((r"\space", " "), (r"\formfeed", "\f"), (r"\o101", "A"), (r"\(", "("), ("\\ ", " ")),
        *((r'"\101\f"', "A\f"), ("foo/bar", "foo/bar"), ("clojure.core$fn__1@2f",) * 2),
        *(("a->b", "a->b"), ("true#", "true#"), ("#'user/f", "#'user/f"), ("'quoted", "'quoted")),
        (r'#"a\.\d"', r'#"a\.\d"'),
        ("#<SocketException java.net: closed #<Inner x>>",) * 2,
        ('#uuid "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"', "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
        ('#object[java.net.Socket 0x1f2e "x"]', ["java.net.Socket", 0x1F2E, "x"]),
        ("#:a{:b 1, :_/c 2, :d/e 3}", {"a/b": 1, "c": 2, "d/e": 3}),
        ("#::a{b 1}", {"a/b": 1}),
        ("^:private ^{:a [1]} [1]", [1]),
        ("[1 #_ #_ 2 3 4]", [1, 4]),
        ("[#_ ^:a 1 2]", [2]),
        ("'(1 #?(:clj 2) @(3))", [1, ["clj", 2], [3]]),
        ("[1 ; two\n ;; 3\n #! four\n 5]", [1, 5]),
        ("#{1 1}", [1, 1]),
        ("{:a 1 :a 2}", {"a": 2}),
    ],
)
def test_every_literal_of_clojures_reader_is_read(text: str, form: Any) -> None:
    """Numbers in any base, ratios, decimals, characters, symbols, tags, metadata, conditionals."""
    found = _edn.read(text)
    assert found == form
    assert type(found) is not bool


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{:a 1, :b {:c 2, :d 3}}", "{:b {:d 3, :c 2}, :a 1}"),
        ("#{1 #{2 3} [4]}", "#{[4] 1 #{3 2}}"),
        ("{#{1 2} :a}", "{#{2 1} :a}"),
        ("(1 2)", "[1 2]"),
        ("0x10", "16"),
        ("2/4", "1/2"),
        ("1.50M", "1.5M"),
        ("-0.0", "0.0"),
        ('#inst "2024-05-01T10:00:00Z"', '#inst "2024-05-01T12:00:00.000+02:00"'),
        ("#:n{:a 1}", "{:n/a 1}"),
        ("#{1 1}", "#{1}"),
    ],
)
def test_equal_forms_have_one_text(one: str, other: str) -> None:
    """What Clojure compares equal is one value, however it was printed."""
    assert _edn.canonical(_edn.read(one)) == _edn.canonical(_edn.read(other))


@pytest.mark.parametrize(
    "texts",
    [
        ("1", "1.0", "1M", '"1"', ":1", "true"),
        (r"\a", '"a"', ":a", "a", "[a]", "#{a}"),
        ('{:a 1, "a" 2}', '{:a 2, "a" 1}', "{:a 1}"),
        ("{1 :x, 1.0 :y}", "{1 :y, 1.0 :x}"),
        ("[1 2]", "[2 1]", "#{1 2}"),
        ("{[1] 2}", '{"[1]" 2}'),
    ],
)
def test_different_forms_have_different_texts(texts: tuple[str, ...]) -> None:
    """Words of other types, orders of vectors, keys of maps that Python takes for one."""
    assert len({_edn.canonical(_edn.read(text)) for text in texts}) == len(texts)


@given(data=st.data(), form=forms)
def test_the_order_of_maps_and_sets_is_no_difference(data: st.DataObject, form: Any) -> None:
    """Shuffled at every depth, a form has the same text; and it reads as itself."""
    shuffled = _shuffled(form, data)
    assert _edn.canonical(shuffled) == _edn.canonical(form)
    again = _edn.canonical(_edn.read(_edn.write(shuffled)))
    assert again == _edn.canonical(form)


@pytest.mark.parametrize(
    "word", ["1x2", "08", "1/0", "37r1", r"\nothing", ":", "##Foo", '"\\ud83d"', "9" * 5000]
)
def test_what_can_not_be_read_spoils_nothing_else(word: str) -> None:
    """A lenient reader keeps it as it stands, and a strict one names it."""
    with pytest.raises(Malformed):
        _edn.read(f"{{:a {word} :b 2}}")
    found = _edn.read(f"{{:a [1 {word}] :b 2}}", lenient=True)
    assert found["b"] == 2
    assert found["a"][1] == Unreadable(word)
    assert _edn.unreadable(found) == word


def test_what_is_nested_too_deep_spoils_nothing_else() -> None:
    """Its innermost parts are left out."""
    deep = "[" * 5_000 + "]" * 5_000
    assert _edn.read(f"{{:a {deep} :b 2}}", lenient=True)["b"] == 2


def _shuffled(form: Any, data: st.DataObject) -> Any:
    """A form with its maps and sets in other orders."""
    if isinstance(form, dict):
        pairs = data.draw(st.permutations(list(form.items())))
        return {key: _shuffled(value, data) for key, value in pairs}
    if isinstance(form, Set):
        return Set(data.draw(st.permutations([_shuffled(each, data) for each in form])))
    if isinstance(form, list):
        return [_shuffled(each, data) for each in form]
    return form


def _kinds(form: Any) -> Any:
    if isinstance(form, dict):
        return dict, [(_kinds(k), _kinds(v)) for k, v in form.items()]
    if isinstance(form, list):
        return type(form), [_kinds(each) for each in form]
    assert not (isinstance(form, float) and math.isnan(form))
    return type(form)


def test_a_long_text_takes_no_more_memory_than_a_few_copies() -> None:
    """A regular expression that repeats a group keeps 150 bytes for each repetition."""
    text = '["' + "x" * 1_000_000 + '"]'
    tracemalloc.start()
    try:
        assert len(_edn.read(text)[0]) == 1_000_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000
