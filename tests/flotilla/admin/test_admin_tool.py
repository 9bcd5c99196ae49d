"""The operator's tool: commands, refusals, and output."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from admin_lab import CONTROLLERS, Tool, run, sail
from simulated_fleet import BROKER_SET, TOPIC, eventually

from clusters.flotilla.admin import NO_ANSWER
from clusters.flotilla.net.wire import Json

# broker sets


def test_masters_are_elected_and_handed_over_by_name() -> None:
    """The named broker is master afterwards, in a later epoch."""

    async def scenario(tool: Tool) -> None:
        [before] = (await tool.ask("syncStateSet"))["sets"]
        assert sorted(before["set"]) == [1, 2, 3]
        other = next(i for i in before["set"] if i != before["masterId"])
        [elected] = (await tool.ask(f"electMaster {BROKER_SET} {other}"))["masters"]
        assert (elected["masterId"], elected["masterEpoch"]) == (other, before["masterEpoch"] + 1)
        again = await tool.ask(f"electMaster {BROKER_SET} {other}")
        assert again["masters"] == [elected], "to ask for what is so already is no mistake"
        await tool.sailor.healthy()
        third = ({1, 2, 3} - {other, before["masterId"]}).pop()
        [handed] = (await tool.ask(f"drill {BROKER_SET} --to {third}"))["masters"]
        assert (handed["masterId"], handed["masterEpoch"]) == (third, before["masterEpoch"] + 2)
        await tool.sailor.healthy()
        [now] = (await tool.ask(f"syncStateSet {BROKER_SET}"))["sets"]
        assert now["masterId"] == third

    sail(scenario)


def test_each_replica_is_seen_by_controllers_and_by_nameservers_alike() -> None:
    """Epochs are contiguous and the last one ends with the log; haStatus shows positions."""

    async def scenario(tool: Tool) -> None:
        await tool.sailor.send(40)
        [before] = (await tool.ask("syncStateSet"))["sets"]
        await tool.ask(f"drill {BROKER_SET}")
        await tool.sailor.healthy()
        [now] = (await tool.ask("syncStateSet"))["sets"]
        assert now["masterId"] != before["masterId"]
        for where in (tool.controllers, tool.nameservers):
            rows = (await tool.ask(f"brokerEpoch {BROKER_SET}", *where))["epochs"]
            tables: dict[int, list[tuple[int, int, int]]] = {}
            for row in rows:
                entry = (row["epoch"], row["startOffset"], row["endOffset"])
                tables.setdefault(row["brokerId"], []).append(entry)
            assert len(tables) == 3
            assert len({str(entries) for entries in tables.values()}) == 1
            [first, second] = tables[1]
            assert first[2] == second[1]
            brokers = (await tool.ask(f"haStatus {BROKER_SET}", *where))["brokers"]
            assert {b["brokerId"]: b["role"] for b in brokers}[now["masterId"]] == "master"
            slaves = [b for b in brokers if b["role"] == "slave"]
            assert [(b["inSync"], b["gapBytes"]) for b in slaves] == [(True, 0)] * 2
        members = (await tool.ask(f"memberGroup {BROKER_SET}"))["members"]
        assert [m["role"] for m in members] == ["master", "slave", "slave"]
        assert members[0]["addr"] == now["masterAddr"]

    sail(scenario)


def test_a_dead_broker_is_forgotten_and_a_living_one_is_not() -> None:
    """cleanBrokerData: status 2009 while the broker is alive; the tool prints its name."""

    async def scenario(tool: Tool) -> None:
        [now] = (await tool.ask("syncStateSet"))["sets"]
        slave = next(i for i in now["set"] if i != now["masterId"])
        why = await tool.refusal(f"cleanBrokerData {BROKER_SET} --ids {slave}")
        assert why == f"INVALID_CLEAN_BROKER_METADATA: broker {slave} is alive"
        assert "has a master" in await tool.refusal(f"cleanBrokerData {BROKER_SET}")
        brokers = (await tool.ask("syncStateSet"))["brokers"]
        address = next(b["addr"] for b in brokers if b["brokerId"] == slave)
        nodes = tool.sailor.fleet.nodes("broker")
        await tool.sailor.kill(next(n for n in nodes if tool.at(n) == address))

        async def dead() -> bool:
            rows = (await tool.ask("syncStateSet"))["brokers"]
            return not next(b["alive"] for b in rows if b["brokerId"] == slave)

        await eventually(dead)
        rows = (await tool.ask(f"haStatus {BROKER_SET}"))["brokers"]
        assert [b["addr"] for b in rows if b["role"] == "no answer"] == [address]
        await tool.ask(f"cleanBrokerData {BROKER_SET} --ids {slave}")
        left = [b["brokerId"] for b in (await tool.ask("syncStateSet"))["brokers"]]
        assert left == sorted({1, 2, 3} - {slave})

    sail(scenario)


@pytest.mark.parametrize("command", ["syncStateSet", "haStatus", "brokerEpoch", "memberGroup"])
def test_an_unknown_set_is_refused_whoever_is_asked(command: str) -> None:
    """2008 BROKER_METADATA_NOT_EXIST: an empty table would look like a healthy answer."""

    async def scenario(tool: Tool) -> None:
        why = await tool.refusal(f"{command} nobody")
        assert why == "BROKER_METADATA_NOT_EXIST: there is no broker set nobody"

    sail(scenario)


# controllers


def test_the_leader_is_found_from_any_controller_and_past_one_that_hangs() -> None:
    """NOT_LEADER is followed: one controller's address is enough; others may hang."""

    async def scenario(tool: Tool) -> None:
        leader = (await tool.sailor.cluster_state()).controller_leader
        followers = [name for name in CONTROLLERS if name != leader]
        for name in CONTROLLERS:
            rows = await tool.ask("syncStateSet", "--controllers", tool.at(name))
            assert rows["sets"][0]["brokerName"] == BROKER_SET
        hung = tool.sailor.fleet.process(followers[0])
        assert hung
        tool.sailor.world.after(0, hung.pause)
        await asyncio.sleep(0.001)
        await tool.ask("syncStateSet", "--controllers", tool.at(*followers))
        said = (await tool.ask("controllerMetaData", "--controllers", tool.at(followers[1])))[
            "controllers"
        ]
        states = {row["addr"]: row["state"] for row in said}
        assert states == {
            tool.at(str(leader)): "leader",
            tool.at(followers[0]): "no answer",
            tool.at(followers[1]): "follower",
        }
        assert {row["member"] for row in said} == {"voter"}

    sail(scenario)


