"""Reading thousands of lines at once means the same as reading them one by one.

The reader of `edn` is the judge: whatever a line looks like, taking it apart by its colons, or
finding the numbers of a poll among its bytes, gives what the reader gives, or leaves it to it.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.importers import _lines
from harness.importers._jepsen import OperationLines, read_piece
from harness.importers._lines import columns_of, text_at
from harness.importers._recording import Slips
from harness.importers.jepsen_kafka import FORMAT, common_shapes, decode, one_by_one

NAMES, LOG = FORMAT.names, FORMAT.beside
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
            "[[:send 1 2 3]]",
            "[[:poll {3 [[12345678901234567890 1]]}]]",
            "[:poll 3]",
        ]
    ),
)
fields = st.fixed_dictionaries(
    {
        "type": st.sampled_from([":invoke", ":ok", ":fail", ":info", ":okay"]),
        "process": st.integers(0, 40).map(str) | st.sampled_from([":nemesis", "-3", "99999999999"]),
        "f": st.sampled_from([":send", ":poll", ":txn", ":dance"]),
        "value": values,
        "time": st.integers(0, 10**15).map(str) | st.just("-5"),
    },
    optional={
        "index": st.integers(0, 10**6).map(str),
        "error": st.sampled_from(
            [
                ":not-leader",
                "nil",
                " nil",
                "nil,",
                "nilly",
                '"a \\" b"',
                "[:timeout 5]",
                "{:a :b}",
                "7",
            ]
        ),
        "node": st.sampled_from(["n1", ":n2"]),
    },
)
orders = st.permutations(["index", "type", "process", "f", "value", "time", "error", "node"])


@st.composite
def histories(draw: st.DrawFn) -> bytes:
    """Many lines of a few orders of keys, as one test prints them, and some of no order at all."""
    order = draw(st.lists(orders, min_size=1, max_size=2))
    prefix = draw(st.sampled_from(["", "", "#jepsen.history.Op"]))
    lines = []
    for some in draw(st.lists(fields, min_size=1, max_size=12)):
        keys_in_order = [key for key in draw(st.sampled_from(order)) if key in some]
        text = ", ".join(f":{key} {some[key]}" for key in keys_in_order)
        lines.append(f"{prefix}{{{text}}}")
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
            _meaning(text_at(heads["value"], i) or "nil"),
            *(row["beside"], row["name"]),
        )
        for i, row in enumerate(heads.to_pylist())
    ]


def _meaning(text: str) -> Any:
    try:
        return repr(_lines._edn.read(text))
    except _lines._edn.Malformed:
        return text


@settings(max_examples=150)
@given(data=histories())
def test_fields_are_those_that_the_reader_finds(data: bytes) -> None:
    """Lines taken apart by their colons have the fields that the reader finds in them.

    A value that is no EDN is met later by a decoder; so a line with one may have come through.
    """
    fast, slow = Slips(), Slips()
    found, expected = _rows(columns_of(data, 1, NAMES, fast, LOG)), _rows(_one_by_one(data, slow))
    known = {row[0] for row in expected}
    assert [row for row in found if row[0] in known] == expected
    more = [row for row in found if row[0] not in known]
    assert fast.counts["NOT_EDN"] + len(more) == slow.counts["NOT_EDN"]
    assert {name: n for name, n in fast.counts.items() if name != "NOT_EDN"} == {
        name: n for name, n in slow.counts.items() if name != "NOT_EDN"
    }


@settings(max_examples=150)
@given(texts=st.lists(values, min_size=1, max_size=30), kind=st.integers(0, 3))
def test_parts_are_those_that_the_reader_finds(texts: list[str], kind: int) -> None:
    """Numbers found among bytes are the messages that the reader finds."""
    n = len(texts)
    lines = OperationLines(
        np.arange(1, n + 1),
        np.full(n, kind),
        np.zeros(n, np.int64),
        NAMES,
        pa.array([text.encode() for text in texts], pa.binary()),
        np.zeros(n, np.int64),
        pa.nulls(n, pa.binary()),
    )
    fast, slow = Slips(), Slips()
    found = decode(lines, fast)
    expected, _ = one_by_one(lines, np.arange(n), slow)
    assert _as_text(found.parts) == _as_text(expected)
    assert fast.counts == slow.counts


def _as_text(parts: pa.Table) -> list[dict[str, Any]]:
    rows = parts.to_pylist()
    return [{k: str(v) if k in ("key", "value") else v for k, v in r.items()} for r in rows]


def test_common_shapes_are_left_to_nobody() -> None:
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
    heads = columns_of(data, 1, NAMES, slips, LOG)
    line, kind, f, error = (heads[name].to_numpy() for name in ("line", "type", "f", "error"))
    lines = OperationLines(line, kind, f, NAMES, heads["value"], error, heads["beside"])
    parts, rest = common_shapes(lines)
    assert not len(rest)
    assert parts.num_rows == 20 * (1 + 1 + 1 + 1 + 2 + 7)


def test_a_piece_says_where_it_is_in_the_file() -> None:
    """Lines are numbered from the piece's first one."""
    line = b"{:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 12}\n"
    piece = read_piece(FORMAT, 101, line * 200)
    assert piece.events.line.tolist() == list(range(101, 301))
    assert piece.decoded.parts.num_rows == 200
