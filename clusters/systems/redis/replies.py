"""Replies of Redis servers and sentinels, and their meaning in the harness's words. Pure.

Each node is asked with `redis-cli` on the node itself, so a partition hides none; a node that is
paused or dead gives no reply (None). Sentinels report elections in their logs only, with wall clock
times in milliseconds.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clusters.systems.redis.client import MAIN
from harness.contracts import ClusterState, Node
from harness.errors import BedFailed

BROKER, CONTROLLER = "broker", "controller"
PORTS = {BROKER: 6379, CONTROLLER: 26379}
QUESTIONS = {
    BROKER: b"INFO replication\n",
    CONTROLLER: f"SENTINEL MASTER {MAIN}\nSENTINEL GET-MASTER-ADDR-BY-NAME {MAIN}\n".encode(),
}

Reply = Mapping[str, str]
Replies = Mapping[str, Reply | None]  # node -> its reply


def address(node: Node) -> str:
    return f"{node.address}:{PORTS[node.role]}"


def parse_reply(role: str, out: str) -> Reply | None:
    """Parse a reply to the role's question; return None if it is not one.

    A sentinel that leads a failover raises the epoch as soon as it has promoted a server, and shows
    the old primary's address until the other replicas follow. Meanwhile it gives clients another
    address, which is the last part of the reply.
    """
    lines = out.splitlines()
    if role == BROKER:
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        return fields if "role" in fields else None
    *pairs, address = [*zip(lines[::2], lines[1::2], strict=False)] or [("", "")]
    fields = dict(pairs)
    ip, port = address
    return {**fields, "ip": ip, "port": port} if "config-epoch" in fields and "." in ip else None


# -------------------------------------------------------------------------------------- standing


def cluster_state(replies: Replies, nodes: Sequence[Node]) -> ClusterState:
    """Return the roles of all nodes. The sentinel with the highest epoch decides."""
    servers = [node for node in nodes if node.role == BROKER]
    view = latest_view(replies, nodes)
    master = {address(node): node.name for node in servers}.get(_primary(view), "")
    others = [node.name for node in servers if node.name != master]
    in_step = {name for name in others if _follows(replies.get(name), view)} | {master}
    return ClusterState(
        masters={MAIN: master} if master else {},
        slaves=tuple(others),
        in_set=tuple(node.name for node in servers if node.name in in_step),
        out_of_set=tuple(node.name for node in servers if node.name not in in_step),
        epochs={MAIN: int(view["config-epoch"])} if view else {},
        redundant=not missing_redundancy(replies, nodes),
        serving=tuple(node for node, reply in replies.items() if reply),
        detail=replies,
    )


def missing_redundancy(replies: Replies, nodes: Sequence[Node]) -> str:
    """Return what the cluster lacks for full redundancy, as a sentence, or an empty string."""
    if silent := [node.name for node in nodes if not replies.get(node.name)]:
        return f"{', '.join(silent)} did not answer"
    servers = [node for node in nodes if node.role == BROKER]
    view, others = latest_view(replies, nodes), len(nodes) - len(servers) - 1
    for node in nodes:
        mine = replies[node.name] or {}
        if node.role != CONTROLLER:
            continue
        if _primary(mine) != _primary(view):
            return f"{node.name} does not name the primary that the others name"
        if mine["flags"] != "master":
            return f"{node.name} calls the primary {mine['flags']}"
        replicas, sentinels = int(mine["num-slaves"]), int(mine["num-other-sentinels"])
        if (replicas, sentinels) != (len(servers) - 1, others):
            return f"{node.name} knows {replicas} replicas and {sentinels} other sentinels"
    return out_of_step(replies, servers, view)


def out_of_step(replies: Replies, servers: Sequence[Node], view: Reply | None) -> str:
    """Return which server does not have the role that the sentinel's view gives it, or an empty
    string."""
    for node in servers:
        mine = replies.get(node.name)
        if address(node) == _primary(view):
            if not mine or mine["role"] != "master":
                return f"{node.name} is not the primary that it should be"
        elif not _follows(mine, view):
            return f"{node.name} does not follow the primary"
    return ""


def latest_view(replies: Replies, nodes: Sequence[Node]) -> Reply | None:
    """Return the newest view of a sentinel."""
    views = [v for node in nodes if node.role == CONTROLLER and (v := replies.get(node.name))]
    return max(views, key=lambda view: int(view["config-epoch"]), default=None)


def _primary(view: Reply | None) -> str:
    return f"{view['ip']}:{view['port']}" if view else ""


def _follows(server: Reply | None, view: Reply | None) -> bool:
    if not server or server["role"] != "slave":
        return False
    whom = f"{server['master_host']}:{server['master_port']}"
    return whom == _primary(view) and server["master_link_status"] == "up"


# ---------------------------------------------------------------------------------------- events

Event = tuple[int, str, str, Mapping[str, Any]]  # time, source, kind, fields
LINE = re.compile(r"\d+:X (\d+ \w+ \d+ [\d:.]+) . ([+-][\w-]+) ?(.*)")


def events(log: str, sentinel: str, names: Mapping[str, str]) -> Iterator[Event]:
    """Yield the events of a sentinel's log, at its wall clock in ns. `names`: address -> server.

    The epoch of an election is the one that the sentinel began just before it tried: other
    sentinels may begin later ones, and win none of them.
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
            yield from promotion_events(at_ns, sentinel, who, tried)
        elif kind == "+convert-to-slave" and who:
            yield at_ns, who, "role", {**_member(who), "role": "slave"}


