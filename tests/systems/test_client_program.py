"""Client programs: what they are sent, what their answers mean, and each way to be wrong."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import leftovers
import pytest
import run_command

from clusters.kit import client_program
from clusters.kit.client_program import ClientProgram, offered_calls
from clusters.kit.clients import ServiceClient
from harness import registry
from harness.cli.options import Request, locate_client, request
from harness.cli.session import HostTrust
from harness.contracts.calls import (
    CALLS,
    Changes,
    Delivery,
    Lease,
    LogEntries,
    MicroOperation,
    Stored,
    Versioned,
)
from harness.contracts.calls import call_outcome as outcome
from harness.errors import BadRequest, BedFailed, SeatrialError, Unsupported
from harness.history.journal import read_stream
from harness.history.rundir import RunDir
from harness.operation import Type
from harness.run.preflight import refuse_impossible
from harness.trial import Trial

SETTINGS = {"servers": ["a", "b"], "settings": {}, "topics": {"orders": 2}, "nodes": []}
HEAD = f"""#!{sys.executable}
import json, os, sys, time
def say(**line): print(json.dumps(line), flush=True)
def hello(*calls): say(seatrial=1, calls=calls)
def asked():
    for line in sys.stdin:
        yield json.loads(line)
"""
ECHO = f"""
hello(*{sorted(CALLS)})
given = next(asked())
for each in asked():
    say(id=each["id"], **ANSWERS[each["call"]])
"""


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / f"program-{time.monotonic_ns()}"
    path.write_text(HEAD + text)
    path.chmod(0o755)
    return str(path)


def answering(tmp_path: Path, **answers: Any) -> str:
    """A program that answers each call as it is named here."""
    return program(tmp_path, f"ANSWERS = json.loads({json.dumps(answers)!r})\n{ECHO}")


class Bench:
    """A program in use. `failed`: what ended the run."""

    def __init__(self, path: str) -> None:
        self.program = ClientProgram([path], ())
        self.client = ServiceClient(self.program.calls, SETTINGS)
        self.failed: list[str] = []

    def use(self, use: Callable[[Any], Awaitable[Any]]) -> Any:
        async def used() -> Any:
            asyncio.get_running_loop().set_exception_handler(
                lambda loop, context: self.failed.append(str(context["exception"]))
            )
            try:
                await self.client.open()
                return await use(self.client.calls(3))
            finally:
                await self.client.close()

        return asyncio.run(used())


def test_what_a_program_is_sent(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = f"""
hello("write", "append", "set_up")
for line in sys.stdin:
    open({str(log)!r}, "a").write(line)
    if "id" in line: say(id=json.loads(line)["id"], ok=0 if '"append"' in line else None)
