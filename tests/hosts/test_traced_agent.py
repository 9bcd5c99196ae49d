"""An agent whose node has a syscall tracer: each order gets its own answer."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusters.hosts._agent import agent as _agent
from clusters.hosts._agent.driver import PipeAgent, PipeConnection
from clusters.hosts._faults import syscall_tracer as _gate
from clusters.hosts._faults import traced_agent as _gated
from clusters.hosts._faults.traced_agent import TracedAgent
from harness.contracts import PythonRuntime, UnsyncedReport
from harness.errors import BedFailed


async def in_vain(gated: TracedAgent, patch: pytest.MonkeyPatch, broken_off: bool) -> None:
    """Send an order to a stopped tracer, without waiting for its answer."""
    if broken_off:
        order = asyncio.create_task(gated.drop_unsynced(1))
        for _ in range(3):  # each behind what the order has asked of the agent
            await gated.state("writer")
        order.cancel()
        with pytest.raises(asyncio.CancelledError):
            await order
        return
    with patch.context() as hasty:
        hasty.setattr(_gated, "LOSES_WITHIN_S", 0.01)
        with pytest.raises(BedFailed, match="a: its syscall tracer did not answer within"):
            await gated.drop_unsynced(1)


async def asked_again(
    agent: PipeAgent, folder: Path, patch: pytest.MonkeyPatch, broken_off: bool
) -> UnsyncedReport:
    """What a node loses at a second order: the first one was in vain, since the tracer was
    stopped."""
    python = PythonRuntime(sys.executable, str(Path(_gate.__file__).parents[3]))
    gated = TracedAgent("a", agent, python, str(folder), "store")
    await gated.start_tracer()
    await gated.start("writer", ["sh", "-c", "echo x > f"], cwd=str(folder / "store"))
    await gated.exited("writer")
    await gated.signal(_gated.PROCESS, signal.SIGSTOP)
    for _ in range(1 if broken_off else 2):
        await in_vain(gated, patch, broken_off)
    await gated.signal(_gated.PROCESS, signal.SIGCONT)
    await gated.disk("nobody", None)
    return await gated.drop_unsynced(1)


@pytest.mark.parametrize("broken_off", [False, True])
def test_a_late_answer_is_not_taken_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken_off: bool
) -> None:
    """The second order, on a node that has lost everything, does not get the answer to the
    first."""
    (tmp_path / "store").mkdir()
    argv = [sys.executable, "-I", "-S", _agent.__file__]

    async def scene() -> UnsyncedReport:
        connection = PipeConnection("a", *ends)
        await connection.open()
        try:
            return await asked_again(connection.agent, tmp_path, monkeypatch, broken_off)
        finally:
            assert await connection.hang_up(30)

    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        ends = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        told = asyncio.run(scene())
    assert (told.files, told.names) == (0, 0)
