"""Known-bad variants of Flotilla, each of which the checkers must convict.

A verdict of *valid* is worth as much as the bugs that would have changed it. Each mutant is
Flotilla with one rule broken, a mistake that was made in real systems. A mutant is the same code,
started by the same main; one field of its `Rules` is replaced, or the ports that it is given, or a
decision of its clients.

`Mutant.finding` is the code of a finding that convicts it. `--set mutant=NAME` gives the flaw to
every node of a trial, and to its clients.
"""

from collections.abc import Mapping

from . import (
    acting,
    containers,
    conversion,
    every_mode,
    pop,
    raft_log,
    special,
    switchless,
    zones_and_leases,
    zookeeper_mode,
)
from .mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MODULES = (
    every_mode,
    switchless,
    acting,
    containers,
    conversion,
    raft_log,
    special,
    pop,
    zones_and_leases,
    zookeeper_mode,
)
MUTANTS: Mapping[str, Mutant] = {
    mutant.name: mutant for module in MODULES for mutant in module.MUTANTS
}
