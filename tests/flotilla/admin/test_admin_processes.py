"""The operator's tool as a process against a cluster of processes."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from loopback import PATIENCE_S, free_port

from clusters.flotilla.net.wire import Json

pytestmark = pytest.mark.bed
ROOT = Path(__file__).resolve().parents[3]


def admin(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of a real command line."""
    done = subprocess.run(
        [sys.executable, "-m", "clusters.flotilla", "admin", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def until(fits: Callable[[Json], bool], *words: str) -> Json:
    """What the command answers once it fits; the command itself is the pause between two looks."""
    give_up = monotonic() + PATIENCE_S
    while True:
        code, said, why = admin(*words, "--json")
        if code == 0 and fits(answer := json.loads(said)):
            return dict(answer)
        assert monotonic() < give_up, (code, said, why)


def broker(raise_node: Any, number: int, nameserver: Any, controllers: Any) -> Any:
    host = f"127.0.0.{10 + number}"
    return raise_node(
        f"b{number}",
        "broker",
        host=host,
        haListenPort=free_port(host),
        brokerName="b",
        namesrvAddr=[nameserver.address],
        controllerAddr=[c.address for c in controllers.nodes.values()],
        topics={"t": 4},
        mappedFileSizeCommitLog=1024 * 1024,
        allAckInSyncStateSet=True,
    )


def whole(size: int) -> Callable[[Json], bool]:
    return lambda told: bool(told["sets"]) and len(told["sets"][0]["set"]) == size


def test_an_operator_works_on_a_running_cluster(
    raise_node: Any, controllers: Any, nameserver: Any
) -> None:
    """Looks and orders through the command line, tables and JSON, done and refused."""
    nodes = {n: broker(raise_node, n, nameserver, controllers) for n in (1, 2)}
    where = ("--controllers", next(iter(controllers.nodes.values())).address)
    routes = ("--namesrv", nameserver.address)
    [row] = until(whole(2), "syncStateSet", *where)["sets"]
    other = next(i for i in row["set"] if i != row["masterId"])

    drill = ("drill", "b", "--to", str(other), *where)
    until(lambda told: told["masters"][0]["masterId"] == other, *drill)
    code, said, why = admin(*drill)  # it is so already, and that is no mistake
    assert (code, why) == (0, "")
    names, values = (line.split() for line in said.splitlines())
    assert dict(zip(names, values, strict=True))["masterId"] == str(other)
    [row] = until(whole(2), "syncStateSet", *where)["sets"]
    assert row["masterId"] == other

    until(lambda told: len(told["members"]) == 2, "memberGroup", "b", *routes)
    until(lambda told: told["status"] == "SUCCESS", "topics", "create", "u", *routes)
    code, said, why = admin("topics", "list", *routes)
    assert (code, why) == (0, "")
    assert said.split() == ["topic", "queues", "t", "4", "u", "8"]

    code, said, why = admin("updateConfig", "brokerElectionPriority=7", "--node", nodes[1].address)
    assert (code, why) == (0, "")
    assert said.splitlines()[1].split() == [nodes[1].address, "brokerElectionPriority", "7", "true"]
    assert nodes[1].events("config")[-1]["changed"] == {"brokerElectionPriority": 7}

    assert admin("electMaster", "b", "9", *where) == (
        1,
        "",
        "BROKER_NEED_TO_BE_REGISTERED: the broker set b has no broker 9\n",
    )


def test_silence_and_strangers_are_told_in_one_sentence(controllers: Any) -> None:
    """Controllers that hang, closed ports, ports of other programs: exit code 2, in time."""
    where = ",".join(node.address for node in controllers.nodes.values())
    for node in controllers.nodes.values():
        node.send_signal(signal.SIGSTOP)
    with ExitStack() as stack:
        for node in controllers.nodes.values():
            stack.callback(node.send_signal, signal.SIGCONT)
        began = monotonic()
        code, said, why = admin(
            "kv", "put", "a", "b", "c", "--controllers", where, "--timeout", "1"
        )
        assert (code, said) == (2, "")
        assert why.startswith(("no node answered: ", "no answer within 1 s"))
        assert len(why.splitlines()) == 1
        assert monotonic() - began < PATIENCE_S

    code, said, why = admin("getConfig", "--node", f"127.0.0.1:{free_port()}", "--timeout", "1")
    assert (code, said, why.split(":")[0]) == (2, "", "no node answered")

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(PATIENCE_S)
        host, port = stranger.getsockname()
        line = (sys.executable, "-m", "clusters.flotilla", "admin", "getConfig")
        with subprocess.Popen(
            [*line, "--node", f"{host}:{port}"], cwd=ROOT, stderr=subprocess.PIPE, text=True
        ) as tool:
            taken, _ = stranger.accept()
            taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            _, complained = tool.communicate(timeout=PATIENCE_S)
            taken.close()
    assert tool.returncode == 2
    assert complained.startswith("no answer came; the outcome is unknown: ")
    assert len(complained.splitlines()) == 1
