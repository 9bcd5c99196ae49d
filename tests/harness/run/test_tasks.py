"""Work that goes on together: one failure cancels the rest and is the error, without a group."""

import asyncio

import pytest

from harness.errors import BedFailed
from harness.run.tasks import in_background, run_all


async def forever(log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append("cancelled")


async def fail() -> None:
    raise BedFailed("broken")


def test_the_first_failure_cancels_the_rest() -> None:
    """And is raised as itself."""
    log: list[str] = []
    with pytest.raises(BedFailed, match="broken"):
        asyncio.run(run_all(forever(log), forever(log), fail()))
    assert log == ["cancelled", "cancelled"]


def test_a_failure_in_the_background_breaks_the_block_off() -> None:
    """However long the block would have waited."""

    async def story() -> None:
        async with in_background(fail()):
            await asyncio.Event().wait()

    with pytest.raises(BedFailed, match="broken"):
        asyncio.run(story())


def test_the_background_ends_with_the_block() -> None:
    """The block's own end, or error, is what counts."""
    log: list[str] = []

    async def story(error: Exception | None) -> str:
        async with in_background(forever(log)):
            await asyncio.sleep(0)
            if error:
                raise error
        return "done"

    assert asyncio.run(story(None)) == "done"
    with pytest.raises(ValueError, match="own"):
        asyncio.run(story(ValueError("own")))
    assert log == ["cancelled", "cancelled"]


def test_cancelling_the_whole_cancels_every_part() -> None:
    """A deadline around it is a deadline for all."""
    log: list[str] = []

    async def story() -> None:
        async with asyncio.timeout(0.01):
            await run_all(forever(log), forever(log))

    with pytest.raises(TimeoutError):
        asyncio.run(story())
    assert log == ["cancelled", "cancelled"]
