"""RocketMQ's driver without Java: frames that a broker, a nameserver and controllers of 5.4.0
answered, and what the driver and its clients make of them."""

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Any, cast

import pytest

from clusters.kit import NodeAccess
from clusters.kit.driver import settings_in_force
from clusters.kit.roles import cluster_state
from clusters.systems.kafka import PLUGIN as KAFKA
from clusters.systems.rocketmq import PLUGIN, commit_log, remoting
from clusters.systems.rocketmq.client import (
    RocketClient,
    master_of,
    pulled,
    queues_in,
    stored_at,
)
from clusters.systems.rocketmq.remoting import Answer, RemotingError, RemotingLink
from clusters.systems.rocketmq.service import (
    RocketMq,
    answered_object,
    broker_events,
    broker_view,
    controller_view,
    nameserver_view,
    raft_view,
)
from clusters.systems.zookeeper import PLUGIN as ZOOKEEPER
from harness.contracts import Node
from harness.contracts.calls import LogEntries, Refused
from harness.errors import BadRequest
from harness.trial import Trial

NAMES = {f"198.18.1.{n + 14}": f"broker-{n}" for n in (1, 2, 3)}
COMMON = '"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":493}'
PULLED = (
    '{"code":0,"extFields":{"suggestWhichBrokerId":"0","groupSysFlag":"0","nextBeginOffset":"1",'
    f'"maxOffset":"1","minOffset":"0","topicSysFlag":"0"}},{COMMON}'
)
RECORD = bytes.fromhex(
    "000000d8daa320a738d7eda0000000000000000000000000000000000000000000000000000000000000000000"
    "000001c61201100000d906000001a21c45b903c612010f00002a9f000000000000000000000000000000090000"
    "0000000000007808726f636b65746d71006c4d53475f524547494f4e0144656661756c74526567696f6e02554e"
    "49515f4b455901433631323031304630314139344530453246324138374444443046393030303002434c555354"
    "455201736561747269616c025741495401747275650254524143455f4f4e017472756502"
)
CLUSTER = (
    b'{"brokerAddrTable":{"rocketmq":{"brokerAddrs":{0:"198.18.1.15:10911",2:"198.18.1.16:10911",'
    b'3:"198.18.1.17:10911"},"brokerName":"rocketmq","cluster":"seatrial","enableActingMaster":'
    b'false}},"clusterAddrTable":{"seatrial":["rocketmq"]}}'
)
SYNC_STATE = (
    b'{"replicasInfoTable":{"rocketmq":{"inSyncReplicas":[{"alive":true,"brokerAddress":'
    b'"198.18.1.15:10911","brokerId":1,"brokerName":"rocketmq"},{"alive":true,"brokerAddress":'
    b'"198.18.1.17:10911","brokerId":3,"brokerName":"rocketmq"}],"masterAddress":'
    b'"198.18.1.15:10911","masterBrokerId":1,"masterEpoch":1,"notInSyncReplicas":[{"alive":true,'
    b'"brokerAddress":"198.18.1.16:10911","brokerId":2,"brokerName":"rocketmq"}],'
    b'"syncStateSetEpoch":2}}}'
)
MASTER = b'{"haClientRuntimeInfo":{"maxOffset":0},"inSyncSlaveNums":1,"master":true}'
SLAVE = b'{"haClientRuntimeInfo":{"masterAddr":"198.18.1.15:10912"},"master":false}'
LOST_SLAVE = b'{"haClientRuntimeInfo":{"maxOffset":0},"haConnectionInfo":[],"master":false}'
EPOCHS = (
    b'{"brokerId":0,"brokerName":"rocketmq","clusterName":"seatrial","epochList":[{"endOffset":'
    b'9223372036854775807,"epoch":1,"startOffset":0}],"maxOffset":0}'
)
NO_EPOCHS = b'{"brokerId":2,"brokerName":"rocketmq","epochList":[],"maxOffset":0}'


