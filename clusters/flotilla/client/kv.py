"""The controllers' registers: small values that everybody agrees on (put, get, compare and set).

    registers = Registers(["198.18.1.2:9878", ...])
    answer = await registers.cas("leases", "shard-7", expected=None, value="worker-3")

A get is linearizable: it sees every put that was answered before it was asked for. A change ends
HAPPENED, REFUSED (it certainly did not happen) or UNKNOWN (it may have, or may yet); nothing is
tried a second time here, because a compare-and-set that happened would refuse its own repetition.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from clusters.flotilla.net.controller_client import Controllers, NoLeader, Uncertain
from clusters.flotilla.net.wire import NONSENSE, Json, Op, Status

from .outcomes import Outcome


@dataclass(frozen=True)
class Answer:
    """What became of a request. `value`: the register's, where the answer tells it; `differs`: that
    is why a compare-and-set was refused."""

    outcome: Outcome
    value: str | None = None
    error: str = ""
    differs: bool = False


class Registers:
    """A client of the controllers alone."""

    def __init__(self, controllers: Sequence[str], timeout_s: float = 3.0) -> None:
        self._controllers = Controllers(tuple(controllers), timeout_s)

    async def get(self, namespace: str, key: str) -> Answer:
        """HAPPENED with the value, null if there is none; or REFUSED: nobody knows it now."""
        answer = await self._ask(Op.KV_GET, {"namespace": namespace, "key": key})
        read = answer.outcome is Outcome.HAPPENED
        return answer if read else Answer(Outcome.REFUSED, error=answer.error)

    async def put(self, namespace: str, key: str, value: str | None) -> Answer:
        fields = {"namespace": namespace, "key": key, "value": value}
        return await self._ask(Op.KV_PUT, fields)

    async def cas(
        self, namespace: str, key: str, *, expected: str | None, value: str | None
    ) -> Answer:
        """REFUSED with the present value if it is not the expected one."""
        fields = {"namespace": namespace, "key": key, "expected": expected, "value": value}
        return await self._ask(Op.KV_CAS, fields)

    def close(self) -> None:
        self._controllers.close()

    async def _ask(self, op: Op, fields: Json) -> Answer:
        try:
            reply = await self._controllers.ask(op, fields)
        except NoLeader as e:
            return Answer(Outcome.REFUSED, error=str(e))
        except Uncertain as e:
            return Answer(Outcome.UNKNOWN, error=str(e))
        except NONSENSE as e:
            return Answer(Outcome.UNKNOWN, error=f"a malformed answer: {type(e).__name__}: {e}")
        if reply["code"] == Status.SUCCESS:
            return Answer(Outcome.HAPPENED, reply.get("value"))
        differs = reply["code"] == Status.KV_VALUE_DIFFERS
        return Answer(Outcome.REFUSED, reply.get("value"), str(reply["remark"]), differs)