def test_who_the_controllers_are_changes_one_at_a_time() -> None:
    """Thesis 4: a removed one is gone from the configuration; nonsense is refused with a reason."""

    async def scenario(tool: Tool) -> None:
        leader = (await tool.sailor.cluster_state()).controller_leader
        rows = (await tool.ask("controllerMetaData"))["controllers"]
        gone = next(row for row in rows if row["addr"] != tool.at(str(leader)))
        left = (await tool.ask(f"changeControllers remove {gone['id']}"))["controllers"]
        assert gone["id"] not in {row["id"] for row in left}
        assert len(left) == 2
        why = await tool.refusal("changeControllers add n9 nowhere")
        assert why.startswith("INVALID_REQUEST: ")
        back = await tool.ask(f"changeControllers add {gone['id']} {gone['addr']}")
        assert {row["id"] for row in back["controllers"]} == {row["id"] for row in rows}

    sail(scenario)


def test_registers_are_read_written_and_compared() -> None:
    """The controllers' KV: a compare-and-set with the wrong expectation changes nothing."""

    async def scenario(tool: Tool) -> None:
        async def value() -> str | None:
            [row] = (await tool.ask("kv get space key"))["registers"]
            found: str | None = row["value"]
            return found

        assert await value() is None
        await tool.ask("kv cas space key one")
        assert await value() == "one"
        why = await tool.refusal("kv cas space key two --expected other")
        assert why.startswith("KV_VALUE_DIFFERS: ")
        await tool.ask("kv cas space key two --expected one")
        assert await value() == "two"
        await tool.ask("kv put space key")
        assert await value() is None

    sail(scenario)


def test_silence_is_an_exit_code_of_its_own() -> None:
    """Without a majority of controllers no answer comes in time: neither done nor refused."""

    async def scenario(tool: Tool) -> None:
        for name in (*CONTROLLERS, "nameserver-1"):
            process = tool.sailor.fleet.process(name)
            assert process
            tool.sailor.world.after(0, process.pause)
        await asyncio.sleep(0.001)
        loop = asyncio.get_running_loop()
        more = ",".join([tool.at(*CONTROLLERS), tool.at("nameserver-1")])  # four that hang
        commands = (f"drill {BROKER_SET}", "controllerMetaData", "kv put a b c")
        for command in (*commands, f"drill {BROKER_SET} --controllers {more}"):
            began = loop.time()
            where = () if "--" in command else tool.controllers
            code, said, why = await run(*command.split(), *where, "--timeout", "4")
            assert (code, said) == (NO_ANSWER, "")
            assert why
            assert "\n" not in why
            assert loop.time() - began <= 4.5

    sail(scenario)


# topics and groups


