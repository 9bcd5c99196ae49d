"""What commands say to programs, with --json: all of it on standard output, and nothing else."""

import json
from subprocess import CompletedProcess
from typing import Protocol


class Script(Protocol):
    def __call__(self, *arguments: str) -> "CompletedProcess[str]": ...


def test_plug_ins_are_listed(seatrial: Script) -> None:
    """By kind; a system's profiles and mutants below it."""
    ran = seatrial("list", "systems", "reports", "--json")
    told = json.loads(ran.stdout)
    assert list(told) == ["system", "report"]
    systems = {each["name"]: each for each in told["system"]}
    assert systems["redis"]["profiles"].keys() == {
        *("default", "min-replicas", "wait", "streams", "streams-wait")
    }
    assert "mutants" in systems["flotilla"]
    assert {each["name"] for each in told["report"]} >= {"page", "junit", "badge"}
    assert all(each["about"].endswith(".") for each in told["report"])


def test_the_doctor_says_what_is_there(seatrial: Script) -> None:
    """Each with what to do; the exit code follows from what is needed."""
    ran = seatrial("doctor", "--json")
    told = json.loads(ran.stdout)
    lacking = [each["name"] for each in told if each["needed"] and not each["ready"]]
    assert ran.returncode == (255 if lacking else 0), ran.stderr
    assert "redis-server" in {each["name"] for each in told}
    assert all(each["remedy"] for each in told if not each["ready"])
