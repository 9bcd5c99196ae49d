"""Dependencies point one way: import-linter's contracts in pyproject.toml hold, and no circles."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import networkx as nx

from harness import registry

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
import harness.run.runner
from harness import registry

registry.module("hosts", "local")
print(open("/proc/self/status").read())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "Threads:\t1\n" in ran.stdout


# Names of plug-ins and codes of findings that stand in harness/, and why. Workloads and importers,
# which live there, name the checkers that judge them.
NAMED = {
    "a default of the command line": {
        "harness/cli/commands/doctor.py": {"local"},
        "harness/cli/commands/list.py": {"local", "flotilla"},
        "harness/selftest/mutants.py": {"flotilla"},
        "harness/trial.py": {"local", "flotilla", "simulated"},
    },
    "another meaning of the word": {
        "harness/run/status_file.py": {"masters"},  # those that serve now
        "harness/campaign/view.py": {"simulated"},  # hours
        "harness/cli/cluster.py": {"masters"},
        "harness/cli/commands/simulate.py": {"simulated"},  # the command's subject
        "harness/run/client_pool.py": {"crash"},  # an order to a client process
        "harness/judge/demands.py": {"linearizable"},  # a demand
        "harness/cli/cluster_server.py": {"masters"},
        "harness/history/reader.py": {"CORRUPTED"},  # a mark of notes
        "harness/history/faults_and_events.py": {"order"},  # a parameter
        "harness/run/launch.py": {"delay"},  # an ability of hosts
        "harness/run/progress.py": {"masters"},
        "harness/history/notes.py": {"CORRUPTED"},
        "harness/history/schema.py": {"replicas"},
        "harness/shrink/search.py": {"groups"},  # an option of a load
        "harness/shrink/simulated.py": {"simulated"},
        "harness/campaign/simulation.py": {"simulated"},  # a field of the run's state
        "harness/spark/master.py": {"local"},  # a Spark master
        "harness/suite/execution.py": {"simulated"},
        "harness/run/trial_run.py": {
            "recovery",
            "replicas",
            "unsynced",
        },  # an event; a table; hosts
        "harness/run/disk_needs.py": {"unsynced"},  # an ability of hosts
        "harness/run/monitors.py": {"masters"},
        "harness/contracts/hosts.py": {  # abilities of hosts
            *("bandwidth", "clock", "delay", "loss", "power", "restart", "unsynced"),
        },
    },
    "numbers that this checker counts are shown": {
        "harness/selftest/mutants.py": {"coverage"},
        "harness/campaign/simulation.py": {"coverage", "invariants", "loss"},
        "harness/judge/verdict.py": {"coverage", "loss"},
        "harness/suite/figures.py": {
            *("availability", "coverage", "duplicates", "loss", "replicas"),
        },
    },
    "the trial's `compare_replicas` is for this checker": {
        "harness/run/preflight.py": {"replicas"}
    },
    "a crash is no proof that a planted mistake was caught": {
        "harness/selftest/mutants.py": {"NODE_CRASHED"},
    },
}


def test_the_harness_names_no_plug_in(root: Path) -> None:
    """No fault, checker, system or kind of hosts, and no finding, but for the reasons above."""
    kinds = ("fault", "checker", "system", "hosts")
    names = {name for kind in kinds for name in registry.names(kind)}
    names |= set(registry.finding_codes())
    allowed: dict[str, set[str]] = {}
    for files in NAMED.values():
        for file, words in files.items():
            allowed.setdefault(file, set()).update(words)
    for path in sorted((root / "harness").rglob("*.py")):
        if path.relative_to(root).parts[1] in ("workloads", "importers"):
            continue
        file = path.relative_to(root).as_posix()
        named = names & set(_literals(ast.parse(path.read_text())))
        assert named <= allowed.get(file, set()), file


def _literals(tree: ast.Module) -> Iterator[str]:
    """All strings of a module but its docstrings."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, described) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from () if id(node) in docstrings else (node.value,)
