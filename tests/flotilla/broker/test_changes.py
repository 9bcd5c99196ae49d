"""A master's changes of the metadata, and slaves that ask for them."""

import asyncio
import gc
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters.flotilla.broker.catalog import Catalog, Version, commit
from clusters.flotilla.broker.changes import MetadataChanges
from clusters.flotilla.client import ClientSettings, ClusterClient
from clusters.flotilla.config import loads
from clusters.flotilla.net.connection import Unreachable
from clusters.flotilla.net.wire import MAX_FRAME, to_json
from clusters.flotilla.world.ports import real

SLAVE = 2
CONFIG = loads('role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "s"\n')


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def term_as_master(folder: Path, *, strict: bool = True) -> MetadataChanges:
    """With one slave, that may be elected."""
    config = replace(CONFIG, strict_metadata=strict, slave_timeout_s=0.0)
    catalog = Catalog(str(folder), real(1).files, {"orders": 4})
    return MetadataChanges(config, catalog, 1, lambda: (SLAVE,), lambda slave: None)


@pytest.mark.parametrize("strict", [True, False])
def test_what_a_slave_is_told_fits_into_a_frame(tmp_path: Path, strict: bool) -> None:
    """However much came while it took nothing: it gets all of it, in order, by asking again."""

    async def scenario() -> None:
        changes, held = term_as_master(tmp_path, strict=strict), Version(1)
        await changes.news_for(SLAVE, "b", held, 0.0)
        place, count, told = ("g" * 400_000, "orders", 0), 50, list[int]()
        for offset in range(count):
            await changes.make(commit(place, offset))
        while len(told) < count:
            reply = await changes.news_for(SLAVE, "b", held, 1.0)
            assert len(to_json(reply)) < MAX_FRAME
            assert reply["base"] == list(held)
            held = Version.of(reply["version"])
            told += [offset for _, _, offset in reply["changes"]]
        assert told == list(range(count))
        changes.end()

    run(scenario())


def futures() -> int:
    gc.collect()
    return sum(isinstance(thing, asyncio.Future) for thing in gc.get_objects())


def test_a_question_without_news_leaves_nothing_behind(tmp_path: Path) -> None:
    """A slave asks again and again, for as long as nothing changes."""

    async def scenario() -> None:
        changes, held = term_as_master(tmp_path), Version(1)
        await changes.news_for(SLAVE, "b", held, 0.001)
        before = futures()
        for _ in range(50):
            await changes.news_for(SLAVE, "b", held, 0.001)
        assert futures() <= before + 5
        changes.end()

    run(scenario())


def test_a_call_that_finds_no_master_leaves_nothing_behind() -> None:
    """As above, of a client whose routes do not change."""

    async def scenario() -> None:
        times = {"requestTimeoutMillis": 1, "pollNameServerInterval": 60_000}
        client = ClusterClient(ClientSettings.of({"namesrvAddr": ["127.0.0.1:9"], **times}))
        before = futures()
        for _ in range(50):
            with pytest.raises(Unreachable, match="no master is known"):
                await client.calls.place("nobody", 0)
        assert futures() <= before + 20, "those of an ask under way"
        client.close()

    run(scenario())
