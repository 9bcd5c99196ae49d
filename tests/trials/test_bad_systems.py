"""Drivers and programs that do not work, by the real command on local hosts: one sentence names the
cause, the log's last line and what to do, and nothing is left behind."""

import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path

import leftovers
import pytest
import run_command

pytestmark = pytest.mark.bed

DRIVER = '''"""A system of three processes that never talk."""
from clusters.kit import Service, View, plugin
from clusters.supply import Program


class Client:
    def __init__(self, settings, number):
        pass

    async def read(self, key):
        return None

    async def write(self, *arguments):
        raise ZeroDivisionError("the client divided by zero")

    cas = write


class Silent(Service):
    name, client = "silent", Client
    programs = (Program(name="silentd", version_argv=()),)
    start_s = 5.0

    def argv(self, here, peers, fresh):
        return [here.program["silentd"], here.node.address]

    async def ask(self, here):
        return View("server-1", 1, here.node.name)


PLUGIN = plugin(Silent)
'''
ANSWERS = 'return View("server-1", 1, here.node.name)'
ASKS = "status, body = await here.http(8080, '/')"
WAITS = "#!/bin/sh\necho waiting for nothing\nexec sleep 1000\n"
DIES = "#!/bin/sh\necho preparing\necho boom\nexit 3\n"
ELSEWHERE = """#!/bin/sh
exec python3 -m http.server 8080 --bind 127.0.0.1 2> /dev/null
"""
# ELSEWHERE must listen before it is looked at; the exit of DIES ends the wait
START_S = {ELSEWHERE: 15.0, DIES: 60.0}

Run = Callable[..., run_command.FinishedCommand]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a trial of the system after a change of its driver; nothing of it may be left."""

    def start(
        program: str, old: str = "", new: str = "", *words: str
    ) -> run_command.FinishedCommand:
        site, mark = tmp_path / "site", uuid.uuid4().hex
        info = site / "silent-1.0.dist-info"
        info.mkdir(parents=True)
        assert old in DRIVER
        driver = DRIVER.replace(old, new) if old else DRIVER
        driver = driver.replace("start_s = 5.0", f"start_s = {START_S.get(program, 5.0)}")
        (site / "silent.py").write_text(driver)
        (site / "silentd").write_text(program)
        (site / "silentd").chmod(0o755)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: silent\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[seatrial.system]\nsilent = silent\n")
        env = {**os.environ, "PYTHONPATH": str(site), leftovers.MARK: mark}
        asked = ("run", "register", "--system", "silent", "--supply", site, *words)
        done = run_command.seatrial(*asked, runs=tmp_path / "runs", env=env)
        assert leftovers.Belongings(0, mark).left() == []
        return done

    return start


@pytest.mark.parametrize(
    ("program", "old", "new", "says"),
    [
        (
            DIES,
            ANSWERS,
            ASKS,
            r"server-\d: silent exited with code 3; its log ends: boom \(it begins: preparing\); "
            r"to fix it: see nodes/server-\d/server\.log of the run",
        ),
        (
            WAITS,
            ANSWERS,
            ASKS,
            "silent does not serve after 5 s: server-1, server-2, server-3 did not answer as a "
            "member that serves; server-1: port 8080 gave no answer: .*Connect call failed.*; "
            "server-1 listens on no port; its log ends: waiting for nothing; to fix it: see ",
        ),
        (
            ELSEWHERE,
            ANSWERS,
            ASKS,
            r"server-1 listens on 127\.0\.0\.1:8080; its log ends: Serving HTTP on .*; to fix it: ",
        ),
        (
            WAITS,
            ANSWERS,
            "return {}['leader']",
            r"the system 'silent' of the package silent failed at .*silent\.py:\d+: KeyError: "
            "'leader'; .*its log ends: waiting for nothing",
        ),
        (
            WAITS,
            ANSWERS,
            "return {'leader': 1}",
            r"the system 'silent' \(module silent, .*silent\.py\) is wrong: ask must return a "
            "View, not dict",
        ),
        (
            WAITS,
            "here.node.address]",
            "here.nodes]",
            r"the system 'silent' of the package silent failed at .*silent\.py:\d+: "
            "AttributeError: .*'nodes'",
        ),
        (
            WAITS,
            "return [here.program",
            "return [7, here.program",
            r"the system 'silent' \(module silent, .*silent\.py\) is wrong: argv must return "
            "strings, not 7",
        ),
    ],
    ids=[
        *("exits", "never healthy", "wrong address", "ask lacks a key", "ask returns no view"),
        *("argv has a bug", "argv has no words"),
    ],
)
def test_a_system_that_does_not_start_is_one_sentence(
    run: Run, program: str, old: str, new: str, says: str
) -> None:
    done = run(program, old, new)
    assert done.code == 255, done.words
    assert "Traceback" not in done.words
    last = done.err.strip().splitlines()[-1]
    assert re.search(f"^seatrial: .*{says}", last), last


def test_an_unknown_error_of_a_client_is_an_unknown_outcome_and_counted(run: Run) -> None:
    """By the exception's name, on the terminal and in the page; the run goes on."""
    done = run(WAITS, "", "", "--duration", "3s", "--load", "rate=50")
    assert done.code in (0, 2), done.words
    unknown = [row for row in run_command.table(done.run, "ops") if row["type"] == 3]
    assert unknown
    counted = f"{len(unknown):,} ZeroDivisionError"
    assert counted in " ".join(done.words.split())
    assert counted in (done.run / "report.html").read_text()
