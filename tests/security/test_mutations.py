"""Mutated inputs are read or refused: no decoder lets another error out, crashes or hangs."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import mutations
import pytest

SHARES = {"frames": 2_000, "toml": 600, "lines": 1_000, "json": 600}  # of the others 200
KEPT = {
    "parquet": [7712, 19417, 19478],
    "sealed": [92, 95],
    "edn": [10277, 13632, 20930, 39805],
}  # numbers of inputs that once escaped


@pytest.mark.parametrize("kind", mutations.KINDS)
def test_nothing_escapes(kind: str) -> None:
    """Some of each kind, other ones than `tests/acceptance/decode_mutations.py` begins with."""
    tally = mutations.carried(kind, 10**9, SHARES.get(kind, 200))
    assert tally.escaped == []
    assert tally.inputs == SHARES.get(kind, 200)
    assert tally.read, "the mutations are too wild"
    assert tally.refused or kind in ("lines", "streams"), "the mutations are too mild"


def test_what_once_escaped() -> None:
    """It is read or refused."""
    for kind, numbers in KEPT.items():
        for number in numbers:
            assert mutations.carried(kind, number, 1).escaped == []


def test_what_escapes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of another type, a process that dies, and one that hangs: each by its number."""

    def hangs() -> None:
        while True:
            pass

    ends: dict[str, Any] = {"0": KeyError, "1": partial(os._exit, 3), "2": hangs}

    def fails(name: str, path: Path) -> None:
        end = ends[name]
        raise end if end is KeyError else SystemExit(end())

    monkeypatch.setattr(mutations, "HANGS_S", 1)
    sound = [(name, b"x") for name in ends]
    made = mutations.Kind(lambda: sound, "text", fails)
    monkeypatch.setattr(mutations, "KINDS", {"made": made})
    names = [mutations.drawn("made", number)[0] for number in range(40)]
    wanted = {name: names.index(name) for name in ends}
    for number in wanted.values():
        ((found, _),) = mutations.carried("made", number, 1).escaped
        assert found == number
