"""`python -m clusters.flotilla_mutants NAME NODE.toml` runs one node with a flaw."""

import asyncio
import sys

from clusters.flotilla.node import USAGE
from clusters.flotilla.world.ports import arguments, real

from . import MUTANTS

if __name__ == "__main__":
    name, *rest = arguments() or [""]
    if name not in MUTANTS:
        sys.stderr.write(f"there is no mutant {name!r}; there are {', '.join(MUTANTS)}\n")
        sys.exit(USAGE)
    sys.exit(asyncio.run(MUTANTS[name].serve(rest, real)))
