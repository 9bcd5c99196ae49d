"""`python -m clusters.flotilla NODE.toml` runs one node (node.py).

`python -m clusters.flotilla admin COMMAND` is the operator's tool (admin).
"""

import sys
from importlib import import_module

from .node import run
from .world.ports import arguments

if __name__ == "__main__":
    given = list(arguments())
    if given[:1] == ["admin"]:  # imported on demand: nodes do not need it
        sys.exit(import_module(".admin", __package__).run(given[1:]))
    sys.exit(run(given))
