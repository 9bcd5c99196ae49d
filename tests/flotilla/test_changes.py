"""A master's changes to the metadata, and the slaves that ask for them (spec 10.4)."""

import asyncio
import gc
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters.flotilla.catalog import Catalog, Version
from clusters.flotilla.changes import Changes
from clusters.flotilla.client import Client, Settings
from clusters.flotilla.config import loads
from clusters.flotilla.net import Unreachable
from clusters.flotilla.ports import real

SLAVE = 2
CONFIG = loads('role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "s"\n')


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def reign(folder: Path, *, strict: bool = True) -> Changes:
    """With one slave, that may be elected."""
    config = replace(CONFIG, strict_metadata=strict, slave_timeout_s=0.0)
    catalog = Catalog(str(folder), real(1).files, {"orders": 4})
    return Changes(config, catalog, 1, lambda: (SLAVE,), lambda slave: None)


def futures() -> int:
    gc.collect()
    return sum(isinstance(thing, asyncio.Future) for thing in gc.get_objects())


def test_a_question_without_news_leaves_nothing_behind(tmp_path: Path) -> None:
    """A slave asks again and again, for as long as nothing changes."""

    async def scenario() -> None:
        changes, held = reign(tmp_path), Version(1)
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
        client = Client(Settings.of({"namesrvAddr": ["127.0.0.1:9"], **times}))
        before = futures()
        for _ in range(50):
            with pytest.raises(Unreachable, match="no master is known"):
                await client.calls.place("nobody", 0)
        assert futures() <= before + 20, "those of an ask under way"
        client.close()

    run(scenario())
