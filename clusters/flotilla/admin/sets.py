"""Commands on broker sets: masters, SyncStateSets, and the position of each replica.

The controllers know the members of a set; each broker answers for its own log.
"""

import asyncio
from argparse import ArgumentTypeError
from collections.abc import Mapping

from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.config import CONVERTIBLE_MODES
from clusters.flotilla.conversion.coordinator import LOOKS, Conversion, ConversionRefused
from clusters.flotilla.net.wire import Json, Op, Status

from .cluster_access import NETWORK_ERRORS, ClusterAccess, unknown_set
from .command import AdminCommand, Options, argument
from .output import CommandOutput, master_row

NAME = argument("name", metavar="SET", help="a broker set")
ZONE = argument("zone", metavar="ZONE", help="a zone, as brokers have it (key zone)")


async def elect_master(cluster: ClusterAccess, options: Options) -> CommandOutput:
    fields = {"brokerName": options.name, "brokerId": options.id, "designate": True}
    info = await cluster.order(Op.ELECT_MASTER, fields, Status.MASTER_STILL_EXIST)
    return CommandOutput({"masters": [master_row(info)]})


async def drill(cluster: ClusterAccess, options: Options) -> CommandOutput:
    fields = {"brokerName": options.name, "to": options.to}
    info = await cluster.order(Op.DRILL, fields, Status.MASTER_STILL_EXIST)
    return CommandOutput({"masters": [master_row(info)]})


async def drill_zone(cluster: ClusterAccess, options: Options) -> CommandOutput:
    reply = await cluster.order(Op.DRILL_ZONE, {"zone": options.zone})
    left = [{"brokerName": name, "why": why} for name, why in reply["left"].items()]
    return CommandOutput({"moved": [master_row(info) for info in reply["masters"]], "left": left})


async def return_zone(cluster: ClusterAccess, options: Options) -> CommandOutput:
    await cluster.order(Op.RETURN_ZONE, {"zone": options.zone})
    return CommandOutput(message=f"masters may be elected in zone {options.zone} again")


async def sync_state_set(cluster: ClusterAccess, options: Options) -> CommandOutput:
    sets = (await cluster.order(Op.SYNC_STATE_DATA, {"brokerNames": options.names}))["sets"]
    for name in options.names:
        if name not in sets:
            raise unknown_set(name)
    rows = [{**master_row(s), "set": s["set"], "setEpoch": s["setEpoch"]} for s in sets.values()]
    return CommandOutput(
        {"sets": rows, "brokers": [row for s in sets.values() for row in _brokers(s)]}
    )


def _brokers(info: Json) -> list[Json]:
    fields = ("addr", "alive", "inSync", "epoch", "maxOffset", "zone")
    return [
        {
            "brokerName": info["brokerName"],
            "brokerId": int(i),
            **{key: member[key] for key in fields},
        }
        for i, member in info["members"].items()
    ]


async def clean_broker_data(cluster: ClusterAccess, options: Options) -> CommandOutput:
    fields = {
        "brokerName": options.name,
        "brokerIds": options.ids or [],
        "cleanLiving": options.clean_living,
    }
    await cluster.order(Op.CLEAN_BROKER_DATA, fields)
    which = f"brokers {', '.join(map(str, options.ids))} of" if options.ids else "the broker set"
    return CommandOutput(message=f"the controllers have forgotten {which} {options.name}")


async def broker_epoch(cluster: ClusterAccess, options: Options) -> CommandOutput:
    addresses = await cluster.broker_set(options.name)
    answers = await cluster.describe(addresses)
    rows = [row for i, answer in answers.items() for row in epoch_rows(addresses[i], answer)]
    return CommandOutput({"epochs": rows})


def epoch_rows(address: str, answer: Json | None) -> list[Json]:
    """Return a row for each epoch; an epoch ends where the next one starts, or the log ends."""
    if answer is None:
        silent = dict.fromkeys(("brokerId", "role", "epoch", "startOffset", "endOffset"))
        return [{"addr": address, **silent, "role": "no answer"}]
    entries = answer["epochs"] or [(None, None)]
    ends = [start for _, start in entries[1:]] + [answer["maxOffset"]]
    who = {"addr": address, "brokerId": answer["controllerBrokerId"], "role": answer["role"]}
    return [
        {**who, "epoch": epoch, "startOffset": start, "endOffset": end}
        for (epoch, start), end in zip(entries, ends, strict=True)
    ]


async def ha_status(cluster: ClusterAccess, options: Options) -> CommandOutput:
    addresses = await cluster.broker_set(options.name)
    return CommandOutput({"brokers": ha_rows(addresses, await cluster.describe(addresses))})


def ha_rows(addresses: Mapping[str, str], answers: Mapping[str, Json | None]) -> list[Json]:
    """Return a row for each broker: its own answer, and what the master of the latest epoch knows
    of it."""
    masters = [t for t in answers.values() if t and t["role"] == "master"]
    master = max(masters, key=lambda answer: int(answer["masterEpoch"]), default=None)
    return [_ha_row(addresses[i], answer, master) for i, answer in answers.items()]


