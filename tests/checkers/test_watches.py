"""What watchers of a key receive, and what follows from it.

A history is a line of words about one key. `a:1` is a write of value a that was acknowledged as
version 1; `a?` has no answer, `a-` was refused. `W0<` are the events that process 0 received after
version 0: `W0< 1a 2b;`, or `N0<`, of which only the newest is promised, or `E0<`, which may come
before reads show them; `R0 2b` is its read. `|` begins the final phase.
"""

from collections.abc import Iterator

import pytest

from checkers import watches
from harness.operation import NONE, F, Type

KINDS = {"?": Type.INFO, "-": Type.FAIL}


def told(text: str) -> tuple[list[watches.KeyOperation], int]:
    """Return the operations, and when the final phase began."""
    words, now, drained = iter(text.split()), 0, NONE
    found: list[tuple[int, ...]] = []
    for op, word in enumerate(words):
        now += 10
        if word == "|":
            drained = now
        else:
            found += rows(op, now, word, words)
    (only,) = watches.operations_of(found)
    return only[1], drained


def rows(op: int, t: int, word: str, words: Iterator[str]) -> Iterator[tuple[int, ...]]:
    """Yield rows as `watches.COLUMNS` has them."""

    def row(kind: Type, f: F, process: int, **more: int) -> tuple[int, ...]:
        known = {"t": t + (kind != Type.INVOKE), "process": process, "op": op, "type": kind}
        known |= {"f": f, "key": 0, **more}
        return tuple(known.get(name, NONE) for name in watches.COLUMNS)

    if word[0] == "R":
        version, value = placed(next(words))
        yield row(Type.INVOKE, F.GET, int(word[1:]))
        yield row(Type.OK, F.GET, int(word[1:]), offset=version, value=value)
    elif word[0] in "WNE":
        process, after = map(int, word[1:].split("<"))
        yield row(Type.INVOKE, F.WATCH, process, offset=after)
        events = [] if (first := next(words)) == ";" else [first, *iter(words.__next__, ";")]
        if events == ["failed"]:
            yield row(Type.FAIL, F.WATCH, process)
            return
        for pos, event in enumerate(events):
            version, value = placed(event)
            yield row(Type.OK, F.WATCH, process, offset=version, value=value, pos=pos)
        yield row(Type.OK, F.WATCH, process, arg="WNE".index(word[0]))
    else:
        value, version = ord(word[0]), word[2:]
        yield row(Type.INVOKE, F.PUT, 9, value=value)
        if kind := Type.OK if version else KINDS[word[1]]:
            yield row(kind, F.PUT, 9, value=value, offset=int(version or NONE))


def placed(event: str) -> tuple[int, int]:
    """Return version and value: 2b; 0: there is none."""
    return (int(event[:-1]), ord(event[-1])) if event != "0" else (0, NONE)


ABC = "a:1 b:2 c:3 "
SILENT = "W0<1 ; W0<1 ; W0<1 ;"


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (ABC + "W0<0 1a 2b ; W0<2 3c ;", []),
        (ABC + "W0<0 1a 3c ;", ["EVENT_MISSED"]),
        (ABC + "W0<0 1a ; W0<1 3c ;", ["EVENT_MISSED"]),
        (ABC + "W0<0 1a ; W0<1 3c ; W0<3 2b ;", ["EVENT_OUT_OF_ORDER"]),
        (ABC + "W0<0 1a 3c 2b ;", ["EVENT_OUT_OF_ORDER"]),
        (ABC + "W0<0 1a 1a 2b 3c ;", ["EVENT_TWICE"]),
        (ABC + "W0<0 1a 2b ; W0<2 2b 3c ;", ["EVENT_TWICE"]),
        (ABC + "W0<0 1a ; W0<1 failed ; W0<1 2b 3c ;", []),
        # what is written with an unknown outcome may be seen, or not
        ("a:1 b? c? W0<0 1a 2c ;", []),
        ("a:1 b? c:3 W0<0 1a 3c ;", []),  # nothing proves that b was the second
        (
            "a:1 b? c:3 W0<0 1a 3c ; W1<0 1a 2b 3c ;",
            ["EVENT_MISSED"],
        ),  # here another watcher saw it
        ("a:1 b- W0<0 1a 2b ;", ["EVENT_UNWRITTEN"]),
        ("a:1 W0<0 1a 2z ;", ["EVENT_UNWRITTEN"]),
        ("a:1 b:2 W0<0 1b ;", ["VERSION_CONFLICT"]),
        ("a:1 b:2 W0<0 1a 2b 3a ;", ["VERSION_CONFLICT"]),  # it was written once
        # a watch that continues from a read leaves out what came before, on purpose
        (ABC + "W0<0 1a ; R0 2b W0<2 3c ;", []),
        (ABC + "W0<0 1a ; R0 2b W0<2 2b 3c ;", ["EVENT_STALE"]),
        (ABC + "W0<0 1a ; R0 3c W0<1 2b 3c ;", []),  # a watch may lag behind reads
        # what a client reads is not older than what it has seen
        (ABC + "W0<0 1a 2b ; R0 1a", ["EVENT_STALE"]),
        (ABC + "W0<0 1a ; R0 0", ["EVENT_STALE"]),
        (ABC + "W0<0 1a 2b ; R1 1a", []),  # another client
        (ABC + "R0 3c R0 2b W0<2 3c ;", ["EVENT_STALE"]),
        (ABC + "E0<0 1a 2b ; R0 1a E0<2 3c ;", []),  # it came early
        (ABC + "E0<0 1a ; R0 2b E0<1 2b 3c ; R0 1a", ["EVENT_STALE"]),
        # only the newest is promised
        (ABC + "N0<0 1a ; N0<1 3c ;", []),
        (ABC + "N0<0 3c ; N0<3 2b ;", ["EVENT_STALE"]),
        (ABC + "N0<0 1a ; R0 3c N0<1 2b ;", ["EVENT_STALE"]),
        # the final phase
        (ABC + "W0<0 1a ; | " + SILENT, ["EVENT_MISSED"] * 2),
        (ABC + "W0<0 1a ; " + SILENT + " |", []),  # it may lag while something is written
        (ABC + "N0<0 1a ; | " + SILENT.replace("W", "N"), ["EVENT_MISSED"]),
        (ABC + "W0<0 1a ; | W0<1 ; W0<1 2b ; W0<2 3c ;", []),
    ],
)
def test_the_changes_of_a_key(text: str, codes: list[str]) -> None:
    """Each root cause counts once."""
    verdict = watches.judge_key(*told(text))
    assert [breach.code for breach in verdict.breaches] == codes
    assert not verdict.unfinished


def test_a_watcher_without_answers_proves_nothing() -> None:
    """It may have been about to receive the rest."""
    verdict = watches.judge_key(*told(ABC + "W0<0 1a ; | W0<1 failed ; W0<1 ; W0<1 failed ;"))
    assert (verdict.breaches, verdict.unfinished) == ([], 1)
