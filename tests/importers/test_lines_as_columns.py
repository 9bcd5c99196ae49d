"""Reading thousands of lines at once means the same as reading them one by one.

The readers of EDN and JSON are the judge: whatever a line looks like, the compiled scanner, or
taking it apart at its colons, finds what they find, or leaves it to them.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.importers import _edn, _lines, jepsen_kafka
from harness.importers._jepsen import OperationLines, read_piece
from harness.importers._lines import columns_of, columns_of_forms, text_at
from harness.importers._recording import Slips
from harness.importers.jepsen_kafka import FORMAT, common_shapes, decode, one_by_one

NAMES, LOG = FORMAT.names, FORMAT.beside


@contextmanager
def _reading(*, compiled: bool) -> Iterator[None]:
    """All pieces are scanned, however small; or none is, although the scanner was loaded."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (_lines, jepsen_kafka):
            patch.setattr(module, "is_worth_compiling", lambda size_bytes=0: compiled)
        patch.setattr(_lines, "FEW_LINES", 0)
        yield


@pytest.fixture(autouse=True, scope="module")
def scanned() -> Iterator[None]:
    with _reading(compiled=True):
        yield


both_ways = pytest.mark.parametrize("compiled", [True, False], ids=["scanned", "apart"])


WORDS = ["empty", "EMPTY", "a:b", "null", "é", 'a"b', "tab\t", "send", ":poll", "3", ""]
numbers = st.integers(0, 10**18 - 1) | st.integers(0, 99)
keys = st.integers(0, 30)
messages = st.lists(st.tuples(numbers, numbers), max_size=4)


def _poll(found: list[tuple[int, list[tuple[int, int]]]]) -> str:
    inner = [f"{k} [{' '.join(f'[{o} {v}]' for o, v in some)}]" for k, some in found]
    return f"[[:poll {{{', '.join(inner)}}}]]"


