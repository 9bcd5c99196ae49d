"""Nodes that plans by hand are for, and one fault of such a plan."""

from harness.contracts import Node, PlannedFault

NODES = (
    *(Node(f"controller-{n}", "controller") for n in (1, 2, 3)),
    *(Node(f"broker-{n}", "broker") for n in (1, 2, 3)),
    Node("client-1", "client"),
)


def kill(at_s: float, target: str, **more: str) -> PlannedFault:
    return PlannedFault("kill", at_s, 5.0, target, {}, **more)
