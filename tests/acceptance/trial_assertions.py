"""Assertions about trials on hosts that outlive the command, for every kind of hosts."""

import json
import os
import re
from collections.abc import Mapping

import run_command
from naive_loss import lost
from trial_scenarios import Left

KINDS = {"kill", "pause", "partition", "loss"}


def took_effect(done: run_command.FinishedCommand) -> None:
    """Valid, every kind of fault at work on nodes whose time was taken, and nothing is missing."""
    assert done.code == 0, done.words
    assert (done.verdict["verdict"], done.verdict["reasons"]) == ("valid", [])
    faults = run_command.faults(done.run)
    assert {fault["kind"] for fault in faults} == KINDS
    for fault in faults:
        assert fault["state"] == "installed"
        hit = {node for nodes in json.loads(fault["targets"]).values() for node in nodes}
        took_ms = json.loads(fault["observation"])["applied_ms"]
        assert hit <= took_ms.keys()
        assert all(ms > 0 for ms in took_ms.values())
    assert done.verdict["events"] == run_command.counted(done.run)
    assert lost(done.run) == 0


def was_cleaned_up(done: run_command.FinishedCommand) -> None:
    """Logs of every node, and the data of those that keep any."""
    roles = json.loads((done.run / "names.json").read_text())["roles"]
    for node, role in roles.items():
        folder = done.run / "nodes" / node
        logs = ["clients.log"] if role == "client" else ["flotilla.log", "events.jsonl"]
        logs += ["store/commitlog/" + "0" * 20] if role == "broker" else []
        assert [log for log in logs if not (folder / log).is_file()] == [], node


def whole(done: run_command.FinishedCommand, least: int) -> None:
    """Valid without any doubt, on so many acknowledged messages, and nothing lost by any count."""
    assert done.code == 0, done.words
    assert (done.verdict["verdict"], done.verdict["reasons"]) == ("valid", [])
    (stats,) = [row["stats"] for row in done.verdict["checkers"] if row["checker"] == "loss"]
    assert stats["acknowledged"] >= least
    assert (stats["lost"], lost(done.run)) == (0, 0)


def lost_what_was_acknowledged(done: run_command.FinishedCommand, least: int) -> None:
    """Exit code 1, LOST_ACKED, and exactly as many as a script counts that shares no code."""
    assert done.code == 1, done.words
    assert done.verdict["verdict"] == "invalid"
    assert done.findings["LOST_ACKED"] == lost(done.run) >= least


def ran_outside(done: run_command.FinishedCommand, program: str) -> None:
    """Valid, by a program whose version, source and digest are in the run; its faults, if any,
    took effect."""
    assert done.code == 0, done.words
    assert (done.verdict["verdict"], done.verdict["reasons"]) == ("valid", [])
    assert {fault["state"] for fault in run_command.faults(done.run)} <= {"installed"}
    recorded = run_command.state(done.run)["healthy"]["programs"][program]
    assert "." in recorded["version"]
    assert len(recorded["sha256"]) == 64


def healed(left: Left, removed: str) -> None:
    """It says what was undone and removed, closes the ledger, and finds nothing the second time."""
    assert left.healed.code == 0, left.healed.words
    assert re.search(rf"partition of .*: undone; removed {removed}\n", left.healed.out)
    assert left.again.code == 0, left.again.words
    assert left.again.out.startswith("Nothing to heal")
    ledger = (left.done.run / "ledger.jsonl").read_text().splitlines()
    is_open = {row["id"]: row["is"] == "intent" for row in map(json.loads, ledger)}
    assert is_open == {0: False}


def interrupted(done: run_command.FinishedCommand) -> None:
    """What a killed run recorded is judged: unknown, with all that its writers wrote."""
    assert done.code == 2, done.words
    assert "INTERRUPTED" in run_command.reasons(done.verdict)
    written = run_command.written(done.run)
    assert done.verdict["events"] == written
    assert written["ops"] > 0


def ended_early(done: run_command.FinishedCommand, code: str, says: str) -> None:
    """Exit code 2, the reason and a note that names the node, and no traceback."""
    assert done.code == 2, done.words
    assert done.verdict["verdict"] == "unknown"
    (why, *_) = [r["message"] for r in done.verdict["reasons"] if r["code"] == code]
    assert re.search(says, why), why
    notes = [note["text"] for note in run_command.table(done.run, "notes")]
    assert any(note.startswith(f"{code} ") for note in notes)
    assert done.verdict["events"] == run_command.counted(done.run)
    assert "Traceback" not in done.err


def was_inspected(said: Mapping[str, run_command.FinishedCommand]) -> None:
    """`up` returned and the cluster stayed; status, log and shell are the node's own; `heal` leaves
    alone what is in use."""
    for verb, done in said.items():
        assert done.code == 0, (verb, done.words)
    assert "master of set-1" in said["up"].out
    assert {json.loads(line)["node"] for line in said["logs"].out.splitlines()} == {"broker-2"}
    (line,) = [line for line in said["status"].out.splitlines() if "broker-2" in line]
    assert line.split()[1] in said["shell"].out
    assert said["heal"].out.startswith("Nothing to heal")
    assert "is down" in said["down"].out


def refused(done: run_command.FinishedCommand, code: int, says: str) -> None:
    """One sentence with this exit code, and nothing was begun."""
    assert done.code == code, done.words
    assert len(done.err.strip().splitlines()) == 1, done.words
    assert re.search(says, done.err), done.words
    assert "Traceback" not in done.err
    assert not os.path.lexists(done.runs)
