"""EDN as histories use it, and the other literals of Clojure's printer and reader.

One pass over the tokens of a compiled expression with an explicit stack, so depth needs no
recursion. Vectors and lists become lists, sets become `Set`, maps become dicts in their order; a
collection that is a map's key becomes its text.

    17 -3 0x1f 017 2r101 12N     whole numbers          1/3      Fraction
    1.5 1e3 ##Inf ##NaN          floats                 1.5M     Decimal
    "text" \\a :key word          str, Character, Keyword, Symbol
    #inst "..." #uuid "..."      text, the same for the same instant or number
    #tag form                    the form, if it is a collection; else a Symbol with the tag
    #:ns{...} #::ns{...}         the map, whose keys get the namespace
    #"a.b" #'a/b #<Some text>    Symbol: the text as it stands
    ; #! comments, #_ form, ^meta form    are skipped

`canonical` returns the text of a form, the same for forms that are equal in Clojure: maps and sets
do not depend on their order. `write` keeps the order. With `lenient` a literal that cannot be read
becomes `Unreadable`, so that a map is usable if its needed keys can be read.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 200
MAX_DIGITS = 4_000  # characters of a number: Python reads no more than 4,300 digits


class Keyword(str):
    """`:ok` without its colon."""

    __slots__ = ()


class Symbol(str):
    """A bare word."""

    __slots__ = ()


class Character(str):
    """`\\a`: not equal to the string of one letter, as its text shows."""

    __slots__ = ()


class Unreadable(Symbol):
    """A literal that cannot be read, as it stands in the text."""

    __slots__ = ()


class Set(list[Any]):
    """`#{1 2}`, in the order of the text."""

    __slots__ = ()


class Malformed(ValueError):
    """The text is not EDN. `at`: the character of the error, from 0."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at, self.message = at, message


_TOKEN = re.compile(
    r"[\s,]+"
    r"|;[^\n]*"
    r"|\#![^\n]*"
    r"|(\#\{|\#_|\#?\^|[\[\](){}]"
    r'|\#?"(?:[^"\\]++|\\.)*+"'
    r"|\#<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>"
    r'|\\.[^\s,\[\](){}";\\]*'
    r'|[^\s,\[\](){}";\\]+'
    r"|.)",
    re.DOTALL,
)
_INTEGER = re.compile(r"[+-]?\d+\Z")
_BASED = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)N?|(\d{1,2})[rR]([0-9a-zA-Z]+)N?|0([0-7]+)N?)\Z")
_LONG = re.compile(r"[+-]?(?:0|[1-9]\d*)N\Z")
_RATIO = re.compile(r"[+-]?\d+/\d+\Z")
_DECIMAL = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?M?\Z")
_NOT_PLAIN = re.compile(r'["#{};\\()^]|null|\d\.|[eE]\d')
_PLAIN_TEXT = re.compile(r'"[^"\\]*"\Z')
_CLOSES = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_PREFIXES = frozenset(("'", "`", "~", "~@", "@", "#'"))  # of a collection
_SKIPPING = frozenset(("#_", "^", "#^"))  # before a form that is skipped
_CONSTANTS: dict[str, Any] = {"nil": None, "true": True, "false": False}
_FLOATS = {"##Inf": float("inf"), "##-Inf": float("-inf"), "##NaN": float("nan")}
_CHARACTERS = {
    "newline": "\n",
    "space": " ",
    "tab": "\t",
    "return": "\r",
    "backspace": "\b",
    "formfeed": "\f",
}
_NAMES = {letter: name for name, letter in _CHARACTERS.items()}
_CODED = re.compile(r"u([0-9a-fA-F]{4})\Z|o([0-3]?[0-7]{1,2})\Z")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[0-3]?[0-7]{1,2}|.)", re.DOTALL)
_QUOTED = str.maketrans({"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"})


class _OpenCollection:
    """A collection that is not closed yet. `pending`: tags and marks (`#_`, `^`) of the next form,
    the nearest last."""

    __slots__ = ("at", "items", "opened", "pending")

    def __init__(self, opened: str, at: int) -> None:
        self.items: list[Any] = []
        self.opened, self.at = opened, at
        self.pending: list[str] = []

    def take(self, form: Any) -> None:
        while self.pending:
            mark = self.pending.pop()
            if mark in _SKIPPING:
                return
            form = _tagged(mark, form)
        self.items.append(form)

    @property
    def skips(self) -> bool:
        """Whether the next form is skipped."""
        return not _SKIPPING.isdisjoint(self.pending)


def read(text: str, *, lenient: bool = False) -> Any:
    """Return the only form of a text. Raises Malformed if there is none, or more than one."""
    forms = [form for _, form in forms_in(text, lenient=lenient)]
    if len(forms) != 1:
        raise Malformed(0, "no form found" if not forms else "more than one form")
    return forms[0]


