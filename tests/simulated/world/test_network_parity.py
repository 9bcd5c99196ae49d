"""A protocol sees the same on the simulated network as on Linux's.

The scenes are in network_scenes.py; the same parties run them on real sockets in namespaces and in
the simulated world, and their transcripts must be equal.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import network_scenes
import pytest
from network_scenes import EITHER, SCENES, Said, simulated

SEEDS = range(3)
ONE_END = [scene for scene in SCENES if scene not in EITHER]
Told = dict[tuple[str, str], list[str]]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Said]:
    """Every scene's transcript on real sockets."""
    folders = str(root), str(Path(network_scenes.__file__).parent)
    done = subprocess.run(
        [sys.executable, network_scenes.__file__, str(tmp_path_factory.mktemp("scenes"))],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Said] = json.loads(done.stdout)
    return seen


def by_talk(said: Said) -> Told:
    """Return what each connection's protocol saw. No network orders the events of two
    connections."""
    told: Told = {}
    for node, lines in said.items():
        for line in lines:
            talk, _, what = line.partition(" ")
            told.setdefault((node, talk), []).append(what)
    return told


@pytest.mark.bed
@pytest.mark.parametrize("scene", ONE_END)
def test_the_same_is_seen_on_real_sockets(scene: str, real: dict[str, Said]) -> None:
    """Which callbacks, in which order, with which errno: no difference, whatever the random
    numbers."""
    for seed in SEEDS:
        assert by_talk(simulated(scene, seed)) == by_talk(real[scene])


@pytest.mark.bed
@pytest.mark.parametrize("scene", sorted(EITHER))
def test_where_real_sockets_show_either_so_does_luck(scene: str, real: dict[str, Said]) -> None:
    """Both outcomes are drawn, and a real one is among them."""
    ends = [by_talk(simulated(scene, seed)) for seed in range(10)]
    assert sum(end not in ends[:at] for at, end in enumerate(ends)) == 2
    assert by_talk(real[scene]) in ends


@pytest.mark.parametrize("scene", ONE_END)
def test_a_scene_comes_to_its_end_in_the_simulated_world(scene: str) -> None:
    """No party waits in vain, and random numbers change nothing that a party can tell."""
    assert by_talk(simulated(scene, 1)) == by_talk(simulated(scene, 2))
