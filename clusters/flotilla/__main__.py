"""`python -m clusters.flotilla NODE.toml` runs one node; see node.py."""

import sys

from .node import run
from .ports import arguments

if __name__ == "__main__":
    sys.exit(run(list(arguments())))
