"""Things that go on together: when one fails, the others are cancelled and its error is the error.

`asyncio.TaskGroup` does this, but wraps the error in a group; a caller wants the sentence.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


async def together(*work: Coroutine[Any, Any, Any]) -> None:
    """Do all of it; the first failure ends the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as errors:
        raise first(errors) from errors


@asynccontextmanager
async def meanwhile(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """In the background of a block, until it ends; a failure there breaks the block off."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise first(errors) from errors


def first(error: BaseException) -> BaseException:
    """The first error inside groups of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