values = st.one_of(
    st.builds("[[:send {} {}]]".format, keys, numbers),
    st.builds("[[:send {} [{} {}]]]".format, keys, numbers, numbers),
    st.builds("[[:send {} [nil {}]]]".format, keys, numbers),
    st.builds("[[:send {} [-1 {}]]]".format, keys, numbers),
    st.builds(_poll, st.lists(st.tuples(keys, messages), max_size=3, unique_by=lambda p: p[0])),
    st.builds("[[:send {} {}] [:poll {{{} [[{} {}]]}}]]".format, keys, numbers, keys, keys, keys),
    st.builds("[[:poll {{{} [[{}  {}]]}}]]".format, keys, keys, keys),
    st.builds("[[:poll {{{} [[{} {}]] {} [[1 2]]}}]]".format, keys, keys, keys, st.just(31)),
    st.builds('[[:send "k{}" {}]]'.format, keys, numbers),
    st.just("[[:send 1 2]"),
    st.sampled_from(
        [
            "[[:poll]]",
            "[[:poll {}]]",
            "nil",
            "7",
            "[[:poll {3 [[1 2] [3]]}]]",
            "[[:poll {3 [[1 2]]]]",
            "[[:poll {3 [[1 2] 4 [[5 6]]}]]",
            "[[:send 1 [2 3] ]]",
            '[["send" "1" [2 3]] [:poll {"4" [[0 17]] 5 []}]]',
            "[[:poll {3 [[1 2]] 3 [[4 5]]}] [:send 1 2]]",
            "[[:poll {7 [[1 2]] 3 [[4 5]] 7 [[6 7]]}]]",
            "[[:poll nil]]",
            "[[:sendx 1 2]]",
            "[[:send 01 2]]",
            "[[:send 1 2] [:dance 3]]",
            "#{1 2}",
            '[#inst "2020-01-01T00:00:00Z" #foo [1]]',
            '"a ] } \\" [ b"',
            '"[[:send 1 2"',
            '"a :b"',
            '["f(x): y" {"k" "~"}]',
            '["a [" 1 "] b"]',
            '["a" "b]',
            '[[:send "k" "v"] [:send "k" ["v" "w"]]]',
            "[1 #_ 2 ^:x 3]",
            "(1\t2)",
            "{1 2 3}",
            "[ ; remark",
            "3 4",
            "[(]",
            "[[:send 1 2 3]]",
            "[[:poll {3 [[12345678901234567890 1]]}]]",
            "[:poll 3]",
        ]
    ),
)
fields = st.fixed_dictionaries(
    {
        "type": st.sampled_from([":invoke", ":ok", ":fail", ":info"])
        | st.sampled_from([":okay", "ok", '"ok"', "::ok", ":OK", "[:ok]"]),
        "process": st.integers(0, 40).map(str)
        | st.sampled_from([":nemesis", "-3", "99999999999", "2147483648", "007", "1.0", '"p1"']),
        "f": st.sampled_from([":send", ":poll", ":txn", ":dance"])
        | st.sampled_from(["::send", '"poll"', "send", "[:send]", "nil", ":"]),
        "value": values,
        "time": st.integers(0, 10**15).map(str) | st.sampled_from(["-5", "1.5", "nil", "12N"]),
    },
    optional={
        "index": st.integers(0, 10**6).map(str),
        "error": st.sampled_from(
            [
                ":not-leader",
                ":nil",
                "nil",
                " nil",
                "nil,",
                "nilly",
                '"a \\" b"',
                '"empty"',
                '":empty"',
                '"::empty"',
                '"queue :empty"',
                '"f(x): 3 > 2"',
                '[":no-more" "a"]',
                '["exhausted"]',
                '"empty" "a"',
                ":EMPTY",
                "::queue_empty",
                "nothing",
                '["Drained" 3]',
                "( :no-more)",
                "[[:empty]]",
                "#{:empty}",
                "[]",
                "{:empty 1}",
                "\\a",
                "[:timeout 5]",
                "{:a :b}",
                "7",
            ]
        ),
        "node": st.sampled_from(
            ["n1", ":n2", "1x", '"n"', '"n', '"n :f"', "n1 n2", "#{", "#_", ":type"]
        ),
        "rebalance-log": st.sampled_from(["[{:keys [1 2]}]", "nil", "[{]"]),
    },
)
orders = st.permutations(["index", "type", "process", "f", "value", "time", "error", "node", LOG])


COMMON = {
    "type": st.sampled_from([":invoke", ":ok", ":fail", ":info"]),
    "process": st.integers(0, 40).map(str),
    "f": st.sampled_from([":send", ":poll"]),
    "value": st.sampled_from(["[[:poll]]", "[[:send 1 2]]", "nil"]),
    "time": st.integers(0, 10**15).map(str),
}


@st.composite
def histories(draw: st.DrawFn) -> bytes:
    """Many lines of a few orders of keys, as one test prints them, of which each is odd in at most
    one respect, and some of no order at all."""
    order = draw(st.lists(orders, min_size=1, max_size=2))
    respects = [*COMMON, "error", "node", LOG, "prefix", "end", "again"]
    lines = []
    for respect in draw(st.lists(st.sampled_from(respects), min_size=1, max_size=12)):
        some = draw(st.fixed_dictionaries(COMMON))
        some |= {key: value for key, value in draw(fields).items() if key == respect}
        keys_in_order = [key for key in draw(st.sampled_from(order)) if key in some]
        text = ", ".join(f":{key} {some[key]}" for key in keys_in_order)
        prefix = end = again = ""
        if respect == "prefix":
            prefix = draw(st.sampled_from(["#jepsen.history.Op", " #:a", "#_", "^:x ", "#op "]))
        elif respect == "end":
            end = draw(st.sampled_from(["\r", " ; remark", " {:type :ok}", "]", "  "]))
        elif respect == "again":
            again = draw(st.sampled_from([", :type :ok", " :node nil", ", :process 3"]))
        lines.append(f"{prefix}{{{text}{again}}}{end}")
    odd = st.sampled_from(["", "  ", "; remark", "{:type :ok", "[]", "{:a 1}", "\ufffd", "{}\r"])
    lines += draw(st.lists(odd, max_size=2))
    lines *= draw(st.integers(1, 20))  # so that it pays to take them as columns
    draw(st.randoms(use_true_random=False)).shuffle(lines)
    return ("\n".join(lines) + draw(st.sampled_from(["", "\n"]))).encode()


