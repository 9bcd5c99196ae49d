"""On which line of a TOML file a value is written. Pure.

    places = lines("[[fault]]\\nparams = { shape = 'ring' }\\n")
    places["fault", 0, "params", "shape"]      -> 2
    line("...", "fault", 0, "target")          -> " line 1": of what holds it, where it is not there

Values are named by the keys and positions that lead to them, as the table that
`harness.text.parsing` makes of the text is walked: whichever way TOML lets it be written, under a
header, with dots, or inline. The reader of the standard library tells no lines, so this reads the
text once more, for who has to complain. It relies on the text being TOML, which who read it knows,
and knows no more of the grammar than where values begin and end.
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


class Word(NamedTuple):
    """A mark, or what stands between marks: a bare word or what a string holds."""

    mark: str
    text: str
    line: int


def line(text: str, *path: str | int) -> str:
    """' line 3' for the value, or for the innermost that holds it; nothing where none is."""
    places = lines(text)
    for upto in range(len(path), 0, -1):
        if path[:upto] in places:
            return f" line {places[path[:upto]]}"
    return ""


@lru_cache(maxsize=1)  # who complains asks for many places of one text
def lines(text: str) -> Mapping[Path, int]:
    """The line on which each value is first named."""
    reader = _Reader(_words(text))
    reader.read()
    return reader.places


class _Reader:
    """Goes through the words of a text once."""

    def __init__(self, words: Sequence[Word]) -> None:
        self.places: dict[Path, int] = {}
        self._newest: dict[Path, int] = {}  # of an array of tables, the last one begun
        self._words = words
        self._at = 0

    def read(self) -> None:
        table: Path = ()
        while (word := self._words[self._at]).mark != END:
            if word.mark == "[":
                table = self._header()
            elif word.mark in IDLE:
                self._at += 1
            else:
                self._pair(table)

    def _header(self) -> Path:
        """`[a.b]` or `[[a.b]]`. What leads through an array of tables means its newest."""
        number = self._words[self._at].line
        many = self._words[self._at + 1].mark == "["
        *above, last = self._keys("]")
        path: Path = ()
        for key in above:
            path = self._entered((*path, key), number)
        if many:
            self._newest[(*path, last)] = self._newest.get((*path, last), -1) + 1
        while self._words[self._at].mark == "]":
            self._at += 1
        return self._entered((*path, last), number)

    def _entered(self, path: Path, number: int) -> Path:
        self.places.setdefault(path, number)
        if path in self._newest:
            path = (*path, self._newest[path])
            self.places.setdefault(path, number)
        return path

    def _pair(self, table: Path) -> None:
        number, path = self._words[self._at].line, table
        for key in self._keys("="):
            path = (*path, key)
            self.places.setdefault(path, number)
        self._at += 1
        self._value(path)

    def _keys(self, end: str) -> list[str]:
        """The words of a dotted key; what ends it comes next."""
        keys = []
        while (word := self._words[self._at]).mark not in (end, END):
            keys += [] if word.mark else [word.text]
            self._at += 1
        return keys

    def _value(self, path: Path) -> None:
        match self._words[self._at].mark:
            case "[":
                self._at += 1
                self._items(path)
            case "{":
                self._at += 1
                while self._goes_on("}"):
                    self._pair(path)
            case _:
                while self._words[self._at].mark not in (*IDLE, "]", "}", END):
                    self._at += 1

    def _items(self, path: Path) -> None:
        number = 0
        while self._goes_on("]"):
            self.places.setdefault((*path, number), self._words[self._at].line)
            self._value((*path, number))
            number += 1

    def _goes_on(self, end: str) -> bool:
        """Whether something comes before the end of a list or table, which else is behind us."""
        while self._words[self._at].mark in IDLE:
            self._at += 1
        if self._words[self._at].mark not in (end, END):
            return True
        self._at += self._words[self._at].mark == end
        return False


def _words(text: str) -> list[Word]:
    found, number, counted = [], 1, 0
    for token in TOKENS.finditer(text):
        number += text.count("\n", counted, token.start())
        counted = token.start()
        match token.lastgroup:
            case "mark":
                found.append(Word(token[0], "", number))
            case "string":
                found.append(Word("", token[0][1:-1], number))
            case "word":
                found.append(Word("", token[0], number))
    return [*found, Word(END, "", number)]