def frame(header: str, body: bytes = b"") -> bytes:
    """Return a frame without its first size."""
    return struct.pack(">i", len(header)) + header.encode() + body


def record(
    offset: int,
    body: bytes = b"\x00\x00\x00\x00\x00\x00\x00\x00x",
    *,
    topic: str = "orders",
    magic: int = commit_log.MAGIC,
    sysflag: int = 0,
    crc: int | None = None,
    place: int = 0,
) -> bytes:
    """Return a record as a broker lays it out."""
    name = topic.encode()
    sized = struct.pack(">B" if magic == commit_log.MAGIC else ">H", len(name))
    rest = bytes(20 if sysflag & commit_log.BORN_6 else 8) + bytes(8)
    rest += bytes(20 if sysflag & commit_log.STORED_6 else 8) + bytes(4) + bytes(8)
    rest += struct.pack(">i", len(body)) + body + sized + name + struct.pack(">H", 2) + b"a\x01"
    checksum = commit_log.crc32(body) & 0x7FFFFFFF if crc is None else crc
    size = commit_log.HEAD.size + len(rest)
    head = commit_log.HEAD.pack(size, magic, checksum, 3, 0, offset, place, sysflag, 0)
    return head + rest


def test_a_frame_that_a_broker_answered() -> None:
    number, answers, said = remoting.decode(frame(PULLED, RECORD))
    assert (number, answers, said.code, said.body) == (7, True, 0, RECORD)
    assert said.fields["maxOffset"] == "1"
    request = remoting.request(remoting.PULL, {"queueId": 3, "k": False}, b"body", 9)
    size, header = struct.unpack_from(">ii", request)
    assert (size, request[8 + header :]) == (len(request) - 4, b"body")
    fields = json.loads(request[8 : 8 + header])
    assert fields["extFields"] == {"queueId": "3", "k": "false"}
    assert (fields["code"], fields["opaque"], fields["flag"]) == (11, 9, 0)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00\x00", b"\x01\x00\x00\x02{}", b"\x00\x00\x00\x09{}", frame("[]"), frame("{")],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of JSON too
        remoting.decode(data)


def test_a_record_that_a_broker_stored() -> None:
    (found,) = commit_log.records(RECORD)
    assert found == ("rocketmq", 0, 0, 0, 0, bytes(8) + b"x")


@pytest.mark.parametrize("magic", [commit_log.MAGIC, commit_log.MAGIC_2])
@pytest.mark.parametrize("sysflag", [0, commit_log.BORN_6, commit_log.STORED_6, 48])
def test_records_of_each_layout(magic: int, sysflag: int) -> None:
    long = "t" * (200 if magic == commit_log.MAGIC else 300)
    data = record(5, topic=long, magic=magic, sysflag=sysflag, place=7) + record(6, magic=magic)
    found = list(commit_log.records(data))
    assert [(each.topic, each.queue, each.offset) for each in found] == [
        (long, 3, 5),
        ("orders", 3, 6),
    ]
    assert found[0].place == 7


@pytest.mark.parametrize(
    "behind",
    [
        bytes(100),
        record(2, magic=commit_log.BLANK),
        record(2, crc=1),
        record(2)[:-1],
        struct.pack(">ii", 1 << 30, commit_log.MAGIC) + bytes(100),
        struct.pack(">ii", -5, commit_log.MAGIC) + bytes(100),
    ],
    ids=["zeros", "end of a file", "wrong checksum", "torn", "too long", "negative"],
)
def test_records_end_where_the_log_does(behind: bytes) -> None:
    assert [each.offset for each in commit_log.records(record(1) + behind)] == [1]


def entry(term: int, body: bytes, *, magic: int = commit_log.ENTRY_MAGIC) -> bytes:
    """Return an entry of DLedger's log."""
    size = commit_log.ENTRY.size + len(body)
    return commit_log.ENTRY.pack(magic, size, 0, term, 0, 0, 0, 0, len(body)) + body


def test_the_terms_of_records() -> None:
    data = record(1, place=0) + record(2, place=100) + record(3, place=200)
    found = commit_log.terms_in(data, [(0, 1), (100, 2), (150, 5)], raft=False)
    assert [(term, each.offset) for term, each in found] == [(1, 1), (2, 2), (5, 3)]
    log = entry(3, record(1)) + entry(4, record(2) + record(3)) + entry(9, b"", magic=-1)
    found = commit_log.terms_in(log + entry(9, record(9)), [], raft=True)
    assert [(term, each.offset) for term, each in found] == [(3, 1), (4, 2), (4, 3)]
    assert list(commit_log.raft_entries(entry(3, record(1))[:-1])) == []


def test_a_broker_with_raft_in_its_log() -> None:
    brokers = [Node(f"broker-{n}", "broker") for n in (1, 2, 3)]
    found, stored = {"leaderId": "n2", "peers": {}}, b"#Fri\nvoteLeader=n2\ncurrTerm=7\n"
    view = raft_view("broker-1", found, stored, brokers)
    assert (view.leader, view.term, view.own) == ("broker-3", 7, "broker-1")
    assert raft_view("broker-1", {"leaderId": None}, b"", brokers).leader == ""


def said(code: int, remark: str = "", **fields: str) -> Answer:
    return Answer(code, remark, fields, b"")


@pytest.mark.parametrize(
    ("code", "remark", "outcome"),
    [
        (0, "", None),
        (10, "", RemotingError),  # FLUSH_DISK_TIMEOUT
        (11, "", RemotingError),  # SLAVE_NOT_AVAILABLE
        (12, "", RemotingError),  # FLUSH_SLAVE_TIMEOUT
        (1, "UNKNOWN_ERROR", RemotingError),
        (1, "in-sync replicas not enough", Refused),
        (1, "create mapped file failed, server is busy or broken.", Refused),
        (2, "[REJECTREQUEST]system busy, start flow control for a while", Refused),
        (2, "[TIMEOUT_CLEAN_QUEUE]broker busy", Refused),
        (3, "request code 310 not supported", RemotingError),
        (13, "the message is illegal", Refused),
        (14, "service not available now", Refused),
        (16, "the broker's permission is refused", Refused),
        (17, "topic[orders] not exist", Refused),
        (1500, "go away", Refused),
        (-1, "", RemotingError),
        (4711, "what no version answers", RemotingError),
    ],
)
def test_the_outcome_of_a_message(code: int, remark: str, outcome: type[Exception] | None) -> None:
    answer = said(code, remark, queueOffset="12")
    if outcome is None:
        assert stored_at(answer) == 12
        return
    with pytest.raises(Exception, match=f"code {code}") as raised:
        stored_at(answer)
    assert type(raised.value) is outcome


def test_too_few_replicas_of_a_log_with_raft_leave_the_outcome_unknown() -> None:
    with pytest.raises(RemotingError):
        stored_at(said(1, "in-sync replicas not enough"), raft=True)
    with pytest.raises(Refused):
        stored_at(said(1, "create mapped file failed, server is busy"), raft=True)


def test_what_a_pull_answers() -> None:
    _, _, answer = remoting.decode(frame(PULLED, RECORD))
    assert pulled(answer, 0) == LogEntries([(0, bytes(8) + b"x")], 1, 1)
    assert pulled(answer, 1).entries == []
    moved = said(remoting.PULL_MOVED, maxOffset="9", nextBeginOffset="4")
    assert pulled(moved, 20) == LogEntries([], 9, 4)
    with pytest.raises(RemotingError, match="code 24"):
        pulled(said(24, "the consumer's group info not exist"), 0)


def test_the_views_of_all_roles_make_a_cluster() -> None:
    names = nameserver_view("nameserver-1", answered_object(CLUSTER), NAMES)
    leader = controller_view("controller-2", answered_object(SYNC_STATE), NAMES)
    assert (leader.leader, leader.term, leader.leads_arbiters) == ("broker-1", 1, True)
    assert leader.members == ["broker-1", "broker-3"]
    views = {
        "nameserver-1": names,
        "controller-2": leader,
        "broker-1": broker_view("broker-1", *map(answered_object, (MASTER, EPOCHS)), NAMES),
        "broker-2": broker_view("broker-2", *map(answered_object, (LOST_SLAVE, NO_EPOCHS)), NAMES),
        "broker-3": broker_view("broker-3", *map(answered_object, (SLAVE, EPOCHS)), NAMES),
    }
    state = cluster_state("rocketmq", views, {"nameserver-1", "controller-2"})
    assert state.masters == {"rocketmq": "broker-1"}
    assert (state.in_set, state.out_of_set) == (("broker-1", "broker-3"), ("broker-2",))
    assert (state.redundant, state.controller_leader) == (False, "controller-2")


def test_a_cluster_before_its_first_broker() -> None:
    view = nameserver_view("nameserver-1", {"brokerAddrTable": {}, "clusterAddrTable": {}}, NAMES)
    assert (view.ready, view.defers, view.leader) == (True, True, None)
    view = controller_view("controller-1", {"replicasInfoTable": {}}, NAMES)
    assert (view.defers, view.leads_arbiters) == (True, True)


def test_a_route_without_a_master() -> None:
    assert master_of({"brokerDatas": [{"brokerAddrs": {"2": "198.18.1.16:10911"}}]}) == ""
    assert (
        nameserver_view(
            "n",
            {"brokerAddrTable": {"rocketmq": {"brokerAddrs": {"2": "198.18.1.16:10911"}}}},
            NAMES,
        ).leader
        is None
    )


def test_several_requests_on_a_connection_and_a_server_that_ends() -> None:
    """The answers come in another order; a server's own request in between is left alone."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        numbers = []
        for _ in range(2):
            size = int.from_bytes(await reader.readexactly(4), "big")
            data = await reader.readexactly(size)
            numbers.append(json.loads(data[4 : 4 + int.from_bytes(data[1:4], "big")])["opaque"])
        own = {"code": 40, "flag": 0, "opaque": numbers[0]}
        for header in (own, *({"code": n, "flag": 1, "opaque": n} for n in reversed(numbers))):
            data = frame(json.dumps(header))
            writer.write(struct.pack(">i", len(data)) + data)
        await reader.readexactly(4)
        writer.close()

    async def talk() -> tuple[list[int], Exception]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server:
            link = await RemotingLink.open(host, port, 5.0)
            two = (link.call(remoting.SEND, {}, within_s=5.0) for _ in range(2))
            codes = [answer.code for answer in await asyncio.gather(*two)]
            try:
                await link.call(remoting.SEND, {}, within_s=5.0)
            except ConnectionError as e:
                assert link.closed
                await link.close()
                return codes, e
        raise AssertionError("an answer, though the server has ended")

    codes, error = asyncio.run(talk())
    assert codes == [1, 2]
    assert "closed the connection" in str(error)


def test_the_pace_of_all_times_is_a_number() -> None:
    values = settings_in_force(RocketMq, Trial(profile="published", settings={"timeScale": 1}))
    assert (values["timeScale"], values["controllerHeartBeatTimeoutMills"]) == (1.0, 10_000)
    assert RocketMq.detects_within_s({**values, "timeScale": 0.1}) == pytest.approx(1.5)
    with pytest.raises(BadRequest, match=r"timeScale must be a number from 0\.01, not 0"):
        settings_in_force(RocketMq, Trial(settings={"timeScale": 0}))
    with pytest.raises(BadRequest, match="minInSyncReplicas must be a number from 1, not 0"):
        settings_in_force(RocketMq, Trial(settings={"minInSyncReplicas": 0}))


def files_of(node: str, trial: Trial) -> Mapping[str, str]:
    """The files and the command line of a node, where there is one of each role."""
    names = [("nameserver", 11), ("controller", 12), ("broker", 15)]
    nodes = [Node(f"{role}-1", role, address=f"198.18.1.{n}") for role, n in names]
    service = RocketMq(settings_in_force(RocketMq, trial), {}, nodes)
    own = next(each for each in nodes if each.role == node)
    here = NodeAccess(own, cast(Any, None), "/node", {"java": "java", "rocketmq": "/jars"})
    return {**service.files(here, nodes), "argv": " ".join(service.argv(here, nodes, True))}


def test_the_times_that_nodes_are_given_are_to_scale() -> None:
    """A tenth of RocketMQ's own; what is no time stays."""
    trial = Trial(profile="published", settings={"timeScale": 0.1})
    lines = files_of("broker", trial)["node.conf"].splitlines()
    assert "controllerHeartBeatTimeoutMills=1000" in lines
    assert "mappedFileSizeCommitLog=16777216" in lines
    assert "allAckInSyncStateSet=true" in lines
    assert "controllerAddr=198.18.1.12:9878" in lines


@pytest.mark.parametrize("name", ["jRaft", "jraft"])
def test_the_kind_of_controllers_may_be_named_as_flotilla_does(name: str) -> None:
    files = files_of("controller", Trial(settings={"controllerType": name}))
    assert "controllerType=jRaft" in files["node.conf"].splitlines()
    assert "controllerDLegerGroup" not in files["node.conf"]


def test_a_broker_in_a_container_is_started_by_it() -> None:
    """A container refuses a broker that demands more copies than it waits for."""
    found = files_of("broker", Trial(settings={"mode": "container"}))
    assert found["container.conf"].splitlines() == [
        "brokerConfigPaths=/node/node.conf",
        "namesrvAddr=198.18.1.11:9876",
    ]
    assert found["argv"].endswith("BrokerContainerStartup -c /node/container.conf")
    assert {"inSyncReplicas=2", "totalReplicas=1"} <= set(found["node.conf"].splitlines())
    alone = files_of("broker", Trial())
    assert alone["argv"].endswith("BrokerStartup -c /node/node.conf")
    assert "container.conf" not in alone


def test_a_slave_acts_for_the_master_only_where_the_nameserver_knows_it() -> None:
    wanted = {"broker": "enableSlaveActingMaster", "nameserver": "supportActingMaster"}
    for node, key in wanted.items():
        for mode, word in (("acting", "true"), ("master-slave", "false")):
            conf = files_of(node, Trial(settings={"mode": mode}))["node.conf"]
            assert f"{key}={word}" in conf.splitlines()


def client_settings() -> Mapping[str, Any]:
    nodes = [("nameserver-1", "nameserver", "127.0.0.1"), ("broker-1", "broker", "127.0.0.2")]
    nodes.append(("broker-2", "broker", "127.0.0.3"))
    return {"nodes": nodes, "settings": settings_in_force(RocketMq, Trial())}


class WithTopics(RocketClient):
    """A client of brokers of which the second, a slave, takes the master's topics once more, as
    they were before the first change. Answers are as 5.4.0 gives them."""

    def __init__(self) -> None:
        super().__init__(client_settings(), 0)
        self.queues = {"127.0.0.2": 1, "127.0.0.3": 1}
        self.created = 0

    async def _ask(self, address: str, port: int, code: int, fields: Any, *_: Any) -> Answer:
        if code == remoting.ROUTE:
            route = {"brokerDatas": [{"brokerAddrs": {"0": "127.0.0.2:10911"}}]}
            return Answer(0, "", {}, json.dumps(route).encode())
        if code == remoting.CREATE_TOPIC:
            self.created += 1
            self.queues[address] = 1 if self.created == 2 else fields["writeQueueNums"]
            return said(0, "not set any response code")
        found = {"topicName": fields["topic"], "perm": 6, "order": False}
        found |= dict.fromkeys(("readQueueNums", "writeQueueNums"), self.queues[address])
        return Answer(0, "", {}, json.dumps(found).encode())


def test_a_topic_that_grows_is_there_when_all_brokers_have_its_queues() -> None:
    client = WithTopics()
    asyncio.run(client.set_up({"orders": 100}))
    assert client.queues == {"127.0.0.2": 100, "127.0.0.3": 100}
    assert queues_in(said(17, "No topic in this broker. topic: orders")) == 0


def test_only_offsets_of_groups_are_registers() -> None:
    client = RocketClient(client_settings(), 0)
    with pytest.raises(Refused, match="RocketMQ has no registers"):
        asyncio.run(client.read("key-1"))


BROKER_LOG = """\
2026-11-27 12:36:14.408Z INFO main - SyncStateSet changed from [] to [1]
2026-11-27 12:36:19.171Z INFO ReplicasManager_ExecutorService_3 - Change broker \
[id:1][address:198.18.1.16:10911] to SYNC_MASTER, newMasterBrokerId:1, \
newMasterAddress:198.18.1.16:10911, newMasterEpoch:5, syncStateSetEpoch:2
2026-11-27 12:36:23.857Z INFO AutoSwitchHAService_Executor_1 - SyncStateSet changed \
from [1, 2] to [1, 2, 3]
\tat a line of a stack, to which no date belongs
2026-11-27 12:36:58.340Z INFO ReplicasManager_ExecutorService_2 - Change broker \
[id:1][address:198.18.1.16:10911] to SLAVE, newMasterBrokerId:2, \
newMasterAddress:198.18.1.15:10911, newMasterEpoch:6, syncStateSetEpoch:4
2026-11-27 12:36:58.400Z INFO AdminBrokerThread_4 - SyncStateSet changed from [1, 2, 3] to [2]
2026-11-27 12:36:58.423Z INFO AutoSwitchHAClient - local epoch entries is \
[EpochEntry{epoch=1, startOffset=0, endOffset=300}, \
EpochEntry{epoch=5, startOffset=300, endOffset=390857}]
2026-11-27 12:36:58.425Z INFO AutoSwitchHAClient - truncate dirty files to 383594
2026-11-27 12:36:59.001Z INFO AutoSwitchHAClient - local epoch entries is \
[EpochEntry{epoch=1, startOffset=0, endOffset=383594}]
2026-11-27 12:36:59.002Z INFO AutoSwitchHAClient - truncate dirty files to 383594
"""


def test_what_the_log_of_a_broker_tells() -> None:
    """Recorded from 5.4.0. What a slave believes of the set, and a cut of nothing, are no
    events."""
    found = list(broker_events(BROKER_LOG, "broker-2", "rocketmq"))
    who = {"brokerName": "rocketmq"}
    assert [(kind, fields) for _, _, kind, fields in found] == [
        ("role", {**who, "brokerId": 1, "epoch": 5, "role": "master"}),
        ("election", {**who, "masterId": 1, "epoch": 5, "set": [1]}),
        ("set", {**who, "set": [1, 2, 3]}),
        ("role", {**who, "brokerId": 1, "epoch": 6, "role": "slave"}),
        ("truncate", {"point": 383594, "before": 390857}),
    ]
    assert {node for _, node, _, _ in found} == {"broker-2"}
    assert [t // 10**6 % 100_000 for t, *_ in found] == [79171, 79171, 83857, 18340, 18425]


def test_events_come_from_logs_only_where_controllers_give_roles() -> None:
    modes = {"controller": True, "dledger": False, "master-slave": False}
    assert {mode: RocketMq.logs_roles({"mode": mode}) for mode in modes} == modes
    assert RocketMq.dated_in({"mode": "dledger"}) == ()
    assert RocketMq.dated_in({"mode": "controller"}) == ("broker",)


def test_reports_have_its_own_words() -> None:
    """Those of a broker set and its SyncStateSet are also the harness's; Kafka's are not."""
    assert (PLUGIN.words["SyncStateSet"], PLUGIN.words["broker"]) == ("SyncStateSet", "broker")
    assert (KAFKA.words["SyncStateSet"], KAFKA.words["broker"]) == ("ISR", "broker")
    assert ZOOKEEPER.words["SyncStateSet"] == "set of followers"
