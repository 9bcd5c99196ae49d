"""Systems whose members an operator may change while they run.

Such a system says `members` in its `can`, beside what its hosts can, and in `members` which roles
may leave and join. It carries out the operator's commands; a fault says when, and looks.
"""

from typing import Protocol

from harness.contracts import Bed, System


class Membered(System, Protocol):
    """A system that can `members`."""

    can: frozenset[str]
    members: tuple[str, ...]  # roles

    async def dismiss(self, bed: Bed, node: str) -> None:
        """Have the others agree that the node, which runs still, is no member any more. BedFailed
        when they do not."""
        ...

    async def start_newcomer(self, bed: Bed, node: str) -> None:
        """Start the node's process on an empty disk, as one that waits until it is added."""
        ...

    async def enrol(self, bed: Bed, node: str) -> None:
        """Have the others agree that it is a member. BedFailed when they do not."""
        ...

    async def enrolled(self, bed: Bed, node: str) -> bool:
        """Whether the others count it as a full member now."""
        ...
