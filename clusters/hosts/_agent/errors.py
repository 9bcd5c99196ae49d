"""The error of an engine or host that is not ready: it keeps what is wrong and what mends it."""

from clusters.hosts.local.requirements import Problem
from harness.errors import BedFailed


class Unready(BedFailed):
    """No node can live there. `problem`: why, with its parts kept apart for the doctor's table."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.advice())
        self.problem = problem
