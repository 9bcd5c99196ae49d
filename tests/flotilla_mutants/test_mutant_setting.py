"""The setting `mutant`: a key of the driver's, refused when unknown, the same on all hosts."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from clusters.flotilla.client.outcomes import overall
from clusters.flotilla_mutants import MUTANTS
from clusters.hosts._agent import archive as _archive
from clusters.hosts.simulated.machine import PROGRAMS
from clusters.systems.flotilla.client import overall_rule
from clusters.systems.flotilla.layout import Layout, cluster_nodes
from clusters.systems.flotilla.profiles import settings
from harness.contracts import CLIENT
from harness.errors import UnknownName
from harness.trial import Trial

NODE = """
role = "nameserver"
nodeName = "nameserver-1"
listenHost = "127.0.0.1"
listenPort = 0
storePath = "{store}"
"""


def test_a_node_runs_the_mutant_that_is_set() -> None:
    """Every name is a program's argument; without one the sound program runs."""
    assert settings(Trial()).program == ("clusters.flotilla",)
    for name in MUTANTS:
        chosen = settings(Trial(settings={"mutant": name}))
        assert chosen.program == ("clusters.flotilla_mutants", name)
        assert chosen.program[0] in PROGRAMS, "simulated nodes know it too"


def test_a_node_does_not_learn_that_it_is_a_mutant() -> None:
    """Configurations and what clients are told are the same as a sound cluster's."""
    nodes = cluster_nodes({})
    servers = [node for node in nodes if node.role != CLIENT]
    sound, mutant = (
        Layout(nodes, settings(Trial(settings=chosen)), {"t": 4}, 1)
        for chosen in ({}, {"mutant": "no-union"})
    )
    for node in servers:
        assert sound.config(node, "/n") == mutant.config(node, "/n")
    assert sound.client(nodes) == mutant.client(nodes)


def test_only_clients_learn_of_a_flaw_of_clients() -> None:
    """Nodes run as ever; the client is given the name, and decides as the mutant does."""
    nodes = cluster_nodes({})
    layout = Layout(nodes, settings(Trial(settings={"mutant": "last-attempt-counts"})), {"t": 4}, 1)
    told = layout.client(nodes)
    assert told["mutant"] == "last-attempt-counts"
    assert overall_rule(told) is MUTANTS["last-attempt-counts"].overall
    sound = Layout(nodes, settings(Trial()), {"t": 4}, 1)
    assert [layout.config(n, "/n") for n in nodes[:7]] == [sound.config(n, "/n") for n in nodes[:7]]
    assert overall_rule(sound.client(nodes)) is overall


@pytest.mark.parametrize("wrong", ["no-unoin", "", 7])
def test_an_unknown_mutant_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(UnknownName) as caught:
        settings(Trial(settings={"mutant": wrong}))
    assert set(caught.value.choices) == set(MUTANTS)


def test_nodes_elsewhere_are_given_the_mutants() -> None:
    """The archive of packages carries them."""
    with tarfile.open(fileobj=io.BytesIO(_archive.archive())) as archive:
        assert "clusters/flotilla_mutants/__main__.py" in archive.getnames()


@pytest.mark.bed
def test_a_mutant_runs_as_a_process(tmp_path: Path) -> None:
    """The same main, started by the name of the flaw; it listens, and stops when it is asked to."""
    path = tmp_path / "node.toml"
    path.write_text(NODE.format(store=tmp_path / "store"))
    argv = [sys.executable, "-m", "clusters.flotilla_mutants", "no-fsync", str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said = process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=600) == 0
    assert said.startswith("ready nameserver nameserver-1")


@pytest.mark.bed
@pytest.mark.parametrize("arguments", [[], ["no-such-flaw", "node.toml"]])
def test_a_process_without_a_known_flaw_says_what_there_is(arguments: list[str]) -> None:
    argv = [sys.executable, "-m", "clusters.flotilla_mutants", *arguments]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 64
    assert len(ran.stderr.splitlines()) == 1
    assert all(name in ran.stderr for name in MUTANTS)
