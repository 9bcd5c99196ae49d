"""Commands on controllers, their registers, the settings of running nodes, and containers.

`controllerMetaData` asks each controller, since their answers may differ, and needs no leader. A
change of a setting lasts until the node's process ends; to keep it, change the node's file, too.

Commands on the brokers inside containers have the names of RocketMQ's mqadmin, whose addBroker
takes a path on the container's own machine; here the file is read where the command runs.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.config import ConfigError, table_in
from clusters.flotilla.net.wire import Json, Op, Status
from clusters.flotilla.world.ports import real

from .cluster_access import NETWORK_ERRORS, ClusterAccess, require_success
from .command import AdminCommand, Options, argument
from .output import CommandOutput

_REGISTER = (argument("namespace", metavar="NAMESPACE"), argument("key", metavar="KEY"))
_VALUE = argument("value", nargs="?", metavar="VALUE", help="left out: delete the value")


async def controller_metadata(cluster: ClusterAccess, options: Options) -> CommandOutput:
    """Return the members as the leader knows them, or else the first controller that answers."""
    given = {address: address for address in cluster.controllers}
    answers = await cluster.describe(given)
    leaders = [a for a, answer in answers.items() if answer and answer.get("state") == "leader"]
    known = await _metadata(cluster, [*leaders, *(a for a in answers if answers[a])])
    members = {**known["peers"], **known["learners"]}
    others = {address: address for address in members.values() if address not in given}
    answers |= await cluster.describe(others) if others else {}
    rows = [controller_row(address, answer, known) for address, answer in answers.items()]
    return CommandOutput({"controllers": rows})


async def _metadata(cluster: ClusterAccess, addresses: list[str]) -> Json:
    error: Exception | None = None
    for address in addresses:
        try:
            return await cluster.admin.ask(address, Op.CONTROLLER_METADATA, {})
        except NETWORK_ERRORS as e:
            error = e
    assert error is not None, "at least one controller has answered DESCRIBE"
    raise error


def controller_row(address: str, answer: Json | None, metadata: Json) -> Json:
    """`known`: the answer to CONTROLLER_METADATA, which lists voters and learners."""
    roles: Mapping[str, str] = {
        **{str(a): "voter" for a in metadata["peers"].values()},
        **{str(a): "learner" for a in metadata["learners"].values()},
    }
    found = answer or {}
    return {
        "addr": address,
        "id": found.get("id"),
        "member": roles.get(address),
        "state": found.get("state", "no answer"),
        "term": found.get("term"),
        "leaderId": found.get("leaderId"),
        "commitIndex": found.get("commitIndex"),
        "lastIndex": found.get("lastIndex"),
    }


async def add_controller(cluster: ClusterAccess, options: Options) -> CommandOutput:
    return await _change(cluster, {"add": {options.id: options.address}})


async def remove_controller(cluster: ClusterAccess, options: Options) -> CommandOutput:
    return await _change(cluster, {"remove": options.id})


async def _change(cluster: ClusterAccess, fields: Json) -> CommandOutput:
    reply = await cluster.order(Op.CHANGE_CONTROLLERS, fields)
    rows = [{"id": i, "addr": addr, "member": "voter"} for i, addr in reply["voters"].items()]
    rows += [{"id": i, "addr": addr, "member": "learner"} for i, addr in reply["learners"].items()]
    return CommandOutput({"controllers": rows})


async def get(cluster: ClusterAccess, options: Options) -> CommandOutput:
    reply = await cluster.order(Op.KV_GET, _of(options))
    return _register(options, reply["value"])


async def put(cluster: ClusterAccess, options: Options) -> CommandOutput:
    await cluster.order(Op.KV_PUT, {**_of(options), "value": options.value})
    return _register(options, options.value)


async def cas(cluster: ClusterAccess, options: Options) -> CommandOutput:
    fields = {**_of(options), "expected": options.expected, "value": options.value}
    reply = await cluster.order(Op.KV_CAS, fields)
    return _register(options, reply["value"])


def _of(options: Options) -> Json:
    return {"namespace": options.namespace, "key": options.key}


def _register(options: Options, value: str | None) -> CommandOutput:
    return CommandOutput({"registers": [{**_of(options), "value": value}]})


async def get_config(cluster: ClusterAccess, options: Options) -> CommandOutput:
    rows = []
    for address in options.node:
        reply = require_success(await cluster.admin.config(address))
        rows += config_rows(address, reply, options.keys)
    return CommandOutput({"settings": rows})


async def update_config(cluster: ClusterAccess, options: Options) -> CommandOutput:
    """Change one node after the other; stop at the first that refuses."""
    values: dict[str, Any] = dict(options.settings)
    rows = []
    for address in options.node:
        reply = require_success(await cluster.admin.update_config(address, values))
        rows += config_rows(address, reply, list(values))
    return CommandOutput({"settings": rows})


def config_rows(address: str, reply: Json, keys: list[str]) -> list[Json]:
    """Return rows of these keys, or of all if none. Raises CallRefused for an unknown key."""
    config = reply["config"]
    for key in keys:
        if key not in config:
            raise CallRefused("", Status.INVALID_REQUEST, f"unknown key {key}")
    return [
        {"node": address, "key": key, "value": config[key], "mayChange": key in reply["live"]}
        for key in keys or config
    ]


def setting(text: str) -> tuple[str, Any]:
    """Parse `key=value`; a value that is not JSON is a string."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


