"""Histories in JSON: an array of objects, or objects one after the other, as the EDN reader gives
them.

    {"index": 3, "type": "ok", "process": 2, "f": "txn", "value": [["append", "x", 1]]}

Words are strings. A number such as 3.0 is the whole number 3. An object `{"history": [...]}` stands
for its array.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from harness.importers._recording.recording import Slip, Slips
from harness.importers._text.source import decoded

_OBJECT = re.compile(r"(?:[\s\[,]|\{\s*\})*\{\s*\"(?:[^\"\\]|\\.)*\"\s*:")
_BETWEEN = re.compile(r"[\s,]*")


def is_json(data: bytes) -> bool:
    """Whether a file that begins with these bytes is JSON: EDN has no colon behind a key, and a
    keyword that follows one is no JSON."""
    text = data.decode("utf-8", errors="replace")
    found = _OBJECT.match(text)
    if found is None:
        return False
    rest = text[found.end() :].lstrip()
    try:
        json.JSONDecoder().raw_decode(rest)
    except ValueError as e:  # of too many digits has no place
        return getattr(e, "pos", 1) > 0
    return True


def items(data: bytes, slips: Slips) -> Iterator[tuple[int, Any]]:
    """The objects of a file with the lines on which they begin."""
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
        if isinstance(found, dict) and "type" not in found:
            found = found.get("history", found)
        for each in found if isinstance(found, list) else (found,):
            yield line, _whole(each)


def _whole(form: Any) -> Any:
    """A form in which numbers without a fraction are whole."""
    if isinstance(form, float) and form.is_integer():
        return int(form)
    if isinstance(form, list):
        return [_whole(each) for each in form]
    if isinstance(form, dict):
        return {key: _whole(value) for key, value in form.items()}
    return form
