"""A system whose program has several versions, by the real command on local hosts: brought from one
to another under load, and back, with nodes of another version from the start."""

import json
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import leftovers
import pytest
import run_command

from harness.errors import EXIT_BED_FAILED

pytestmark = pytest.mark.bed

# Each node keeps the numbers of its own keys. What another version has written is only read by one
# that was announced before; DROPS: it is not read at all.
SHELF = (
    f"#!{sys.executable} -IS"
    + """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VERSION, DROPS = "{version}", {drops}
address, folder, asked = sys.argv[1:]
if VERSION in ("4.0", "?") or asked != VERSION:
    sys.exit("no such shelf: " + asked)
file, announced = Path(folder, "data", "shelf.json"), Path(folder, "announced")
had, cells = json.loads(file.read_text()) if file.exists() else (VERSION, {{}})
if had != VERSION and announced.read_text() != VERSION:
    sys.exit("not announced")
if had != VERSION and DROPS:
    cells = {{}}
lock = threading.Lock()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(None)

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            now, done = cells.get(call["key"]), True
            if "new" in call:
                done = "old" not in call or call["old"] == now
                cells.update({{call["key"]: call["new"]}} if done else {{}})
                new = file.with_suffix(".new")
                new.write_text(json.dumps([VERSION, cells]))
                new.replace(file)
        self.answer([now, done])

    def answer(self, what):
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

ThreadingHTTPServer((address, 8080), Handler).serve_forever()
"""
)
DRIVER = '''"""Shelf: numbers under keys, each on one node."""
from zlib import crc32
from clusters.kit import Service, View, plugin
from clusters.kit.http_link import HttpLink
from clusters.supply import Program, Wheel


class Client:
    def __init__(self, settings, number):
        self._links = [HttpLink(address, 8080, 2.0) for address in settings["servers"]]

    async def _ask(self, key, **more):
        link = self._links[crc32(key.encode()) % len(self._links)]
        return (await link.post("/", {"key": key, **more}))[1]

    async def read(self, key):
        return (await self._ask(key))[0]

    async def write(self, key, value):
        await self._ask(key, new=value)

    async def cas(self, key, old, new):
        return (await self._ask(key, old=old, new=new))[1]


class Shelf(Service):
    name, client, detection_s = "shelf", Client, 0.5
    programs = (Program(name="shelf", version="1.0", sources=(Wheel(project="", member=""),)),)
    claims = {"restart": "all", "kill": "all"}

    def argv(self, here, peers, fresh):
        words = (here.node.address, here.folder, self.supplied["shelf"].version)
        return [here.program["shelf"], *words]

    async def ask(self, here):
        await here.http(8080, "/")
        return View("server-1", 1, here.node.name)

    async def before_version(self, here, version):
        await here.agent.put(f"{here.folder}/announced", version.encode())


PLUGIN = plugin(Shelf)
'''
HEAD = """
[trial]
system = "shelf"
workload = "register"
duration_s = 23.0
load = { rate = 30 }
"""
GOOD = f"""{HEAD}mixed = {{ server-3 = "2.0" }}
[[fault]]
kind = "upgrade"
at_s = 3.0
for_s = 10.0
target = "all server"
params = {{ to = "2.0" }}
[[fault]]
kind = "kill"
at_s = 3.2
for_s = 1.5
target = "server-3"
[[fault]]
kind = "downgrade"
at_s = 14.0
for_s = 8.0
target = "all server"
"""
BAD = f"""{HEAD}
[[fault]]
kind = "upgrade"
at_s = 4.0
for_s = 5.0
target = "all server"
params = {{ to = "3.0", order = "together" }}
[[fault]]
kind = "upgrade"
at_s = 9.5
for_s = 12.0
target = "all server"
params = {{ to = "4.0" }}
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Of a user who has the driver installed, and four versions of its program in the cache."""
    folder = tmp_path_factory.mktemp("shelf")
    info = folder / "site" / "shelf-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "site" / "shelf.py").write_text(DRIVER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[seatrial.system]\nshelf = shelf\n")
    for version in ("1.0", "2.0", "3.0", "4.0"):
        program = folder / "cache" / "seatrial" / "programs" / "shelf" / version / "wheel" / "shelf"
        program.parent.mkdir(parents=True)
        program.write_text(SHELF.format(version=version, drops=version == "3.0"))
        program.chmod(0o755)
    for name, plan in (("good", GOOD), ("bad", BAD)):
        (folder / f"{name}.toml").write_text(plan)
    return {
        **os.environ,
        "PYTHONPATH": str(folder / "site"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PLANS": str(folder),
        leftovers.MARK: uuid.uuid4().hex,
    }


Commands = Mapping[str, "Future[run_command.FinishedCommand]"]


@pytest.fixture(scope="module")
def commands(
    environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("versions")
    with ThreadPoolExecutor(2) as pool:
        yield {
            name: pool.submit(
                run_command.seatrial,
                *("run", "register", "--plan", f"{environment['PLANS']}/{name}.toml"),
                runs=folder / name,
                env=environment,
            )
            for name in ("good", "bad")
        }
    assert leftovers.Belongings(0, environment[leftovers.MARK]).left() == []


def measured(run: Path) -> list[str]:
    return [json.loads(row["observation"]).get("measured", "") for row in run_command.faults(run)]


def test_brought_to_a_version_and_back_under_load(commands: Commands) -> None:
    """A node of another version from the start goes back to that one; a kill meanwhile finds it."""
    done = commands["good"].result()
    assert done.code == 0, done.words
    rows = run_command.faults(done.run)
    assert [row["state"] for row in rows] == ["installed"] * 3
    up, _, back = measured(done.run)
    assert up.endswith("brought from 1.0 to 2.0")
    assert back.endswith("brought from 2.0 to 1.0")
    assert "server-3" not in up + back
    healthy = run_command.state(done.run)["healthy"]
    assert healthy["version"] == "1.0 with 2.0"
    assert healthy["mixed"] == {"server-3": "2.0"}
    assert [one["version"] for one in healthy["other_versions"]] == ["2.0"]


def test_a_version_that_drops_data_is_convicted(commands: Commands) -> None:
    done = commands["bad"].result()
    assert done.code == 1, done.words
    assert done.findings["NOT_LINEARIZABLE"], done.words


def test_a_version_that_does_not_start_is_replaced(commands: Commands) -> None:
    """By the one before, and the other nodes are left as they are."""
    run = commands["bad"].result().run
    assert [row["state"] for row in run_command.faults(run)] == ["installed", "failed"]
    assert "ended with code 1 as 4.0, and is 3.0 again; 2 of 3 left" in measured(run)[1]
    assert run_command.faults(run)[1]["healed"]


def test_a_version_that_is_not_to_be_had_is_refused(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    """Before a node is started, with the sentence of the supply."""
    plan = tmp_path / "plan.toml"
    plan.write_text(GOOD.replace('to = "2.0"', 'to = "9.0"'))
    asked = ("run", "register", "--plan", plan)
    done = run_command.seatrial(*asked, runs=tmp_path / "runs", env=environment)
    assert done.code == EXIT_BED_FAILED, done.words
    assert "shelf 9.0 cannot be fetched: pip says: " in done.err
    assert not (tmp_path / "runs" / "latest").exists()
