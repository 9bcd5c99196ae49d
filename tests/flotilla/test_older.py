"""What the first edition wrote and says, and this one must open and understand.

`golden/older/` holds folders that its processes left, and frames; its README says how they were
made. Whole upgrades with the code of another edition are `tests/acceptance/upgrade.py`.
"""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import eventually, free_port
from played_node import PlayedNode

from clusters.flotilla.broker.catalog import Catalog, Version, commit
from clusters.flotilla.broker.metadata import MetadataSync
from clusters.flotilla.broker.registrar import LIGHT, Registrar, RegistrationIntervals
from clusters.flotilla.client import ClientSettings, ClusterClient
from clusters.flotilla.config import loads
from clusters.flotilla.controllers.controller_requests import DecisionContext, register
from clusters.flotilla.controllers.controller_state import BrokerSetState, SetMember
from clusters.flotilla.controllers.elect import BrokerStatus, Candidate
from clusters.flotilla.controllers.liveness import Heartbeat
from clusters.flotilla.controllers.state_machine import ReplicatedState, apply_entry
from clusters.flotilla.events import EventLog
from clusters.flotilla.net.connection import FrameConnection, Pool
from clusters.flotilla.net.wire import Json, Message, Op, PullReply, PullRequest, Status
from clusters.flotilla.raft import messages as raft
from clusters.flotilla.raft.log import EntryId
from clusters.flotilla.raft.membership import Configuration
from clusters.flotilla.raft.snapshot import Snapshot
from clusters.flotilla.raft.storage import RecoveredState, Storage, StorageDamaged
from clusters.flotilla.raft.wal import MAGIC, WalDamaged, parse_first_edition
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_protocol import HandshakeReply, HandshakeRequest
from clusters.flotilla.rules import RULES
from clusters.flotilla.steering.identity import Claim
from clusters.flotilla.store import recovery
from clusters.flotilla.world.ports import real

OLDER = Path(__file__).with_name("golden") / "older"
EXPECTED = json.loads((OLDER / "expected.json").read_text())
HEX = json.loads((OLDER / "frames.json").read_text())
FRAMES = {name: bytes.fromhex(text) for name, text in HEX.items()}
LIVES = 3


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLDER / "broker", tmp_path / "broker"))


@pytest.fixture
def controller(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLDER / "controller", tmp_path / "controller"))


# a controller's folder


def recovered(folder: Path) -> RecoveredState:
    async def recovering() -> RecoveredState:
        storage, found = await Storage.recover(real().files, str(folder))
        storage.close()
        return found

    return asyncio.run(recovering())


def test_a_controllers_log_is_opened_and_becomes_one_of_today(controller: Path) -> None:
    """Everything that was agreed on is there: the set's member, and a new epoch for each change of
    its master. The next start finds the same in today's format."""
    found = recovered(controller)
    assert found.snapshot is None
    assert found.vote.voted_for == "n1"
    agreed = ReplicatedState()
    for entry in found.entries:
        if entry.data:
            agreed = apply_entry(agreed, entry.data, RULES).state
    row = agreed.sets["set-1"]
    assert (list(row.members), row.sync_set) == ([1], (1,))
    assert row.master_epoch >= max(m["epoch"] for m in EXPECTED["messages"]) >= LIVES
    assert (controller / "raft.wal").read_bytes().startswith(MAGIC)
    assert recovered(controller) == found


