"""EDN as histories use it: maps, vectors, lists, sets, keywords, strings, numbers, nil, tags.

One pass over the tokens of a compiled expression with an explicit stack, so depth costs no
recursion. Tags (`#inst`, `#jepsen.history.Op`) are ignored and their value is kept; `#_` drops a
form; comments are skipped. Vectors and lists become lists, sets become `Set`, maps become dicts in
their order; a collection that is a map's key becomes its text.

`write` is the inverse up to tags, comments and white space.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

DEEPEST = 200
LONGEST = 4_000  # characters of a number: Python reads no more than 4,300 digits


class Keyword(str):
    """`:ok` without its colon."""

    __slots__ = ()


class Symbol(str):
    """A bare word."""

    __slots__ = ()


class Set(list[Any]):
    """`#{1 2}`, in the order of the text."""

    __slots__ = ()


class Malformed(ValueError):
    """The text is not EDN: what is wrong, and at which character, from 0."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at, self.message = at, message


_TOKEN = re.compile(
    r"[\s,]+"
    r"|;[^\n]*"
    r"|(\#\{|\#_|[\[\](){}]"
    r'|"(?:[^"\\]|\\.)*"'
    r"|\\(?:newline|space|tab|return|u[0-9a-fA-F]{4}|\S)"
    r'|[^\s,\[\](){}";\\]+'
    r"|.)",
    re.DOTALL,
)
_INTEGER = re.compile(r"[+-]?\d+N?\Z")
_DECIMAL = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?M?\Z")
_NOT_PLAIN = re.compile(r'["#{};\\()]|null|\d\.|[eE]\d')
_CLOSES = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_CONSTANTS: dict[str, Any] = {"nil": None, "true": True, "false": False}
_CHARACTERS = {"newline": "\n", "space": " ", "tab": "\t", "return": "\r"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_QUOTED = str.maketrans({"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"})


class _Frame:
    """A collection that is not closed yet; `skip`: forms that `#_` drops next."""

    __slots__ = ("at", "items", "opened", "skip")

    def __init__(self, opened: str, at: int) -> None:
        self.items: list[Any] = []
        self.opened, self.at, self.skip = opened, at, 0

    def take(self, form: Any) -> None:
        if self.skip:
            self.skip -= 1
        else:
            self.items.append(form)


def read(text: str) -> Any:
    """The one form in a text. Malformed when there is none, more than one, or a broken one."""
    forms = [form for _, form in forms_in(text)]
    if len(forms) != 1:
        raise Malformed(0, "nothing is there" if not forms else "more than one form is there")
    return forms[0]


def read_vectors(text: str, heads: re.Pattern[str] | None = None) -> Any:
    """As `read`, and several times as fast for vectors of numbers and nil, which JSON's reader can
    take over. `heads` finds keywords that may begin a vector, and come as plain strings."""
    plain = heads.sub(r'["\1"', text) if heads is not None else text
    if text[:1] == "[" and not _NOT_PLAIN.search(text) and ":" not in plain:
        words = plain.replace(", ", " ").replace(" ", ",").replace("nil", "null")
        with suppress(ValueError, RecursionError):
            return json.loads(words, parse_constant=_refuse)
    return read(text)


def _refuse(word: str) -> Any:
    raise ValueError(word)


def forms_in(text: str, *, inside: bool = False) -> Iterator[tuple[int, Any]]:
    """The forms of a text with where each ends; `inside`: those in the first collection of it."""
    top = _Frame("", 0)
    stack = [top]
    given = 1 if inside else 0  # the depth whose forms are handed out
    for match in _TOKEN.finditer(text):
        word = match[1]
        if word is None:
            continue
        if word in _CLOSES:
            if len(stack) > DEEPEST:
                raise Malformed(match.start(1), f"nested deeper than {DEEPEST}")
            stack.append(_Frame(word, match.start(1)))
        elif word in "])}":
            _close(stack, word, match.start(1))
        elif word == "#_":
            stack[-1].skip += 1
        elif word[0] != "#":
            stack[-1].take(_atom(word, match.start(1)))
        if len(stack) == given + 1 and stack[given].items:
            yield match.end(1), stack[given].items.pop()
    if len(stack) > 1:
        raise Malformed(stack[-1].at, f"{stack[-1].opened} is never closed")


def _close(stack: list[_Frame], word: str, at: int) -> None:
    frame = stack.pop() if len(stack) > 1 else None
    if frame is None or _CLOSES[frame.opened] != word:
        opened = f"; {frame.opened} at column {frame.at + 1} is open" if frame else ""
        raise Malformed(at, f"{word} closes nothing{opened}")
    stack[-1].take(_closed(frame, at))


def _closed(frame: _Frame, at: int) -> Any:
    if frame.opened == "{":
        keys, values = frame.items[::2], frame.items[1::2]
        if len(keys) != len(values):
            raise Malformed(at, "a map has a key without a value")
        hashable = (write(k) if isinstance(k, list | dict) else k for k in keys)
        return dict(zip(hashable, values, strict=True))
    return Set(frame.items) if frame.opened == "#{" else frame.items


def _atom(token: str, at: int) -> Any:
    first = token[0]
    if first.isdigit() or (first in "+-" and token[1:2].isdigit()):
        return _number(token, at)
    if first == ":" and len(token) > 1:
        return Keyword(token[1:])
    if first == '"':
        if len(token) < 2:
            raise Malformed(at, "a string is never closed")
        return _text(token[1:-1], at) if "\\" in token else token[1:-1]
    if first == "\\":
        if len(token) < 2:
            raise Malformed(at, "a character is missing")
        return _CHARACTERS.get(token[1:]) or _whole(_escaped_character(token[1:]), at)
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if first == ":":
        raise Malformed(at, "a keyword has no name")
    return Symbol(token)


def _number(token: str, at: int) -> int | float:
    if len(token) > LONGEST:
        raise Malformed(at, f"a number of {len(token):,} characters")
    if _INTEGER.match(token):
        return int(token.removesuffix("N"))
    if _DECIMAL.match(token):
        return float(token.removesuffix("M"))
    raise Malformed(at, f"{token[:40]} is no number")


def _text(inside: str, at: int) -> str:
    return _whole(_ESCAPE.sub(_escaped, inside), at)


def _whole(text: str, at: int) -> str:
    """Two escapes that are the halves of one character, as Java writes it, become that one."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as e:
        raise Malformed(at, "an escape is half of a character") from e


def _escaped_character(word: str) -> str:
    return chr(int(word[1:], 16)) if len(word) == 5 else word


def _escaped(match: re.Match[str]) -> str:
    word = match[1]
    return _escaped_character(word) if len(word) == 5 else _ESCAPES.get(word, word)


def write(form: Any) -> str:
    """A form as text."""
    match form:
        case None:
            return "nil"
        case bool():
            return "true" if form else "false"
        case Keyword():
            return f":{form}"
        case Symbol():
            return str(form)
        case str():
            return f'"{form.translate(_QUOTED)}"'
        case Set():
            return f"#{{{' '.join(map(write, form))}}}"
        case list() | tuple():
            return f"[{' '.join(map(write, form))}]"
        case dict():
            return f"{{{', '.join(f'{write(k)} {write(v)}' for k, v in form.items())}}}"
        case _:
            return repr(form)
