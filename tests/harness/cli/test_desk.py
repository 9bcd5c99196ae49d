"""The requests that the process of a running cluster serves, over its real socket."""

import asyncio
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import cluster
from harness.cli.cluster_server import MAX_BYTES, serving
from harness.history.rundir import RunDir
from harness.trial import Trial

Lines = Callable[[int], list[str]]


class Agent:
    """A node that is this machine."""

    async def run(self, argv: Sequence[str]) -> Any:
        ran = await asyncio.to_thread(subprocess.run, argv, capture_output=True, check=False)
        out, err = (text.decode("utf-8", "replace") for text in (ran.stdout, ran.stderr))
        return SimpleNamespace(code=ran.returncode, out=out, err=err)

    async def state(self, process: str) -> Any:
        return SimpleNamespace(state="[running]")


class System:
    """Its node stands in brackets, and nobody is in charge."""

    log = "events.jsonl"

    def process(self, node: str) -> str:
        return node

    async def cluster_state(self, bed: Any) -> Any:
        return SimpleNamespace(
            masters={"[/set]": "n-1"},
            epochs={"[/set]": 3},
            in_set=(),
            controller_leader="",
            redundant=False,
        )


def at_the_desk(folder: Path, ask: Callable[[RunDir], int]) -> None:
    """Ask, while there is a cluster of one node."""
    node = SimpleNamespace(name="n-1", role="broker", address="[fd00::2]")
    hosts = SimpleNamespace(folder=lambda node: str(folder))
    bed: Any = SimpleNamespace(nodes=[node], agents={"n-1": Agent()}, hosts=hosts, system=System())

    async def serve() -> int:
        async with serving(folder, bed, asyncio.Event()):
            return await asyncio.to_thread(ask, RunDir(folder))

    assert asyncio.run(serve()) == 0


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[bytes, int], str]:
    """`told(log, lines)`: what `cluster logs --lines` prints of such a log."""

    def asked(log: bytes, lines: int) -> str:
        (tmp_path / "events.jsonl").write_bytes(log)
        at_the_desk(tmp_path, lambda run: cluster.show_log(run, "n-1", "", lines, follow=False))
        return capsys.readouterr().out

    return asked


def test_the_end_of_a_log_is_as_many_lines_as_asked_for(
    told: Callable[[bytes, int], str],
) -> None:
    """However long they are, and in whatever letters."""
    lines = [f"{n} {'ü' * 400}\n" for n in range(100)]
    for count in (1, 50, 100, 1000):
        assert told("".join(lines).encode(), count) == "".join(lines[-count:])
    assert told(b"", 5) == ""


def test_the_end_of_a_log_is_its_end(told: Callable[[bytes, int], str]) -> None:
    """Though one answer can not hold so much of it; every line is whole."""
    lines = [f"{n:06d} {'é' * 40}\n" for n in range(30_000)]
    assert sum(map(len, lines)) > MAX_BYTES
    assert told("".join(lines).encode(), 25_000) == "".join(lines[-25_000:])


def test_a_line_that_is_longer_than_an_answer(told: Callable[[bytes, int], str]) -> None:
    """It comes in pieces; one that is not ended yet ends where the answer does."""
    assert told(b"a\n" + b"x" * (MAX_BYTES + 7), 1) == "x" * (MAX_BYTES + 7) + "\n"


def test_what_a_cluster_says_of_itself_is_no_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An address in brackets is shown, and a name with a slash in them ends nothing."""
    (tmp_path / "trial.toml").write_text(Trial().to_toml())
    at_the_desk(tmp_path, cluster.show_status)
    told = capsys.readouterr().out
    for words in ("[fd00::2]", "[running]", "master of [/set], epoch 3", "without full redundancy"):
        assert words in told
