"""What hosts say while they are raised reaches who waits, and is no noise anywhere else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bed

SAYING = """
import asyncio, sys
from threading import Thread
from harness.run.parent_pipe import listener, open_parent_pipe

async def main(alone):
    if not alone:
        await open_parent_pipe()
    async with asyncio.TaskGroup() as group:
        group.create_task(told())

async def told():
    thread = Thread(target=listener.get(), args=("building an image",))
    thread.start()
    thread.join()

asyncio.run(main(sys.argv[1] == "alone"))
"""


@pytest.mark.parametrize("alone", [True, False])
def test_the_command_that_holds_the_line_is_told(root: Path, alone: bool) -> None:
    """By a status line; where nobody holds one, standard output is left alone. The log has both."""
    with subprocess.Popen(
        [sys.executable, "-c", SAYING, "alone" if alone else "held"],
        env={"PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stderr
        said, logged = process.stdout.read(), process.stderr.read()
    assert "building an image" in logged
    if alone:
        assert said == ""
    else:
        assert json.loads(said) == {"said": "building an image"}
