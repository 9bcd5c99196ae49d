"""Find the line of a TOML file on which a value is written. Pure.

    positions = line_numbers("[[fault]]\\nparams = { shape = 'ring' }\\n")
    positions["fault", 0, "params", "shape"]      -> 2
    line_suffix("...", "fault", 0, "target")      -> " line 1": of its table, if it is not there

Values are named by the keys and positions that lead to them in the table that
`harness.text.parsing` returns: however TOML writes it, under a header, with dots, or inline. The
parser of the standard library gives no lines, so this reads the text again, for error messages. It
relies on the text being valid TOML, and knows no more of the grammar than where values begin and
end.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

Path = tuple[str | int, ...]

TOKENS = re.compile(
    r'(?P<string>"{3}(?:\\[\s\S]|[^\\])*?"{3,5}|\'{3}[\s\S]*?\'{3,5}'
    r'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\')'
    r"|(?P<comment>\#[^\n]*)|(?P<mark>[\[\]{}=,.\n])|(?P<word>[^\s\[\]{}=,.\"'#]+)"
)
END = "end"  # of the text, as a mark
IDLE = ("\n", ",")


class Token(NamedTuple):
    """A mark, or what is between marks: a bare word or the content of a string."""

    mark: str
    text: str
    line: int


def line_suffix(text: str, *path: str | int) -> str:
    """Return ' line 3' for the value, or for the innermost table that holds it; empty if there is
    none."""
    places = line_numbers(text)
    for upto in range(len(path), 0, -1):
        if path[:upto] in places:
            return f" line {places[path[:upto]]}"
    return ""


@lru_cache(maxsize=1)  # callers look up many positions of one text
def line_numbers(text: str) -> Mapping[Path, int]:
    """Return the line on which each value is first named."""
    reader = _Reader(_tokens(text))
    reader.read()
    return reader.places


class _Reader:
    """Reads the tokens of a text once."""

    def __init__(self, words: Sequence[Token]) -> None:
        self.places: dict[Path, int] = {}
        self._newest: dict[Path, int] = {}  # of an array of tables, the last one begun
        self._tokens = words
        self._at = 0

    def read(self) -> None:
        table: Path = ()
        while (word := self._tokens[self._at]).mark != END:
            if word.mark == "[":
                table = self._header()
            elif word.mark in IDLE:
                self._at += 1
            else:
                self._pair(table)

    def _header(self) -> Path:
        """Read `[a.b]` or `[[a.b]]`. A path through an array of tables means its newest."""
        number = self._tokens[self._at].line
        many = self._tokens[self._at + 1].mark == "["
        *above, last = self._keys("]")
        path: Path = ()
        for key in above:
            path = self._enter((*path, key), number)
        if many:
            self._newest[(*path, last)] = self._newest.get((*path, last), -1) + 1
        while self._tokens[self._at].mark == "]":
            self._at += 1
        return self._enter((*path, last), number)

    def _enter(self, path: Path, number: int) -> Path:
        self.places.setdefault(path, number)
        if path in self._newest:
            path = (*path, self._newest[path])
            self.places.setdefault(path, number)
        return path

    def _pair(self, table: Path) -> None:
        number, path = self._tokens[self._at].line, table
        for key in self._keys("="):
            path = (*path, key)
            self.places.setdefault(path, number)
        self._at += 1
        self._value(path)

    def _keys(self, end: str) -> list[str]:
        """Return the words of a dotted key; its end mark comes next."""
        keys = []
        while (word := self._tokens[self._at]).mark not in (end, END):
            keys += [] if word.mark else [word.text]
            self._at += 1
        return keys

    def _value(self, path: Path) -> None:
        match self._tokens[self._at].mark:
            case "[":
                self._at += 1
                self._items(path)
            case "{":
                self._at += 1
                while self._has_more("}"):
                    self._pair(path)
            case _:
                while self._tokens[self._at].mark not in (*IDLE, "]", "}", END):
                    self._at += 1

    def _items(self, path: Path) -> None:
        number = 0
        while self._has_more("]"):
            self.places.setdefault((*path, number), self._tokens[self._at].line)
            self._value((*path, number))
            number += 1

    def _has_more(self, end: str) -> bool:
        """Whether something comes before the end of a list or table; if not, skip the end."""
        while self._tokens[self._at].mark in IDLE:
            self._at += 1
        if self._tokens[self._at].mark not in (end, END):
            return True
        self._at += self._tokens[self._at].mark == end
        return False


def _tokens(text: str) -> list[Token]:
    tokens, number, counted = [], 1, 0
    for token in TOKENS.finditer(text):
        number += text.count("\n", counted, token.start())
        counted = token.start()
        match token.lastgroup:
            case "mark":
                tokens.append(Token(token[0], "", number))
            case "string":
                tokens.append(Token("", token[0][1:-1], number))
            case "word":
                tokens.append(Token("", token[0], number))
    return [*tokens, Token(END, "", number)]