def _one_by_one(data: bytes, slips: Slips) -> pa.RecordBatch:
    lines = data.split(b"\n")
    return _lines._one_by_one(lines, range(1, 1 + len(lines)), NAMES, slips, LOG)


def _rows(heads: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [
        (
            *(row[name] for name in ("line", "type", "process", "f", "time", "error")),
            *(_meaning(text_at(heads[name], i) or "nil") for name in ("value", "beside")),
            *(row["name"], row["actor"]),
        )
        for i, row in enumerate(heads.to_pylist())
    ]


def _meaning(text: str) -> Any:
    try:
        return repr(_edn.read(text, lenient=True))
    except _edn.Malformed as e:  # a map of three: decoders read, and refuse, both texts alike
        return e.message


@both_ways
@settings(max_examples=200)
@given(data=histories())
def test_fields_are_those_that_the_reader_finds(data: bytes, compiled: bool) -> None:
    """Lines read as columns have the fields that the reader finds in them, and the same slips."""
    _compare_lines(data, compiled=compiled)


def _compare_lines(data: bytes, *, compiled: bool) -> None:
    fast, slow = Slips(), Slips()
    with _reading(compiled=compiled):
        found = _rows(columns_of(data, 1, NAMES, fast, LOG))
    assert found == _rows(_one_by_one(data, slow))
    assert (fast.counts, fast.first) == (slow.counts, slow.first)


TOKENS = ['"', "[", "]", "{", "}", "(", ")", " ", " :", "\\", ";", "#", "~", "1", "a", '"a"']
LONGER = ['["a [" 1) "] b"]', '["a ]" 1) "[ b"]', '"a" [1] "b"', '["a" [1 "b"] {"c" "d"}]']
LONGER += ['"empty"', '":empty"', '"::empty"', '["Queue_Empty" 1]', '[":drained"]', '[["empty"]]']


@both_ways
@pytest.mark.parametrize("key", ["value", "error", LOG])
def test_odd_texts_among_sound_ones_mean_what_the_reader_finds(key: str, compiled: bool) -> None:
    """Every text of up to three tokens, in lines that are alike but for it."""
    some = ["1", *LONGER, *map("".join, product(TOKENS, repeat=2))]
    some += map("".join, product(TOKENS, repeat=3))
    line = "{{:type :fail, :process 2, :f :send, :{} {}, :time 12}}"
    _compare_lines("\n".join(line.format(key, text) for text in some).encode(), compiled=compiled)


as_json = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**18) | st.sampled_from(WORDS) | st.floats(0, 9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["1", "b", ""]), inner, max_size=2)
    ),
    max_leaves=6,
)
FIELDS = {
    "type": st.sampled_from(["invoke", "ok", "fail", "info", ":ok", "okay", 3]),
    "process": st.integers(0, 9) | st.sampled_from(["nemesis", None, 2**31, 1.0]),
    "f": st.sampled_from(["send", "poll", ":send", "", "dance", None]),
    "value": as_json,
    "time": st.integers(0, 10**12) | st.sampled_from([1.5, None, -1]),
}
OPTIONAL = {"error": as_json, LOG: as_json, "node": as_json}
objects = st.fixed_dictionaries(FIELDS, optional=OPTIONAL)
between_forms = st.sampled_from(["\n", ",\n", " ", "\r\n"])
odd_forms = st.sampled_from(
    ["{", "[]", '{"a" 1}', '{"type": "ok",}', '{"type": nul}', "\n", "1", '{"a": 01}', "]"]
)


@st.composite
def json_histories(draw: st.DrawFn) -> str:
    """Objects one on a line, over several lines, or in an array; some texts of no form."""
    some = draw(st.lists(objects, min_size=1, max_size=9))
    indent = draw(st.sampled_from([None, None, 1]))
    between = draw(between_forms)
    texts = [json.dumps(each, indent=indent, ensure_ascii=draw(st.booleans())) for each in some]
    at = draw(st.integers(1, len(texts)))
    texts[at:at] = draw(st.lists(odd_forms, max_size=2))
    text = between.join(texts)
    return f"[\n{text}]\n" if draw(st.booleans()) else text


