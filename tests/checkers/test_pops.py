"""Each message is given to one consumer at a time until it is acknowledged.

A history is a line of words with times in seconds. `p1@2-2.1` is a POP from 2 to 2.1 s that gave
message 1, invisible for 3 s; `a1@3-3.1` acknowledges it; `n1@3-3.1` is refused, `x1@3-3.1` left
open; `h1@3-3.1` hides it for 6 s; `r1@60` is a message that a final reader found.
"""

import re

import numpy as np
import pytest

from checkers import pops
from harness.operation import NONE, F, Type

S = 1_000_000_000
QUEUE, LATE_NS, INVISIBLE_MS, LONGER_MS = 5, 5 * S, 3000, 6000
WORD = re.compile(r"([panxhr])(\d+)@([\d.]+)(?:-([\d.]+))?")
WORDS = {
    "p": (F.POP, Type.OK),
    "a": (F.ACK, Type.OK),
    "n": (F.ACK, Type.FAIL),
    "x": (F.ACK, Type.INFO),
    "h": (F.HIDE, Type.OK),
    "r": (F.READ, Type.OK),
}


def rows(text: str) -> dict[str, np.ndarray]:
    """Return the columns of a history in the order of times."""
    found: list[dict[str, int]] = []
    for number, word in enumerate(text.split()):
        match = WORD.fullmatch(word)
        assert match, word
        what, value, begin, end = match.groups()
        f, type_ = WORDS[what]
        times = [round(float(at) * S) for at in (begin, end or begin)]
        row = {"op": number, "process": 0, "f": f, "queue": QUEUE}
        message = {"value": int(value), "offset": int(value)}
        arg = {F.POP: INVISIBLE_MS, F.HIDE: LONGER_MS}.get(f, NONE)
        asked = {} if what in "pr" else message
        found.append({**row, **asked, "t": times[0], "type": Type.INVOKE, "arg": arg})
        pos = {"pos": 0} if what in "pr" else {}
        found.append({**row, **message, **pos, "t": times[1], "type": type_})
    found.sort(key=lambda row: row["t"])
    return {name: np.array([row.get(name, NONE) for row in found]) for name in pops.COLUMNS}


def judged(text: str, until_s: int | None = 70) -> dict[str, int]:
    popped_until = {} if until_s is None else {QUEUE: until_s * S}
    found = pops.judge(rows(text), popped_until, LATE_NS, 20)
    codes = {code: n for code, n in found["counts"].items() if n}
    return codes | ({"undecided": found["undecided"]} if found["undecided"] else {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("p1@2-2.1 a1@3-3.1 r1@60", {}),
        ("p1@2-2.1 p1@5.1-5.2 a1@6-6.1 r1@60", {}),
        ("p1@2-2.1 x1@3-3.1 r1@60", {}),  # perhaps acknowledged
        ("p1@2-2.1 r1@60", {"POP_LOST": 1}),
        ("p1@2-2.1 n1@6-6.1 r1@60", {"POP_LOST": 1}),
        ("p1@2-2.1 p1@6-6.1", {"POP_LOST": 1}),
        ("r1@60", {"POP_LOST": 1}),  # it was never given
        ("r1@66", {"undecided": 1}),
        ("p1@61-62.5", {"undecided": 1}),  # due at 65.5, and it may be 5 s late
        ("p1@2-2.1 h1@58-59.1", {"undecided": 1}),
        ("p1@2-2.1 p1@3-3.1 a1@4-4.1", {"POP_TOO_SOON": 1}),
        ("p1@2-2.1 p1@2-2.2 a1@4-4.1", {"POP_TOO_SOON": 1}),
        ("p1@2-2.1 p1@4.1-4.2 a1@5-5.1", {}),  # within the rounding of a second
        ("p1@2-4.5 p1@5-5.1 a1@6-6.1", {}),  # its time may have begun at 2
        ("p1@2-2.1 h1@3-3.1 p1@6-6.1 a1@7-7.1", {"POP_TOO_SOON": 1}),
        ("p1@2-2.1 h1@3-3.1 p1@8.2-8.3 a1@9-9.1", {}),
        ("p1@2-2.1 a1@3-3.1 p1@6-6.1 a1@7-7.1", {"POP_ACKED_AGAIN": 1}),
        ("p1@2-2.1 p1@5.5-6.1 a1@6-6.1", {}),  # it was under way
    ],
)
def test_what_is_lost_and_given_again(text: str, found: dict[str, int]) -> None:
    assert judged(text) == found


def test_without_final_pops_no_loss_is_proved() -> None:
    assert judged("p1@2-2.1 r1@60", None) == {"undecided": 1}
