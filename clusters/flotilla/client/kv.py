"""The controllers' registers: small replicated values (get, put, compare-and-set).

    registers = ControllerRegisters(["198.18.1.2:9878", ...])
    answer = await registers.cas("leases", "shard-7", expected=None, value="worker-3")

A get is linearizable: it sees every put that was answered before the get began. A change ends
HAPPENED, REFUSED (it certainly did not happen) or UNKNOWN (it may have happened, or may still). It
is not tried again here, because a compare-and-set that happened would refuse its own repetition.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from clusters.flotilla.net.controller_client import ControllerClient, NoLeader, OutcomeUnknown
from clusters.flotilla.net.wire import DECODE_ERRORS, Json, Op, Status

from .outcomes import CallOutcome


@dataclass(frozen=True)
class RegisterAnswer:
    """The outcome of a request. `value`: the register's, if the answer has it; `differs`: whether a
    compare-and-set was refused because of the present value."""

    outcome: CallOutcome
    value: str | None = None
    error: str = ""
    differs: bool = False


class ControllerRegisters:
    """Reads and writes registers. It needs only the controllers."""

    def __init__(self, controllers: Sequence[str], timeout_s: float = 3.0) -> None:
        self._controllers = ControllerClient(tuple(controllers), timeout_s)

    async def get(self, namespace: str, key: str) -> RegisterAnswer:
        """Return HAPPENED with the value, None if there is none; or REFUSED."""
        answer = await self._ask(Op.KV_GET, {"namespace": namespace, "key": key})
        read = answer.outcome is CallOutcome.HAPPENED
        return answer if read else RegisterAnswer(CallOutcome.REFUSED, error=answer.error)

    async def put(self, namespace: str, key: str, value: str | None) -> RegisterAnswer:
        fields = {"namespace": namespace, "key": key, "value": value}
        return await self._ask(Op.KV_PUT, fields)

    async def cas(
        self, namespace: str, key: str, *, expected: str | None, value: str | None
    ) -> RegisterAnswer:
        """Write if the value is the expected one; else return REFUSED with the present value."""
        fields = {"namespace": namespace, "key": key, "expected": expected, "value": value}
        return await self._ask(Op.KV_CAS, fields)

    def close(self) -> None:
        self._controllers.close()

    async def _ask(self, op: Op, fields: Json) -> RegisterAnswer:
        try:
            reply = await self._controllers.ask(op, fields)
        except NoLeader as e:
            return RegisterAnswer(CallOutcome.REFUSED, error=str(e))
        except OutcomeUnknown as e:
            return RegisterAnswer(CallOutcome.UNKNOWN, error=str(e))
        except DECODE_ERRORS as e:
            return RegisterAnswer(
                CallOutcome.UNKNOWN, error=f"a malformed answer: {type(e).__name__}: {e}"
            )
        if reply["code"] == Status.SUCCESS:
            return RegisterAnswer(CallOutcome.HAPPENED, reply.get("value"))
        differs = reply["code"] == Status.KV_VALUE_DIFFERS
        return RegisterAnswer(
            CallOutcome.REFUSED, reply.get("value"), str(reply["remark"]), differs
        )