SOUND: dict[str, Any] = {"type": "ok", "process": 0, "f": "send", "value": [["send", 1, 2]]}
LAYOUTS = ("indent", "between", "array", "form")


@st.composite
def json_histories_odd_once(draw: st.DrawFn) -> str:
    """Sound objects, one on a line; one field of one of them is odd, or the layout of all."""
    respect = draw(st.sampled_from([*FIELDS, *OPTIONAL, *LAYOUTS]))
    some = [SOUND | {"time": n} for n in range(draw(st.integers(1, 4)))]
    at = draw(st.integers(0, len(some) - 1))
    if respect not in LAYOUTS:
        some[at] |= {respect: draw((FIELDS | OPTIONAL)[respect])}
    indent = 1 if respect == "indent" else None
    texts = [json.dumps(each, indent=indent, ensure_ascii=False) for each in some]
    if respect == "form":
        texts.insert(at + 1, draw(odd_forms))
    text = (draw(between_forms) if respect == "between" else "\n").join(texts)
    return f"[\n{text}]\n" if respect == "array" else text


@settings(max_examples=150)
@given(text=json_histories_odd_once())
def test_objects_with_one_odd_field_are_those_that_the_reader_finds(text: str) -> None:
    """Alone, an odd field shows itself: no other one leaves the object to the reader."""
    _compare_objects(text)


@settings(max_examples=200)
@given(text=json_histories())
def test_objects_are_those_that_the_reader_finds(text: str) -> None:
    """Scanned objects of JSON have the fields, lines and slips that Python's reader finds."""
    _compare_objects(text)


def _compare_objects(text: str) -> None:
    data = text.encode()
    fast, slow = Slips(), Slips()
    found = _rows(columns_of_forms(data, NAMES, fast, LOG))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_lines, "is_worth_compiling", lambda size_bytes: False)
        expected = _rows(columns_of_forms(data, NAMES, slow, LOG))
    assert found == expected
    assert (fast.counts, fast.first) == (slow.counts, slow.first)


@both_ways
@settings(max_examples=150)
@given(texts=st.lists(values, min_size=1, max_size=30), kind=st.integers(0, 3))
@example(texts=["[[:poll {7 [[1 2]], 3 [[4 5]], 7 [[6 7]]}]]"], kind=1)
def test_parts_are_those_that_the_reader_finds(texts: list[str], kind: int, compiled: bool) -> None:
    """Numbers found among bytes are the messages that the reader finds."""
    with _reading(compiled=compiled):
        _compare_parts(texts, kind)


# as EDN and JSON write them
MICROS = [
    *("[:send 4 17]", "[:poll]", "[:poll {4 [[0 17]]}]"),
    *('["send" "4", [0, 17]]', '["poll" {"4" [[0,17] [1,18]] "5" []}]'),
]
PART = re.compile(r'"\w+"|:?\w+|.')
ODD_PARTS = [
    *("", " ", "[", "]", "{", "}", ":", '"', "(", "#", ";", "\\", "nil", "null", "-1", "01", "1.5"),
    *("7", '"7"', '"07"', '"-7"', '"7', "7N", ":7", "1000000000000000000", "12345678901234567890"),
    *(
        '"4"',
        ":sendx",
        ":sen",
        '"sendx"',
        '"sendx',
        '"send',
        ":txn",
        "send",
        "[]",
        "{}",
        "[1]",
        "4 4",
        "5",
    ),
]


@both_ways
@pytest.mark.parametrize("micro", MICROS)
@pytest.mark.parametrize("after", ["", " [:send 5 18]"])
def test_a_value_with_one_odd_part_means_what_the_reader_finds(
    micro: str, after: str, compiled: bool
) -> None:
    """Each part of it is replaced by each odd one in turn, and written twice: no other one leaves
    the value to the reader."""
    parts = PART.findall(f"[{micro}{after}]")
    for at, part in enumerate(parts):
        texts = ["".join([*parts[:at], odd, *parts[at + 1 :]]) for odd in (*ODD_PARTS, part * 2)]
        with _reading(compiled=compiled):
            for text in texts:
                _compare_parts([text], kind=1)


