"""The forms of a history in EDN or JSON, with their lines.

EDN: one map on each line, maps that span lines, or a vector of maps. JSON: objects one after the
other, or an array of them; an object (a map) with a `history` stands for that array.

    {"index": 3, "type": "ok", "process": 2, "f": "txn", "value": [["append", "x", 1]]}

JSON's strings stand for EDN's keywords, and a number such as 3.0 is the whole number 3.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from harness.importers import _edn
from harness.importers._recording import Slip, Slips
from harness.importers._source import decoded

_MARKS = rb"(?:[\s,]|\^:?[^\s\[({]+|#[^\s\[({\"_]+)*"  # tags and metadata
_COLLECTION, _OPERATION = re.compile(_MARKS + rb"[\[(]"), re.compile(_MARKS + rb"\{")
_OBJECT = re.compile(r"(?:[\s\[,]|\{\s*\})*\{\s*\"(?:[^\"\\]|\\.)*\"\s*:")
_BETWEEN = re.compile(r"[\s,]*")


def forms_of(data: bytes, slips: Slips) -> Iterator[tuple[int, Any]]:
    """Yield the operations of a file, each with a line: in EDN its last, in JSON its first."""
    return _json_forms(data, slips) if is_json(data) else _edn_forms(data, slips)


def starts_several_lines(data: bytes) -> bool:
    """Return whether a file begins with a collection of maps, or with a map of several lines. A
    truncated line is neither: complete ones follow it."""
    number = 0
    for line in filter(None, (line.strip() for line in data.splitlines())):
        if number == 0 and _COLLECTION.match(line):
            return True
        try:
            text = line.decode("utf-8", errors="replace")
            forms = [form for _, form in _edn.forms_in(text, lenient=True)]
        except _edn.Malformed as e:
            if "never closed" in e.message and (number or _OPERATION.match(line)):
                number += 1
                continue
            return number > 0
        if forms:  # else a comment
            return number > 0 and not (isinstance(forms[0], dict) and "type" in forms[0])
    return True


def _edn_forms(data: bytes, slips: Slips) -> Iterator[tuple[int, Any]]:
    text, whole = decoded(data)
    line, seen = 1, 0
    try:
        for end, item in _edn.forms_in(text, inside=True, lenient=True):
            line, begin, seen = line + text.count("\n", seen, end), seen, end
            if not whole and "\ufffd" in text[begin:end] and "\ufffd" in _edn.write(item):
                slips.add(Slip("NOT_EDN", line, "not UTF-8", gap=True))
                continue
            yield from ((line, each) for each in _operations_in(item))
    except _edn.Malformed as e:
        line = 1 + text.count("\n", 0, e.at)
        column = e.at - text.rfind("\n", 0, e.at)
        slips.add(Slip("NOT_EDN", line, f"not EDN: {e.message}", column=column, gap=True))


def _operations_in(item: Any) -> Sequence[Any]:
    """Return the elements of a collection, or the form itself."""
    if isinstance(item, dict) and "type" not in item and isinstance(item.get("history"), list):
        item = item["history"]
    return item if isinstance(item, list) else [item]


def is_json(data: bytes) -> bool:
    """Return whether a file that begins with these bytes is JSON: EDN has no colon behind a key,
    and a keyword that follows one is not JSON."""
    text = data.decode("utf-8", errors="replace")
    found = _OBJECT.match(text)
    if found is None:
        return False
    rest = text[found.end() :].lstrip()
    try:
        json.JSONDecoder().raw_decode(rest)
    except ValueError as e:  # one about too many digits has no position
        return getattr(e, "pos", 1) > 0
    return True


def _json_forms(data: bytes, slips: Slips) -> Iterator[tuple[int, Any]]:
    text, whole = decoded(data)
    decoder = json.JSONDecoder()
    at = _BETWEEN.match(text, 0).end()  # type: ignore[union-attr]
    at += text.startswith("[", at)
    line, seen = 1, 0
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if at >= len(text) or text[at] == "]":
            return
        line, seen = line + text.count("\n", seen, at), at
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as e:
            what = f"not JSON: {getattr(e, 'msg', 'nested too deep, or a number too long')}"
            slips.add(Slip("NOT_JSON", line, what, gap=True))
            following = text.find("\n", at)
            at = len(text) if following < 0 else following
            continue
        if not whole and "\ufffd" in text[seen:at]:
            slips.add(Slip("NOT_JSON", line, "not UTF-8", gap=True))
            continue
        yield from ((line, _with_whole_numbers(each)) for each in _operations_in(found))


def _with_whole_numbers(form: Any) -> Any:
    """Turn numbers without a fraction into whole ones."""
    if isinstance(form, float) and form.is_integer():
        return int(form)
    if isinstance(form, list):
        return [_with_whole_numbers(each) for each in form]
    if isinstance(form, dict):
        return {key: _with_whole_numbers(value) for key, value in form.items()}
    return form