def _ha_row(address: str, answer: Json | None, master: Json | None) -> Json:
    broker_id = answer["controllerBrokerId"] if answer else None
    fed = (master["slaves"].get(str(broker_id)) if master else None) or {}
    return {
        "addr": address,
        "brokerId": broker_id,
        "role": answer["role"] if answer else "no answer",
        "inSync": broker_id in master["set"] if master and answer else None,
        "epoch": answer["masterEpoch"] if answer else None,
        "maxOffset": answer["maxOffset"] if answer else None,
        "confirmOffset": answer["confirmOffset"] if answer else None,
        "ack": fed.get("ack"),
        "gapBytes": fed.get("gap"),
        "bytesPerSecond": fed.get("bytesPerSecond"),
        "caughtUpAgoS": fed.get("caughtUpAgoS"),
        "needsOperator": answer.get("needsOperator") if answer else None,
    }


async def member_group(cluster: ClusterAccess, options: Options) -> CommandOutput:
    reply = await cluster.ask_nameservers(Op.MEMBER_GROUP, {"brokerName": options.name})
    if not reply["members"]:
        raise unknown_set(options.name)
    rows = [
        {"brokerId": int(i), "role": "slave" if int(i) else "master", "addr": addr}
        for i, addr in sorted(reply["members"].items(), key=lambda item: int(item[0]))
    ]
    return CommandOutput({"members": rows})


async def convert(cluster: ClusterAccess, options: Options) -> CommandOutput:
    reply = await cluster.ask_nameservers(Op.MEMBER_GROUP, {"brokerName": options.name})
    addresses = set(reply["members"].values())
    if cluster.controllers:  # which may know brokers that have no role now
        sets = (await cluster.order(Op.SYNC_STATE_DATA, {"brokerNames": [options.name]}))["sets"]
        members = sets.get(options.name, {"members": {}})["members"]
        addresses |= {str(member["addr"]) for member in members.values()}
    if not addresses:
        raise unknown_set(options.name)

    async def ask(address: str, op: Op, fields: Json) -> Json | None:
        try:
            return await cluster.admin.ask(address, op, fields)
        except NETWORK_ERRORS:
            return None

    conversion = Conversion(
        options.name,
        options.mode,
        sorted(addresses),
        ask,
        cluster.admin.order if cluster.controllers else None,
        lambda: asyncio.sleep(cluster.timeout_s / LOOKS),
    )
    try:
        now = await conversion.run()
    except ConversionRefused as e:
        done = "".join(f"{each}; " for each in conversion.done)
        raise CallRefused("", e.code, f"{done}{options.name} is not converted: {e}") from e
    done = "".join(f"{each}; " for each in conversion.done)
    return CommandOutput(
        message=f"{done}{options.name} is in mode {now.mode}, generation {now.number}"
    )


def ids(text: str) -> list[int]:
    """Parse broker ids, divided by commas. Raises ValueError."""
    return [int(word) for word in text.split(",")]


def mode_name(text: str) -> str:
    """Return the name of a mode. Raises ArgumentTypeError."""
    if text not in CONVERTIBLE_MODES:
        raise ArgumentTypeError(f"must be one of {', '.join(CONVERTIBLE_MODES)}, not {text!r}")
    return text


COMMANDS = (
    AdminCommand(
        "syncStateSet",
        "each set's master, SyncStateSet and brokers",
        "controllers",
        sync_state_set,
        (argument("names", nargs="*", metavar="SET", help="broker sets; none: all"),),
    ),
    AdminCommand(
        "electMaster",
        "elect a broker that is alive and in the SyncStateSet, at once",
        "controllers",
        elect_master,
        (NAME, argument("id", type=int, metavar="ID", help="the broker's id")),
    ),
    AdminCommand(
        "drill",
        "hand the mastership over in a planned way; no send fails",
        "controllers",
        drill,
        (
            NAME,
            argument("--to", type=int, metavar="ID", help="to this broker; default: the best one"),
        ),
    ),
    AdminCommand(
        "drillZone",
        "hand over all masters in a zone, and elect none there until returnZone",
        "controllers",
        drill_zone,
        (ZONE,),
    ),
    AdminCommand(
        "returnZone",
        "let masters be elected in a zone again; none is moved there by that",
        "controllers",
        return_zone,
        (ZONE,),
    ),
    AdminCommand(
        "convert",
        "convert a set to another haMode, or end a conversion that was interrupted",
        "namesrv",
        convert,
        (
            NAME,
            argument(
                "mode",
                type=mode_name,
                metavar="MODE",
                help=f"one of {', '.join(CONVERTIBLE_MODES)}",
            ),
        ),
    ),
    AdminCommand(
        "haStatus", "the log position of each replica of a set", "either", ha_status, (NAME,)
    ),
    AdminCommand(
        "brokerEpoch", "the epochs in each replica's log", "either", broker_epoch, (NAME,)
    ),
    AdminCommand(
        "memberGroup",
        "a set's brokers as a nameserver knows them",
        "namesrv",
        member_group,
        (NAME,),
    ),
    AdminCommand(
        "cleanBrokerData",
        "remove brokers that will not return, or a whole set, from the controllers",
        "controllers",
        clean_broker_data,
        (
            NAME,
            argument(
                "--ids", type=ids, metavar="ID,...", help="these brokers; default: the whole set"
            ),
            argument("--clean-living", action="store_true", help="also brokers that are alive"),
        ),
    ),
)
