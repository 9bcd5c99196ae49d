"""Commands on broker sets: who is master and who may be, how far each replica is, and changes of
both (spec 2, 4.5).

The controllers know who belongs to a set; what a broker has, it says itself.
"""

from collections.abc import Mapping

from clusters.flotilla.net.wire import Json, Op, Status

from .answer import Answer, master_row
from .command import Command, Options, argument
from .reach import Reach, unknown_set

NAME = argument("name", metavar="SET", help="a broker set")


async def elect_master(reach: Reach, options: Options) -> Answer:
    fields = {"brokerName": options.name, "brokerId": options.id, "designate": True}
    info = await reach.order(Op.ELECT_MASTER, fields, Status.MASTER_STILL_EXIST)
    return Answer({"masters": [master_row(info)]})


async def drill(reach: Reach, options: Options) -> Answer:
    fields = {"brokerName": options.name, "to": options.to}
    info = await reach.order(Op.DRILL, fields, Status.MASTER_STILL_EXIST)
    return Answer({"masters": [master_row(info)]})


async def sync_state_set(reach: Reach, options: Options) -> Answer:
    sets = (await reach.order(Op.SYNC_STATE_DATA, {"brokerNames": options.names}))["sets"]
    for name in options.names:
        if name not in sets:
            raise unknown_set(name)
    rows = [{**master_row(s), "set": s["set"], "setEpoch": s["setEpoch"]} for s in sets.values()]
    return Answer({"sets": rows, "brokers": [row for s in sets.values() for row in _brokers(s)]})


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


async def clean_broker_data(reach: Reach, options: Options) -> Answer:
    fields = {
        "brokerName": options.name,
        "brokerIds": options.ids or [],
        "cleanLiving": options.clean_living,
    }
    await reach.order(Op.CLEAN_BROKER_DATA, fields)
    which = f"brokers {', '.join(map(str, options.ids))} of" if options.ids else "the broker set"
    return Answer(says=f"the controllers have forgotten {which} {options.name}")


async def broker_epoch(reach: Reach, options: Options) -> Answer:
    addresses = await reach.broker_set(options.name)
    said = await reach.described(addresses)
    rows = [row for i, told in said.items() for row in epoch_rows(addresses[i], told)]
    return Answer({"epochs": rows})


def epoch_rows(address: str, told: Json | None) -> list[Json]:
    """A broker's epochs; each ends where the next one starts, the last one where the log does."""
    if told is None:
        silent = dict.fromkeys(("brokerId", "role", "epoch", "startOffset", "endOffset"))
        return [{"addr": address, **silent, "role": "no answer"}]
    entries = told["epochs"] or [(None, None)]
    ends = [start for _, start in entries[1:]] + [told["maxOffset"]]
    who = {"addr": address, "brokerId": told["controllerBrokerId"], "role": told["role"]}
    return [
        {**who, "epoch": epoch, "startOffset": start, "endOffset": end}
        for (epoch, start), end in zip(entries, ends, strict=True)
    ]


async def ha_status(reach: Reach, options: Options) -> Answer:
    addresses = await reach.broker_set(options.name)
    return Answer({"brokers": ha_rows(addresses, await reach.described(addresses))})


def ha_rows(addresses: Mapping[str, str], said: Mapping[str, Json | None]) -> list[Json]:
    """Each broker of a set by what it says, and each slave by what the master of the latest epoch
    says of it."""
    masters = [t for t in said.values() if t and t["role"] == "master"]
    master = max(masters, key=lambda told: int(told["masterEpoch"]), default=None)
    return [_ha_row(addresses[i], told, master) for i, told in said.items()]


def _ha_row(address: str, told: Json | None, master: Json | None) -> Json:
    broker_id = told["controllerBrokerId"] if told else None
    fed = (master["slaves"].get(str(broker_id)) if master else None) or {}
    return {
        "addr": address,
        "brokerId": broker_id,
        "role": told["role"] if told else "no answer",
        "inSync": broker_id in master["set"] if master and told else None,
        "epoch": told["masterEpoch"] if told else None,
        "maxOffset": told["maxOffset"] if told else None,
        "confirmOffset": told["confirmOffset"] if told else None,
        "ack": fed.get("ack"),
        "gapBytes": fed.get("gap"),
        "bytesPerSecond": fed.get("bytesPerSecond"),
        "caughtUpAgoS": fed.get("caughtUpAgoS"),
        "needsOperator": told.get("needsOperator") if told else None,
    }


async def member_group(reach: Reach, options: Options) -> Answer:
    reply = await reach.of_any_nameserver(Op.MEMBER_GROUP, {"brokerName": options.name})
    if not reply["members"]:
        raise unknown_set(options.name)
    rows = [
        {"brokerId": int(i), "role": "slave" if int(i) else "master", "addr": addr}
        for i, addr in sorted(reply["members"].items(), key=lambda item: int(item[0]))
    ]
    return Answer({"members": rows})


def ids(text: str) -> list[int]:
    """Broker ids, divided by commas. ValueError."""
    return [int(word) for word in text.split(",")]


COMMANDS = (
    Command(
        "syncStateSet",
        "each set's master and SyncStateSet, and what is known of its brokers",
        "controllers",
        sync_state_set,
        (argument("names", nargs="*", metavar="SET", help="broker sets; none: all"),),
    ),
    Command(
        "electMaster",
        "elect a broker that is alive and in the SyncStateSet, at once",
        "controllers",
        elect_master,
        (NAME, argument("id", type=int, metavar="ID", help="the broker's id")),
    ),
    Command(
        "drill",
        "hand the mastership over as planned; no send fails",
        "controllers",
        drill,
        (NAME, argument("--to", type=int, metavar="ID", help="to this broker; else to the best")),
    ),
    Command("haStatus", "how far each replica of a set is", "either", ha_status, (NAME,)),
    Command("brokerEpoch", "the epochs of each replica's log", "either", broker_epoch, (NAME,)),
    Command(
        "memberGroup",
        "a set's brokers as a nameserver knows them",
        "namesrv",
        member_group,
        (NAME,),
    ),
    Command(
        "cleanBrokerData",
        "make the controllers forget brokers that will not come back, or a whole set",
        "controllers",
        clean_broker_data,
        (
            NAME,
            argument("--ids", type=ids, metavar="ID,...", help="these brokers; else the set"),
            argument("--clean-living", action="store_true", help="also brokers that are alive"),
        ),
    ),
)
