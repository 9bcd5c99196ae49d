"""Events decoded together have the parts that each of them has when it is decoded alone."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.importers import _edn, _jepsen, porcupine
from harness.importers._jepsen import DecodedPiece, Format, OperationLines, decode_rows
from harness.importers._recording import Slips, concatenated
from harness.importers.jepsen import FORMATS
from harness.importers.porcupine import KEY_VALUE
from harness.operation import Type

TEXTS = ["nil", None, '"a"', '""', '"b c"', '"\\"q\\""', "3", "[1 2]", "[1 [2 3]]", "{1 2 3}", "0"]
KEYS = ['"k"', '"4"', '"\\\\"', "7", "nil", None, "[1]"]
KINDS = (Type.INVOKE, Type.OK, Type.FAIL, Type.INFO)
event = st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 2))
events = st.lists(
    st.tuples(event, st.sampled_from(TEXTS), st.sampled_from(KEYS)), min_size=1, max_size=30
)
Drawn = list[tuple[tuple[Type, int, int], str | None, str | None]]


def _lines(form: Format, some: Drawn) -> OperationLines:
    heads, *texts = zip(*some, strict=True)
    kind, f, error = (np.array(each, np.int64) for each in zip(*heads, strict=True))
    value, beside = (
        pa.array([None if text is None else text.encode() for text in column], pa.binary())
        for column in texts
    )
    line = np.arange(5, 5 + len(some))
    return OperationLines(line, kind, f % len(form.names), form.names, value, error, beside)


def _alone(form: Format, lines: OperationLines, slips: Slips) -> DecodedPiece:
    """Decode each event by itself."""
    with pytest.MonkeyPatch.context() as patch:
        every = np.arange(len(lines))
        patch.setattr(_jepsen, "_different", lambda lines: (every, every))
        return decode_rows(form, lines, slips)


def _same(found: DecodedPiece, expected: DecodedPiece, fast: Slips, slow: Slips) -> None:
    assert concatenated([found.parts], [0]).equals(concatenated([expected.parts], [0]))
    assert found.votes == expected.votes
    assert (fast.counts, fast.first) == (slow.counts, slow.first)


@settings(max_examples=200)
@given(some=events, again=st.integers(1, 4), name=st.sampled_from(["jepsen-register", "kv"]))
def test_like_events_have_like_parts(some: Drawn, again: int, name: str) -> None:
    """An event that is like an earlier one has its parts, and its slip on its own line."""
    form = replace(KEY_VALUE, columns=None) if name == "kv" else FORMATS[name]
    lines = _lines(form, some * again)
    fast, slow = Slips(), Slips()
    _same(decode_rows(form, lines, fast), _alone(form, lines, slow), fast, slow)


def test_like_events_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader reads each of their texts once."""
    read: list[str] = []
    monkeypatch.setattr(_edn, "read_vectors", lambda text, heads=None: read.append(text))
    head = (Type.OK, 0, 0)
    some: Drawn = [(head, "[1 2]", None), (head, "[3 4]", None)]
    decode_rows(FORMATS["jepsen-register"], _lines(FORMATS["jepsen-register"], some * 50), Slips())
    assert read == ["[1 2]", "[3 4]"]


@settings(max_examples=200)
@given(some=events)
def test_plain_texts_of_keys_and_values(some: Drawn) -> None:
    """Key-value histories as columns have the parts that the reader finds."""
    lines = _lines(KEY_VALUE, some)
    fast, slow = Slips(), Slips()
    _same(porcupine.decode(lines, fast), _alone(KEY_VALUE, lines, slow), fast, slow)


words = st.sampled_from(["", "3", "jepsen.util - ", "jepsen.util - :info", "a\r", "é"])
ends = st.sampled_from(["[1 4]", "nil", ":timed-out", "", "é", "a\x1fb", "x ", "\t7\r", '"s"'])
log_line = st.builds(
    "{}jepsen.util - {}{}{}{}{}".format,
    st.sampled_from(["INFO  ", "", "j ", "jepsen.util - 1\t:ok\t:read\t3 ", "é ", "WARN"]),
    st.sampled_from(["0", "7", ":nemesis", "1234567890"]),
    st.sampled_from(["\t", "  ", " "]),
    st.sampled_from([":invoke", ":ok", ":fail", ":info", ":okay"]),
    st.sampled_from(["\t:cas\t", " :read ", "\t:write\t", "\t:dance\t", "\t:read"]),
    ends,
)


@example(lines=["jepsen.util - 1\t:ok\t:read\t3 jepsen.util - :nemesis  :info :read 4"])
@settings(max_examples=200)
@given(lines=st.lists(log_line | words, min_size=1, max_size=12))
def test_lines_of_logs(lines: list[str]) -> None:
    """Lines of Porcupine's logs as columns are what they are one by one."""
    fast, slow = Slips(), Slips()
    found = porcupine._columns("\n".join(lines), 3, fast)
    expected = porcupine._one_by_one(lines, range(3, 3 + len(lines)), slow)
    assert found.to_pylist() == expected.to_pylist()
    assert (fast.counts, fast.first) == (slow.counts, slow.first)
    assert found.num_rows <= len(lines)
