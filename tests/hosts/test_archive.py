"""The archive of code for nodes: with it alone, a Python without packages loads plug-ins."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import outside_systems
import pytest

SAVE = """
import sys
from clusters.hosts._agent.archive import archive
sys.stdout.buffer.write(archive())
"""
LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
from harness import registry
for name in sys.argv[2:]:
    print(registry.system(name).system.args[0].name)
"""
PACKAGES = """
import sys
sys.path.insert(0, sys.argv[1])
from harness import registry
print(dict(sorted(registry._outside_packages().items())))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a machine with a package of drivers, unpacked."""
    folder = tmp_path_factory.mktemp("archive")
    found = outside_systems.install(folder / "site")
    argv = [sys.executable, "-c", SAVE]
    done = subprocess.run(argv, env={**os.environ, **found}, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(folder / "packages", filter="data")
    return folder / "packages"


def on_node(packages: Path, code: str, *words: str) -> str:
    argv = [sys.executable, "-I", "-S", "-c", code, str(packages), *words]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=packages, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_drivers_of_other_packages_are_found_on_nodes(packages: Path) -> None:
    """A package and a single module, by the names of their entry points."""
    names = (outside_systems.OWN_ETCD, outside_systems.OWN_NATS)
    assert on_node(packages, LOAD, *names).split() == list(names)


def test_errors_on_nodes_name_the_package(packages: Path) -> None:
    """The distribution keeps its name, since messages of errors have it."""
    shown = on_node(packages, PACKAGES)
    assert shown.strip() == "{'own_nats': 'own-systems', 'own_systems': 'own-systems'}"
