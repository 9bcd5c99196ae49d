"""Delayed messages come after their delay, and all of them, as far as that is certain.

A history is a line of words with times in seconds: `d1@2+3` asks at 2 s for message 1 after 3 s,
`ok1@2.1` accepts it, `no1@2.1` refuses it, `x1@2.1` leaves it open; `p1@5` is a message that a
group got, and `r1@9` one that a final reader found, at offset 1, or another one, as in `r1/7@9`.
"""

import re

import numpy as np
import pytest

from checkers import delays
from harness.operation import NONE, F, Type

S = 1_000_000_000
LATE_NS, DRAIN_AT = 5 * S, 20 * S
WORD = re.compile(r"(d|ok|no|x|p|r)(\d+)(?:/(\d+))?@([\d.]+)(?:\+([\d.]+))?(!?)")
ENDS = {"ok": Type.OK, "no": Type.FAIL, "x": Type.INFO}


def rows(text: str) -> dict[str, np.ndarray]:
    """Return the columns of a history; `!` after an acceptance: it took two attempts."""
    found: list[dict[str, int]] = []
    for number, word in enumerate(text.split()):
        match = WORD.fullmatch(word)
        assert match, word
        what, value, offset, at, delay, again = match.groups()
        row = {
            "t": round(float(at) * S),
            "op": number,
            "process": 0,
            "queue": 0,
            "value": int(value),
        }
        if what == "d":
            ms = round(float(delay) * 1000)
            found.append({**row, "f": F.DELAY, "type": Type.INVOKE, "arg": ms})
        elif what in ENDS:
            found.append({**row, "f": F.DELAY, "type": ENDS[what], "attempts": 1 + bool(again)})
        else:
            place = {"offset": int(offset or value), "pos": 0, "type": Type.OK}
            found.append({**row, **place, "f": F.READ if what == "r" else F.POLL})
    return {name: np.array([row.get(name, NONE) for row in found]) for name in delays.COLUMNS}


def judged(text: str, read_at_s: float | None = 30) -> dict[str, int]:
    read_at = {} if read_at_s is None else {0: round(read_at_s * S)}
    return delays.judge(rows(text), read_at, LATE_NS, DRAIN_AT, 20)


@pytest.mark.parametrize(
    ("text", "early", "lost", "twice"),
    [
        ("d1@2+3 ok1@2.1 p1@5.1 r1@30", 0, 0, 0),
        ("d1@2+3 ok1@2.1 p1@3.9 r1@30", 1, 0, 0),  # 1.1 s before its time
        ("d1@2+3 ok1@2.1 p1@4.1 r1@30", 0, 0, 0),  # within the rounding
        ("d1@2+3 x1@4 p1@3.5 r1@30", 1, 0, 0),  # also if its send is of unknown outcome
        ("d1@2+3 ok1@2.1", 0, 1, 0),
        ("d1@2+3 x1@2.1", 0, 0, 0),  # nothing was promised
        ("d1@2+3 no1@2.1", 0, 0, 0),
        ("d1@2+3 ok1@2.1 p1@5.1", 0, 1, 0),  # a group has got it, and it is gone
        ("d1@2+3 ok1@2.1 r1@30 r1/7@30", 0, 0, 1),
        ("d1@2+3 ok1@2.1! r1@30 r1/7@30", 0, 0, 0),  # perhaps the client's second attempt
        ("d1@2+3 ok1@2.1 p1@5.1 p1@5.2 r1@30", 0, 0, 0),  # delivered twice, stored once
        ("d1@2+3 d2@2+1 ok2@2.1 ok1@2.2 r1@30", 0, 1, 0),
    ],
)
def test_what_is_early_lost_and_twice(text: str, early: int, lost: int, twice: int) -> None:
    found = judged(text)
    assert (found["early"], found["lost"], found["twice"]) == (early, lost, twice)
    assert (len(found[delays.EARLY]), len(found[delays.LOST])) == (early, lost)
    assert not found["undecided"]


@pytest.mark.parametrize("read_at_s", [None, 9.9])
def test_a_queue_that_was_not_read_in_time_proves_no_loss(read_at_s: float | None) -> None:
    """Readers that were done before a message was overdue could not find it."""
    found = judged("d1@2+3 ok1@2.1", read_at_s)
    assert (found["lost"], found["undecided"]) == (0, 1)


def test_how_late_messages_are_is_measured_during_the_load() -> None:
    """What came in the final phase waited for its readers."""
    found = judged("d1@2+3 ok1@2 p1@5.25 d2@3+1 ok2@3 p2@4 d3@4+1 ok3@4 p3@25 r1@30 r2@30 r3@30")
    assert found["late"] == [(0, 1), (25, 1)]
    assert delays._p99([found]) == pytest.approx(0.26)
