"""The operator's tool without a cluster: which words make sense, and how answers are printed."""

import asyncio

import pytest
from admin_lab import run
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.admin import DONE, NO_ANSWER, USAGE
from clusters.flotilla.admin.command_line import COMMANDS
from clusters.flotilla.admin.output import CommandOutput, columns
from clusters.flotilla.admin.sets import epoch_rows, ha_rows
from clusters.flotilla.net.connection import FrameConnection, JsonHandler, serve
from clusters.flotilla.net.wire import Json


def test_every_command_tells_what_it_does() -> None:
    """`--help` of the tool and of each command is an answer, not a mistake."""

    async def scenario() -> None:
        for words in ([], *(command.name.split() for command in COMMANDS)):
            code, said, complained = await run(*words, "--help")
            assert (code, complained) == (DONE, "")
            assert said.startswith("usage: python -m clusters.flotilla admin")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "required: COMMAND"),
        ("sail", "invalid choice: 'sail'"),
        ("convert set-1 foo", "not 'foo'; see python -m clusters.flotilla admin convert --help"),
        ("drill", "required: SET"),
        ("drill set-1", "drill needs --controllers, as ip:port"),
        ("haStatus set-1", "haStatus needs --controllers or --namesrv"),
        ("topics list --controllers 127.0.0.1:9878", "topics list needs --namesrv"),
        ("drill set-1 --controllers here", "'here' is not ip:port"),
        ("drill set-1 --controllers 127.0.0.1:99999", "'127.0.0.1:99999' is not ip:port"),
        ("drill set-1 --controllers 127.0.0.1:1,", "'' is not ip:port"),
        ("electMaster set-1 two --controllers 127.0.0.1:1", "invalid int value: 'two'"),
        ("cleanBrokerData s --ids 1,x --controllers 127.0.0.1:1", "invalid ids value: '1,x'"),
        ("offsets reset g t --to 1.5 --namesrv 127.0.0.1:1", "'1.5' is not earliest, latest or"),
        ("updateConfig fileReservedTime --node 127.0.0.1:1", "is not KEY=VALUE"),
        ("getConfig", "getConfig needs --node"),
        ("convert set-1 dledger --namesrv 127.0.0.1:1", "MODE: must be one of controller, switch"),
        ("kv get a b --controllers 127.0.0.1:1 --timeout never", "'never' is not a number"),
    ],
)
def test_a_command_line_that_makes_no_sense_gets_one_sentence(words: str, why: str) -> None:
    code, said, complained = asyncio.run(run(*words.split()))
    assert (code, said) == (USAGE, "")
    assert why in complained
    assert "\n" not in complained


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"code": 0}', b'{"code": 4711}', b"\xff"])
def test_a_node_that_talks_nonsense_is_no_traceback(answer: bytes) -> None:
    """What answers there may be anything: exit code 2 and one sentence."""

    async def scenario() -> None:
        def reply(connection: FrameConnection, op: int, request: int, body: bytes) -> None:
            connection.reply(op, request, answer)

        server = await serve("127.0.0.1", 0, JsonHandler({}, other=reply))
        host, port = server.sockets[0].getsockname()
        code, said, complained = await run("getConfig", "--node", f"{host}:{port}")
        assert (code, said) == (NO_ANSWER, "")
        assert complained.startswith("the answer is not a Flotilla node's: ")
        assert "\n" not in complained
        server.close()

    asyncio.run(scenario())


def test_columns_are_readable_when_piped() -> None:
    """Two spaces or more between columns, none at the ends, `-` for what is unknown."""
    rows: list[Json] = [
        {"brokerName": "set-1", "masterId": 2, "set": [1, 2], "alive": True, "zone": ""},
        {"brokerName": "b", "masterId": None, "set": [], "alive": False, "zone": "x\ny"},
    ]
    assert columns(rows) == (
        "brokerName  masterId  set  alive  zone\n"
        "set-1              2  1,2  true   -\n"
        "b                  -  -    false  x?y"
    )
    assert CommandOutput({"topics": []}).text() == "no topics"


@given(
    st.integers(1, 4).flatmap(
        lambda size: st.lists(
            st.fixed_dictionaries(
                {
                    f"c{n}": st.none()
                    | st.booleans()
                    | st.integers()
                    | st.from_regex(r"\S*", fullmatch=True)
                    for n in range(size)
                }
            ),
            min_size=1,
        )
    )
)
def test_every_row_is_one_line_with_all_its_columns(rows: list[Json]) -> None:
    """Whatever names and values a cluster has, `awk` finds column n of row m."""
    lines = columns(rows).split("\n")
    assert len(lines) == len(rows) + 1
    assert {len(line.split()) for line in lines} == {len(rows[0])}


def test_a_log_without_epochs_and_a_silent_broker_have_their_rows() -> None:
    """Nobody is left out of a table because there is little to say of him."""
    told = {"controllerBrokerId": 2, "role": "slave", "epochs": [], "maxOffset": 0}
    [blank] = epoch_rows("a:1", told)
    assert (blank["brokerId"], blank["epoch"], blank["endOffset"]) == (2, None, 0)
    [silent] = epoch_rows("a:1", None)
    assert list(silent) == list(blank)
    [row] = ha_rows({"3": "a:1"}, {"3": None})
    assert (row["addr"], row["role"]) == ("a:1", "no answer")


def test_of_two_that_say_they_are_master_the_later_one_is_believed() -> None:
    """Without a lease, an old master reports itself until it learns of the election."""

    def master(broker_id: int, epoch: int, slaves: Json) -> Json:
        return {
            "controllerBrokerId": broker_id,
            "role": "master",
            "masterEpoch": epoch,
            "set": [broker_id, 3],
            "slaves": slaves,
            "maxOffset": 100,
            "confirmOffset": 100,
        }

    slave = {**master(3, 5, {}), "role": "slave"}
    said = {
        "1": master(1, 4, {"3": {"gap": 7}}),
        "2": master(2, 5, {"3": {"gap": 0}}),
        "3": slave,
    }
    rows = ha_rows({"1": "a:1", "2": "a:2", "3": "a:3"}, said)
    assert [(row["inSync"], row["gapBytes"]) for row in rows] == [
        (False, None),
        (True, None),
        (True, 0),
    ]
