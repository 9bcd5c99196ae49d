"""What Redis servers and sentinels say, and what it means in the harness's words: pure.

They are asked with `redis-cli`, each on its own node, so a partition hides nothing; one that is
paused or dead says nothing (None). Of elections sentinels tell in their logs alone, by the wall
clock and to the millisecond.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clusters.systems._redis_client import MAIN
from harness.contracts import Node, Standing
from harness.errors import BedFailed

BROKER, CONTROLLER = "broker", "controller"
PORTS = {BROKER: 6379, CONTROLLER: 26379}
QUESTIONS = {
    BROKER: b"INFO replication\n",
    CONTROLLER: f"SENTINEL MASTER {MAIN}\nSENTINEL GET-MASTER-ADDR-BY-NAME {MAIN}\n".encode(),
}

Words = Mapping[str, str]
Said = Mapping[str, Words | None]  # node -> what it says of itself


def address(node: Node) -> str:
    return f"{node.address}:{PORTS[node.role]}"


def read(role: str, out: str) -> Words | None:
    """An answer to the role's question; None when it is none.

    A sentinel that leads a failover raises the epoch as soon as it has promoted somebody, and shows
    the old primary's address until the other replicas follow: whom clients are sent to meanwhile it
    tells by itself, behind the rest."""
    lines = out.splitlines()
    if role == BROKER:
        said = dict(line.split(":", 1) for line in lines if ":" in line)
        return said if "role" in said else None
    *pairs, told = [*zip(lines[::2], lines[1::2], strict=False)] or [("", "")]
    said = dict(pairs)
    ip, port = told
    return {**said, "ip": ip, "port": port} if "config-epoch" in said and "." in ip else None


# -------------------------------------------------------------------------------------- standing


def standing(said: Said, nodes: Sequence[Node]) -> Standing:
    """Who plays which part. What the sentinel with the highest epoch says counts."""
    servers = [node for node in nodes if node.role == BROKER]
    view = latest(said, nodes)
    master = {address(node): node.name for node in servers}.get(_primary(view), "")
    others = [node.name for node in servers if node.name != master]
    in_step = {name for name in others if _follows(said.get(name), view)} | {master}
    return Standing(
        masters={MAIN: master} if master else {},
        slaves=tuple(others),
        in_set=tuple(node.name for node in servers if node.name in in_step),
        out_of_set=tuple(node.name for node in servers if node.name not in in_step),
        epochs={MAIN: int(view["config-epoch"])} if view else {},
        redundant=not missing(said, nodes),
        detail=said,
    )


def missing(said: Said, nodes: Sequence[Node]) -> str:
    """What keeps them from full redundancy, in words; empty: nothing."""
    if silent := [node.name for node in nodes if not said.get(node.name)]:
        return f"{', '.join(silent)} did not answer"
    servers = [node for node in nodes if node.role == BROKER]
    view, others = latest(said, nodes), len(nodes) - len(servers) - 1
    for node in nodes:
        mine = said[node.name] or {}
        if node.role != CONTROLLER:
            continue
        if _primary(mine) != _primary(view):
            return f"{node.name} does not name the primary that the others name"
        if mine["flags"] != "master":
            return f"{node.name} calls the primary {mine['flags']}"
        replicas, sentinels = int(mine["num-slaves"]), int(mine["num-other-sentinels"])
        if (replicas, sentinels) != (len(servers) - 1, others):
            return f"{node.name} knows {replicas} replicas and {sentinels} other sentinels"
    return out_of_step(said, servers, view)


def out_of_step(said: Said, servers: Sequence[Node], view: Words | None) -> str:
    """Which server does not do what the sentinel's view of it says; empty: none."""
    for node in servers:
        mine = said.get(node.name)
        if address(node) == _primary(view):
            if not mine or mine["role"] != "master":
                return f"{node.name} is not the primary that it should be"
        elif not _follows(mine, view):
            return f"{node.name} does not follow the primary"
    return ""


def latest(said: Said, nodes: Sequence[Node]) -> Words | None:
    """The newest view of a sentinel."""
    views = [v for node in nodes if node.role == CONTROLLER and (v := said.get(node.name))]
    return max(views, key=lambda view: int(view["config-epoch"]), default=None)


