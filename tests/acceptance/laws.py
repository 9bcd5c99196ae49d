"""What must hold of trials on hosts that outlive them, whatever their kind; else AssertionError."""

import json
import os
import re
from collections.abc import Mapping

import sailing
from naive_loss import lost
from passages import Left

KINDS = {"kill", "pause", "partition", "loss"}


def weathered(voyage: sailing.Voyage) -> None:
    """Valid, every kind of fault at work on nodes whose time was taken, and nothing is missing."""
    assert voyage.code == 0, voyage.words
    assert (voyage.verdict["verdict"], voyage.verdict["reasons"]) == ("valid", [])
    faults = sailing.faults(voyage.run)
    assert {fault["kind"] for fault in faults} == KINDS
    for fault in faults:
        assert fault["state"] == "installed"
        hit = {node for nodes in json.loads(fault["targets"]).values() for node in nodes}
        took_ms = json.loads(fault["observation"])["applied_ms"]
        assert hit <= took_ms.keys()
        assert all(ms > 0 for ms in took_ms.values())
    assert voyage.verdict["events"] == sailing.counted(voyage.run)
    assert lost(voyage.run) == 0


def came_home(voyage: sailing.Voyage) -> None:
    """Logs of every node, and the data of those that keep any."""
    roles = json.loads((voyage.run / "names.json").read_text())["roles"]
    for node, role in roles.items():
        folder = voyage.run / "nodes" / node
        logs = ["clients.log"] if role == "client" else ["flotilla.log", "events.jsonl"]
        logs += ["store/commitlog/" + "0" * 20] if role == "broker" else []
        assert [log for log in logs if not (folder / log).is_file()] == [], node


def whole(voyage: sailing.Voyage, least: int) -> None:
    """Valid without any doubt, on so many acknowledged messages, and nothing lost by any count."""
    assert voyage.code == 0, voyage.words
    assert (voyage.verdict["verdict"], voyage.verdict["reasons"]) == ("valid", [])
    (stats,) = [row["stats"] for row in voyage.verdict["checkers"] if row["checker"] == "loss"]
    assert stats["acknowledged"] >= least
    assert (stats["lost"], lost(voyage.run)) == (0, 0)


def lost_what_was_acknowledged(voyage: sailing.Voyage, least: int) -> None:
    """Exit code 1, LOST_ACKED, and exactly as many as a script counts that shares no code."""
    assert voyage.code == 1, voyage.words
    assert voyage.verdict["verdict"] == "invalid"
    assert voyage.findings["LOST_ACKED"] == lost(voyage.run) >= least


def healed(left: Left, removed: str) -> None:
    """It says what was undone and removed, closes the ledger, and finds nothing the second time."""
    assert left.healed.code == 0, left.healed.words
    assert re.search(rf"partition of .*: undone; removed {removed}\n", left.healed.out)
    assert left.again.code == 0, left.again.words
    assert left.again.out.startswith("Nothing to heal")
    ledger = (left.voyage.run / "ledger.jsonl").read_text().splitlines()
    is_open = {row["id"]: row["is"] == "intent" for row in map(json.loads, ledger)}
    assert is_open == {0: False}


def interrupted(voyage: sailing.Voyage) -> None:
    """What a killed run recorded is judged: unknown, with all that its writers counted."""
    assert voyage.code == 2, voyage.words
    assert "INTERRUPTED" in sailing.reasons(voyage.verdict)
    assert voyage.verdict["events"] == sailing.counted(voyage.run)
    assert voyage.verdict["events"]["ops"] > 0


def ended_early(voyage: sailing.Voyage, code: str, says: str) -> None:
    """Exit code 2, the reason and a note that names the node, and no traceback."""
    assert voyage.code == 2, voyage.words
    assert voyage.verdict["verdict"] == "unknown"
    (why, *_) = [r["message"] for r in voyage.verdict["reasons"] if r["code"] == code]
    assert re.search(says, why), why
    notes = [note["text"] for note in sailing.table(voyage.run, "notes")]
    assert any(note.startswith(f"{code} ") for note in notes)
    assert voyage.verdict["events"] == sailing.counted(voyage.run)
    assert "Traceback" not in voyage.err


def could_be_looked_at(said: Mapping[str, sailing.Voyage]) -> None:
    """`up` returned and the cluster stayed; status, log and shell are the node's own; `heal` leaves
    alone what is in use."""
    for verb, voyage in said.items():
        assert voyage.code == 0, (verb, voyage.words)
    assert "master of set-1" in said["up"].out
    for verb in ("status", "still"):
        assert "with full redundancy" in said[verb].out
    assert {json.loads(line)["node"] for line in said["logs"].out.splitlines()} == {"broker-2"}
    (line,) = [line for line in said["status"].out.splitlines() if "broker-2" in line]
    assert line.split()[1] in said["shell"].out
    assert said["heal"].out.startswith("Nothing to heal")
    assert "is down" in said["down"].out


def refused(voyage: sailing.Voyage, code: int, says: str) -> None:
    """One sentence with this exit code, and nothing was begun."""
    assert voyage.code == code, voyage.words
    assert len(voyage.err.strip().splitlines()) == 1, voyage.words
    assert re.search(says, voyage.err), voyage.words
    assert "Traceback" not in voyage.err
    assert not os.path.lexists(voyage.runs)
