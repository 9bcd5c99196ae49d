"""Convert broker sets to another way of choosing their masters, as an operator does.

The fault uses the operator's command while the load runs. No process exits and no link is cut, so
without other faults no send has to fail beyond what a planned handover fails. The target means the
sets whose masters it names. `to = "next"` takes the mode that follows the present one in the
system's list, so that a plan that repeats the fault goes round.

A command that is refused, because a slave is behind, is repeated for a while. Another fault may
strike in the middle of a conversion. Then it is ended, by the same command, when the fault is over.
A converted set stays in its mode. Only systems with such a command support the fault.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from harness.contracts import (
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    Param,
    PlannedFault,
)
from harness.contracts.membership import CONVERSION, ConvertibleSystem
from harness.errors import BedFailed
from nemesis._process.victims import (
    MASTER,
    NothingToHit,
    check,
    draw,
    masters_of,
    may_be_master,
    why_no_master,
)
from nemesis._runner.waiting import NS

NEXT = "next"
TRIED_FOR_S = 5.0  # a slave may be behind
ENDED_WITHIN_S = 40.0  # another fault may hold a broker of the set
POLL_S = 0.2


def fault(planned: PlannedFault, scene: FaultContext) -> "ConvertFault":
    return ConvertFault(scene, scene.resolve(planned.target), str(planned.params["to"]))


PLUGIN = FaultPlugin(
    fault=fault,
    effects=FaultEffects(may_break=frozenset()),  # an ordinary command, which breaks no demand
    needs=frozenset({CONVERSION}),
    params={
        "to": Param(
            NEXT,
            "the mode",
            among=(NEXT, "controller", "switchless", "raft-log", "zookeeper"),
        )
    },
    verify_examples=((MASTER, {}),),
    draw=partial(draw, usual=(MASTER,)),
    check=check,
    impossible_reason=why_no_master,
    can_hit=may_be_master,
    campaign_targets=masters_of,
)


class ConvertFault:
    """Broker sets converted to another mode."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node], to: str) -> None:
        self.targets = scene.by_role(victims)
        self._scene, self._bed, self._to = scene, scene.bed, to
        self._system = cast(ConvertibleSystem, scene.bed.system)
        self._victims = victims
        self._wanted: dict[str, str] = {}  # broker set -> the mode
        self._open: dict[str, str] = {}  # likewise, of conversions that have not ended

    async def __aenter__(self) -> "ConvertFault":
        now = await self._system.cluster_state(self._bed)
        names = {node.name for node in self._victims}
        mine = {group: master for group, master in now.masters.items() if master in names}
        refusals = []
        for group in mine:
            before = await self._system.mode_of(self._bed, group)
            wanted = self._next(before) if self._to == NEXT else self._to
            self._open[group] = wanted
            why = await self._convert(group, wanted)
            if not why:
                self._wanted[group] = self._open.pop(group)
            elif await self._system.is_converting(self._bed, group):
                self._wanted[group] = wanted
            else:
                del self._open[group]
                refusals.append(f"{group}: {why}")
        masters = [master for group, master in mine.items() if group in self._wanted]
        self.targets = self._scene.by_role([n for n in self._victims if n.name in masters])
        if not self._wanted:
            raise NothingToHit("; ".join(refusals) or "no node that it means is a master now")
        return self

    async def _convert(self, group: str, wanted: str) -> str:
        """Use the command, for a while again and again if it is refused. Return why it was refused
        or has not ended."""
        deadline_ns = self._bed.now_ns() + TRIED_FOR_S * NS
        while why := await self._system.convert(self._bed, group, wanted):
            late = self._bed.now_ns() >= deadline_ns
            if late or await self._system.is_converting(self._bed, group):
                break
            await self._bed.sleep(POLL_S)
        return why

    def _next(self, mode: str) -> str:
        modes = self._system.modes
        return modes[(modes.index(mode) + 1) % len(modes)] if mode in modes else modes[0]

    async def __aexit__(self, *exc: object) -> None:
        """End conversions that another fault interrupted. Raises BedFailed if one cannot be
        ended."""
        deadline_ns = self._bed.now_ns() + ENDED_WITHIN_S * NS
        for group, mode in list(self._open.items()):
            while why := await self._system.convert(self._bed, group, mode):
                if self._bed.now_ns() >= deadline_ns:
                    raise BedFailed(f"the conversion of {group} to {mode} did not end: {why}")
                await self._bed.sleep(POLL_S)
            del self._open[group]

    async def observe(self) -> Observation:
        """Observe in which mode each of the sets is. The command has asked all brokers, so its
        answer counts: another fault may have struck since."""
        return await self._observed()

    async def observe_healed(self) -> Observation:
        """Observe that no conversion is open. Converted sets stay as they are."""
        return await self._observed()

    async def _observed(self) -> Observation:
        modes: Mapping[str, str] = {
            group: await self._system.mode_of(self._bed, group) for group in self._wanted
        }
        measured = ", ".join(f"{group} is in mode {mode}" for group, mode in modes.items() if mode)
        return Observation("installed", {"modes": modes, "wanted": dict(self._wanted)}, measured)
