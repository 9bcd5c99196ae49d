"""What an operator may do to a system while it runs: change its members, hand a mastership over.

A system whose members may change says `members` in its `can`, beside what its hosts can, and in
`members` which roles may leave and join. It carries out the operator's commands; a fault says when,
and looks. Members that decide something are dismissed while they run, so that those who stay agree
without them; those that keep copies (`stopped_first`) when their process has ended, since who is
alive belongs to it. One whose masters can be replaced by a command says `handover`.
"""

from typing import Protocol

from harness.contracts import Bed, System


class Membered(System, Protocol):
    """A system that can `members`."""

    can: frozenset[str]
    members: tuple[str, ...]  # roles
    stopped_first: tuple[str, ...]  # those of them whose nodes are dismissed when they have ended

    async def dismiss(self, bed: Bed, node: str) -> None:
        """Have the others agree that the node is no member any more. BedFailed when they do not."""
        ...

    async def start_newcomer(self, bed: Bed, node: str) -> None:
        """Start the node's process as one that is no member: it waits until it is added."""
        ...

    async def enrol(self, bed: Bed, node: str) -> None:
        """Have the others agree that it is a member; nothing where newcomers see to it themselves.
        BedFailed when they do not."""
        ...

    async def enrolled(self, bed: Bed, node: str) -> bool:
        """Whether the others know it as a member now."""
        ...


class HandsOver(System, Protocol):
    """A system that can `handover`: it says so in its `can`."""

    can: frozenset[str]

    async def hand_over(self, bed: Bed, node: str) -> str:
        """Have this master hand its mastership over to another node. Return why it was refused, or
        nothing when another node was elected. BedFailed when no node can be asked."""
        ...
