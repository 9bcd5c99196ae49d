"""Compiled search for the fields of operations: in lines of EDN, and in objects of JSON.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}
    {"index": 3, "type": "ok", "process": 2, "f": "send", "value": [["send", 4, [0, 17]]]}

A map is taken if its fields are certainly those that `_edn` or `json` finds. All others are left to
them: maps with a tag, a comment, metadata, an escape, a character beyond ASCII, a process or a time
that is not a whole number from 0, or a needed key twice. Values are only delimited here; they must
be one literal, or brackets that match.

The first use compiles for seconds, or loads what was compiled before in half a second, so small
files are not worth it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.compiled import kernel, part
from harness.importers._recording import EMPTY, FAILED, NO_ERROR, UNTIMED
from harness.operation import Type

TYPE, PROCESS, F, TIME, ERROR = range(5)  # columns of numbers
VALUE, BESIDE, NAME = range(3)  # columns of spans
KEYS = ("type", "process", "f", "time", "error", "value")  # and `beside`: the order of the columns
MAX_OPEN = 30  # brackets, at two bits each
MAX_DIGITS = 18
MAX_PROCESSES = 1 << 31
NO_F, UNKNOWN_F = -1, -2

# kinds of bytes
_WORD, _MARK, _BLANK, _LINE, _OPEN, _CLOSE, _QUOTE, _OTHER = range(8)
_QUOTE_MARK, _HASH, _COMMA, _COLON, _MINUS = b'"#,:-'
_OPEN_LIST, _CLOSE_LIST, _OPEN_MAP, _CLOSE_MAP, _NEWLINE, _ESCAPE = b"[]{}\n\\"
_ZERO, _NINE, _POINT, _SMALL_N = b"09.n"
_TRUE, _FALSE, _NULL = (np.frombuffer(word, np.uint8) for word in (b"true", b"false", b"null"))


_TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
_NUMBERS = np.array(list(_TYPES.values()), np.int64)


def _kinds() -> Any:
    kinds = np.full(256, _WORD, np.uint8)
    kinds[:33] = kinds[127:] = _OTHER
    for kind, some in (
        (_MARK, b"#^'`~@"),
        (_BLANK, b" ,\t\r"),
        (_LINE, b"\n"),
        (_OPEN, b"[({"),
        (_CLOSE, b"])}"),
        (_QUOTE, b'"'),
        (_OTHER, b";\\"),
    ):
        kinds[list(some)] = kind
    return kinds


_KIND = _kinds()
_IS_INSIDE = (_KIND == _WORD) | (_KIND == _BLANK)


def word_table(
    fs: Sequence[str], empty: Sequence[str], beside: str, nil: str = "nil"
) -> tuple[Any, Any, Any]:
    """Return the words that scanners search for: their text, the end of each word, and the first
    word of each group: keys, types, words for empty, names of operations, nil."""
    groups = ((*KEYS, beside), tuple(_TYPES), tuple(empty), tuple(fs), (nil,))
    words = [word.encode() for group in groups for word in group]
    text = np.frombuffer(b"".join(words) + b"\0", np.uint8)
    ends = np.cumsum([0, *map(len, words)])
    return text, ends, np.cumsum([0, *map(len, groups)])


@part
def _word(data: Any, start: Any, end: Any, words: Any, fold: Any, group: Any) -> Any:
    """Return which word of a group these bytes are, or -1. `fold`: ignore case, and _ is -."""
    text, ends, groups = words
    for n in range(groups[group], groups[group + 1]):
        first = ends[n]
        if ends[n + 1] - first != end - start or end == start:
            continue
        at = start
        while at < end:
            c: Any = np.int64(data[at])
            if fold and 65 <= c <= 90:
                c += 32
            elif fold and c == 95:
                c = 45
            if c != text[first + at - start]:
                break
            at += 1
        if at == end:
            return n - groups[group]
    return -1


@part
def _whole(data: Any, start: Any, end: Any) -> Any:
    """Return the whole number that these bytes are, or -1."""
    if end == start or end - start > MAX_DIGITS or (data[start] == _ZERO and end - start > 1):
        return -1
    number: Any = 0
    for at in range(start, end):
        if not _ZERO <= data[at] <= _NINE:
            return -1
        number = number * 10 + np.int64(data[at]) - _ZERO
    return number


@part
def _string_end(data: Any, at: Any, end: Any) -> Any:
    """Return the end of a string without escapes, or -1."""
    at += 1
    while at < end and 32 <= data[at] < 127 and data[at] != _ESCAPE:
        if data[at] == _QUOTE_MARK:
            return at + 1
        at += 1
    return -1


@part
def _word_end(data: Any, at: Any, end: Any) -> Any:
    while at < end and _KIND[data[at]] <= _MARK:
        at += 1
    return at


@part
def _after_blanks(data: Any, at: Any, end: Any) -> Any:
    while at < end and _KIND[data[at]] == _BLANK:
        at += 1
    return at


@part
def _form_end(data: Any, at: Any, end: Any) -> Any:
    """Return the end of a form of EDN that begins here, or -1."""
    opened: Any = 0
    depth = 0
    while at < end:
        c: Any = np.int64(data[at])
        kind = _KIND[c]
        if depth and (_IS_INSIDE[c] or (kind == _MARK and _KIND[data[at - 1]] <= _MARK)):
            at += 1
            while at < end and _IS_INSIDE[data[at]]:
                at += 1
            continue
        if c == _HASH and at + 1 < end and data[at + 1] == _OPEN_MAP:
            at, c, kind = at + 1, _OPEN_MAP, _OPEN
        if kind == _OPEN:
            if depth == MAX_OPEN:
                return -1
            opened, depth, at = opened << 2 | c >> 5, depth + 1, at + 1
            continue
        if kind == _CLOSE:
            if depth == 0 or opened & 3 != c >> 5:
                return -1
            opened, depth, at = opened >> 2, depth - 1, at + 1
        elif kind == _QUOTE:
            at = _string_end(data, at, end)
        elif kind == _WORD:
            at = _word_end(data, at, end)
        else:
            return -1
        if depth == 0 or at < 0:
            return at
    return -1


@part
def _take(
    which: Any, data: Any, start: Any, end: Any, n: Any, words: Any, numbers: Any, spans: Any
) -> Any:
    """Store the value of a key; return whether it is certain."""
    c = data[start]
    nil = _word(data, start, end, words, False, 4) == 0
    if which > ERROR:
        if spans[which - ERROR - 1, 0, n] != -1:
            return False
        spans[which - ERROR - 1, 0, n] = -2 if nil else start
        spans[which - ERROR - 1, 1, n] = end
        return True
    if numbers[which, n] != -3:
        return False
    if which in (PROCESS, TIME):
        number = _whole(data, start, end)
        numbers[which, n] = number
        return number >= 0 and (which == TIME or number < MAX_PROCESSES)
    if which == ERROR:
        numbers[which, n] = NO_ERROR if nil else _error(data, start, end, words)
        return numbers[which, n] >= 0
    if c != _COLON and c != _QUOTE_MARK:
        return False
    start, end = _inner(data, start, end)
    if which == TYPE:
        number = _word(data, start, end, words, False, 1)
        numbers[which, n] = _NUMBERS[max(number, 0)]
        return number >= 0
    number = _word(data, start, end, words, False, 3)
    numbers[which, n] = UNKNOWN_F if number < 0 else number
    spans[NAME, 0, n], spans[NAME, 1, n] = start, end
    return end > start


@part
def _inner(data: Any, start: Any, end: Any) -> Any:
    """Return where the name of a keyword or a text is, without a colon before it."""
    if data[start] == _QUOTE_MARK:
        start, end = start + 1, end - 1
    elif data[start] == _COLON:
        start += 1
    if start < end and data[start] == _COLON:
        start += 1
    return start, end


@part
def _error(data: Any, start: Any, end: Any, words: Any) -> Any:
    """Return what an error stands for: it, or the first element of a vector; -1 if uncertain."""
    if data[start] == _HASH:
        return -1
    if _KIND[data[start]] == _OPEN and data[start] != _OPEN_MAP:
        start += 1
        while start < end and (_KIND[data[start]] == _BLANK or _KIND[data[start]] == _LINE):
            start += 1
        if _KIND[data[start]] == _QUOTE:
            end = _string_end(data, start, end)
        elif _KIND[data[start]] == _WORD:
            end = _word_end(data, start, end)
        else:
            return FAILED
    start, end = _inner(data, start, end)
    return EMPTY if _word(data, start, end, words, True, 2) >= 0 else FAILED


@part
def _clear(n: Any, numbers: Any, spans: Any) -> Any:
    for column in range(ERROR + 1):
        numbers[column, n] = -3
    for column in range(NAME + 1):
        spans[column, 0, n] = spans[column, 1, n] = -1


@part
def _complete(n: Any, numbers: Any, spans: Any) -> Any:
    """Fill in absent fields, and empty spans; return whether all that are needed were there."""
    for column in range(NAME):
        if spans[column, 0, n] < 0:
            spans[column, 0, n] = spans[column, 1, n] = -1
    if numbers[F, n] == -3:
        numbers[F, n] = NO_F
    if numbers[TIME, n] == -3:
        numbers[TIME, n] = UNTIMED
    if numbers[ERROR, n] == -3:
        numbers[ERROR, n] = NO_ERROR
    return numbers[TYPE, n] >= 0 and numbers[PROCESS, n] >= 0


# ---------------------------------------------------------------------------------- lines of EDN


@kernel
def scan_lines(data: Any, words: Any, numbers: Any, spans: Any, good: Any) -> Any:
    """Store the fields of each line that has one map, and whether it is certain."""
    at, end = 0, len(data)
    for n in range(len(good)):
        last = at
        while last < end and data[last] != _NEWLINE:
            last += 1
        good[n] = _map(data, at, last, n, words, numbers, spans)
        at = last + 1


@part
def _map(data: Any, at: Any, end: Any, n: Any, words: Any, numbers: Any, spans: Any) -> Any:
    _clear(n, numbers, spans)
    at = _after_blanks(data, at, end)
    if at + 1 < end and data[at] == _HASH and 65 <= (data[at + 1] & 0xDF) <= 90:
        at += 1  # the tag of a record
        while at < end and (
            65 <= (data[at] & 0xDF) <= 90 or data[at] == _POINT or _ZERO <= data[at] <= _NINE
        ):
            at += 1
    if at >= end or data[at] != _OPEN_MAP:
        return False
    at += 1
    while True:
        at = _after_blanks(data, at, end)
        if at >= end:
            return False
        if data[at] == _CLOSE_MAP:
            break
        key_end = _word_end(data, at, end)
        start = _after_blanks(data, key_end, end)
        if data[at] != _COLON or key_end - at < 2 or start >= end or start == key_end:
            return False
        form_end = _form_end(data, start, end)
        if form_end < 0:
            return False
        key = _word(data, at + 1, key_end, words, False, 0)
        if key >= 0 and not _take(key, data, start, form_end, n, words, numbers, spans):
            return False
        at = form_end
    return _after_blanks(data, at + 1, end) == end and _complete(n, numbers, spans)


# ------------------------------------------------------------------------------- objects of JSON

_BEFORE, _AFTER, _KEY, _FIRST_KEY, _FIRST = range(5)  # what is expected: a value, what follows ...


@part
def _after_space(data: Any, at: Any, end: Any) -> Any:
    while at < end and (data[at] == 32 or data[at] == 9 or data[at] == 10 or data[at] == 13):
        at += 1
    return at


@part
def _scalar_end(data: Any, at: Any, end: Any) -> Any:
    """Return the end of a whole number of at most MAX_DIGITS, true, false or null; or -1."""
    last = _word_end(data, at, end)
    first = at + 1 if at < last and data[at] == _MINUS else at
    if _whole(data, first, last) >= 0:
        return last
    literal = _is_text(data, at, last, _TRUE) or _is_text(data, at, last, _FALSE)
    return last if literal or _is_text(data, at, last, _NULL) else -1


@part
def _is_text(data: Any, start: Any, end: Any, text: Any) -> Any:
    same = end - start == len(text)
    for n in range(len(text) if same else 0):
        same = same and data[start + n] == text[n]
    return same


@part
def _json_end(data: Any, at: Any, end: Any) -> Any:
    """Return the end of a JSON value that begins here, or -1."""
    opened: Any = 0
    depth, state = 0, _BEFORE
    while True:
        at = _after_space(data, at, end)
        if at >= end:
            return -1
        c: Any = np.int64(data[at])
        in_map = opened & 3 == _OPEN_MAP >> 5
        closes = c == (_CLOSE_MAP if in_map else _CLOSE_LIST) and depth > 0
        if closes and state != _BEFORE and state != _KEY:
            opened, depth, at = opened >> 2, depth - 1, at + 1
        elif state == _AFTER:
            if c != _COMMA:
                return -1
            at, state = at + 1, _KEY if in_map else _BEFORE
            continue
        elif state in (_KEY, _FIRST_KEY):
            if c != _QUOTE_MARK:
                return -1
            at = _string_end(data, at, end)
            at = end if at < 0 else _after_space(data, at, end)
            if at >= end or data[at] != _COLON:
                return -1
            at, state = at + 1, _BEFORE
            continue
        elif c in (_OPEN_LIST, _OPEN_MAP):
            if depth == MAX_OPEN:
                return -1
            opened, depth, at = opened << 2 | c >> 5, depth + 1, at + 1
            state = _FIRST_KEY if c == _OPEN_MAP else _FIRST
            continue
        else:
            at = _string_end(data, at, end) if c == _QUOTE_MARK else _scalar_end(data, at, end)
        if depth == 0 or at < 0:
            return at
        state = _AFTER


@part
def _object(data: Any, at: Any, end: Any, n: Any, words: Any, numbers: Any, spans: Any) -> Any:
    """Store the fields of an object that begins here; return its end, or -1."""
    _clear(n, numbers, spans)
    while True:
        key_at = _after_space(data, at + 1, end)
        if key_at >= end or data[key_at] != _QUOTE_MARK:
            return -1
        key_end = _string_end(data, key_at, end)
        at = end if key_end < 0 else _after_space(data, key_end, end)
        if at >= end or data[at] != _COLON:
            return -1
        start = _after_space(data, at + 1, end)
        at = _json_end(data, start, end)
        if at < 0:
            return -1
        key = _word(data, key_at + 1, key_end - 1, words, False, 0)
        if key >= 0 and not _take(key, data, start, at, n, words, numbers, spans):
            return -1
        at = _after_space(data, at, end)
        if at < end and data[at] == _CLOSE_MAP:
            return at + 1 if _complete(n, numbers, spans) else -1
        if at >= end or data[at] != _COMMA:
            return -1


@kernel
def scan_objects(
    data: Any, at: Any, line: Any, n: Any, words: Any, lines: Any, numbers: Any, spans: Any
) -> Any:
    """Store the fields of objects from here on, and the line on which each begins, from row n on,
    until one is not certain or there is no more room. Return where the scan ended: row, byte and
    line."""
    end = len(data)
    while n < len(lines):
        while at < end and (_KIND[data[at]] == _BLANK or _KIND[data[at]] == _LINE):
            line += data[at] == _NEWLINE
            at += 1
        if at >= end or data[at] != _OPEN_MAP:
            break
        after = _object(data, at, end, n, words, numbers, spans)
        if after < 0:
            break
        lines[n] = line
        while at < after:
            line += data[at] == _NEWLINE
            at += 1
        n += 1
    return n, at, line


# ----------------------------------------------------------------------------------------- texts


@kernel
def copy_texts(data: Any, spans: Any, json: Any, texts: Any, ends: Any) -> Any:
    """Copy the bytes of spans, one after the other, and store the end of each; `json`: as EDN.
    Return their size."""
    size = 0
    for n in range(spans.shape[1]):
        at, end = spans[0, n], spans[1, n]
        quoted = False
        while at < end:
            c = data[at]
            quoted ^= c == _QUOTE_MARK
            if json and not quoted and c == _COLON:
                c = np.uint8(32)
            elif json and not quoted and c == _SMALL_N:  # null is nil
                texts[size], texts[size + 1] = c, 105
                size, at, c = size + 2, at + 3, np.uint8(108)
            texts[size] = c
            size, at = size + 1, at + 1
        ends[n + 1] = size
    return size