def test_topics_are_made_listed_and_deleted() -> None:
    """The tool prints a master's refusal with the master's text."""

    async def scenario(tool: Tool) -> None:
        await tool.ask("topics create news --queues 3")
        rows = {"topic": "news", "queues": 3}
        assert rows in (await tool.ask("topics list"))["topics"]
        why = await tool.refusal("topics create news --queues 2")
        assert why == "MESSAGE_ILLEGAL: news has 3 queues, and cannot have fewer"
        await tool.ask("topics delete news")
        assert rows not in (await tool.ask("topics list"))["topics"]
        assert await tool.refusal("topics delete news") == "TOPIC_NOT_EXIST: news"

    sail(scenario)


def test_a_group_is_taken_to_where_it_is_wanted_or_nowhere() -> None:
    """earliest, latest, or an offset that every queue has; otherwise nothing is reset."""

    async def scenario(tool: Tool) -> None:
        await tool.sailor.send(42)  # 11, 11, 10 and 10 in four queues
        consumer = tool.sailor.client.consumer

        async def at() -> list[int]:
            return [await consumer.committed("g", TOPIC, queue) for queue in range(4)]

        await tool.ask(f"offsets reset g {TOPIC} --to latest")
        assert await at() == [11, 11, 10, 10]
        rows = (await tool.ask(f"offsets reset g {TOPIC} --to 4"))["offsets"]
        assert [(row["before"], row["offset"]) for row in rows] == [
            (11, 4),
            (11, 4),
            (10, 4),
            (10, 4),
        ]
        why = await tool.refusal(f"offsets reset g {TOPIC} --to 11")
        assert why.startswith("PULL_OFFSET_MOVED: ")
        assert await at() == [4, 4, 4, 4]
        listed = (await tool.ask("offsets list --group g"))["offsets"]
        assert [row["lag"] for row in listed] == [7, 7, 6, 6]
        assert (await tool.ask("offsets list --group h"))["offsets"] == []
        await tool.ask(f"offsets reset g {TOPIC} --to earliest")
        assert await at() == [0, 0, 0, 0]
        assert await tool.refusal("offsets reset g none --to latest") == "TOPIC_NOT_EXIST: none"

    sail(scenario)


# settings


def setting(answer: Json) -> Mapping[str, Any]:
    return {row["key"]: row["value"] for row in answer["settings"]}


def test_a_setting_changes_while_the_node_runs_and_not_for_longer() -> None:
    """updateBrokerConfig: in force at once, in the event log, gone with the process."""

    async def scenario(tool: Tool) -> None:
        old = (await tool.sailor.cluster_state()).masters[BROKER_SET]
        node = ("--node", tool.at(old))
        before = setting(await tool.ask("getConfig", *node))
        assert before["checkSyncStateSetPeriod"] == 5000
        changed = await tool.ask("updateConfig maxHaTransferByteInSecond=2048", *node)
        assert setting(changed) == {"maxHaTransferByteInSecond": 2048}
        await tool.ask("updateConfig fileReservedTime=1", *node)
        await tool.sailor.kill(old)
        await tool.sailor.start(old)
        await tool.sailor.healthy()
        assert setting(await tool.ask("getConfig", *node)) == before
        told = [event["changed"] for event in tool.sailor.fleet.events(old, "config")]
        assert told == [{"maxHaTransferByteInSecond": 2048}, {"fileReservedTime": 1}]

    sail(scenario)


def test_a_priority_that_was_changed_decides_the_next_election() -> None:
    """The smallest brokerElectionPriority of the living members wins, as last reported."""

    async def scenario(tool: Tool) -> None:
        now = await tool.sailor.cluster_state()
        slaves = [n for n in tool.sailor.fleet.nodes("broker") if n != now.masters[BROKER_SET]]
        for wanted in reversed(slaves):
            for name in tool.sailor.fleet.nodes("broker"):
                value = 1 if name == wanted else 9
                await tool.ask(
                    f"updateConfig brokerElectionPriority={value}", "--node", tool.at(name)
                )
            await asyncio.sleep(1)  # a heartbeat of each
            await tool.ask(f"drill {BROKER_SET}")
            assert (await tool.sailor.healthy()).masters[BROKER_SET] == wanted

    sail(scenario, electPolicy="priority")


async def gaps(tool: Tool) -> list[int]:
    """How many bytes each slave lacks."""
    rows = (await tool.ask(f"haStatus {BROKER_SET}"))["brokers"]
    return [row["gapBytes"] for row in rows if row["gapBytes"] is not None]


