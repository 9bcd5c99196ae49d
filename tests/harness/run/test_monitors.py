"""What the runner keeps an eye on, with agents that say what a test tells them to."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from harness.contracts import CommandResult, Node, ProcessState, TestBed
from harness.errors import BedFailed, NodeGone
from harness.run.monitors import watch_agents, watch_disks, watch_exits

NODE = Node("broker-1", "broker", "10.0.0.1")
HEAD = "Filesystem 1024-blocks Used Available Capacity Mounted on\n"


class Agent:
    """Its disk has `free_kb` left, answer by answer; its process ends with `code`."""

    def __init__(self, free_kb: Sequence[int | BaseException], code: int = 3) -> None:
        self._free_kb, self._code, self._ended = iter(free_kb), code, False

    async def run(self, argv: Sequence[str], *_: Any) -> CommandResult:
        answer = next(self._free_kb)
        if isinstance(answer, BaseException):
            raise answer
        return CommandResult(0, f"{HEAD}tmpfs 300000 1 {answer} 100% {argv[-1]}\n", "")

    async def state(self, _name: str) -> ProcessState:
        if self._ended:
            raise NodeGone("broker-1 is gone: its agent ended")
        return ProcessState("running", 7)

    async def exited(self, _name: str) -> int:
        self._ended = True
        return self._code


class Seen(list[tuple[Any, ...]]):
    """What was lost, and what was recorded."""

    def event(self, _t: int, node: str, kind: str, fields: Any) -> None:
        self.append((node, kind, fields["code"]))

    def bed(self, agent: Agent) -> TestBed:
        async def sleep(_s: float) -> None: ...

        return TestBed(
            nodes=(NODE, Node("client-1", "client")),
            agents=watch_agents({"broker-1": agent}, self.lost),  # type: ignore[dict-item]
            hosts=type("Hosts", (), {"folder": lambda _, node: f"/there/{node}"})(),
            system=type("System", (), {"process": lambda _, node: "broker"})(),
            record=self,  # type: ignore[arg-type]
            now_ns=lambda: 5,
            acknowledged=lambda: 0,
            sleep=sleep,
        )

    def lost(self, node: str, why: str) -> None:
        self.append((node, why))


def watched(watch: Any, agent: Agent) -> Seen:
    """What the one watch of the one node of the cluster saw until its end."""
    seen = Seen()
    (one,) = watch(seen.bed(agent), seen.lost)
    asyncio.run(one)
    return seen


def test_a_disk_is_full_when_a_node_could_not_have_what_it_may_ask_for() -> None:
    """A node that then refuses its work is not to blame. An agent that can not say just now ends
    nothing."""
    seen = watched(watch_disks, Agent([900_000, BedFailed("df took longer than 10 s"), 62_000, 12]))
    assert seen == [("broker-1", "only 63 MB are free under /there/broker-1")]


@pytest.mark.parametrize(
    ("free_kb", "first"),
    [
        (900_000, ("broker-1", "exit", 3)),
        (40_000, ("broker-1", "only 41 MB are free under /there/broker-1")),
    ],
)
def test_the_end_of_a_node_is_its_own_unless_its_disk_was_full(
    free_kb: int, first: tuple[Any, ...]
) -> None:
    """Recorded as its exit, or told as the bed's failure; never both."""
    assert watched(watch_exits, Agent([free_kb])) == [first, ("broker-1", "its agent ended")]


def test_a_node_that_goes_with_its_process_left_no_exit() -> None:
    """A container that is removed ends its processes first: nobody may be convicted of that."""
    seen = watched(watch_exits, Agent([NodeGone("broker-1 is gone: its agent ended")]))
    assert seen == [("broker-1", "its agent ended")]