"""

    async def use(calls: Any) -> None:
        await calls.write("k", 7)
        assert await calls.append("orders-0", b"\x00\xff") == 0

    Bench(program(tmp_path, text)).use(use)
    assert [json.loads(line) for line in log.read_text().splitlines()] == [
        {"seatrial": 1, **SETTINGS},
        {"id": 1, "process": 0, "call": "set_up", "args": [{"orders": 2}]},
        {"id": 2, "process": 3, "call": "write", "args": ["k", 7]},
        {"id": 3, "process": 3, "call": "append", "args": ["orders-0", "AP8="]},
    ]


KINDS = {
    "read": (["k"], {"ok": None}, None),
    "write": (["k", 1], {"ok": True}, None),
    "cas": (["k", None, 1], {"ok": False}, False),
    "acquire": (["k", "me"], {"ok": {"held_s": 2.5, "token": 8}}, Lease(2.5, 8)),
    "release": (["k", "me"], {"ok": None}, None),
    "append": (["k", b"x"], {"ok": {"offset": 5, "node": "a"}}, Stored(5, -1, "a")),
    "entries": (["k", 0, 9], {"ok": {"entries": [[4, "eA=="]], "end": 5}}, None),
    "end": (["k"], {"ok": 5}, 5),
    "add": (["k", 1], {"ok": True}, None),
    "members": (["k"], {"ok": [1, 2]}, [1, 2]),
    "enqueue": (["k", 1], {"ok": True}, None),
    "dequeue": (["k"], {"ok": 1}, 1),
    "increment": (["k", 1], {"ok": True}, None),
    "count": (["k"], {"ok": 3}, 3),
    "change": (["k", 1], {"ok": 3}, 3),
    "current": (["k"], {"ok": [3, 1]}, Versioned(3, 1)),
    "watch": (["k", 2], {"ok": {"events": [[3, 1]]}}, Changes([Versioned(3, 1)])),
    "fetch": (["k", "g", 9], {"ok": [[4, "eA==", "h"]]}, [Delivery(4, b"x", "h")]),
    "acknowledge": (["k", "g", ["h"]], {"ok": True}, None),
    "append_later": (["k", b"x", 1500], {"ok": True}, None),
    "prepare": (["k", b"x", "g"], {"ok": 7}, 7),
    "decide": (["k", 7, True], {"ok": True}, None),
    "questions": (["k", "g"], {"ok": [[7, "eA=="]]}, [(7, b"x")]),
    "transact": (
        [[MicroOperation("read", "k"), MicroOperation("append", "k", 4)]],
        {"ok": [["read", "k", [1]], ["append", "k", 4]]},
        [MicroOperation("read", "k", [1]), MicroOperation("append", "k", 4)],
    ),
}


def test_every_call_has_its_answer(tmp_path: Path) -> None:
    assert set(KINDS) == CALLS
    answers = {name: answer for name, (_, answer, _) in KINDS.items()}

    async def use(calls: Any) -> dict[str, Any]:
        return {name: await getattr(calls, name)(*args) for name, (args, _, _) in KINDS.items()}

    found = Bench(answering(tmp_path, **answers)).use(use)
    wanted = {name: value for name, (_, _, value) in KINDS.items()}
    assert found == wanted | {"entries": LogEntries([(4, b"x")], 5)}


def test_answers_come_in_any_order(tmp_path: Path) -> None:
    text = """
