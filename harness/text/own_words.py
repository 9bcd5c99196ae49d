"""A system's own words for what the harness calls master, slave, epoch and broker.

Checkers and reports are written in the harness's words, which are those of Flotilla. A system that
declares its own (`SystemPlugin.words`) is reported in those; a run records them, so that a report
needs no driver. A word of a sentence is replaced with its article: `an epoch` becomes `a term`.
"""

import re
from collections.abc import Mapping
from typing import Any

IN_STATE = "words"  # of run.json
VOCABULARY = ("master", "slave", "epoch", "broker", "broker set", "SyncStateSet")
NUMBERS = ("brokerId", "masterId")  # fields of events that only repeat the node
GROUP = "brokerName"


class OwnWords:
    """Replaces the harness's words by a system's; a system without its own keeps all text."""

    def __init__(self, words: Any = None) -> None:
        given = words if isinstance(words, Mapping) else {}
        self._words = {
            word: str(own)[:40] for word, own in given.items() if word in VOCABULARY and own
        }
        longest_first = sorted(self._words, key=len, reverse=True)
        either = "|".join(map(re.escape, longest_first))
        self._pattern = re.compile(rf"(?<![\w-])(an? )?({either})(s?)(?![\w-])", re.IGNORECASE)

    @property
    def table(self) -> Mapping[str, str]:
        return self._words

    def __bool__(self) -> bool:
        return bool(self._words)

    def __call__(self, text: str) -> str:
        return self._pattern.sub(self._own, text) if self._words else text

    def _own(self, found: re.Match[str]) -> str:
        article, word, plural = found[1] or "", found[2], found[3]
        own = next(own for known, own in self._words.items() if known.lower() == word.lower())
        if article:
            n = "n" if own[0].lower() in "aeiou" else ""
            article = f"{article[0]}{n} "
        if word[0].isupper() and word not in self._words:
            own = own[0].upper() + own[1:]
        return f"{article}{own}{plural}"

    def fields(self, fields: Mapping[str, Any], system: str) -> Mapping[str, Any]:
        """Return an event's fields, without those that say nothing here: numbers of nodes, and the
        name of the only group, which is the system's."""
        if not self._words:
            return fields
        return {
            "group" if name == GROUP else self(name): self(value)
            if isinstance(value, str)
            else value
            for name, value in fields.items()
            if name not in NUMBERS and (name, value) != (GROUP, system)
        }


def words_of(state: Mapping[str, Any]) -> OwnWords:
    """Return the words that a run recorded."""
    return OwnWords(state.get(IN_STATE))
