"""The common shapes of Jepsen's kafka values, for whole columns at once.

    [[:send k v]]  [[:send k [offset v]]]  [[:poll]]  [[:poll {k [[offset v] ...], ...}]]

with whole numbers throughout. Expressions say which values have such a shape, exactly; after that
only the numbers of a poll have to be found among its bytes, and told apart: a key is what a
bracket follows, all others are offsets and values in turn.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.importers._jepsen import Lines
from harness.importers._recording import PARTS, SAME, Bools, Ints
from harness.operation import F, Type

_N = r"\d{1,18}"
_SEND = rf"^\[\[:send (?P<key>{_N}) (?P<value>{_N})\]\]$"
_SENT = rf"^\[\[:send (?P<key>{_N}) \[(?P<offset>{_N}) (?P<value>{_N})\]\]\]$"
_BARE = pa.array(["[[:poll]]", "[[:poll {}]]"], pa.large_string())
_PAIRS = rf"{_N} \[\[{_N} {_N}\](?: \[{_N} {_N}\])*\]"
_POLLED = rf"^\[\[:poll \{{{_PAIRS}(?:, {_PAIRS})*\}}\]\]$"
ZERO, NINE, SPACE = 48, 57, 32


@dataclass(frozen=True)
class _Some:
    """Parts of some events."""

    event: Ints
    f: F
    key: Ints | None = None
    value: Ints | None = None
    offset: Ints | None = None
    pos: Ints | None = None

    def table(self) -> pa.Table:
        n = len(self.event)
        kind = SAME if self.pos is None else Type.OK
        columns = {
            "event": self.event,
            "f": np.full(n, self.f),
            "type": np.full(n, kind),
            "key": self.key,
            "value": self.value,
            "offset": self.offset,
            "pos": self.pos,
        }
        return pa.table({name: _column(columns.get(name), n, PARTS[name]) for name in PARTS})


def columns(lines: Lines) -> tuple[pa.Table, Ints]:
    """The parts of all events whose values have a common shape, in order; and the other events."""
    value = lines.value.fill_null("nil")
    operations = pc.is_in(lines.f, value_set=pa.array(["send", "poll", "txn"], pa.large_string()))
    left = operations.to_numpy(zero_copy_only=False)
    found: list[_Some] = []
    for expression in (_SEND, _SENT):
        left = _sends(value, left, expression, found)
    bare = left & pc.is_in(value, value_set=_BARE).to_numpy(zero_copy_only=False)
    found.append(_Some(np.flatnonzero(bare), F.POLL))
    left &= ~bare
    at = np.flatnonzero(left)
    polls = value.take(pa.array(at))
    fits = pc.match_substring_regex(polls, _POLLED).to_numpy(zero_copy_only=False)
    polled = at[fits]
    found += [_messages(polls.filter(pa.array(fits)), polled), _Some(polled, F.POLL)]
    covered = np.zeros(len(lines), np.bool_)
    for some in found:
        covered[some.event] = True
    table = pa.concat_tables([some.table() for some in found])
    order = np.argsort(table.column("event").to_numpy(), kind="stable")
    return table.take(pa.array(order)).combine_chunks(), np.flatnonzero(~covered)


def _sends(value: pa.Array, left: Bools, expression: str, found: list[_Some]) -> Bools:
    """Adds the sends that the expression describes; what is left then."""
    at = np.flatnonzero(left)
    got = pc.extract_regex(value.take(pa.array(at)), expression)
    fits = got.is_valid().to_numpy(zero_copy_only=False)
    got = got.filter(pa.array(fits))
    names = [field.name for field in got.type]
    numbers = {name: got.field(name).cast(pa.int64()).to_numpy() for name in names}
    found.append(_Some(at[fits], F.SEND, **numbers))
    rest = left.copy()
    rest[at[fits]] = False
    return rest


def _messages(polls: pa.Array, events: Ints) -> _Some:
    """The messages of polls that have the common shape."""
    if not len(polls):
        nothing = np.zeros(0, np.int64)
        return _Some(nothing, F.POLL, nothing, nothing, nothing, nothing)
    offsets = np.frombuffer(polls.buffers()[1], np.int64)[polls.offset :][: len(polls) + 1]
    text = np.frombuffer(polls.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    starts, ends = _runs((text >= ZERO) & (text <= NINE))
    numbers = _numbers(text, starts, ends)
    is_key = (text[ends] == SPACE) & (text[ends + 1] == ord("["))
    keys, pairs = numbers[is_key], numbers[~is_key]
    key = keys[np.cumsum(is_key)[~is_key][0::2] - 1]
    owner = np.searchsorted(offsets - offsets[0], starts[~is_key][0::2], side="right") - 1
    heads = np.flatnonzero(np.diff(owner, prepend=-1))
    pos = np.arange(len(owner)) - np.repeat(heads, np.diff(np.append(heads, len(owner))))
    return _Some(events[owner], F.POLL, key, pairs[1::2], pairs[0::2], pos)


def _runs(mask: Bools) -> tuple[Ints, Ints]:
    """Where each run of true begins, and where it has ended."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return edges[0::2], edges[1::2]


def _numbers(text: np.ndarray[tuple[int], np.dtype[np.uint8]], starts: Ints, ends: Ints) -> Ints:
    """The numbers that stand there, digit by digit for all of them."""
    numbers = np.zeros(len(starts), np.int64)
    length = ends - starts
    for digit in range(int(length.max(initial=0))):
        long = np.flatnonzero(length > digit)
        numbers[long] = numbers[long] * 10 + (text[starts[long] + digit] - ZERO)
    return numbers


def _column(numbers: Ints | None, n: int, kind: pa.DataType) -> pa.Array:
    if numbers is None:
        return pa.nulls(n, kind)
    return pa.array(numbers).cast(kind)
