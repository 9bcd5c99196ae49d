"""Measure how long a fault takes on each node, to be applied and to be healed.

Faults reach nodes only through agents, and change something there with a few verbs only. So a
wrapper around the agents measures every call of every fault, from the call until the node has
answered, without the faults' help. Faults may overlap; a context variable of the task says which
fault makes a call.
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
    """Collect milliseconds by node, of calls in this block and in the tasks that it starts."""
    token = _took_ms.set(took_ms)
    try:
        yield
    finally:
        _took_ms.reset(token)


def timed_agents(agents: Mapping[str, Agent], now_ns: Callable[[], int]) -> Mapping[str, Agent]:
    """Wrap the agents so that their calls are measured."""
    return {node: cast(Agent, _TimedAgent(node, agent, now_ns)) for node, agent in agents.items()}


class _TimedAgent:
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
