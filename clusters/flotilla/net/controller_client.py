"""A broker's way to the controllers: find the leader, ask it, and say what is certain afterwards.

    a reply        the leader has decided
    NoLeader       nobody took the request: it certainly was not carried out
    Uncertain      it was sent and no answer came: it may have been, or may yet be

Followers answer NOT_LEADER and name the leader; a request they refuse was not carried out. A leader
that loses its majority while the request is under way answers SYSTEM_ERROR: that is no decision,
the next leader may carry the request out. SYSTEM_BUSY says that it did not even try.

The configured controllers are where to begin. Which ones there are they tell with their answers
to heartbeats, since operators may add some and remove others; who knows more of their log is right.
"""

from collections.abc import Sequence

from .connection import CallTimeout, ConnectionLost, Pool, Unreachable
from .wire import Json, Op, Status


class NoLeader(Exception):
    """No controller took the request."""


class Uncertain(Exception):
    """The request was sent, and its fate is unknown."""


class Controllers:
    """The controllers of a cluster as a broker sees them."""

    def __init__(self, addresses: tuple[str, ...], timeout_s: float) -> None:
        self._configured = self._addresses = addresses
        self._as_of = 0  # the index in their log by which the addresses are right
        self._timeout_s = timeout_s
        self._pool = Pool(timeout_s)
        self.leader: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def heed(self, told: Sequence[str], as_of: int) -> None:
        """A controller says where all of them are; the configured ones stay known."""
        if as_of < self._as_of:
            return
        self._as_of = as_of
        present = {*self._configured, *told}
        kept = [address for address in self._addresses if address in present]
        self._addresses = (*kept, *sorted(present - set(kept)))

    async def ask(self, op: Op, fields: Json) -> Json:
        """The leader's reply. NoLeader, Uncertain."""
        waiting = [*([self.leader] if self.leader else []), *self._addresses]
        tried: dict[str, None] = {}
        while waiting:
            address = waiting.pop(0)
            if address in tried:
                continue
            tried[address] = None
            reply = await self._try(address, op, fields)
            if reply is None:
                continue
            match reply.get("code"):
                case Status.SYSTEM_ERROR:
                    raise Uncertain(str(reply.get("remark", "")))
                case Status.SYSTEM_BUSY:
                    raise NoLeader(str(reply.get("remark", "")))
                case Status.NOT_LEADER:
                    pass
                case _:
                    self.leader = address
                    return reply
            if hint := reply.get("leaderAddr"):
                waiting.insert(0, str(hint))
        self.leader = None
        raise NoLeader("no controller leads now")

    async def _try(self, address: str, op: Op, fields: Json) -> Json | None:
        try:
            return await self._pool.ask(address, op, fields, self._timeout_s)
        except Unreachable:
            return None
        except (ConnectionLost, CallTimeout) as e:
            self._forget(address)
            raise Uncertain(str(e)) from e

    def _forget(self, address: str) -> None:
        """Start with another one next time, and on a new connection."""
        self.leader = None
        self._pool.drop(address)
        others = [a for a in self._addresses if a != address]
        self._addresses = (*others, address) if address in self._addresses else self._addresses

    def close(self) -> None:
        self._pool.close()
