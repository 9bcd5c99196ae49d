"""Why an engine or a machine cannot host nodes: what is wrong, why it matters, what fixes it."""

from typing import NamedTuple

from harness.errors import BedFailed


class Problem(NamedTuple):
    """One obstacle, in three parts for the doctor's table."""

    what: str
    why: str
    fix: str

    def sentence(self) -> str:
        return f"{self.what}: {self.why}; to fix it: {self.fix}"

    def advice(self) -> str:
        """Return the sentence without the reason why it matters."""
        return f"{self.what}; to fix it: {self.fix}"


class Unready(BedFailed):
    """An engine or a machine on which no node can run."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.advice())
        self.problem = problem