hello("read")
_, first, second = (json.loads(sys.stdin.readline()) for _ in range(3))
say(id=second["id"], ok=2)
say(id=first["id"], ok=1)
"""

    async def use(calls: Any) -> Any:
        return await asyncio.gather(calls.read("a"), calls.read("b"))

    assert Bench(program(tmp_path, text)).use(use) == [1, 2]


@pytest.mark.parametrize(
    ("answer", "read", "kind"),
    [
        ({"fail": "full"}, False, Type.FAIL),
        ({"info": "timed out"}, False, Type.INFO),
        ({"info": "timed out"}, True, Type.FAIL),
    ],
)
def test_outcomes(tmp_path: Path, answer: Any, read: bool, kind: Type) -> None:
    async def use(calls: Any) -> Any:
        return await outcome(calls.read("k") if read else calls.write("k", 1), read=read)

    bench = Bench(answering(tmp_path, read=answer, write=answer))
    done, _ = bench.use(use)
    assert (done.type, bench.failed) == (kind, [])
    assert next(iter(answer.values())) in done.error


WRONG_ANSWERS = {
    "read": [{"ok": "7"}, {"ok": 7.5}, {"ok": 2**70}],
    "write": [{"ok": False}, {"ok": 7}],
    "cas": [{"ok": None}],
    "acquire": [{"ok": True}, {"ok": {"held_s": "3"}}, {"ok": {"held_s": float("nan")}}],
    "append": [{"ok": None}, {"ok": {"at": 1}}, {"ok": {"offset": 1.5}}],
    "entries": [{"ok": []}, {"ok": {"entries": [[0, "?"]], "end": 1}}],
    "members": [{"ok": {"1": 1}}],
    "current": [{"ok": 3}],
    "fetch": [{"ok": [[4, "?", "h"]]}],
    "prepare": [{"ok": True}],
    "questions": [{"ok": [[7, "?"]]}],
    "watch": [{"ok": [[3, 1]]}, {"ok": {"events": [[2**70, 1]]}}],
    "transact": [{"ok": [["read", "k", None]]}, {"ok": [["read", "k", "x"], ["append", "k", 4]]}],
    "end": [{"okay": 1}, {"ok": 1, "fail": ""}],
}


@pytest.mark.parametrize(
    ("name", "answer"), [(n, a) for n, all_ in WRONG_ANSWERS.items() for a in all_]
)
def test_a_wrong_answer_ends_the_run(tmp_path: Path, name: str, answer: Any) -> None:
    """It is never taken for a success."""

    async def use(calls: Any) -> Any:
        return await outcome(getattr(calls, name)(*KINDS[name][0]))

    bench = Bench(answering(tmp_path, **{name: answer}))
    done, _ = bench.use(use)
    assert done.type is Type.INFO
    assert len(bench.failed) == 1
    assert " answered " in bench.failed[0]


BROKEN = {
    "prints": ("print('connected!', flush=True)", "which is not a JSON object"),
    "unknown id": ("say(id=99, ok=1)", "answered the id 99, which is not open"),
    "answers twice": ("say(id=1, ok=None)\n    say(id=1, ok=None)", "the id 1, which is not open"),
    "exits": ("sys.exit(3)", "exited with code 3 during the run"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_program_that_breaks_ends_the_run(tmp_path: Path, how: str) -> None:
    """Its open calls have unknown outcomes, reads fail, and later calls are refused."""
    act, sentence = BROKEN[how]
    text = f'hello("read", "write")\nnext(asked())\nfor each in asked():\n    {act}\n'

    async def use(calls: Any) -> Any:
        done = await asyncio.gather(
            outcome(calls.write("k", 1)), outcome(calls.read("k"), read=True)
        )
        await asyncio.sleep(0.05)
        return [*done, await outcome(calls.write("k", 2))]

    bench = Bench(program(tmp_path, text))
    kinds = [done.type for done, _ in bench.use(use)]
    if how != "answers twice":
        assert kinds == [Type.INFO, Type.FAIL, Type.FAIL]
    assert kinds[-1] is Type.FAIL
    assert len(bench.failed) == 1
    assert sentence in bench.failed[0]


def test_a_program_that_blocks_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late answer is neither an answer to another call nor an error; nothing is sent again."""
    monkeypatch.setattr(client_program, "CALL_WITHIN_S", 0.2)
    gate = tmp_path / "gate"
    text = f"""
hello("write", "read")
next(asked())
first = next(asked())
while not os.path.exists({str(gate)!r}):
    time.sleep(0.01)
say(id=first["id"], ok=True)
for each in asked():
    say(id=each["id"], ok=each["id"])
"""

    async def use(calls: Any) -> Any:
        done, _ = await outcome(calls.write("k", 1))
        monkeypatch.setattr(client_program, "CALL_WITHIN_S", 60.0)
        gate.touch()
        return done, await calls.read("k")

    bench = Bench(program(tmp_path, text))
    done, second = bench.use(use)
    assert (done.type, second, bench.failed) == (Type.INFO, 2, [])
    assert "no answer within 0.2 s" in done.error


GONE = {
    "output": ("os.close(1); time.sleep(600)", "closed its standard output during the run"),
    "child": ("os.fork() and os._exit(5); time.sleep(3)", "exited with code 5 during the run"),
}


@pytest.mark.parametrize("how", GONE)
def test_a_program_that_will_not_answer_again_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It closed its output and runs on, or it is gone and a child of its has its output."""
    monkeypatch.setattr(client_program, "CALL_WITHIN_S", 0.2)
    monkeypatch.setattr(client_program, "END_WITHIN_S", 0.1)
    act, sentence = GONE[how]
    bench = Bench(program(tmp_path, f'hello("read")\nnext(asked())\nnext(asked())\n{act}\n'))

    async def use(calls: Any) -> None:
        while not bench.failed:
            await outcome(calls.read("k"), read=True)

    bench.use(use)
    assert len(bench.failed) == 1
    assert sentence in bench.failed[0]


def test_a_program_that_ignores_the_end_of_its_input_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_program, "END_WITHIN_S", 0.2)
    pid = tmp_path / "pid"
    text = f'open({str(pid)!r}, "w").write(str(os.getpid()))\nhello()\ntime.sleep(600)\n'

    async def use(calls: Any) -> None:
        pass

    Bench(program(tmp_path, text)).use(use)
    assert not leftovers.alive(int(pid.read_text()))


BAD_STARTS = {
    "missing": (None, "cannot be started: No such file or directory"),
    "silent": ("time.sleep(600)", "printed no hello within"),
    "ends": ("sys.exit('no etcd')", "exited with code 1 before its hello.* standard error .*"),
    "chatty": ("print('hi')", "'hi', which is not a JSON object"),
    "version": ("say(seatrial=2, calls=[])", "speaks version 2 of the protocol"),
    "no calls": ("say(seatrial=1)", "no list of calls"),
    "no name": ("hello(['read'])", "in its hello; the calls are"),
    "unknown": ("hello('reed')", "names 'reed' in its hello"),
    "long": ("print('x' * (17 << 20), flush=True)", "printed a line of over 16 MiB"),
}


@pytest.mark.parametrize("how", BAD_STARTS)
def test_a_program_that_does_not_greet_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Here before anything is started, and the same on a node, where nothing stays behind."""
    if how == "silent":
        monkeypatch.setattr(client_program, "HELLO_WITHIN_S", 1.0)
    monkeypatch.setattr(client_program, "END_WITHIN_S", 0.2)
    text, sentence = BAD_STARTS[how]
    path = str(tmp_path / "none") if text is None else program(tmp_path, text)
    with pytest.raises(BadRequest, match=sentence):
        offered_calls((path,))
    bench = Bench(path)
    with pytest.raises(BedFailed, match=sentence.partition(".*")[0]):
        bench.use(lambda calls: asyncio.sleep(0))
    assert not _running(path)


