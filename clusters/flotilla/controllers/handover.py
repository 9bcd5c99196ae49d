"""The leading controller's part in a planned handover, a *drill* (spec 5.1; see `handover`).

It asks the master to hold its sends until the successor has everything, and elects the successor,
if the master is then still the one of that epoch. Whatever goes wrong, the master goes on: told to,
or by itself when the time is over.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..net.connection import CallTimeout, ConnectionLost, Silent, Unreachable, dial, refusal
from ..net.wire import Json, Op, Status, from_json, to_json
from .controller_requests import DecisionContext, successor
from .elect import BrokerLiveness


@dataclass(frozen=True)
class HandoverPlan:
    """Who hands over to whom."""

    name: str
    epoch: int
    address: str  # of the master
    to: int


def plan_handover(scene: DecisionContext, fields: Json) -> HandoverPlan | Json:
    """What an operator wants, or why it can not be."""
    name, to = str(fields["brokerName"]), fields.get("to")
    row = scene.state.get(name)
    if row is None:
        return refusal(Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
    master = row.master_id
    if master is None or scene.standing(name, master) is not BrokerLiveness.ALIVE:
        return refusal(Status.MASTER_NOT_AVAILABLE, "the set has no master that could hand over")
    if to == master:
        return scene.info(name) | refusal(Status.MASTER_STILL_EXIST, f"broker {to} is the master")
    chosen = successor(scene, name, row, None if to is None else int(to))
    if chosen is None:
        who = "nobody else" if to is None else f"broker {to} is not"
        return refusal(Status.ELECT_MASTER_FAILED, f"{who} in the SyncStateSet and alive")
    return HandoverPlan(name, row.master_epoch, row.members[master].addr, chosen)


@dataclass(frozen=True)
class HandoverCoordinator:
    """`submit`: a request to the controllers themselves."""

    timeout_s: float
    rpc_timeout_s: float
    submit: Callable[[Op, Json], Awaitable[Json]]

    async def carry_out(self, wanted: HandoverPlan) -> Json:
        """The election's answer, or why there was none."""
        try:
            master = await dial(wanted.address, Silent(), self.rpc_timeout_s)
        except Unreachable as e:
            return refusal(Status.ELECT_MASTER_FAILED, f"the master is out of reach: {e}")
        timeout_s = self.timeout_s + self.rpc_timeout_s
        request = {
            "masterEpoch": wanted.epoch,
            "to": wanted.to,
            "timeoutMs": self.timeout_s * 1000,
        }
        try:
            ready = from_json(await master.call(Op.HAND_OVER, to_json(request), timeout_s))
            if ready["code"] != Status.SUCCESS:
                return refusal(Status.ELECT_MASTER_FAILED, str(ready["remark"]))
            elected = await self.submit(Op.ELECT_MASTER, _election(wanted))
            if elected.get("code", Status.SUCCESS) != Status.SUCCESS:
                master.tell(Op.RESUME, to_json({"masterEpoch": wanted.epoch}))
            return elected
        except (ConnectionLost, CallTimeout) as e:
            return refusal(Status.ELECT_MASTER_FAILED, f"the master does not answer: {e}")
        finally:
            master.close()


def _election(wanted: HandoverPlan) -> Json:
    return {
        "brokerName": wanted.name,
        "brokerId": wanted.to,
        "designate": True,
        "masterEpoch": wanted.epoch,
    }
