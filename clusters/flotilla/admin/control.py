"""Commands on the controllers: who they are, who leads, and their registers (spec 2, 4.5).

`controllerMetaData` asks each controller for itself, since they may differ, and needs no leader.
"""

from collections.abc import Mapping

from clusters.flotilla.net.wire import Json, Op

from .answer import Answer
from .command import Command, Options, argument
from .reach import LOST, Reach

_REGISTER = (argument("namespace", metavar="NAMESPACE"), argument("key", metavar="KEY"))
_VALUE = argument("value", nargs="?", metavar="VALUE", help="left out: there is none any more")


async def controller_metadata(reach: Reach, options: Options) -> Answer:
    """The members as the first controller knows them that answers, the leader if it does."""
    given = {address: address for address in reach.controllers}
    said = await reach.described(given)
    leaders = [a for a, told in said.items() if told and told.get("state") == "leader"]
    known = await _metadata(reach, [*leaders, *(a for a in said if said[a])])
    members = {**known["peers"], **known["learners"]}
    others = {address: address for address in members.values() if address not in given}
    said |= await reach.described(others) if others else {}
    rows = [controller_row(address, told, known) for address, told in said.items()]
    return Answer({"controllers": rows})


async def _metadata(reach: Reach, addresses: list[str]) -> Json:
    error: Exception | None = None
    for address in addresses:
        try:
            return await reach.admin.ask(address, Op.CONTROLLER_METADATA, {})
        except LOST as e:
            error = e
    assert error is not None, "some controller has described itself"
    raise error


def controller_row(address: str, told: Json | None, known: Json) -> Json:
    """`known`: CONTROLLER_METADATA, by which this one is a voter, a learner or neither."""
    roles: Mapping[str, str] = {
        **{str(a): "voter" for a in known["peers"].values()},
        **{str(a): "learner" for a in known["learners"].values()},
    }
    found = told or {}
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


async def add_controller(reach: Reach, options: Options) -> Answer:
    return await _change(reach, {"add": {options.id: options.address}})


async def remove_controller(reach: Reach, options: Options) -> Answer:
    return await _change(reach, {"remove": options.id})


async def _change(reach: Reach, fields: Json) -> Answer:
    reply = await reach.order(Op.CHANGE_CONTROLLERS, fields)
    rows = [{"id": i, "addr": addr, "member": "voter"} for i, addr in reply["voters"].items()]
    rows += [{"id": i, "addr": addr, "member": "learner"} for i, addr in reply["learners"].items()]
    return Answer({"controllers": rows})


async def get(reach: Reach, options: Options) -> Answer:
    reply = await reach.order(Op.KV_GET, _of(options))
    return _register(options, reply["value"])


async def put(reach: Reach, options: Options) -> Answer:
    await reach.order(Op.KV_PUT, {**_of(options), "value": options.value})
    return _register(options, options.value)


async def cas(reach: Reach, options: Options) -> Answer:
    fields = {**_of(options), "expected": options.expected, "value": options.value}
    reply = await reach.order(Op.KV_CAS, fields)
    return _register(options, reply["value"])


def _of(options: Options) -> Json:
    return {"namespace": options.namespace, "key": options.key}


def _register(options: Options, value: str | None) -> Answer:
    return Answer({"registers": [{**_of(options), "value": value}]})


COMMANDS = (
    Command(
        "controllerMetaData",
        "who the controllers are, and what each says of itself",
        "controllers",
        controller_metadata,
    ),
    Command(
        "changeControllers add",
        "add a controller; it becomes a voter when it holds everything",
        "controllers",
        add_controller,
        (argument("id", metavar="ID"), argument("address", metavar="IP:PORT")),
    ),
    Command(
        "changeControllers remove",
        "remove a controller",
        "controllers",
        remove_controller,
        (argument("id", metavar="ID"),),
    ),
    Command("kv get", "a register's value", "controllers", get, _REGISTER),
    Command("kv put", "write a register", "controllers", put, (*_REGISTER, _VALUE)),
    Command(
        "kv cas",
        "write a register if it has the expected value",
        "controllers",
        cas,
        (
            *_REGISTER,
            argument("--expected", metavar="VALUE", help="what it has now; left out: nothing"),
            _VALUE,
        ),
    ),
)
