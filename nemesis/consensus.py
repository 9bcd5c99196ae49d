"""Have controllers agree in another way, as an operator does: stop them, and start them again with
another kind of consensus.

RocketMQ's controllers agree by DLedger or by JRaft, its setting `controllerType`. With `order =
"rolling"` they are restarted one after the other, so for a while both kinds serve in one group;
that is for systems whose kinds share a log. `together` stops all before any is started.
Brokers are not touched: who serves goes on meanwhile.

The kind stays. A controller is believed to be of a kind if its process says so, and healed means
that all victims run, each of the kind that it was brought to. Otherwise it is done like an
`upgrade`. Only systems with several kinds support this.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

from harness.contracts import FaultContext, FaultPlugin, Node, Param, PlannedFault, TestBed
from harness.contracts.membership import CONSENSUS, ConsensusSystem, VersionedSystem
from nemesis import upgrade
from nemesis._plan import targets as _targets
from nemesis._process import victims as _victims
from nemesis.restart import ROLLING

NEXT = "next"
TARGET = "all controller"
CONTROLLER = "controller"


def can_hit(target: str, nodes: Sequence[Node]) -> bool:
    """Return whether the target may mean a controller."""
    controllers = {node.name for node in nodes if node.role == CONTROLLER}
    return not controllers.isdisjoint(_targets.possible_names(target, nodes))


def impossible_reason(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Return why the target can never be a controller, as far as the words tell, or ''."""
    if can_hit(planned.target, nodes):
        return ""
    return f"cannot hit {planned.target!r}: it means no controller; target {TARGET!r}"


def check(planned: PlannedFault) -> None:
    """Raise BadRequest if the target is missing."""
    _victims.check(planned, TARGET)


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw the next kind, for all controllers by default."""
    return random.choice(targets or (TARGET,)), {"to": NEXT, "order": ROLLING}


def campaign_targets(targets: Sequence[str]) -> Sequence[str]:
    """Return those of a swarm's targets that mean controllers."""
    return [target for target in targets if CONTROLLER in target.split()]


def fault(planned: PlannedFault, scene: FaultContext) -> "ConsensusChange":
    victims = [node for node in scene.resolve(planned.target) if node.role == CONTROLLER]
    return ConsensusChange(scene, victims, planned)


PLUGIN = FaultPlugin(
    fault=fault,
    effects=upgrade.PLUGIN.effects,
    needs=frozenset({"signal", "restart", CONSENSUS}),
    params={
        "to": Param(NEXT, "the kind", among=(NEXT, "dledger", "jraft")),
        "order": upgrade.PLUGIN.params["order"],
        "down_s": upgrade.PLUGIN.params["down_s"],
    },
    verify_examples=((TARGET, {}, 30.0),),
    draw=draw,
    check=check,
    impossible_reason=impossible_reason,
    can_hit=can_hit,
    campaign_targets=campaign_targets,
    takes_s=upgrade.PLUGIN.takes_s,
)


class _Kinds:
    """The kinds of consensus as the versions that an upgrade changes."""

    def __init__(self, system: ConsensusSystem) -> None:
        self.version = system.consensus
        self.set_version, self.running_version = system.set_consensus, system.running_consensus

    async def before_version(self, bed: TestBed, node: str, version: str) -> None:
        """Do nothing: a controller needs no preparation."""


class ConsensusChange(upgrade.VersionChange):
    """Controllers brought to another kind of consensus."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node], planned: PlannedFault) -> None:
        super().__init__(scene, victims, planned)
        system = cast(ConsensusSystem, scene.bed.system)
        self._kinds = system.consensus_kinds
        self._system = cast(VersionedSystem, _Kinds(system))

    def _wanted(self, node: str) -> str:
        if (to := str(self._params["to"])) != NEXT:
            return to
        now = self._kinds.index(self._system.version(node))
        return self._kinds[(now + 1) % len(self._kinds)]
