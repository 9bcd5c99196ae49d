"""More topics than one answer takes are told in parts; real nameservers on real sockets."""

import asyncio
from collections.abc import Mapping

import pytest
from loopback import eventually
from played_node import PlayedNode

from clusters.flotilla import config
from clusters.flotilla.client import ClientSettings
from clusters.flotilla.client.route_cache import RouteCache
from clusters.flotilla.nameserver import nameserver as nameserver_module
from clusters.flotilla.nameserver import route_table
from clusters.flotilla.nameserver.nameserver import Nameserver
from clusters.flotilla.nameserver.route_table import Registration, RouteTable, displaces, is_deaf
from clusters.flotilla.net.connection import FrameConnection, Pool
from clusters.flotilla.net.wire import MAX_FRAME, Json, Op, Status, to_json
from clusters.flotilla.rules import RULES
from clusters.flotilla.world import ports

NODE = 'role = "nameserver"\nnodeName = "n"\nlistenHost = "127.0.0.1"\nstorePath = "none"\n'
TIMES = {"retryBackoffMillis": 1, "pollNameServerInterval": 60_000, "requestTimeoutMillis": 20_000}


def registered(table: RouteTable, name: str, topics: Mapping[str, int], beat: int = 1) -> None:
    table.register(Registration("c", name, 0, name, "h", 1, 10, topics, 1, beat), "via", 0)


def test_every_answer_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts together are the whole."""
    assert route_table.MAX_TOPICS_BYTES <= MAX_FRAME // 2
    monkeypatch.setattr(route_table, "MAX_TOPICS_BYTES", 10_000)
    table = RouteTable(displaces, is_deaf, 120)
    topics = {f"topic-{number}\x7f": 4 for number in range(500)}
    for number in range(12):
        registered(table, f"set-{number}", topics)
    whole = table.route(None)
    told = [table.route(None, part) for part in range(table.parts)]
    assert 20 < table.parts < 60
    assert max(len(to_json(answer["topics"])) for answer in told) <= 10_000
    assert {t: rows for answer in told for t, rows in answer["topics"].items()} == whole["topics"]
    assert all(answer["brokers"] == whole["brokers"] for answer in told)
    for nowhere in (-1, table.parts):
        assert table.route(None, nowhere)["topics"] == {}


@pytest.mark.parametrize(
    ("most_bytes", "parts"), [(route_table.MAX_TOPICS_BYTES, 1), (100, 20), (1, 40)]
)
def test_a_client_has_all_topics_in_however_many_parts(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, parts: int
) -> None:
    """And asks for nothing twice while they are the same."""
    monkeypatch.setattr(route_table, "MAX_TOPICS_BYTES", most_bytes)
    topics = {f"t{number:02}": 2 for number in range(40)}

    async def scenario() -> None:
        asked: list[Json] = []
        nameserver = Nameserver(config.loads(NODE), ports.real(1), RULES)
        registered(nameserver._routes, "set-1", topics)
        assert nameserver._routes.parts == parts

        async def route(connection: FrameConnection, fields: Json) -> Json:
            asked.append(fields)
            return await nameserver._route(connection, fields)

        node = PlayedNode({Op.ROUTE: route})
        await node.listen()
        client = RouteCache(ClientSettings.of({**TIMES, "namesrvAddr": [node.address]}))
        client.start()

        async def all_there() -> bool:
            return all(len(client.places(topic)) == 2 for topic in topics)

        async def again() -> bool:
            client.refresh()
            return "topicsAsOf" in asked[-1]

        await eventually(all_there)
        assert [fields["part"] for fields in asked] == list(range(parts))
        await eventually(again)
        assert len(asked) == parts + 1
        client.close()
        node.leave()
        nameserver.close()

    asyncio.run(scenario())


def test_parts_of_different_times_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic comes while a client asks: it has all of them, or none."""
    monkeypatch.setattr(route_table, "MAX_TOPICS_BYTES", 1)

    async def scenario() -> None:
        nameserver = Nameserver(config.loads(NODE), ports.real(1), RULES)
        topics = {"a": 1, "b": 1, "c": 1}
        registered(nameserver._routes, "set-1", topics)
        changed = False

        async def route(connection: FrameConnection, fields: Json) -> Json:
            nonlocal changed
            if fields["part"] == 1 and not changed:
                changed = True
                registered(nameserver._routes, "set-1", {"a": 1, "aa": 1, **topics}, beat=2)
            return await nameserver._route(connection, fields)

        node = PlayedNode({Op.ROUTE: route})
        await node.listen()
        client = RouteCache(ClientSettings.of({**TIMES, "namesrvAddr": [node.address]}))
        client.start()

        async def there() -> bool:
            client.refresh()
            return bool(client.places("c"))

        await eventually(there)
        assert changed
        assert all(client.places(topic) for topic in ("a", "aa", "b", "c"))
        client.close()
        node.leave()
        nameserver.close()

    asyncio.run(scenario())


def test_who_knows_of_no_parts_gets_everything_or_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client of an older edition, which would hang up at a frame that is too long."""
    monkeypatch.setattr(route_table, "MAX_TOPICS_BYTES", 100)
    monkeypatch.setattr(nameserver_module, "MAX_FRAME", 5000)

    async def scenario() -> None:
        nameserver = Nameserver(config.loads(NODE), ports.real(1), RULES)
        node = PlayedNode({Op.ROUTE: nameserver._route})
        await node.listen()
        pool = Pool(5)
        some = {f"t{number}": 2 for number in range(40)}
        registered(nameserver._routes, "set-1", some)
        assert len((await pool.ask(node.address, Op.ROUTE, {"topic": None}, 5))["topics"]) == 40
        many = {f"t{number}": 2 for number in range(200)}
        registered(nameserver._routes, "set-1", many, beat=2)
        refused = await pool.ask(node.address, Op.ROUTE, {}, 5)
        assert refused["code"] == Status.INVALID_REQUEST
        assert "ask for each part, or for one topic" in refused["remark"]
        one = {"topic": next(iter(many))}
        assert (await pool.ask(node.address, Op.ROUTE, one, 5))["topics"]
        pool.close()
        node.leave()
        nameserver.close()

    asyncio.run(scenario())
