"""Readers get what was committed, as far as that is certain, and nothing else.

A history is a line of words with times in seconds: `h1@2` prepares message 1, `ok1@2.1` accepts it;
`c1@3` asks to commit it, `b1@3` to roll it back, `done1@3.1` is the answer, `no1@3.1` refuses it,
`x1@3.1` leaves it open; `q1@4` is a question of the system; `p1@5` is a message that a group got,
and `r1@60` one that a final reader found.
"""

import re

import numpy as np
import pytest

from checkers import halves
from harness.operation import NONE, F, Type

S = 1_000_000_000
QUEUE, READERS_BEGIN_S = 5, 50
WORD = re.compile(r"(h|ok|c|b|done|no|x|q|p|r)(\d+)@([\d.]+)")
WORDS = {
    "h": (F.PREPARE, Type.INVOKE),
    "ok": (F.PREPARE, Type.OK),
    "c": (F.DECIDE, Type.INVOKE),
    "b": (F.DECIDE, Type.INVOKE),
    "done": (F.DECIDE, Type.OK),
    "no": (F.DECIDE, Type.FAIL),
    "x": (F.DECIDE, Type.INFO),
    "q": (F.ASKED, Type.OK),
    "p": (F.POLL, Type.OK),
    "r": (F.READ, Type.OK),
}


def rows(text: str) -> dict[str, np.ndarray]:
    """Return the columns of a history, as the checker groups them: by value."""
    found: list[dict[str, int]] = []
    for number, word in enumerate(text.split()):
        match = WORD.fullmatch(word)
        assert match, word
        what, value, at = match.groups()
        f, type_ = WORDS[what]
        row = {"t": round(float(at) * S), "op": number, "process": 0, "f": f, "type": type_}
        row |= {"key": int(value), "value": int(value), "queue": QUEUE}
        row |= {"arg": int(what == "c")} if type_ is Type.INVOKE else {}
        found.append(row | ({"pos": 0, "offset": 0} if what in "pr" else {}))
    return {name: np.array([row.get(name, NONE) for row in found]) for name in halves.COLUMNS}


def judged(text: str, read_at_s: int | None = 70) -> dict[str, int]:
    read_at = {} if read_at_s is None else {QUEUE: read_at_s * S}
    found = halves.judge(rows(text), read_at, READERS_BEGIN_S * S, 20)
    return {code: n for code, n in found["counts"].items() if n} | (
        {"undecided": found["undecided"]} if found["undecided"] else {}
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h1@2 ok1@2.1 c1@3 done1@3.1 p1@3.2 r1@60", {}),
        ("h1@2 ok1@2.1 c1@3 p1@3.05 done1@3.1 r1@60", {}),  # while the commit is under way
        ("h1@2 ok1@2.1 b1@3 done1@3.1", {}),
        ("h1@2 ok1@2.1 c1@3 done1@3.1", {"COMMIT_LOST": 1}),
        ("h1@2 ok1@2.1 c1@3 done1@3.1 p1@3.2", {"COMMIT_LOST": 1}),  # it is gone again
        ("h1@2 ok1@2.1 c1@3 x1@3.1", {}),  # nothing was promised
        ("h1@2 ok1@2.1 c1@3 no1@3.1", {}),
        ("h1@2 ok1@2.1 c1@3 x1@3.1 q1@9 c1@9 done1@9.1", {"COMMIT_LOST": 1}),
        ("h1@2 ok1@2.1 c1@49 done1@51", {"undecided": 1}),  # perhaps too late for the readers
        ("h1@2 ok1@2.1 b1@3 done1@3.1 r1@60", {"ROLLED_BACK_SEEN": 1}),
        ("h1@2 ok1@2.1 b1@3 x1@3.1 p1@9", {"ROLLED_BACK_SEEN": 1}),
        ("h1@2 ok1@2.1 q1@9 p1@9.5", {"HALF_SEEN": 1}),
        ("h1@2 p1@3", {"HALF_SEEN": 1}),
        ("h1@2 ok1@2.1 p1@2.5 c1@3 done1@3.1 r1@60", {"HALF_SEEN": 1}),  # before it was committed
        ("h1@2 ok1@2.1", {"HALF_STUCK": 1}),
        ("h1@2 ok1@2.1 q1@9", {}),  # asked, and not answered
        ("h1@2", {}),  # it was not accepted
        ("p1@3 r1@60", {}),  # a plain message
    ],
)
def test_what_is_seen_lost_and_stuck(text: str, found: dict[str, int]) -> None:
    assert judged(text) == found


def test_a_queue_that_was_not_read_proves_no_loss() -> None:
    assert judged("h1@2 ok1@2.1 c1@3 done1@3.1", None) == {"undecided": 1}
