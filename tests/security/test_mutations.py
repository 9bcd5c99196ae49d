"""Mutated inputs are read or refused: no decoder lets another error out, crashes or hangs."""

import mutations
import pytest

SHARES = {"frames": 2_000, "toml": 600, "lines": 1_000, "json": 600}  # of the others 200
KEPT: dict[str, list[int]] = {}  # numbers of inputs that once escaped


@pytest.mark.parametrize("kind", mutations.KINDS)
def test_nothing_escapes(kind: str) -> None:
    """Some of each kind, other ones than `tests/acceptance/mutated.py` begins with."""
    tally = mutations.carried(kind, 10**9, SHARES.get(kind, 200))
    assert tally.escaped == []
    assert tally.inputs == SHARES.get(kind, 200)
    assert tally.read, "the mutations are too wild"
    assert tally.refused or kind in ("lines", "streams"), "the mutations are too mild"


@pytest.mark.parametrize(("kind", "number"), [(k, n) for k, every in KEPT.items() for n in every])
def test_what_once_escaped(kind: str, number: int) -> None:
    """It is read or refused."""
    assert mutations.carried(kind, number, 1).escaped == []


def test_what_escapes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of another type, a process that dies, and one that hangs: each by its number."""
    import os
    import time
    from dataclasses import replace
    from pathlib import Path

    def fails(how: str, path: Path) -> None:
        match path.read_bytes()[:1]:
            case b"#":
                raise KeyError("x")
            case b"{":
                os.abort()
            case b"n":
                time.sleep(60)

    monkeypatch.setattr(mutations, "HANGS_S", 1)
    kind = replace(mutations.KINDS["toml"], decode=fails)
    monkeypatch.setattr(mutations, "KINDS", {**mutations.KINDS, "toml": kind})
    firsts = [mutations.drawn("toml", number)[1][:1] for number in range(400)]
    wanted = {letter: firsts.index(letter) for letter in (b"#", b"{", b"n")}
    for number in wanted.values():
        ((found, _),) = mutations.carried("toml", number, 1).escaped
        assert found == number
