"""Programs of our own that run on a node, with the node's own Python, and tell JSON.

They lie beside the agent's, where the node has our packages:
`clusters/hosts/_faults/wall_clock.py` and `rlimits.py`. In a simulated world nothing is executed,
but it is known what they would do.
"""

from typing import Any

from harness.contracts import Bed
from harness.errors import BedFailed

FOLDER = "clusters/hosts/_faults"  # below the folder of our packages
WITHIN_S = 20.0


async def there(bed: Bed, node: str, program: str, *words: object) -> Any:
    """What the program tells on that node, where it is given these words."""
    python = bed.hosts.python(node)
    path = f"{python.packages}/{FOLDER}/_{program}.py"
    argv = [python.executable, "-S", "-s", path, *map(str, words)]
    ran = await bed.agents[node].run(argv, timeout_s=WITHIN_S)
    if ran.code != 0:
        lines = ran.err.strip().splitlines()
        raise BedFailed(f"{node}: {lines[-1] if lines else f'exit code {ran.code}'}")
    return ran.answer(node)
