"""Concurrent tasks: when one fails, the others are cancelled and its error is raised.

`asyncio.TaskGroup` does this too, but wraps the error in a group; callers want the error itself.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


async def run_all(*work: Coroutine[Any, Any, Any]) -> None:
    """Run all coroutines; the first failure cancels the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as errors:
        raise first_error(errors) from errors


@asynccontextmanager
async def in_background(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run coroutines in the background of a block; a failure there ends the block."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from errors


def first_error(error: BaseException) -> BaseException:
    """Return the first error inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
