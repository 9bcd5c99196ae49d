"""What an acting master takes from its queues, in which order, and when again."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusters.flotilla.broker.catalog import Catalog
from clusters.flotilla.rules import Rules
from clusters.flotilla.special.escape import (
    DelayEscapes,
    DueRecords,
    HalfEscapes,
    NotedEscapes,
    RetryEscapes,
)
from clusters.flotilla.world.ports import real


def catalog(folder: Path) -> Catalog:
    return Catalog(str(folder), real(1).files, {})


class EmptyStore:
    """Queues whose index ends behind what their store gives. `asked`: from which offsets on."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def queues(self) -> Any:
        class Queues(dict[object, object]):
            def get(self, _key: object, _default: object = None) -> object:
                return SimpleNamespace(base=1, visible_end=3)

        return Queues()

    def fetch(self, _key: object, offset: int, *_limits: int) -> list[object]:
        self.asked.add(offset)
        return []


@pytest.mark.parametrize("scan", [DelayEscapes, HalfEscapes, RetryEscapes])
def test_a_read_without_records_ends_the_scan(tmp_path: Path, scan: type[Any]) -> None:
    """The rest is read later: no exception, and no loop without end. What was deleted is passed."""
    store = EmptyStore()
    replica = SimpleNamespace(store=store, catalog=catalog(tmp_path))
    clock = SimpleNamespace(wall_ms=lambda: 1)
    context: Any = SimpleNamespace(
        config=SimpleNamespace(time_scale=1.0, transaction_timeout_s=1.0),
        rules=Rules(),
        replica=replica,
        ports=SimpleNamespace(clock=clock),
    )

    async def taken() -> list[Any]:
        acting = scan(context)
        acting.begin()
        return list(acting.due(5.0))

    assert asyncio.run(taken()) == []
    assert store.asked == {1}


def test_records_are_taken_when_they_are_due() -> None:
    """Those that failed are due by the event loop, and come first; the rest by the clock, in order.
    None is added twice for one time."""
    records = DueRecords(Rules())
    records.add(200, 1, 7)
    records.add(100, 1, 8)
    records.again(5.0, 1, 9)
    records.again(5.0, 1, 9)
    assert records.take(4.9, 99) is None
    assert records.take(5.0, 150) == (1, 9)
    assert records.take(5.0, 150) == (1, 8)
    assert records.take(5.0, 150) is None
    assert records.take(5.0, 200) == (1, 7)


def test_failures_are_counted_until_a_record_has_escaped(tmp_path: Path) -> None:
    """The note is a change of the metadata, and outlives this object."""
    kept = catalog(tmp_path)
    noted = NotedEscapes("topic", kept)
    assert [noted.fail(1, 7), noted.fail(1, 7), noted.fail(2, 7)] == [1, 2, 1]
    noted.add(1, 7)
    assert [noted.has(1, 7), noted.has(2, 7), noted.fail(1, 7)] == [True, False, 1]
    assert NotedEscapes("topic", kept).has(1, 7)