async def list_brokers(cluster: ClusterAccess, options: Options) -> CommandOutput:
    rows = []
    for address in options.node:
        reply = await _ask_container(cluster, address, Op.LIST_INNER, {})
        rows += [{"container": address, **broker} for broker in reply["brokers"]]
    return CommandOutput({"brokers": rows})


async def add_broker(cluster: ClusterAccess, options: Options) -> CommandOutput:
    table = _table_of(options.file)
    [address] = _one(options)
    added = await _ask_container(cluster, address, Op.ADD_INNER, {"config": table})
    what = f"{added['cluster']}:{added['brokerName']}:{added['brokerId']}"
    return CommandOutput(message=f"{what} serves at {added['addr']}")


async def remove_broker(cluster: ClusterAccess, options: Options) -> CommandOutput:
    cluster_name, broker_name, broker_id = _identity(options.broker)
    [address] = _one(options)
    fields = {"cluster": cluster_name, "brokerName": broker_name, "brokerId": broker_id}
    await _ask_container(cluster, address, Op.REMOVE_INNER, fields)
    return CommandOutput(message=f"{options.broker} has left {address}; its store stays")


async def _ask_container(cluster: ClusterAccess, address: str, op: Op, fields: Json) -> Json:
    return require_success(await cluster.admin.ask(address, op, fields))


def _one(options: Options) -> tuple[str, ...]:
    if len(options.node) != 1:
        raise _invalid("--node must be the address of one container")
    found: tuple[str, ...] = options.node
    return found


def _table_of(path: str) -> Json:
    try:
        return table_in(real().files.read(path).decode())
    except OSError as e:
        raise _invalid(f"{path} cannot be read: {e.strerror}") from e
    except (ConfigError, UnicodeDecodeError) as e:
        raise _invalid(f"{path}: {e}") from e


def _identity(text: str) -> tuple[str, str, int]:
    parts = text.split(":")
    if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdecimal()):
        raise _invalid(f"{text!r} is not CLUSTER:SET:ID, like flotilla:set-1:0")
    return parts[0], parts[1], int(parts[2])


def _invalid(why: str) -> CallRefused:
    return CallRefused("", Status.INVALID_REQUEST, why)


CONTROLLER_COMMANDS = (
    AdminCommand(
        "controllerMetaData",
        "the controllers and the state of each",
        "controllers",
        controller_metadata,
    ),
    AdminCommand(
        "changeControllers add",
        "add a controller; it becomes a voter when it has the whole log",
        "controllers",
        add_controller,
        (argument("id", metavar="ID"), argument("address", metavar="IP:PORT")),
    ),
    AdminCommand(
        "changeControllers remove",
        "remove a controller",
        "controllers",
        remove_controller,
        (argument("id", metavar="ID"),),
    ),
    AdminCommand("kv get", "a register's value", "controllers", get, _REGISTER),
    AdminCommand("kv put", "write a register", "controllers", put, (*_REGISTER, _VALUE)),
    AdminCommand(
        "kv cas",
        "write a register if it has the expected value",
        "controllers",
        cas,
        (
            *_REGISTER,
            argument("--expected", metavar="VALUE", help="its present value; left out: none"),
            _VALUE,
        ),
    ),
)

CONFIG_COMMANDS = (
    AdminCommand(
        "getConfig",
        "a node's settings, and which may change while it runs",
        "node",
        get_config,
        (argument("keys", nargs="*", metavar="KEY", help="none: all"),),
    ),
    AdminCommand(
        "updateConfig",
        "change settings until the node's process ends; its file stays as it is",
        "node",
        update_config,
        (argument("settings", nargs="+", type=setting, metavar="KEY=VALUE"),),
    ),
)

CONTAINER_COMMANDS = (
    AdminCommand("listBrokers", "the brokers inside containers", "node", list_brokers),
    AdminCommand(
        "addBroker",
        "start another broker inside a running container",
        "node",
        add_broker,
        (argument("file", metavar="FILE", help="the broker's configuration"),),
    ),
    AdminCommand(
        "removeBroker",
        "stop a broker inside a container; its store stays",
        "node",
        remove_broker,
        (argument("broker", metavar="CLUSTER:SET:ID", help="the broker, as listBrokers has it"),),
    ),
)
