"""PostgreSQL with Patroni: a primary, its standbys, and an etcd that holds the leader's key.

Patroni runs on each server and starts PostgreSQL there. The server that holds a key in etcd, which
lapses after `ttl`, is the primary; when it lapses, the standby that has the most is promoted. With
`synchronous_mode` a commit waits for a standby, and only such a standby may be promoted; without it
a failover loses what no standby had yet. A primary answers reads by itself, also one that was
stopped and does not know yet that another leads, so reads are verified: a read writes to the log,
and its commit waits as that of a write does.

The client speaks PostgreSQL's protocol (version 3, simple queries). An error that aborts the
statement proves that nothing was done: the table `NEVER`. A lost connection, a server that ends
(57P01), or a canceled wait for a standby leave the outcome of a commit unknown.
"""

import asyncio
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from clusters.kit import NodeAccess, Profile, Service, View, plugin, servers_in_turn
from clusters.supply import Program, PythonProgram
from clusters.systems import etcd
from harness.contracts import Node
from harness.contracts.calls import LogEntries, MicroOperation, Refused

SERVER, CONTROLLER = "server", "controller"
PORT, REST_PORT, WITHIN_S = 5432, 8008, 4.0
LEADER = "/service/seatrial/leader"
SAME_TRIES, SAME_EVERY_S = 50, 0.2  # to find servers that have replayed the same
VERSION_3 = 196608
# SQLSTATEs of a statement that was aborted, or of a server that took none
NEVER = {
    "23505": "unique violation",
    "25006": "read-only transaction: a standby",
    "25P02": "the transaction was aborted before",
    "40001": "serialization failure",
    "40P01": "deadlock detected",
    "42P01": "undefined table",
    "53100": "disk full",
    "53200": "out of memory",
    "53300": "too many connections",
    "55P03": "lock not available",
    "57P03": "the server starts or ends",
}
CANCELED_WAIT = "canceling"  # the wait for a standby: it is committed here, and maybe only here
TABLES = """
SELECT pg_advisory_xact_lock(1);
CREATE TABLE IF NOT EXISTS kv (k text PRIMARY KEY, v text NOT NULL);
CREATE TABLE IF NOT EXISTS members (k text, m bigint, PRIMARY KEY (k, m));
CREATE TABLE IF NOT EXISTS entries (k text, n bigint, body bytea, PRIMARY KEY (k, n))
"""
VERIFY = "SELECT pg_logical_emit_message(true, 'read', '')"
APPEND = """
WITH ends AS (INSERT INTO kv VALUES ({key}, 1)
  ON CONFLICT (k) DO UPDATE SET v = kv.v::bigint + 1 RETURNING v::bigint - 1 AS n)
INSERT INTO entries SELECT {key}, n, '\\x{body}' FROM ends RETURNING n
"""
ROLE = "SELECT pg_is_in_recovery()::text, (SELECT status FROM pg_stat_wal_receiver)"
PLACE = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() "
    "END"
)
DIGEST = "SELECT " + " || ".join(
    f"md5((SELECT coalesce(string_agg(t::text, ';' ORDER BY t), '') FROM {table} t))"
    for table in ("kv", "members", "entries")
)
MODULES = (  # of Patroni, and what it imports
    *("patroni*", "cdiff*", "click*", "dateutil", "dns", "etcd", "pkg_resources", "prettytable*"),
    *("psutil*", "psycopg2*", "six*", "urllib3*", "wcwidth*", "yaml", "_yaml"),
)
POSTGRES = Program(
    name="postgres",
    version_re=r"PostgreSQL\) (\d+(?:\.\d+|\w+))",
    package="postgresql",
    folders=("/usr/lib/postgresql/*/bin",),
    linked=True,
    files=(
        "/usr/lib/postgresql/*/bin",
        "/usr/lib/postgresql/*/lib/lib*.so",
        "/usr/lib/postgresql/*/lib/[!l]*.so",  # without its compiler, llvmjit.so
        "/usr/share/postgresql",
        "/usr/share/zoneinfo",
    ),
)
PATRONI = Program(
    name="patroni",
    sources=(PythonProgram(project="patroni", extras=("etcd3",), others=("psycopg[binary]",)),),
    version="4.1.5",
    package="patroni",
    linked=True,
    files=("/usr/bin/patroni", *(f"/usr/lib/python3/dist-packages/{name}" for name in MODULES)),
)
START = """
PATH="$PATH:/usr/bin:/bin"
bin=$(dirname "$(readlink -f "$1")") && export PATRONI_POSTGRESQL_BIN_DIR="$bin" && exec "$2" "$3"
"""