def sort_events(logs: Iterable[Iterable[Event]]) -> list[Event]:
    """Sort events by time and source. Events of one source at one instant keep their order:
    sentinels count milliseconds, and do several things in one."""
    return sorted((event for log in logs for event in log), key=lambda event: event[:2])


def initial_events(t: int, sentinel: str, servers: Sequence[str]) -> Iterator[Event]:
    """Yield the configured roles as if they had been elected."""
    first, *others = servers
    yield from promotion_events(t, sentinel, first, 0)
    for name in others:
        yield t, name, "role", {**_member(name), "role": "slave"}


def promotion_events(t: int, sentinel: str, who: str, epoch: int) -> Iterator[Event]:
    member = _member(who)
    elected = {"brokerName": MAIN, "masterId": member["brokerId"], "epoch": epoch}
    yield t, sentinel, "election", elected
    yield t, who, "role", {**member, "role": "master", "epoch": epoch}


def _member(name: str) -> dict[str, Any]:
    """Return a server as events of the history name it: by the number in its name."""
    return {"brokerName": MAIN, "brokerId": int(name.rpartition("-")[2])}


def _ns(written: str) -> int:
    when = datetime.strptime(written, "%d %b %Y %H:%M:%S.%f").replace(tzinfo=UTC)
    return round(when.timestamp() * 1000) * 1_000_000


# -------------------------------------------------------------------------------------- replicas

# prints a line for each message: its first eight bytes, and a digest of the whole
COPY_SCRIPT = """
local rows = {}
for n, body in ipairs(redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[2])) do
  local hex = body:sub(1, 8):gsub('.', function(c) return ('%02x'):format(c:byte()) end)
  rows[n] = hex .. redis.sha1hex(body):sub(1, 15)
end
return rows
"""
COPY_LINE = re.compile(r"([0-9a-f]{16})([0-9a-f]{15})")
NO_EPOCH = 0  # elements of a list have none
NO_VALUE = -1

Row = tuple[str, int, int, int, int]  # key, offset, value, epoch, crc


def parse_copy(out: str, key: str, at: int) -> list[Row]:
    """Parse the output of `COPY_SCRIPT`: messages from offset `at` on. Raises BedFailed if it is
    malformed."""
    rows: list[Row] = []
    for offset, line in enumerate(out.split(), start=at):
        match = COPY_LINE.fullmatch(line)
        if match is None:
            raise BedFailed(out.strip())
        value = int(match[1], 16)
        value = value if value < 1 << 63 else NO_VALUE
        rows.append((key, offset, value, NO_EPOCH, int(match[2], 16)))
    return rows