def read_vectors(text: str, heads: re.Pattern[str] | None = None) -> Any:
    """Return the same as lenient `read`, several times faster for nil, a number, a text, and, by
    JSON's reader, vectors of numbers and nil. `heads` matches keywords that may begin a vector;
    they become plain strings."""
    if text == "nil":
        return None
    if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS and text[0] != "0":
        return int(text)
    if _PLAIN_TEXT.match(text):
        return text[1:-1]
    plain = heads.sub(r'["\1"', text) if heads is not None else text
    if text[:1] == "[" and not _NOT_PLAIN.search(text) and ":" not in plain:
        words = plain.replace(", ", " ").replace(" ", ",").replace("nil", "null")
        with suppress(ValueError, RecursionError):
            return json.loads(words, parse_constant=_refuse)
    return read(text, lenient=True)


def _refuse(word: str) -> Any:
    raise ValueError(word)


def forms_in(
    text: str, *, inside: bool = False, lenient: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield the end and the form of each form; `inside`: each element of vectors and lists."""
    top = _OpenCollection("", 0)
    stack = [top]
    for match in _TOKEN.finditer(text):
        word = match[1]
        if word is None:
            continue
        if word in _CLOSES:
            if len(stack) > MAX_DEPTH and not lenient:
                raise Malformed(match.start(1), f"nested deeper than {MAX_DEPTH}")
            stack.append(_OpenCollection(word, match.start(1)))
        elif word in "])}":
            _close(stack, word, match.start(1), lenient)
        elif word in _SKIPPING or (word[0] == "#" and (word in _PREFIXES or _is_tag(word))):
            stack[-1].pending.append(word)
        elif word not in _PREFIXES:
            stack[-1].take(_literal(word, match.start(1), lenient))
        frame, depth = stack[-1], len(stack)
        element = inside and depth == 2 and frame.opened in ("[", "(") and not top.skips
        if frame.items and (depth == 1 or element):
            form = frame.items.pop()
            if not (inside and depth == 1 and word in ("]", ")")):  # its elements were yielded
                yield match.end(1), form
    if len(stack) > 1:
        raise Malformed(stack[-1].at, f"{stack[-1].opened} is never closed")
    if top.pending:
        raise Malformed(len(text), "the form after #_, ^ or a tag is missing; it is never closed")


def _is_tag(word: str) -> bool:
    """Return whether a word with # is the tag of the form that follows it."""
    return word[1:2] not in ('"', "<", "'", "#")


def _tagged(tag: str, form: Any) -> Any:
    """Apply a tag to a form. An unknown tag of a collection, such as a record's, is ignored."""
    if tag.startswith("#:") and isinstance(form, dict):
        name = tag.strip("#:")
        return {_within(name, key): value for key, value in form.items()}
    if tag == "#uuid" and isinstance(form, str):
        return form.lower()
    if tag == "#inst" and isinstance(form, str):
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(form)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return moment.astimezone(UTC).isoformat()
    if isinstance(form, list | dict | Unreadable) or tag == "#inst":
        return form
    return Symbol(f"{tag} {write(form)}")


def _within(name: str, key: Any) -> Any:
    """Return a key of a map with a namespace; `_/a` is the key a without one."""
    if not isinstance(key, Keyword | Symbol):
        return key
    kind = type(key)
    return kind(key[2:]) if key.startswith("_/") else key if "/" in key else kind(f"{name}/{key}")


def _close(stack: list[_OpenCollection], word: str, at: int, lenient: bool) -> None:
    frame = stack.pop() if len(stack) > 1 else None
    if frame is None or _CLOSES[frame.opened] != word:
        opened = f"; {frame.opened} at column {frame.at + 1} is open" if frame else ""
        raise Malformed(at, f"{word} closes nothing{opened}")
    if lenient and len(stack) > MAX_DEPTH:
        form: Any = Unreadable("...")
    else:
        form = _closed(frame, at, lenient and len(stack) > 1)
    stack[-1].take(form)


def _closed(frame: _OpenCollection, at: int, lenient: bool) -> Any:
    if frame.opened != "{":
        return Set(frame.items) if frame.opened == "#{" else frame.items
    keys, values = frame.items[::2], frame.items[1::2]
    if len(keys) != len(values):
        if lenient:
            return Unreadable("{...}")
        raise Malformed(at, "a map has a key without a value")
    hashable = [Symbol(write(k, sort=True)) if isinstance(k, list | dict) else k for k in keys]
    found = dict(zip(hashable, values, strict=True))
    if len(found) < len(keys):  # in Python 1, 1.0 and true are equal, and so are :a and "a"
        names = {canonical(key): key for key in reversed(hashable)}
        if len(names) > len(found):
            pairs = zip((canonical(key) for key in hashable), values, strict=True)
            return {Symbol(key): value for key, value in pairs}
    return found


def _literal(word: str, at: int, lenient: bool) -> Any:
    if not lenient or word == '"':  # after an unclosed string no form can be found
        return _atom(word, at)
    try:
        return _atom(word, at)
    except Malformed:
        return Unreadable(word)


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
        return _character(token[1:], at)
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if first == ":":
        raise Malformed(at, "a keyword has no name")
    if first == "#" and token[1:2] == "#":
        if token not in _FLOATS:
            raise Malformed(at, f"{token[:40]} is no number")
        return _FLOATS[token]
    return Symbol(token)


def _character(name: str, at: int) -> Character:
    if len(name) == 1:
        return Character(name)
    if name in _CHARACTERS:
        return Character(_CHARACTERS[name])
    if coded := _CODED.match(name):
        letter = chr(int(coded[1], 16) if coded[1] else int(coded[2], 8))
        return Character(_whole(letter, at))
    raise Malformed(at, f"\\{name[:40]} is no character" if name else "a character is missing")


def _number(token: str, at: int) -> int | float | Fraction | Decimal:
    if len(token) > MAX_DIGITS:
        raise Malformed(at, f"a number of {len(token):,} characters")
    if _INTEGER.match(token) and token.lstrip("+-")[0] != "0":
        return int(token)
    if re.fullmatch(r"[+-]?0+", token) or _LONG.match(token):
        return int(token.removesuffix("N"))
    if based := _BASED.match(token):
        sign, hexadecimal, base, digits, octal = based.groups()
        with suppress(ValueError):
            if hexadecimal or octal:
                return int(sign + (hexadecimal or octal), 16 if hexadecimal else 8)
            return int(sign + digits, int(base) if int(base) > 1 else -1)
    if _RATIO.match(token) and token.partition("/")[2].strip("0"):
        ratio = Fraction(token)
        return ratio.numerator if ratio.denominator == 1 else ratio
    if _DECIMAL.match(token) and not (_INTEGER.match(token)):
        with suppress(ArithmeticError, ValueError):
            return _exact(token[:-1]) if token[-1] == "M" else float(token)
    raise Malformed(at, f"{token[:40]} is no number")


def _exact(token: str) -> Decimal:
    """A decimal without the zeros at its end, with which Clojure compares equal."""
    sign, digits, exponent = Decimal(token).as_tuple()
    if not isinstance(exponent, int) or not any(digits):
        return Decimal(0)
    shown = "".join(map(str, digits))
    zeros = len(shown) - len(shown.rstrip("0"))
    return Decimal((sign, tuple(map(int, shown[: len(shown) - zeros])), exponent + zeros))


def _text(inside: str, at: int) -> str:
    return _whole(_ESCAPE.sub(_escaped, inside), at)


def _whole(text: str, at: int) -> str:
    """Join escapes of surrogate pairs, as Java writes them, to one character."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as e:
        raise Malformed(at, "an escape is half of a character") from e


def _escaped(match: re.Match[str]) -> str:
    word = match[1]
    if len(word) == 5:
        return chr(int(word[1:], 16))
    return chr(int(word, 8)) if word[0].isdigit() and word[0] < "8" else _ESCAPES.get(word, word)


def canonical(form: Any) -> str:
    """Return the text of a form, the same for all forms that are equal."""
    return write(form, sort=True)


def unreadable(form: Any) -> Unreadable | None:
    """Return the first literal of a form that cannot be read."""
    if isinstance(form, Unreadable):
        return form
    inner: Any = ()
    if isinstance(form, dict):
        inner = (each for pair in form.items() for each in pair)
    elif isinstance(form, list):
        inner = form
    return next((found for each in inner if (found := unreadable(each))), None)


def write(form: Any, *, sort: bool = False) -> str:
    """Return a form as text; `sort`: maps and sets in the order of their texts."""
    match form:
        case None:
            return "nil"
        case bool():
            return "true" if form else "false"
        case Keyword():
            return f":{form}"
        case Symbol():
            return str(form)
        case Character():
            return f"\\{_NAMES.get(form, form)}"
        case str():
            return f'"{form.translate(_QUOTED)}"'
        case Set():
            texts = [write(each, sort=sort) for each in form]
            return f"#{{{' '.join(sorted(set(texts)) if sort else texts)}}}"
        case list() | tuple():
            return f"[{' '.join(write(each, sort=sort) for each in form)}]"
        case dict():
            pairs = [f"{write(k, sort=sort)} {write(v, sort=sort)}" for k, v in form.items()]
            return f"{{{', '.join(sorted(pairs) if sort else pairs)}}}"
        case float():
            return _floating(form)
        case Decimal():
            return f"{form}M"
        case Fraction():
            return f"{form.numerator}/{form.denominator}"
        case _:
            return repr(form)


def _floating(number: float) -> str:
    if number != number:
        return "##NaN"
    if number in (float("inf"), float("-inf")):
        return "##Inf" if number > 0 else "##-Inf"
    return repr(number + 0.0)  # -0.0 is 0.0
