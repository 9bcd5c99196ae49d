"""Commands on the settings of running nodes (spec 2: get and updateBrokerConfig, ControllerConfig).

A change lasts until the node's process ends; what is to stay belongs into its file as well.
"""

import argparse
import json
from typing import Any

from clusters.flotilla.client.calls import Refused
from clusters.flotilla.net.wire import Json, Status

from .answer import Answer
from .command import Command, Options, argument
from .reach import Reach, settled


async def get_config(reach: Reach, options: Options) -> Answer:
    rows = []
    for address in options.node:
        reply = settled(await reach.admin.config(address))
        rows += config_rows(address, reply, options.keys)
    return Answer({"settings": rows})


async def update_config(reach: Reach, options: Options) -> Answer:
    """One node after the other, up to the first that refuses."""
    values: dict[str, Any] = dict(options.settings)
    rows = []
    for address in options.node:
        reply = settled(await reach.admin.update_config(address, values))
        rows += config_rows(address, reply, list(values))
    return Answer({"settings": rows})


def config_rows(address: str, reply: Json, keys: list[str]) -> list[Json]:
    """Of these keys, or of all. Refused: the node has no such key."""
    config = reply["config"]
    for key in keys:
        if key not in config:
            raise Refused("", Status.INVALID_REQUEST, f"unknown key {key}")
    return [
        {"node": address, "key": key, "value": config[key], "mayChange": key in reply["live"]}
        for key in keys or config
    ]


def setting(text: str) -> tuple[str, Any]:
    """`key=value`; a value that is no JSON is a string."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


COMMANDS = (
    Command(
        "getConfig",
        "a node's settings, and which may change while it runs",
        "node",
        get_config,
        (argument("keys", nargs="*", metavar="KEY", help="none: all"),),
    ),
    Command(
        "updateConfig",
        "change settings until the node's process ends; its file stays as it is",
        "node",
        update_config,
        (argument("settings", nargs="+", type=setting, metavar="KEY=VALUE"),),
    ),
)