def _running(path: str) -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.encode() in each.read_bytes():
                found.append(each.parent.name)
        except OSError:
            continue
    return found


def test_a_file_that_cannot_be_executed(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(BadRequest, match="cannot be started: Permission denied"):
        offered_calls((str(tmp_path / "plain"),))


def test_what_a_program_started_for_its_hello_is_ended(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(600)", child := str(tmp_path / "child")]
    text = f"import subprocess\nsubprocess.Popen({argv})\nhello('read')\n"
    assert offered_calls((program(tmp_path, text),)) == ["read"]
    run_command.wait(lambda: not _running(child), 5.0, "the end of what the program started")


def test_a_program_that_cannot_set_up(tmp_path: Path) -> None:
    text = 'hello("set_up")\nnext(asked())\nsay(id=next(asked())["id"], fail="no such table")\n'
    with pytest.raises(BedFailed, match="could not set up: no such table"):
        Bench(program(tmp_path, text)).use(lambda calls: asyncio.sleep(0))


# trials


def refused(trial: Trial, sentence: str, kind: type[SeatrialError] = BadRequest) -> None:
    with pytest.raises(kind, match=sentence):
        refuse_impossible(Request(trial))


def test_a_workload_whose_calls_the_program_lacks_is_refused(tmp_path: Path) -> None:
    path = program(tmp_path, 'hello("read", "write", "increment", "count")\n')
    trial = Trial(system="etcd", workload="register", client=(path,))
    refused(trial, f"the client program {path} lacks cas, .*workloads that fit: counter$")
    refuse_impossible(Request(replace(trial, workload="counter")))


def test_a_program_on_a_node_that_lacks_calls(tmp_path: Path) -> None:
    bench = Bench(program(tmp_path, 'hello("read")\n'))
    bench.program._needed = (frozenset({"read", "write"}),)
    with pytest.raises(BedFailed, match="lacks write, which the workload needs"):
        bench.use(lambda calls: asyncio.sleep(0))


def test_what_cannot_be_tested_with_a_program(tmp_path: Path) -> None:
    simulated = Trial(hosts="simulated", workload="register", client=("x",))
    refused(simulated, "client: simulated hosts run no programs", Unsupported)
    refused(
        Trial(client=("x",)),
        "client: flotilla cannot be tested .* systems that can be: dledger, etcd",
    )


@pytest.mark.parametrize("workload", ["log", "set", "messages"])
def test_replicas_are_compared_with_a_program_only_by_digests(workload: str) -> None:
    """The program chooses how it stores entries, so the driver does not know them in replicas."""
    for system, client, compared in (("etcd", "x", True), ("nats", "x", False), ("nats", "", True)):
        trial = Trial(system=system, workload=workload, client=(client,) if client else ())
        found = registry.load("workload", workload)(trial).checkers
        assert ("replicas" in found) == compared


def test_the_file_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the trial file that names it, else from the current folder; a bare word is looked up
    on the PATH."""
    trial = tmp_path / "trials" / "mine.toml"
    trial.parent.mkdir()
    trial.write_text('workload = "register"\nclient = ["./mine", "--flag"]\n')
    monkeypatch.chdir(tmp_path)
    assert request(str(trial), {}).trial.client == (str(tmp_path / "mine"), "--flag")
    (trial.parent / "mine").touch()
    assert request(str(trial), {}).trial.client == (str(trial.parent / "mine"), "--flag")
    flags = {"client": ("./mine",)}
    assert request(str(trial), flags).trial.client == (str(tmp_path / "mine"),)
    assert locate_client(("node", "x.mjs")) == ("node", "x.mjs")


def test_a_stored_run_never_chooses_a_program(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.trial_file.write_text(Trial(system="etcd", client=("/bin/evil",)).to_toml())
    for trust in (HostTrust(), HostTrust(run=True)):
        with pytest.raises(BadRequest, match="never trusted to choose; name it yourself: --client"):
            trust.trial(run)
    assert HostTrust(client=("mine",)).trial(run).client == ("mine",)


# a client process

STORE = """
hello("read", "write", "cas")
next(asked())
data = {}
for count, each in enumerate(asked()):
    key, *values = each["args"]
    if each["call"] == "read": ok = data.get(key)
    elif each["call"] == "write": ok = data.__setitem__(key, *values)
    else:
        ok = data.get(key) == values[0]
        if ok: data[key] = values[1]
    NEXT
    say(id=each["id"], ok=ok)
"""


def client_process(tmp_path: Path, path: str) -> "subprocess.Popen[str]":
    """A client process whose program is this one; it is the cluster, too."""
    run = RunDir(tmp_path)
    load = {"rate": 200, "clients": 2, "watchers": 0, "registers": 1}
    trial = Trial(system="etcd", workload="register", client=(path,), load=load)
    run.trial_file.write_text(trial.to_toml())
    names = ("server-1", "client-1")
    roles = {name: name.partition("-")[0] for name in names}
    keys = [*registry.workload("register").workload(trial).keys]
    addresses = dict.fromkeys(names, "127.0.0.1")
    run.write_names({"keys": keys, "nodes": [*names], "roles": roles, "addresses": addresses})
    with (tmp_path / "clients.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.run.client_process", str(tmp_path), "client-1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def order(process: "subprocess.Popen[str]", do: str, word: str, **fields: Any) -> Any:
    """Give an order; return the answer with this key, which must come within 20 s."""
    assert process.stdin
    assert process.stdout
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        process.stdin.flush()
    for line in process.stdout:
        if (answer := json.loads(line)).get("is", "") in (word, "failed"):
            return answer
    raise AssertionError(f"no {word}")


def loaded(process: "subprocess.Popen[str]") -> Any:
    """Wait until ten operations have succeeded, or the process failed; return its last line."""
    assert process.stdout
    for line in process.stdout:
        last = json.loads(line)
        if last.get("is") == "failed" or last.get("stats", {"ok": 0})["ok"] >= 10:
            return last
    raise AssertionError("neither a failure nor ten operations")


@pytest.mark.parametrize("ends", [False, True], ids=["serves", "exits"])
def test_a_client_process_with_a_program(tmp_path: Path, ends: bool) -> None:
    """It carries out the workload, and keeps what the program prints on standard error, however
    much. One that exits ends the run, with a sentence; nothing is left behind."""
    act = "if count == 5: sys.exit(7)" if ends else "os.write(2, b'x' * 20_000)"
    path = program(tmp_path, STORE.replace("NEXT", act))
    with client_process(tmp_path, path) as process:
        try:
            begun = {"epoch_ns": time.monotonic_ns(), "error_ns": 0}
            assert order(process, "load", "loading", **begun)["is"] == "loading"
            last = loaded(process)
            if "stats" in last:
                last = order(process, "stop", "stopped")
        finally:
            with suppress(BrokenPipeError):
                process.communicate(timeout=600)
    rows = [
        row
        for file in (tmp_path / "journal").glob("ops-*.arrows")
        for batch in read_stream(file)
        for row in batch.to_pylist()
    ]
    done = [row for row in rows if row["type"] != Type.INVOKE]
    assert len(done) >= 5
    if ends:
        assert last["is"] == "failed"
        assert "exited with code 7 during the run" in last["why"]
    else:
        assert last == {"is": "stopped"}
    assert ends or (tmp_path / "clients.log").stat().st_size >= 20_000 * len(done)
    assert not _running(path)
