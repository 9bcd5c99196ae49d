"""The inventory of a cluster that exists already, and what is refused before it is touched."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Any, cast

import pytest

from clusters.hosts import attached
from clusters.hosts._agent.driver import ExistingState, PipeAgent
from clusters.hosts.attached import inventory
from clusters.hosts.attached.containers import _shared_network
from clusters.hosts.attached.inventory import ExistingContainer, ExistingMachineProcess, pair
from clusters.hosts.attached.machines import MachineProcess
from clusters.hosts.ssh.inventory import InventoryHost
from harness.contracts import CommandResult, Node
from harness.errors import BadRequest, BedFailed
from harness.trial import Trial

HOST = '[[node]]\nhost = "10.0.0.1"\n'
CLIENT = '[[client]]\nhost = "10.0.0.9"\n'
UNIT = f'{HOST}unit = "etcd.service"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def test_containers_by_name_and_by_project(tmp_path: Path) -> None:
    found = inventory.load(written(tmp_path, '[[node]]\ncontainer = "etcd-1"\nrole = "server"\n'))
    assert found.containers == (ExistingContainer("etcd-1", "server"),)
    found = inventory.load(written(tmp_path, '[compose]\nproject = "shop"\nservice = "etcd"\n'))
    assert found.compose is not None
    assert (found.compose.project, found.compose.service) == ("shop", "etcd")


def test_machines_take_the_keys_and_defaults_of_an_ssh_inventory(tmp_path: Path) -> None:
    text = f'[defaults]\nuser = "ops"\n{UNIT}port = 2222\n{CLIENT}'
    found = inventory.load(written(tmp_path, text))
    [machine], [client] = found.machines, found.clients
    assert (machine.host.user, machine.host.port, machine.unit) == ("ops", 2222, "etcd.service")
    assert (machine.host.address, client.user) == ("10.0.0.1", "ops")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "it names no node"),
        ("[[nodes]]\n", "line 1: unknown table 'nodes'"),
        ('[[node]]\ncontainer = "a b"\n', "line 2: container must be one word"),
        ('[[node]]\ncontainer = "--privileged"\n', "line 2: container must be one word"),
        ('[[node]]\ncontainer = "a"\nstart = "x"\n', "line 3: start is not for a container"),
        ('[[node]]\nrole = "server"\n', "line 1: it has no container"),
        (HOST + CLIENT, "line 1: it needs either unit"),
        (f'{UNIT}process = "etcd"\n{CLIENT}', "line 1: it needs either unit"),
        (f'{HOST}process = "("\n{CLIENT}', "line 3: process is not a regular expression"),
        (f'{HOST}process = "a"\nstart = "a\\nb"\n{CLIENT}', "line 4: start must be a string"),
        (f'{UNIT}usr = "x"\n{CLIENT}', "line 4: unknown key 'usr'"),
        (UNIT, "it has no [[client]]"),
        (f"{UNIT}{UNIT}{CLIENT}", "line 5: host '10.0.0.1' is there twice"),
        (f'{UNIT}[[node]]\ncontainer = "a"\n', "line 1: nodes must all be containers"),
        (f'[[node]]\ncontainer = "a"\n{CLIENT}', "line 3: containers get client containers"),
        ('[compose]\nproject = "shop"\n', "line 1: it has no service"),
        ('[compose]\nproject = "a"\nservice = "b"\n[[node]]\ncontainer = "c"\n', "not both"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, error: str) -> None:
    """The message names file, line and key."""
    path = written(tmp_path, text)
    with pytest.raises(BadRequest) as refused:
        inventory.load(path)
    assert str(path) in str(refused.value)
    assert error in str(refused.value)


def test_nodes_of_a_role_are_its_targets_in_order() -> None:
    nodes = [Node("server-1", "server"), Node("server-2", "server"), Node("client-1", "client")]
    one, two = ExistingContainer("a"), ExistingContainer("b", "server")
    assert pair(nodes, [one, two], "f") == {"server-1": one, "server-2": two}
    with pytest.raises(BadRequest, match="too few nodes of the role server"):
        pair(nodes, [one], "f")
    with pytest.raises(BadRequest, match="nodes of the role server that the trial has not"):
        pair(nodes, [one, two, one], "f")


def test_links_are_cut_on_the_one_network_that_all_containers_share() -> None:
    def one(name: str, *networks: str) -> dict[str, Any]:
        ends = {network: {"IPAddress": "172.18.0.2"} for network in networks}
        return {"Name": f"/{name}", "NetworkSettings": {"Networks": ends}}

    assert _shared_network([one("a", "x", "y"), one("b", "y", "z")]) == "y"
    with pytest.raises(BedFailed, match="share no network"):
        _shared_network([one("a", "x"), one("b", "y")])
    with pytest.raises(BedFailed, match="share 2 networks"):
        _shared_network([one("a", "x", "y"), one("b", "x", "y")])


def test_without_a_way_to_start_a_process_nothing_may_be_killed(tmp_path: Path) -> None:
    """The hosts lack `restart`, which `kill` needs; the files of nodes are never ours."""
    path = written(tmp_path, f"{UNIT}{CLIENT}")
    assert "restart" in able(path)
    assert able(path).isdisjoint({"files", "disk", "unsynced", "clock", "limits", "power"})
    path = written(tmp_path, f'{HOST}process = "etcd"\n{CLIENT}')
    assert "restart" not in able(path)


def able(path: Path) -> frozenset[str]:
    trial = Trial(hosts="attached", bed={"inventory": str(path)})
    return frozenset(attached.hosts(trial, path.parent).can)


class PlayedAgent:
    """An agent on a machine whose process has a pid, or 0; `systemctl start` gives it another."""

    def __init__(self, pid: int) -> None:
        self.pid, self.log = pid, list[Any]()

    async def look(self, pid: int, started: int, name: str) -> ExistingState:
        there = self.pid and (name or pid == self.pid)
        return ExistingState(self.pid, 5, "S") if there else ExistingState(0, 0, "")

    async def hit(self, pid: int, started: int, number: int) -> None:
        self.log.append(("hit", pid, started, number))
        self.pid = 0 if number == SIGKILL else self.pid

    async def at_leave(self, argv: Sequence[str]) -> None:
        self.log.append(("at leave", *argv))

    async def run(self, argv: Sequence[str], timeout_s: float = 10.0) -> CommandResult:
        if "start" in argv:
            self.pid = 77
        return CommandResult(0, f"{self.pid}\n", "")


def test_a_unit_is_killed_by_its_main_pid_and_started_by_systemd() -> None:
    """Before the signal, the agent has the command that undoes it if the driver dies."""
    agent = PlayedAgent(42)
    target = ExistingMachineProcess(InventoryHost("db1"), unit="etcd.service")
    process = MachineProcess("server-1", cast(PipeAgent, agent), target)

    async def story() -> None:
        await process.signal(SIGSTOP)
        await process.signal(SIGKILL)
        assert (await process.state()).state == "exited"
        assert (await process.state()).code == -SIGKILL
        await process.signal(SIGKILL)  # it has ended: nothing is hit
        await process.start()
        assert ((await process.state()).pid, (await process.state()).code) == (77, 0)

    asyncio.run(story())
    start = ("at leave", "systemctl", "start", "etcd.service")
    assert agent.log == [("hit", 42, 5, SIGSTOP), start, ("hit", 42, 5, SIGKILL)]