def test_these_values_are_common_but_for_the_odd_part() -> None:
    """Without it no value is left to the reader."""
    texts = [f"[{one} {other}]" for one in MICROS for other in ("", *MICROS)]
    _, rest = common_shapes(_operations(texts, kind=1))
    assert not len(rest)


def _compare_parts(texts: list[str], kind: int) -> None:
    lines = _operations(texts, kind)
    fast, slow = Slips(), Slips()
    found = decode(lines, fast)
    expected, _ = one_by_one(lines, np.arange(len(texts)), slow)
    assert _as_text(found.parts) == _as_text(expected), texts
    assert fast.counts == slow.counts, texts


def _operations(texts: list[str], kind: int) -> OperationLines:
    n = len(texts)
    return OperationLines(
        np.arange(1, n + 1),
        np.full(n, kind),
        np.zeros(n, np.int64),
        NAMES,
        pa.array([text.encode() for text in texts], pa.binary()),
        np.zeros(n, np.int64),
        pa.nulls(n, pa.binary()),
    )


def _as_text(parts: pa.Table) -> list[dict[str, Any]]:
    rows = parts.to_pylist()
    return [{k: str(v) if k in ("key", "value") else v for k, v in r.items()} for r in rows]


@both_ways
def test_common_shapes_are_left_to_nobody(compiled: bool) -> None:
    """Lines of the shapes that fill a history never go through the reader: it is the slow way."""
    common = [
        "[[:send 4 17]]",
        "[[:send 4 [0 17]]]",
        "[[:poll]]",
        "[[:poll {}]]",
        "[[:poll {4 [[0 17]]}]]",
        "[[:poll {4 [[0 17] [1 18] [2 19]], 5 [[7 1]], 11 [[8 1] [9 2]]}]]",
    ]
    head = "{{:index 3, :type :ok, :process 2, :f :send, :value {}, :time 12}}\n"
    data = "".join(head.format(value) for value in common * 20).encode()
    slips = Slips()
    with _reading(compiled=compiled):
        heads = columns_of(data, 1, NAMES, slips, LOG)
        line, kind, f, error = (heads[name].to_numpy() for name in ("line", "type", "f", "error"))
        lines = OperationLines(line, kind, f, NAMES, heads["value"], error, heads["beside"])
        parts, rest = common_shapes(lines)
    assert not len(rest)
    assert parts.num_rows == 20 * (1 + 1 + 1 + 1 + 2 + 7)


@both_ways
@pytest.mark.parametrize(
    "fields",
    [
        ':value "a text"',
        ':value ["k" "v"]',
        ':value [[:send "k" {"a" [1 2]}]]',
        ':value nil, :error "refused: 127.0.0.1 (closed)"',
        ':value nil, :error ["empty" 3], :node "n1"',
    ],
)
def test_lines_with_texts_are_left_to_nobody(
    fields: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their reader is never needed."""
    left: list[bytes] = []
    reader = _lines._one_by_one

    def noted(raw: list[bytes], *more: Any) -> pa.RecordBatch:
        left.extend(each for each in raw if each)
        return reader(raw, *more)

    monkeypatch.setattr(_lines, "_one_by_one", noted)
    line = f"{{:type :fail, :process 2, :f :send, {fields}, :time 12}}\n".encode()
    with _reading(compiled=compiled):
        found = columns_of(line * 20, 1, NAMES, Slips(), LOG)
    assert found.num_rows == 20
    assert not left


def test_a_piece_says_where_it_is_in_the_file() -> None:
    """Lines are numbered from the piece's first one."""
    line = b"{:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 12}\n"
    piece = read_piece(FORMAT, 101, line * 200)
    assert piece.events.line.tolist() == list(range(101, 301))
    assert piece.decoded.parts.num_rows == 200
