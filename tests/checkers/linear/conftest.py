"""Small random histories of registers, as the kernels and the oracle want them; recorded ones."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from register_dice import KINDS, Game, Played, Row, all_orders, columns, games, long_games

from checkers._linear.pairing import OperationColumns
from harness.operation import F


@pytest.fixture
def table() -> Callable[[Sequence[Row]], OperationColumns]:
    """Rows (t, process, op, type, f, key, value, arg, pos) as columns; None is absent."""
    return columns


@pytest.fixture
def oracle() -> Callable[[Sequence[Played]], bool]:
    return all_orders


@pytest.fixture
def registers() -> Callable[[int, int], list[Game]]:
    """Games of registers of all kinds: seed, keys."""
    return partial(games, kinds=KINDS)


@pytest.fixture
def written_once() -> Callable[[int, int], list[Game]]:
    """Games whose writes all differ."""
    return partial(games, kinds=((F.GET, F.PUT), (F.GET, F.GET, F.PUT)), unique=True)


@pytest.fixture
def long() -> Callable[[int, int], list[Game]]:
    """Games of 20 operations on two values, all with a planted fault: seed, keys."""
    return long_games


@pytest.fixture
def recorded(histories_folder: Path) -> Path:
    """Registers and strings in the formats that Porcupine reads."""
    return histories_folder / "porcupine"