def test_a_torn_older_log_is_cut_and_a_damaged_one_refused(controller: Path) -> None:
    """As a log of today: only what was not synced yet may be missing."""
    path = controller / "raft.wal"
    data = path.read_bytes().rstrip(b"\0")
    whole = parse_first_edition(data)
    torn = parse_first_edition(data[:-1])
    assert torn.end < whole.end
    assert torn.entries == whole.entries[: len(torn.entries)]
    damaged = bytearray(data)
    damaged[whole.end // 2] ^= 1
    with pytest.raises(WalDamaged, match="the record is unreadable, but the one at"):
        parse_first_edition(bytes(damaged))
    path.write_bytes(damaged)
    with pytest.raises(StorageDamaged, match=r"raft.wal, byte \d+: the record is unreadable"):
        recovered(controller)
    assert path.read_bytes() == damaged, "what is damaged stays as it is"


def test_an_older_log_beside_a_snapshot_is_refused(controller: Path) -> None:
    """The first edition had none: somebody brought an old file back, and what this member has
    promised since is not in it."""
    (controller / "raft.snapshot").write_bytes(Snapshot(EntryId(5, 1), Configuration(), b"").packed)
    with pytest.raises(
        StorageDamaged, match=r"raft.wal, byte 0: it does not begin like a Raft log"
    ):
        recovered(controller)


# a broker's folder


async def opened(folder: Path) -> recovery.StoreRecovery:
    return await recovery.recover(recovery.StoreOptions(str(folder), 4096, 1024), real(), RULES)


def test_a_brokers_store_is_opened_with_everything_in_it(broker: Path) -> None:
    """All messages where they were acknowledged, all epochs, and what was confirmed is shown."""

    async def opening() -> None:
        found = await opened(broker)
        store = found.store
        assert found.clean
        assert found.notes == ()
        assert store.confirm_offset == store.log.max_offset
        for m in EXPECTED["messages"]:
            key = (EXPECTED["topic"].encode(), m["queue"])
            [payload] = store.fetch(key, m["offset"], 1, 1 << 20)
            assert payload.body.decode() == m["body"]
        epochs = sorted({m["epoch"] for m in EXPECTED["messages"]})
        assert [epoch for epoch, _ in found.epochs.entries if epoch in epochs] == epochs
        await store.leave()

    asyncio.run(opening())


def test_a_log_that_does_not_begin_at_zero_is_opened(broker: Path) -> None:
    """The first edition's checkpoint does not say where the log begins: where its files do."""
    (broker / "commitlog" / f"{0:020d}").unlink()

    async def opening() -> None:
        found = await opened(broker)
        assert found.store.log.min_offset == 4096
        assert found.store.log.max_offset > 4096
        found.store.close()

    asyncio.run(opening())


def test_a_brokers_offsets_and_identity_are_read(broker: Path) -> None:
    """Bare rows, of no version, and a claim without a checksum."""
    catalog = Catalog(str(broker), real().files, {EXPECTED["topic"]: 2})
    group = EXPECTED["group"]
    offsets = [catalog.offset((group, EXPECTED["topic"], queue)) for queue in (0, 1)]
    assert (offsets, catalog.version) == (EXPECTED["committed"], Version())
    assert Claim.unpacked((broker / "broker.meta").read_bytes()).broker_id == 1


def test_processes_go_on_with_the_folders(
    raise_node: Callable[..., Any], broker: Path, controller: Path
) -> None:
    """A controller and a broker of today on them serve every message and go on behind it, twice:
    what they leave is today's."""
    for life in (1, 2):
        nodes = processes(raise_node, life, broker, controller)
        asyncio.run(serves_everything(nodes[0].address, life))
        asyncio.run(tells_older_slaves(nodes[2].address))
        for node in reversed(nodes):
            assert node.stop(15) == 0


def processes(
    raise_node: Callable[..., Any], life: int, broker: Path, controller: Path
) -> list[Any]:
    address = f"127.0.0.1:{free_port()}"
    names = raise_node(f"names-{life}", "nameserver")
    leader = raise_node(
        f"controller-{life}",
        "controller",
        port=int(address.split(":")[1]),
        storePath=str(controller),
        controllerDLegerSelfId="n1",
        controllerDLegerPeers={"n1": address},
    )
    served = raise_node(
        f"broker-{life}",
        "broker",
        storePath=str(broker),
        haListenPort=free_port(),
        brokerName="set-1",
        namesrvAddr=[names.address],
        controllerAddr=[address],
        topics={EXPECTED["topic"]: 2},
        mappedFileSizeCommitLog=4096,
        maxMessageSize=1024,
    )
    return [names, leader, served]


async def serves_everything(nameserver: str, life: int) -> None:
    client, topic = (
        ClusterClient(ClientSettings.of({"namesrvAddr": [nameserver]})),
        EXPECTED["topic"],
    )
    client.start()

    async def sent() -> Any:
        result = await client.producer.send_and_wait(topic, b"new", b"", 0)
        return result if result.outcome.name == "HAPPENED" else None

    try:
        result = await eventually(sent)
        before = [m for m in EXPECTED["messages"] if m["queue"] == 0]
        assert result.queue_offset >= len(before) + life - 1
        assert result.epoch > max(m["epoch"] for m in EXPECTED["messages"])
        for m in EXPECTED["messages"]:
            pulled = await client.consumer.pull(topic, m["queue"], m["offset"], 1, 0)
            [message] = pulled.messages
            assert (message.body.decode(), message.epoch) == (m["body"], m["epoch"])
        assert await client.consumer.committed(EXPECTED["group"], topic, 1) == 7
    finally:
        client.close()


async def tells_older_slaves(master: str) -> None:
    """They ask without a word, and take the rows of all offsets out of the answer."""
    pool = Pool(10)
    reply = await pool.ask(master, Op.METADATA_SYNC, {}, 10)
    assert [EXPECTED["group"], EXPECTED["topic"], 1, 7] in reply["offsets"]
    pool.close()


# frames

SHAPE = LogShape(4096, 9000, EpochTable(((1, 4096), (3, 8000))))
ENTRIES = (raft.LogEntry(7, b""), raft.LogEntry(7, b"[]"))
SAME: dict[str, Any] = {
    "VoteRequest": raft.VoteRequest(term=7, source="n1", last_index=5, last_term=6, pre=True),
    "VoteReply": raft.VoteReply(term=7, source="n2", granted=True, pre=False),
    "Append": raft.Append(
        term=7, source="n1", prev_index=4, prev_term=6, commit=3, stamp=2.5, entries=ENTRIES
    ),
    "AppendReply": raft.AppendReply(
        term=7, source="n2", matched=False, index=4, stamp=2.5, hint_index=2, hint_term=5
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_raft_members_of_both_editions_understand_each_other(name: str) -> None:
    """What the first edition says is read; what we say begins with what it would say, and it takes
    no notice of what follows."""
    assert raft.unpack(FRAMES[name]) == SAME[name]
    assert raft.pack(SAME[name]).startswith(FRAMES[name])


def test_replicas_of_both_editions_understand_each_other() -> None:
    """Copying alone is said as it always was. A learner, and who begins at the last file, say more,
    and are understood by masters of today only."""
    hello, welcome = (
        HandshakeRequest(2, 3, 8500, SHAPE),
        HandshakeReply(Status.SUCCESS, 3, 4096, SHAPE),
    )
    assert (HandshakeRequest.unpack(FRAMES["Hello"]), hello.pack()) == (hello, FRAMES["Hello"])
    assert (HandshakeReply.unpack(FRAMES["Welcome"]), welcome.pack()) == (
        welcome,
        FRAMES["Welcome"],
    )
    for more in (
        HandshakeRequest(2, 3, 1, SHAPE, learner=True),
        HandshakeRequest(2, 3, 1, SHAPE, last_file=True),
    ):
        assert HandshakeRequest.unpack(more.pack()) == more
        assert len(more.pack()) > len(FRAMES["Hello"])


def test_consumers_of_both_editions_understand_each_other() -> None:
    """A slave to read from is suggested behind the messages, where the first one does not look."""
    pulled = PullReply(Status.SUCCESS, 9, 0, 9, (Message(8, 3, 77, b"key", b"body"),))
    assert (PullReply.unpack(FRAMES["Pulled"]), pulled.pack()) == (pulled, FRAMES["Pulled"])
    more = PullReply(*pulled[:5], suggested=2)
    assert PullReply.unpack(more.pack()) == more
    assert more.pack().startswith(FRAMES["Pulled"])


@pytest.mark.parametrize("suggested", [0, 2])
def test_store_times_are_sent_to_those_who_ask(suggested: int) -> None:
    """A pull asks behind its topic, where the first edition does not look; the times stand behind
    everything that it reads."""
    pull = PullRequest("t", 0, 8, 1, 0)
    assert PullRequest.unpack(pull.pack()) == pull
    asking = pull._replace(times=True)
    assert PullRequest.unpack(asking.pack()) == asking
    assert asking.pack().startswith(pull.pack())
    timed = (Message(8, 3, 77, b"key", b"body", stored_ms=1_700_000_000_000),)
    pulled = PullReply(Status.SUCCESS, 9, 0, 9, timed, suggested, times=True)
    assert PullReply.unpack(pulled.pack()) == pulled
    assert pulled.pack().startswith(FRAMES["Pulled"])


# fields that the first edition does not send


def test_a_broker_that_does_not_count_its_heartbeats_is_heard() -> None:
    """Each of them is the newest, as it was then."""
    fields = {"brokerName": "b", "brokerId": 1, "addr": "a:1", "timeoutMs": 1000, "epoch": 1}
    first = Heartbeat.from_fields({**fields, "maxOffset": 9, "confirmOffset": 0, "priority": 1})
    second = Heartbeat.from_fields({**fields, "maxOffset": 5, "confirmOffset": 0, "priority": 1})
    assert not first.precedes(second)
    assert not second.precedes(first)


def test_controllers_of_an_older_edition_read_heartbeats_without_racks() -> None:
    """In the log and in snapshots a broker has a rack only if its configuration has one."""
    fields = {"brokerName": "b", "brokerId": 1, "addr": "a:1", "timeoutMs": 1000, "epoch": 1}
    plain = {**fields, "maxOffset": 9, "confirmOffset": 0, "priority": 1}
    assert "rack" not in Heartbeat.from_fields(plain).fields()
    there = Heartbeat.from_fields({**plain, "rack": "r1"})
    assert Heartbeat(**there.fields()) == there
    assert there.rack == "r1"


def test_a_broker_that_does_not_say_its_check_code_registers() -> None:
    """By its id alone."""
    row = BrokerSetState("f", 2, {1: SetMember("a:1", "h:1", "code")}, 1, 1, (1,), 1)
    scene = DecisionContext(
        {"b": row}, lambda _, i: Candidate(i, BrokerStatus.ALIVE), RULES, unclean=False
    )
    fields = {"cluster": "f", "brokerName": "b", "brokerId": 1, "addr": "a:1", "haAddr": "h:1"}
    assert register(scene, fields).reply.get("code", Status.SUCCESS) is Status.SUCCESS
    wrong = register(scene, {**fields, "checkCode": "another"})
    assert wrong.reply["code"] is Status.BROKER_ID_INVALID


def test_a_slave_takes_the_offsets_of_a_master_that_numbers_nothing(tmp_path: Path) -> None:
    """They come as a whole and without a version; what is further here stays."""

    async def scenario() -> None:
        async def answer(connection: FrameConnection, fields: Json) -> Json:
            return {"topics": {"t": 2}, "offsets": [["g", "t", 0, 9], ["g", "t", 1, 3]]}

        master = PlayedNode({Op.METADATA_SYNC: answer})
        await master.listen()
        who = 'role = "broker"\nnodeName = "b"\nlistenHost = "127.0.0.1"\ntimeScale = 0.1\n'
        config, ports = loads(f'{who}storePath = "{tmp_path}"\n'), real()
        catalog = Catalog(str(tmp_path), ports.files, {"t": 2})
        catalog.apply([commit(("g", "t", 1), 5)], Version(2, 1))
        events = EventLog("", "b", ports)
        sync = MetadataSync(config, RULES, catalog, events, lambda: (master.address, 2))
        sync.start()

        async def taken() -> bool | None:
            return catalog.offset(("g", "t", 0)) == 9 or None

        await eventually(taken)
        assert (catalog.offset(("g", "t", 1)), catalog.version) == (5, Version(2, 1))
        sync.close()
        master.leave()

    asyncio.run(scenario())


def test_a_nameserver_that_knows_no_light_heartbeats_is_registered_with(tmp_path: Path) -> None:
    """It hangs up at each of them, and would forget the broker: so the broker registers instead."""

    async def scenario() -> None:
        registered = 0

        async def answer(connection: FrameConnection, fields: Json) -> Json:
            nonlocal registered
            registered += 1
            return {}

        nameserver = PlayedNode({Op.REGISTER_BROKER: answer})
        await nameserver.listen()
        fields: Json = {name: name for name in ("cluster", "brokerName")}
        fields |= dict.fromkeys(("addr", "haAddr"), "10.0.0.1:1")
        fields |= dict.fromkeys(("brokerId", "stateVersion", "timeoutMs", "life", "beat"), 0)
        fields |= {"topics": {}}
        assert set(LIGHT) < set(fields)
        registrar = Registrar(
            (nameserver.address,), RegistrationIntervals(3600, 0.01, 30, 30), lambda: fields
        )
        registrar.start()

        async def again() -> bool | None:
            return registered >= 3 or None

        await eventually(again)
        registrar.close()
        nameserver.leave()

    asyncio.run(scenario())
