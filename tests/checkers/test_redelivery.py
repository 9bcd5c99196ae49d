"""What a group acknowledged does not come again, as far as that is certain.

A history is a line of words: `f3` begins a fetch of process 0, which returns message 3 at `f.`;
`a3` begins to acknowledge it, which is answered at `a.`, or is of unknown outcome at `a?`. Capital
letters are of another group.
"""

import numpy as np
import pytest

from checkers import redelivery
from harness.operation import NONE, F, Type

ENDS = {".": Type.OK, "?": Type.INFO}


def rows(text: str) -> dict[str, np.ndarray]:
    """Return the columns of a history."""
    found: list[dict[str, int]] = []
    begun: dict[str, dict[str, int]] = {}
    for t, word in enumerate(text.split()):
        letter, rest = word[0], word[1:]
        f = F.POLL if letter in "fF" else F.ACKNOWLEDGE
        if rest in ENDS:
            offset, own = begun[letter]["offset"], {**begun[letter], "t": t, "type": ENDS[rest]}
            if rest == ".":
                found.append({**own, "offset": offset, "pos": 0})
            found.append({**own, "offset": NONE})
        else:
            own = {"process": 0, "op": t, "f": f, "key": 0, "t": t}
            begun[letter] = {**own, "offset": int(rest)}
            found.append({**own, "type": Type.INVOKE, "arg": int(letter.isupper())})
    names = redelivery.COLUMNS
    return {name: np.array([row.get(name, NONE) for row in found]) for name in names}


@pytest.mark.parametrize(
    ("text", "redelivered", "again"),
    [
        ("f3 f. a3 a. f4 f. a4 a.", 0, 0),
        ("f3 f. a3 a. f3 f.", 1, 1),
        ("f3 f. f3 f. a3 a.", 1, 0),  # it was not acknowledged yet
        ("f3 f. a3 f3 a. f.", 1, 0),  # the fetch was under way
        ("f3 f. a3 a? f3 f.", 1, 0),
        ("f3 f. a3 a. F3 F.", 0, 0),  # another group
        ("f3 f. a3 a. f3 f. f3 f.", 2, 1),  # one message
    ],
)
def test_what_comes_again(text: str, redelivered: int, again: int) -> None:
    found = redelivery.judge(rows(text), 20)
    assert (found["redelivered"], found["again"], len(found["rows"])) == (redelivered, again, again)
