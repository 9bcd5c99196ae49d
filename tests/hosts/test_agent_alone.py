"""The agent program: plain Python starts it, lines control it, and it ends with its driver."""

import base64
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leftovers
import pytest

from clusters.hosts._agent import agent as _agent
from clusters.hosts._agent import network as _agent_network

PATIENCE_S = 10.0
STUBBORN = "trap '' TERM; sleep 1000 & echo $!; wait"


class Agent:
    """An agent on pipes, which is asked one question at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", _agent.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.events: list[dict[str, Any]] = []

    def send(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next answer; events are kept."""
        assert self.process.stdout
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "id" in message:
                return message
            self.events.append(message)
        raise AssertionError("the agent ended")

    def call(self, verb: str, **fields: Any) -> dict[str, Any]:
        self.send(json.dumps({"id": 1, "do": verb, **fields}))
        return self.answer()

    def start(self, name: str, *argv: str, lines: bool = False) -> int:
        answer = self.call("start", name=name, argv=argv, env=None, cwd="", log="", lines=lines)
        return int(answer["is"]["pid"])


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.process.kill()
    agent.process.wait()
    for pipe in (agent.process.stdin, agent.process.stdout):
        if pipe:
            pipe.close()


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_a_driver_that_goes_takes_everything_along(agent: Agent, how: str) -> None:
    """The processes that it started die: stopped ones, stubborn ones, and their children."""
    stopped = agent.start("stopped", "sleep", "1000")
    stubborn = agent.start("stubborn", "sh", "-c", STUBBORN, lines=True)
    agent.call("signal", name="stopped", number=signal.SIGSTOP)
    while not agent.events:
        agent.call("hello")
    grandchild = int(agent.events[0]["text"])
    if how == "SIGTERM":
        agent.process.terminate()
    elif agent.process.stdin:
        agent.process.stdin.close()
    assert agent.process.wait(PATIENCE_S) == 0
    deadline = time.monotonic() + PATIENCE_S
    while any(leftovers.alive(pid) for pid in (stopped, stubborn, grandchild)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_bad_requests_are_answered_and_survived(agent: Agent) -> None:
    """An unknown verb, missing fields, wrong types: each gets an error, and the agent goes on."""
    assert "no verb 'dance'" in agent.call("dance")["error"]
    assert "bad request" in agent.call("signal")["error"]
    assert "bad request" in agent.call("run", argv=["true"], stdin="abc", timeout_s=1.0)["error"]
    assert agent.call("hello")["is"]["pid"] == agent.process.pid


@pytest.mark.parametrize("source", ["1.2.3.4 -j ACCEPT\n-A INPUT", "1.2.3", "host", "", "::1"])
def test_nothing_but_an_address_gets_into_a_rule(source: str) -> None:
    """A source with a newline could add rules of its own."""
    with pytest.raises(OSError, match="illegal IP address"):
        _agent_network.chain_rules({"source": source, "drop": 1.0})


def test_rules_say_what_they_drop() -> None:
    """A cut is a plain rule, loss is a random match."""
    (cut,) = _agent_network.chain_rules({"source": "198.18.1.11", "drop": 1.0})
    (loss,) = _agent_network.chain_rules({"source": "198.18.1.11", "drop": 0.8})
    assert cut == "-A SEATRIAL -s 198.18.1.11 -j DROP"
    assert "--mode random --probability 0.800000 -j DROP" in loss


def test_what_is_lost_is_not_late() -> None:
    """A delayed link uses the queue, after the random match; a cut one does not; an unaffected one
    has no rule."""
    late = {"source": "198.18.1.11", "drop": 0.8, "delay_s": 0.1}
    lost, queued = _agent_network.chain_rules(late)
    assert lost.endswith("-j DROP")
    assert queued.startswith("-A SEATRIAL -s 198.18.1.11 -j NFQUEUE --queue-num ")
    assert queued.endswith(" --queue-bypass"), "without its helper a link is as without a fault"
    assert len(_agent_network.chain_rules({**late, "drop": 1.0})) == 1
    assert _agent_network.chain_rules({"source": "198.18.1.11", "drop": 0.0}) == []


def test_answers_overtake_each_other(agent: Agent, tmp_path: Path) -> None:
    """A slow command delays no other: the second request is answered first."""
    stdin = base64.b64encode(b"").decode()
    gate = tmp_path / "gate"
    argv = ["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done"]
    slow = {"id": 1, "do": "run", "argv": argv, "stdin": stdin, "timeout_s": 60.0}
    agent.send(json.dumps(slow))
    agent.send(json.dumps({"id": 2, "do": "state", "name": "nobody"}))
    assert agent.answer()["id"] == 2
    gate.touch()
    assert agent.answer()["id"] == 1


def test_it_needs_the_standard_library_only() -> None:
    """Its files can be copied to any machine with Python."""
    for name in ("agent", "network", "nfqueue"):
        text = Path(_agent.__file__).with_name(f"{name}.py").read_text()
        imported = [
            line.split()[1] for line in text.splitlines() if line.startswith(("import", "from"))
        ]
        assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
