"""Run one of our programs on a node, with the node's own Python. It prints JSON.

The programs are in `clusters/hosts/_faults`, which is part of the packages on every node:
`wall_clock.py`, `rlimits.py`, `damage.py`. In a simulated world they are not executed, but their
effects are simulated.
"""

from typing import Any

from harness.contracts import TestBed
from harness.errors import BedFailed

FOLDER = "clusters/hosts/_faults"  # below the folder of our packages
TIMEOUT_S = 20.0


async def run_program(
    bed: TestBed, node: str, program: str, *words: object, timeout_s: float = TIMEOUT_S
) -> Any:
    """Run a program with these arguments; return its output. Raises BedFailed if it fails."""
    python = bed.hosts.python(node)
    path = f"{python.packages}/{FOLDER}/{program}.py"
    argv = [python.executable, "-S", "-s", path, *map(str, words)]
    ran = await bed.agents[node].run(argv, timeout_s=timeout_s)
    if ran.code != 0:
        lines = ran.err.strip().splitlines()
        raise BedFailed(f"{node}: {lines[-1] if lines else f'exit code {ran.code}'}")
    return ran.json_output(node)
