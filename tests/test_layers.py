"""Dependencies point one way: import-linter's contracts in pyproject.toml hold, and no circles."""

import subprocess
import sys
from pathlib import Path

import grimp
import networkx as nx

ROOT = Path(__file__).resolve().parents[1]


def test_dependencies_point_one_way() -> None:
    """harness imports no plug-in; plug-ins import no other kind; Flotilla imports nothing of us."""
    linter = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 broken" in ran.stdout


def test_no_file_imports_another_that_imports_it() -> None:
    """At whatever distance; a name that only annotations need is no import."""
    packages = ("nemesis", "checkers", "clusters", "reports")
    graph = grimp.build_graph(
        "harness", *packages, exclude_type_checking_imports=True, cache_dir=None
    )
    imports = nx.DiGraph(
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    )
    assert imports.number_of_edges() > 1000
    assert not list(nx.simple_cycles(imports))


def test_the_runner_has_one_thread_until_it_has_entered_its_namespaces() -> None:
    """A process of several may not enter a user namespace: nothing that is imported before that
    starts one."""
    program = """
import harness.runner
from harness import registry

registry.module("hosts", "local")
print(open("/proc/self/status").read())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "Threads:\t1\n" in ran.stdout
