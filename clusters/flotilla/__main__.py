"""`python -m clusters.flotilla NODE.toml` runs one node; see node.py.

`python -m clusters.flotilla admin COMMAND` is the operator's tool; see admin.
"""

import sys
from importlib import import_module

from .node import run
from .world.ports import arguments

if __name__ == "__main__":
    words = list(arguments())
    if words[:1] == ["admin"]:  # imported on demand: a node needs none of it
        sys.exit(import_module(".admin", __package__).run(words[1:]))
    sys.exit(run(words))
