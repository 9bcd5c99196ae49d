"""How long each node took to be broken, and to be mended.

Faults reach nodes through agents alone, and change something there by few verbs only. So a view
of the agents can take the time of every fault's every call, and no fault knows of it: from the
moment the call is made until the node has answered. Which fault makes a call is told by the task
it runs in, since faults may overlap.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from harness.contracts import Agent

EFFECTS = frozenset({"disk", "links", "power", "run", "signal", "start"})

_took_ms: ContextVar[dict[str, float] | None] = ContextVar("took_ms", default=None)


@contextmanager
def timing(took_ms: dict[str, float]) -> Iterator[None]:
    """Milliseconds by node, of what is called in this block and the tasks that it starts."""
    token = _took_ms.set(took_ms)
    try:
        yield
    finally:
        _took_ms.reset(token)


def timed(agents: Mapping[str, Agent], now_ns: Callable[[], int]) -> Mapping[str, Agent]:
    """The same agents, under a stopwatch."""
    return {node: cast(Agent, _Timed(node, agent, now_ns)) for node, agent in agents.items()}


class _Timed:
    def __init__(self, node: str, agent: Agent, now_ns: Callable[[], int]) -> None:
        self._node, self._agent, self._now_ns = node, agent, now_ns

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        call: Callable[..., Awaitable[Any]] = getattr(self._agent, verb)
        took_ms = _took_ms.get()
        if verb not in EFFECTS or took_ms is None:
            return call

        async def taken(*args: Any, **fields: Any) -> Any:
            began_ns = self._now_ns()
            answer = await call(*args, **fields)
            ms = round((self._now_ns() - began_ns) / 1e6, 3)
            took_ms[self._node] = max(ms, took_ms.get(self._node, 0.0))
            return answer

        return taken
