"""Fixtures of the tests of the simulated world: no world outlives its test."""

from collections.abc import Iterator

import pytest
from small_world import SmallWorld


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    SmallWorld.close_all()
