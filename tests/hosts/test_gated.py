"""An agent whose node has a gate: each order gets its own answer."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusters.hosts._agent import agent as _agent
from clusters.hosts._agent.driver import Connection, PipeAgent
from clusters.hosts._faults import syscall_tracer as _gate
from clusters.hosts._faults import traced_agent as _gated
from clusters.hosts._faults.traced_agent import GatedAgent
from harness.contracts import Forgotten, Python
from harness.errors import BedFailed


async def in_vain(gated: GatedAgent, patch: pytest.MonkeyPatch, broken_off: bool) -> None:
    """An order that a gate that is stopped gets, and whose giver waits for no answer."""
    if broken_off:
        order = asyncio.create_task(gated.forget_unsynced(1))
        for _ in range(3):  # each behind what the order has asked of the agent
            await gated.state("writer")
        order.cancel()
        with pytest.raises(asyncio.CancelledError):
            await order
        return
    with patch.context() as hasty:
        hasty.setattr(_gated, "LOSES_WITHIN_S", 0.01)
        with pytest.raises(BedFailed, match="a: the gate to its disk did not obey within"):
            await gated.forget_unsynced(1)


async def asked_again(
    agent: PipeAgent, folder: Path, patch: pytest.MonkeyPatch, broken_off: bool
) -> Forgotten:
    """What a node forgets when it is asked once more: before it was in vain, for the gate was
    stopped."""
    python = Python(sys.executable, str(Path(_gate.__file__).parents[2]))
    gated = GatedAgent("a", agent, python, str(folder), "store")
    await gated.put_up()
    await gated.start("writer", ["sh", "-c", "echo x > f"], cwd=str(folder / "store"))
    await gated.exited("writer")
    await gated.signal(_gated.PROCESS, signal.SIGSTOP)
    for _ in range(1 if broken_off else 2):
        await in_vain(gated, patch, broken_off)
    await gated.signal(_gated.PROCESS, signal.SIGCONT)
    await gated.disk("nobody", None)
    return await gated.forget_unsynced(1)


@pytest.mark.parametrize("broken_off", [False, True])
def test_a_late_answer_is_not_taken_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken_off: bool
) -> None:
    """Whoever asks again, of a node that has lost all it could, is not told of the first loss."""
    (tmp_path / "store").mkdir()
    argv = [sys.executable, "-I", "-S", _agent.__file__]

    async def scene() -> Forgotten:
        connection = Connection("a", *ends)
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
