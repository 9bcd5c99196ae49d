"""A bug of a node, wherever in a request it shows, ends the node with a message."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from simulated_fleet import CONFIG, Fleet, Sailor, eventually

from clusters.flotilla.net.connection import dial
from clusters.flotilla.net.wire import Op, Status, from_json, to_json
from clusters.flotilla.node import SOFTWARE
from clusters.flotilla.node import serve as serve_node
from clusters.flotilla.rules import RULES, Rules
from clusters.hosts._world.ports import ports_of
from clusters.hosts._world.process import SimProcess


def faulty(error: type[Exception]) -> Callable[..., Any]:
    def decide(*args: object) -> NoReturn:
        raise error("a fault of ours")

    return decide


class FaultyFleet(Fleet):
    """A fleet of this variant."""

    def __init__(self, rules: Rules, **settings: Any) -> None:
        super().__init__(1, settings=settings)
        self._rules = rules

    def start(self, name: str) -> None:
        aboard = self.aboard[name]

        async def node(process: SimProcess) -> int:
            return await serve_node(
                [CONFIG], lambda seed: ports_of(process, aboard.disk), self._rules
            )

        self.latest[name] = aboard.host.start(name, node)


async def one_stops(sailor: Sailor) -> None:
    async def stopped() -> bool:
        return any(process.code == SOFTWARE for process in sailor.fleet.latest.values())

    await eventually(stopped)


FAULTS: dict[str, tuple[Rules, str]] = {
    "a decision of the controllers": (replace(RULES, check_alter=faulty(KeyError)), "KeyError"),
    "a handshake": (replace(RULES, link_key=faulty(AttributeError)), "AttributeError"),
    "an acknowledgement": (replace(RULES, counted_members=faulty(TypeError)), "TypeError"),
    "a vote": (replace(RULES, may_grant_vote=faulty(AssertionError)), "AssertionError"),
    "a route": (replace(RULES, displaces=faulty(ValueError)), "ValueError"),
}


@pytest.mark.parametrize("flavour", ["dledger", "jraft"])
@pytest.mark.parametrize("where", FAULTS)
def test_a_fault_of_ours_stops_the_node(where: str, flavour: str) -> None:
    """It is not answered as if the request were wrong; its place is in the event log."""
    rules, error = FAULTS[where]
    fleet = FaultyFleet(rules, controllerType=flavour)
    fleet.sail(one_stops)
    [fatal, *_] = [row for name in fleet.latest for row in fleet.events(name, "fatal")]
    assert error in fatal["why"]
    assert "a fault of ours" in fatal["traceback"]


def test_nonsense_is_refused_and_told_once() -> None:
    """The node goes on, and its event log names the sender and the reason."""

    async def scenario(sailor: Sailor) -> None:
        fleet = sailor.fleet
        await sailor.healthy()
        address = fleet.address("controller-1")

        class Deaf:
            def opened(self, connection: Any) -> None: ...
            def frame(self, connection: Any, op: int, request: int, body: bytes) -> None: ...
            def protocol_error(self, connection: Any, why: str) -> None: ...
            def closed(self, connection: Any, why: str) -> None: ...

        liar = await dial(address, Deaf(), 1.0)
        for _ in range(3):
            answer = from_json(await liar.call(Op.REPLICA_INFO, to_json({"brokerName": 5}), 5.0))
            assert answer["code"] == Status.INVALID_REQUEST
        await sailor.admin.describe(address)

    fleet = Fleet(1)
    fleet.sail(scenario)
    [told] = fleet.events("controller-1", "senseless")
    assert told["why"] == f"operation {Op.REPLICA_INFO}: brokerName cannot be '5'"
    others = [name for name in fleet.latest if name != "controller-1"]
    assert not any(fleet.events(name, "senseless") for name in others)
