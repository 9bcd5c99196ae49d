"""A nameserver with a controller in its process: `enableControllerInNamesrv` (spec 2).

Both are what they are alone, each with a port of its own: the controller listens where
`controllerDLegerPeers` says that `controllerDLegerSelfId` is, and keeps its files in a folder of
its own. They share the process and the event log, and they end together.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ..config import Config
from ..controllers import controller
from ..net.connection import split
from ..rules import Rules
from ..world.ports import Ports
from . import nameserver


def controller_of(config: Config) -> Config:
    """The configuration of the controller inside."""
    host, port = split(config.controller_peers[config.controller_id])
    return replace(
        config, role="controller", host=host, port=port, store=f"{config.store}/controller"
    )


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled, or until one of the two can not go on."""
    waiting = {"nameserver", "controller"}

    def listens(which: str) -> Callable[[str], None]:
        def heard(address: str) -> None:
            waiting.discard(which)
            if not waiting:
                ready(config.address)

        return heard

    both = [
        asyncio.ensure_future(nameserver.main(config, ports, rules, listens("nameserver"))),
        asyncio.ensure_future(
            controller.main(controller_of(config), ports, rules, listens("controller"))
        ),
    ]
    try:
        await asyncio.gather(*both)
    finally:
        for one in both:
            one.cancel()
        await asyncio.wait(both)
