"""Programs of our own that run on a node: `_wall_clock.py` and `_limits.py`.

An agent runs them with the node's own Python, which reads the text from its standard input, so
nothing has to be there before and nothing stays. What is printed is JSON. They begin with a word
that says which it is: in a simulated world nothing is executed, but it is known what it would do.
"""

import json
from pathlib import Path
from typing import Any

from harness.contracts import Bed
from harness.errors import BedFailed

WITHIN_S = 20.0


async def there(bed: Bed, node: str, program: str, *words: object) -> Any:
    """What the program tells on that node, where it is given these words."""
    text = Path(__file__).with_name(f"_{program}.py").read_bytes()
    argv = [bed.hosts.python(node).executable, "-I", "-S", "-", program, *map(str, words)]
    ran = await bed.agents[node].run(argv, stdin=text, timeout_s=WITHIN_S)
    if ran.code != 0:
        lines = ran.err.strip().splitlines()
        raise BedFailed(f"{node}: {lines[-1] if lines else f'exit code {ran.code}'}")
    return json.loads(ran.out)