def test_a_slave_that_waits_for_tokens_is_fed_at_the_new_rate() -> None:
    """maxHaTransferByteInSecond: a debt of minutes is forgotten, not waited out."""

    async def scenario(tool: Tool) -> None:
        old = (await tool.sailor.cluster_state()).masters[BROKER_SET]
        node = ("--node", tool.at(old))
        await tool.ask("updateConfig maxHaTransferByteInSecond=1024", *node)
        await tool.sailor.send(100, every_s=0.001)  # the last batch is a debt of seconds
        assert tool.sailor.client.producer.send_oneway(TOPIC, b"nobody waits, nobody retries")
        await asyncio.sleep(0.1)
        assert all(await gaps(tool))
        await tool.ask("updateConfig maxHaTransferByteInSecond=100000000", *node)
        await asyncio.sleep(0.1)
        assert await gaps(tool) == [0, 0]

    sail(scenario, haFlowControlEnable=True)


def test_a_handover_waits_for_as_long_as_the_controllers_say_now() -> None:
    """drillTimeout: a successor that hangs is given up then, and the master goes on."""

    async def scenario(tool: Tool) -> None:
        [now] = (await tool.ask("syncStateSet"))["sets"]
        brokers = (await tool.ask("syncStateSet"))["brokers"]
        slave = next(b for b in brokers if b["brokerId"] != now["masterId"])
        nodes = tool.sailor.fleet.nodes("broker")
        hung = tool.sailor.fleet.process(next(n for n in nodes if tool.at(n) == slave["addr"]))
        assert hung
        await tool.sailor.send(1)  # who tells one way must be connected
        tool.sailor.world.after(0, hung.pause)
        await asyncio.sleep(0.001)
        assert tool.sailor.client.producer.send_oneway(TOPIC, b"it lacks this")

        async def drill_takes() -> float:
            began = asyncio.get_running_loop().time()
            why = await tool.refusal(f"drill {BROKER_SET} --to {slave['brokerId']}")
            assert why.startswith("ELECT_MASTER_FAILED: ")
            return asyncio.get_running_loop().time() - began

        assert await drill_takes() > 0.1
        where = ("--node", tool.at(*CONTROLLERS))
        changed = await tool.ask("updateConfig drillTimeout=200", *where)
        assert [row["value"] for row in changed["settings"]] == [200] * 3
        assert await drill_takes() < 0.05

    sail(scenario)


def test_a_log_is_kept_for_as_long_as_the_setting_says_now() -> None:
    """fileReservedTime: with none left, full segments go at the next look of the cleaner."""

    async def scenario(tool: Tool) -> None:
        old = (await tool.sailor.cluster_state()).masters[BROKER_SET]
        await tool.sailor.send(400, every_s=0.001)

        async def begins() -> int:
            return int((await tool.sailor.admin.describe(tool.at(old)))["minOffset"])

        await asyncio.sleep(5)
        assert await begins() == 0
        await tool.ask("updateConfig fileReservedTime=0", "--node", tool.at(old))
        await eventually(begins)

    sail(scenario, mappedFileSizeCommitLog=1 << 14, maxMessageSize=1 << 12, deleteWhen="always")


HUGE = 10**400


@pytest.mark.parametrize(
    ("node", "given", "why"),
    [
        ("broker-1", "inSyncReplicas=1", "inSyncReplicas cannot change while a broker runs"),
        ("broker-1", "nonsense=1", "unknown key nonsense"),
        (
            "broker-1",
            "maxHaTransferByteInSecond=-1",
            "maxHaTransferByteInSecond must be at least 1024",
        ),
        ("broker-1", "brokerElectionPriority=much", "brokerElectionPriority must be of type int"),
        ("broker-1", "fileReservedTime=NaN", "fileReservedTime must be 0 or more"),
        ("broker-1", "brokerElectionPriority=5 zone=x", "zone cannot change while a broker runs"),
        ("broker-1", f"fileReservedTime={HUGE}", "fileReservedTime must have 64 bits at most"),
        ("broker-1", f"brokerElectionPriority={HUGE}", "brokerElectionPriority must have 64 bits"),
        ("controller-1", "electPolicy=zone", "these can: drillTimeout"),
        ("nameserver-1", "drillTimeout=1", "while a nameserver runs; these can: none"),
    ],
)
def test_what_may_not_change_is_refused_by_name(node: str, given: str, why: str) -> None:
    """Keys of guarantees, shared keys and invalid values; no other value changes then."""

    async def scenario(tool: Tool) -> None:
        where = ("--node", tool.at(node))
        before = setting(await tool.ask("getConfig", *where))
        said = await tool.refusal(f"updateConfig {given}", *where)
        assert said.startswith("INVALID_REQUEST: ")
        assert why in said
        assert setting(await tool.ask("getConfig", *where)) == before

    sail(scenario)
