"""A broker's client of the controllers: finds the leader and asks it.

    a reply         the leader has decided
    NoLeader        no controller took the request: it was certainly not carried out
    OutcomeUnknown  it was sent and not answered: it may have been carried out, or may still be

Followers answer NOT_LEADER with the leader's address and carry nothing out. A leader that loses its
majority during the request answers SYSTEM_ERROR, which decides nothing: the next leader may carry
the request out. SYSTEM_BUSY means that it did not try.

The configured controllers are the first to ask. Since operators add and remove controllers, each
answer to a heartbeat lists them; the list from the latest position in the controllers' log counts.
"""

from collections.abc import Sequence

from .connection import CallTimeout, ConnectionLost, Pool, Unreachable
from .wire import Json, Op, Status


class NoLeader(Exception):
    """No controller took the request."""


class OutcomeUnknown(Exception):
    """The request was sent, and its outcome is unknown."""


class ControllerClient:
    """Asks the controllers of a cluster; keeps their addresses and the leader."""

    takes_proposals = True  # as a `steering.SetAuthority`

    def __init__(self, addresses: tuple[str, ...], timeout_s: float) -> None:
        self._configured = self._addresses = addresses
        self._as_of = 0  # the index in their log of the list of addresses
        self._timeout_s = timeout_s
        self._pool = Pool(timeout_s)
        self.leader: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def update_addresses(self, present: Sequence[str], as_of: int) -> None:
        """Take a controller's list of all controllers; configured ones are kept."""
        if as_of < self._as_of:
            return
        self._as_of = as_of
        addresses = {*self._configured, *present}
        kept = [address for address in self._addresses if address in addresses]
        self._addresses = (*kept, *sorted(addresses - set(kept)))

    async def ask(self, op: Op, fields: Json) -> Json:
        """Return the leader's reply. Raises NoLeader, OutcomeUnknown."""
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
                    raise OutcomeUnknown(str(reply.get("remark", "")))
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
            raise OutcomeUnknown(str(e)) from e

    def _forget(self, address: str) -> None:
        """Ask another controller first next time, and use a new connection."""
        self.leader = None
        self._pool.drop(address)
        others = [a for a in self._addresses if a != address]
        self._addresses = (*others, address) if address in self._addresses else self._addresses

    def close(self) -> None:
        self._pool.close()
