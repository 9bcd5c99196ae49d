"""Commands on containers: the brokers inside, which can be added and removed at run time.

The names are those of RocketMQ's mqadmin, whose addBroker takes a path on the container's own
machine; here the file is read where the command runs.
"""

from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.config import ConfigError, table_in
from clusters.flotilla.net.wire import Json, Op, Status
from clusters.flotilla.world.ports import real

from .cluster_access import ClusterAccess, require_success
from .command import AdminCommand, Options, argument
from .output import CommandOutput


async def list_brokers(cluster: ClusterAccess, options: Options) -> CommandOutput:
    rows = []
    for address in options.node:
        reply = await _ask(cluster, address, Op.LIST_INNER, {})
        rows += [{"container": address, **broker} for broker in reply["brokers"]]
    return CommandOutput({"brokers": rows})


async def add_broker(cluster: ClusterAccess, options: Options) -> CommandOutput:
    table = _table_of(options.file)
    [address] = _one(options)
    added = await _ask(cluster, address, Op.ADD_INNER, {"config": table})
    what = f"{added['cluster']}:{added['brokerName']}:{added['brokerId']}"
    return CommandOutput(message=f"{what} serves at {added['addr']}")


async def remove_broker(cluster: ClusterAccess, options: Options) -> CommandOutput:
    cluster_name, broker_name, broker_id = _identity(options.broker)
    [address] = _one(options)
    fields = {"cluster": cluster_name, "brokerName": broker_name, "brokerId": broker_id}
    await _ask(cluster, address, Op.REMOVE_INNER, fields)
    return CommandOutput(message=f"{options.broker} has left {address}; its store stays")


async def _ask(cluster: ClusterAccess, address: str, op: Op, fields: Json) -> Json:
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


COMMANDS = (
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