def _primary(view: Words | None) -> str:
    return f"{view['ip']}:{view['port']}" if view else ""


def _follows(server: Words | None, view: Words | None) -> bool:
    if not server or server["role"] != "slave":
        return False
    whom = f"{server['master_host']}:{server['master_port']}"
    return whom == _primary(view) and server["master_link_status"] == "up"


# ---------------------------------------------------------------------------------------- events

Event = tuple[int, str, str, Mapping[str, Any]]  # when, who tells it, kind, fields
LINE = re.compile(r"\d+:X (\d+ \w+ \d+ [\d:.]+) . ([+-][\w-]+) ?(.*)")


def events(log: str, sentinel: str, names: Mapping[str, str]) -> Iterator[Event]:
    """What a sentinel's log tells, by its wall clock in ns; `names`: address -> server.

    The epoch of an election is the one that the sentinel began just before it tried: others may
    begin later ones, and win none of them.
    """
    begun = tried = 0
    for match in filter(None, map(LINE.match, log.splitlines())):
        at_ns, kind, words = _ns(match[1]), match[2], match[3].split()
        who = names.get(":".join(words[2:4]), "")
        if kind == "+new-epoch":
            begun = int(words[0])
        elif kind == "+try-failover":
            tried = begun
        elif kind == "+sdown" and words[0] == "master" and who:
            yield at_ns, sentinel, "expired", _member(who)
        elif kind == "+promoted-slave" and who:
            yield from promoted(at_ns, sentinel, who, tried)
        elif kind == "+convert-to-slave" and who:
            yield at_ns, who, "role", {**_member(who), "role": "slave"}


def in_order(logs: Iterable[Iterable[Event]]) -> list[Event]:
    """By time and teller. What one told at one instant stays as it was told: sentinels count
    milliseconds, and do several things in one."""
    return sorted((event for log in logs for event in log), key=lambda event: event[:2])


def beginning(t: int, sentinel: str, servers: Sequence[str]) -> Iterator[Event]:
    """What the configuration says, as if it had been elected."""
    first, *others = servers
    yield from promoted(t, sentinel, first, 0)
    for name in others:
        yield t, name, "role", {**_member(name), "role": "slave"}


def promoted(t: int, sentinel: str, who: str, epoch: int) -> Iterator[Event]:
    member = _member(who)
    elected = {"brokerName": MAIN, "masterId": member["brokerId"], "epoch": epoch}
    yield t, sentinel, "election", elected
    yield t, who, "role", {**member, "role": "master", "epoch": epoch}


def _member(name: str) -> dict[str, Any]:
    """A server as the history's events call it: by the number in its name."""
    return {"brokerName": MAIN, "brokerId": int(name.rpartition("-")[2])}


def _ns(written: str) -> int:
    when = datetime.strptime(written, "%d %b %Y %H:%M:%S.%f").replace(tzinfo=UTC)
    return round(when.timestamp() * 1000) * 1_000_000


# -------------------------------------------------------------------------------------- replicas

# a line for each message: its first eight bytes, and a digest of all of it
COPY = """
local rows = {}
for n, body in ipairs(redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[2])) do
  local hex = body:sub(1, 8):gsub('.', function(c) return ('%02x'):format(c:byte()) end)
  rows[n] = hex .. redis.sha1hex(body):sub(1, 15)
end
return rows
"""
COPIED = re.compile(r"([0-9a-f]{16})([0-9a-f]{15})")
NO_EPOCH = 0  # an element of a list has none
NO_VALUE = -1

Row = tuple[str, int, int, int, int]  # key, offset, value, epoch, crc


def copied(out: str, key: str, at: int) -> list[Row]:
    """Messages from offset `at` on, as `COPY` tells them. BedFailed: that is something else."""
    rows: list[Row] = []
    for offset, line in enumerate(out.split(), start=at):
        match = COPIED.fullmatch(line)
        if match is None:
            raise BedFailed(out.strip())
        value = int(match[1], 16)
        value = value if value < 1 << 63 else NO_VALUE
        rows.append((key, offset, value, NO_EPOCH, int(match[2], 16)))
    return rows