# -------------------------------------------------------------------------------------- the client


class QueryResult(NamedTuple):
    """What a query returned: the rows, and the tag of its last statement."""

    rows: Sequence[Sequence[str | None]]
    tag: str


class PostgresClient:
    """A client of one logical process. It stays with the server that is no standby, and looks for
    another after a failure."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        self._turn = servers_in_turn(settings, number)
        self._values: Mapping[str, Any] = settings["settings"]
        self._verify = [VERIFY] if self._values["verified_reads"] else []
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._one = asyncio.Lock()

    def close(self) -> None:
        if self._open:
            self._open[1].close()
            self._open = None

    async def set_up(self, _: Mapping[str, int]) -> None:
        await self._query(TABLES)

    async def _query(self, *statements: str) -> QueryResult:
        """Run statements as one transaction. Raises Refused if it certainly did nothing."""
        async with self._one:
            await self._connect()
            return await self._ask("; ".join(statements))

    async def _connect(self) -> None:
        """Connect to a server that is no standby. Raises Refused if none is reached."""
        why = "no server"
        for _ in self._turn:
            if self._open and not self._open[0].at_eof():
                return
            self.close()
            try:
                async with asyncio.timeout(WITHIN_S):
                    self._open = await asyncio.open_connection(self._turn[0], PORT)
                    self._open[1].write(startup())
                    standby = await self._greeting(self._open[0])
                if not standby:
                    return
                why = f"{self._turn[0]} is a standby"
            except (OSError, EOFError, TimeoutError, Refused) as e:
                why = f"not connected to {self._turn[0]}: {type(e).__name__} {e}"
            self.close()
            self._turn.append(self._turn.pop(0))
        if not self._open:
            raise Refused(why)

    async def _greeting(self, reader: asyncio.StreamReader) -> bool:
        """Read until the server is ready; return whether it is a standby."""
        standby = False
        while True:
            kind, body = await message(reader)
            if kind == b"E":
                raise Refused(fields_of(body).get("M", ""))
            if kind == b"S" and body == b"in_hot_standby\0on\0":
                standby = True
            if kind == b"Z":
                return standby

    async def _ask(self, sql: str) -> QueryResult:
        """Send a query on the open connection; return its result."""
        if self._open is None:
            raise ConnectionError("the connection is closed")
        reader, writer = self._open
        error: Exception | None = None
        try:
            async with asyncio.timeout(WITHIN_S):
                writer.write(query(sql))
                rows, tag = [], ""
                while True:
                    kind, body = await message(reader)
                    match kind:
                        case b"D":
                            rows.append(row(body))
                        case b"C":
                            tag = body[:-1].decode()
                        case b"E":
                            error = error or error_of(fields_of(body))
                        case b"N" if CANCELED_WAIT in fields_of(body).get("M", ""):
                            error = ConnectionError("the wait for a standby was canceled")
                        case b"Z":
                            break
        except BaseException as e:
            self.close()
            self._turn.append(self._turn.pop(0))
            if error and isinstance(e, Exception):
                raise error from e
            raise
        if error:
            if "25006" in str(error):  # it was demoted
                self.close()
            raise error
        return QueryResult(rows, tag)

    async def _read(self, sql: str) -> Sequence[Sequence[str | None]]:
        rows = (await self._query(*self._verify, sql)).rows
        return rows[len(self._verify) :]

    # registers

    async def read(self, key: str) -> int | None:
        rows = await self._read(f"SELECT v FROM kv WHERE k = {text(key)}")
        return int(str(rows[0][0])) if rows else None

    async def write(self, key: str, value: int) -> None:
        await self._query(put(key, str(value)))

    async def cas(self, key: str, old: int | None, new: int) -> bool:
        if old is None:
            sql = f"INSERT INTO kv VALUES ({text(key)}, {new}) ON CONFLICT DO NOTHING"
        else:
            sql = f"UPDATE kv SET v = {new} WHERE k = {text(key)} AND v = '{old}'"
        return (await self._query(sql)).tag.endswith(" 1")

    # sets and counters

    async def add(self, key: str, member: int) -> None:
        await self._query(f"INSERT INTO members VALUES ({text(key)}, {member})")

    async def members(self, key: str) -> list[int]:
        rows = await self._read(f"SELECT m FROM members WHERE k = {text(key)}")
        return [int(str(found)) for (found,) in rows]

    async def increment(self, key: str, by: int) -> None:
        more = f"ON CONFLICT (k) DO UPDATE SET v = kv.v::bigint + {by}"
        await self._query(f"INSERT INTO kv VALUES ({text(key)}, {by}) {more}")

    async def count(self, key: str) -> int:
        return await self.read(key) or 0

    # logs: a counter, and a row for each number below it

    async def append(self, key: str, body: bytes) -> int:
        done = await self._query(APPEND.format(key=text(key), body=body.hex()))
        return int(str(done.rows[0][0]))

    async def end(self, key: str) -> int:
        return await self.read(key) or 0

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        span = f"n >= {offset} AND n < {offset + limit}"
        rows = await self._read(
            f"SELECT v, NULL FROM kv WHERE k = {text(key)} UNION ALL (SELECT n::text, body::text "
            f"FROM entries WHERE k = {text(key)} AND {span} ORDER BY n)"
        )
        if not rows:
            return LogEntries([], 0)
        found = [(int(str(n)), bytes.fromhex(str(body)[2:])) for n, body in rows[1:]]
        return LogEntries(sorted(found), int(str(rows[0][0])))

    # transactions: a statement at a time, so that others run in between

    async def transact(self, operations: Sequence[MicroOperation]) -> list[MicroOperation]:
        async with self._one:
            await self._connect()
            done = []
            try:
                begin = f"BEGIN ISOLATION LEVEL {self._values['isolation']}"
                await self._ask("; ".join([begin, *self._verify]))
                for each in operations:
                    rows = (await self._ask(statement(each))).rows
                    seen = value_in(rows) if each.f == "read" else each.value
                    done.append(MicroOperation(each.f, each.key, seen))
            except BaseException as e:
                self.close()  # which rolls back
                if isinstance(e, Exception):
                    raise Refused(f"not committed: {e}") from e
                raise
            if (await self._ask("COMMIT")).tag != "COMMIT":
                raise Refused("rolled back")
            return done


def statement(each: MicroOperation) -> str:
    """Return the statement of a part of a transaction. A list is text that begins with `[`."""
    if each.f == "read":
        return f"SELECT v FROM kv WHERE k = {text(each.key)}"
    if each.f == "write":
        return put(each.key, str(each.value))
    more = f"ON CONFLICT (k) DO UPDATE SET v = kv.v || ',{each.value}'"
    return f"INSERT INTO kv VALUES ({text(each.key)}, '[{each.value}') {more}"


def value_in(rows: Sequence[Sequence[str | None]]) -> Any:
    """Return the register or list in what a read returned, None if there is none."""
    found = str(rows[0][0]) if rows else "null"
    return json.loads(f"{found}]" if found.startswith("[") else found)


def put(key: str, value: str) -> str:
    more = "ON CONFLICT (k) DO UPDATE SET v = excluded.v"
    return f"INSERT INTO kv VALUES ({text(key)}, {text(value)}) {more}"


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


# ------------------------------------------------------------------------------------ the protocol


def startup() -> bytes:
    words = ("user", "postgres", "database", "postgres", "options", "-c enable_seqscan=off")
    body = struct.pack("!i", VERSION_3) + b"".join(w.encode() + b"\0" for w in words) + b"\0"
    return struct.pack("!i", len(body) + 4) + body


def query(sql: str) -> bytes:
    body = sql.encode() + b"\0"
    return b"Q" + struct.pack("!i", len(body) + 4) + body


async def message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind, length = struct.unpack("!ci", await reader.readexactly(5))
    return kind, await reader.readexactly(length - 4)


def fields_of(body: bytes) -> dict[str, str]:
    """Return the fields of an error or a notice: S severity, C SQLSTATE, M message."""
    parts = (part.decode(errors="replace") for part in body.split(b"\0") if part)
    return {part[0]: part[1:] for part in parts}


def row(body: bytes) -> list[str | None]:
    (count,) = struct.unpack_from("!h", body)
    at, found = 2, []
    for _ in range(count):
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        found.append(None if length < 0 else body[at : at + length].decode())
        at += max(length, 0)
    return found


def error_of(fields: Mapping[str, str]) -> Exception:
    """Return the exception for an error: Refused if it means that nothing was done."""
    code = fields.get("C", "")
    why = f"{code} {fields.get('M', '')}"
    return Refused(why) if code in NEVER else ConnectionError(why)


def answers(data: bytes) -> list[list[str | None]]:
    """Return the rows in all that a server answered. Raises ConnectionError if it is an error or
    ends too early."""
    found, at, kind = [], 0, b""
    while at + 5 <= len(data):
        kind, length = struct.unpack_from("!ci", data, at)
        body = data[at + 5 : at + 1 + length]
        at += 1 + length
        if kind == b"E":
            raise ConnectionError(str(error_of(fields_of(body))))
        if kind == b"D":
            found.append(row(body))
    if at != len(data) or kind != b"Z":
        raise ConnectionError("half an answer")
    return found


# ------------------------------------------------------------------------------------- the service


class Postgres(Service):
    """Three servers and three members of etcd by default."""

    name, programs, client = "postgres", (POSTGRES, PATRONI, etcd.PROGRAM), PostgresClient
    roles: ClassVar = {CONTROLLER: 3, SERVER: 3}
    names: ClassVar = {CONTROLLER: "etcd"}
    data_role, arbiters, leaves_group = SERVER, (CONTROLLER,), (SERVER,)
    attachable = False  # a kill has to reach processes in sessions of their own
    words: ClassVar = {"leader": "primary", "follower": "standby", "term": "revision"}
    settings: ClassVar = {
        "synchronous_mode": True,
        "synchronous_mode_strict": False,  # refuse writes while there is no standby
        "isolation": ("serializable", "repeatable read", "read committed"),  # of transactions
        "verified_reads": True,
        "ttl": 20,  # s, of the leader's key
        "loop_wait": 1,  # s
        "retry_timeout": 3,  # s
        "maximum_lag_on_failover": 1048576,  # bytes
        "fsync": True,
    }
    smallest: ClassVar = {
        "ttl": 20,
        "loop_wait": 1,
        "retry_timeout": 3,
        "maximum_lag_on_failover": 0,
    }
    profiles = (
        Profile(
            name="synchronous",
            about="a commit waits for a standby, and only such a standby is promoted",
            expected={"postgres-split": "valid", "postgres-isolation": "valid"},
        ),
        Profile(
            name="asynchronous",
            about="a commit waits for no standby",
            settings={"synchronous_mode": False},
            expected={"postgres-split": "LOST_ACKED"},
        ),
        Profile(
            name="repeatable-read",
            about="transactions are of snapshots, which do not exclude write skew",
            settings={"isolation": "repeatable read"},
            expected={"postgres-isolation": "G2_ITEM"},
        ),
        Profile(
            name="read-committed",
            about="each statement of a transaction sees what was committed before it",
            settings={"isolation": "read committed"},
            expected={"postgres-isolation": "G_SINGLE"},
        ),
    )
    claims: ClassVar = dict.fromkeys(
        ("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "crash"), "all"
    )
    start_s = 120.0

    @classmethod
    def detects_within_s(cls, values: Mapping[str, Any]) -> float:
        return float(values["ttl"] + 2 * values["loop_wait"])

    def _controllers(self) -> list[Node]:
        return [node for node in self.nodes if node.role == CONTROLLER]

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> dict[str, str]:
        """Return Patroni's configuration, which is YAML, as JSON is."""
        if here.node.role == CONTROLLER:
            return {}
        own, folder = here.node.address, f"{here.folder}/{self.data}"
        all_of_patroni = ("ttl", "loop_wait", "retry_timeout", "maximum_lag_on_failover")
        modes = ("synchronous_mode", "synchronous_mode_strict")
        parameters = {
            "max_connections": 100,
            "shared_buffers": "16MB",
            "max_wal_size": "256MB",
            "wal_log_hints": "on",
            "dynamic_shared_memory_type": "mmap",  # POSIX memory would outlive a kill
            "unix_socket_directories": "",
            "fsync": "on" if self.values["fsync"] else "off",
        }
        who = {
            of: {"username": name, "password": name}
            for of, name in (("superuser", "postgres"), ("replication", "rep"), ("rewind", "rew"))
        }
        config = {
            "scope": "seatrial",
            "name": here.node.name,
            "restapi": {"listen": f"{own}:{REST_PORT}", "connect_address": f"{own}:{REST_PORT}"},
            "etcd3": {"hosts": [f"{n.address}:{etcd.PORT}" for n in self._controllers()]},
            "bootstrap": {
                "dcs": {key: self.values[key] for key in (*all_of_patroni, *modes)}
                | {"postgresql": {"use_pg_rewind": True, "parameters": parameters}},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"{own}:{PORT}",
                "connect_address": f"{own}:{PORT}",
                "data_dir": f"{folder}/postgres",
                "pgpass": f"{folder}/pgpass",
                "authentication": who,
                "parameters": {"unix_socket_directories": ""},
                "pg_hba": ["host all all all trust", "host replication all all trust"],
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
            "watchdog": {"mode": "off"},
        }
        return {"patroni.yml": json.dumps(config, indent=1)}

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> list[str]:
        if here.node.role == CONTROLLER:
            defaults = {**etcd.Etcd.settings}
            member = etcd.Etcd(defaults, self.supplied, self.nodes)
            return member.argv(here, self._controllers(), fresh=True)
        programs = (here.program["postgres"], here.program["patroni"])
        return ["/bin/sh", "-c", START, "sh", *programs, f"{here.folder}/patroni.yml"]

    def environment(self, here: NodeAccess) -> dict[str, str]:
        return {"TZ": "UTC", "LC_ALL": "C", "HOME": f"{here.folder}/{self.data}"}

    async def ask(self, here: NodeAccess) -> View:
        name = here.node.name
        if here.node.role == CONTROLLER:
            asked = {"key": etcd.b64(LEADER)}
            _, found = await here.http(etcd.PORT, "/v3/kv/range", asked)
            return controller_view(name, json.loads(found))
        (role,) = await self._sql(here, ROLE)
        _, cluster = await here.http(REST_PORT, "/cluster")
        return server_view(name, role, json.loads(cluster))

    async def _sql(
        self, here: NodeAccess, *queries: str, within_s: float = 1.0
    ) -> list[list[str | None]]:
        """Return the rows that a server answers, asked on its node."""
        asked = startup() + b"".join(map(query, queries)) + b"X\0\0\0\4"
        return answers(await here.agent.ask(PORT, asked, within_s, to_end=True))

    async def rejoin(self, here: NodeAccess, others: Sequence[NodeAccess]) -> None:
        """Do nothing: Patroni copies all data from the primary."""

    async def digests(self, nodes: Sequence[NodeAccess]) -> dict[str, str]:
        """Return a digest of each server's tables, when all have replayed the same log."""
        for _ in range(SAME_TRIES):
            found = {node.node.name: await self._tables(node) for node in nodes}
            places = {place for before, _, after in found.values() for place in (before, after)}
            if len(places) == 1:
                return {name: digest for name, (_, digest, _) in found.items()}
            await asyncio.sleep(SAME_EVERY_S)
        return {}

    async def _tables(self, here: NodeAccess) -> tuple[str, str, str]:
        """Return how far a server's log is, a digest of its tables, and how far it is then."""
        rows = await self._sql(here, PLACE, DIGEST, PLACE, within_s=20.0)
        before, digest, after = (str(cell) for (cell,) in rows)
        return before, digest, after


def controller_view(name: str, found: Mapping[str, Any]) -> View:
    """Return what a member of etcd says: who holds the leader's key, and the revision at which it
    was created. Until there is a key, the member names itself, which is no server."""
    if "header" not in found:
        raise ConnectionError(f"{name} does not answer as a member that serves")
    if not (kvs := found.get("kvs")):
        return View(name, -1, name)
    return View(etcd.unb64(kvs[0]["value"]).decode(), int(kvs[0]["create_revision"]), name)


def server_view(name: str, role: Sequence[str | None], cluster: Mapping[str, Any]) -> View:
    """Return what a server says of itself (the answer to `ROLE`), and who its Patroni thinks
    leads."""
    standby, receiver = role
    if standby == "false":
        return View(name, -1, name)
    leaders = [each["name"] for each in cluster.get("members", ()) if each["role"] == "leader"]
    return View(leaders[0] if leaders else "", -1, name, receiver == "streaming")


PLUGIN = plugin(Postgres)
