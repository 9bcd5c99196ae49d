"""A nameserver with a controller in its process (`enableControllerInNamesrv`).

Both work as they do alone, each with its own port: the controller listens at the address that
`controllerDLegerPeers` has for `controllerDLegerSelfId`, and keeps its files in its own folder.
They share the process and the event log, and they end together.
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
    """Return the configuration of the embedded controller."""
    host, port = split(config.controller_peers[config.controller_id])
    return replace(
        config, role="controller", host=host, port=port, store=f"{config.store}/controller"
    )


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled, or until one of the two fails."""
    waiting = {"nameserver", "controller"}

    def on_ready(part: str) -> Callable[[str], None]:
        def part_is_ready(address: str) -> None:
            waiting.discard(part)
            if not waiting:
                ready(config.address)

        return part_is_ready

    tasks = [
        asyncio.ensure_future(nameserver.main(config, ports, rules, on_ready("nameserver"))),
        asyncio.ensure_future(
            controller.main(controller_of(config), ports, rules, on_ready("controller"))
        ),
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
