"""Rules of layout and style that hold for every file."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("harness", "nemesis", "checkers", "clusters", "reports")
LONGEST_FUNCTION = 70
LONGEST_FILE = 700
MAX_FILES = 25  # in a folder
MAX_LONE = 10  # modules of under 100 lines with one importer; never more than there are now
PLUGIN_FOLDERS = {
    *("nemesis", "checkers", "reports", "clusters/systems", "clusters/hosts"),
    *("harness/workloads", "harness/importers", "harness/cli/commands"),
}
BANNED = re.compile(r"\b(nobody|somebody|whoever|told|anew|by lot|for ever)\b", re.IGNORECASE)
ALLOWED = {  # a user's name; words in recorded files; the name of a flaw
    "nobody:x:65534:65534:nobody",
    'evidence["told"]',
    'info.set_epoch, "told")',
    "elected-but-not-told",
}
VAGUE = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# somebody's own machine: a path on it, or the address of a registry near it
PRIVATE = re.compile(
    r"(?<![\w/])/(?:work|root|home/\w+|Users/\w+|tmp/bash_jobs)\b"
    r"|https?://[\w.-]+(?::\d+)?/(?:simple|root/pypi|artifactory|repository)\b"
    r"|--index-url|--extra-index-url|index_url"
)
TEXTS = {".py", ".toml", ".md", ".txt", ".yml", ".yaml", ".cff", ".html", ".css", ".js", ".j2", ""}


@cache
def _tracked() -> tuple[Path, ...]:
    """Files that git knows or would add; every file, where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        return tuple(p for p in ROOT.rglob("*") if p.is_file() and ".venv" not in p.parts)
    return tuple(p for p in (ROOT / n for n in listed.stdout.splitlines()) if p.is_file())


def _python(*, tests: bool = True) -> Iterator[Path]:
    for path in _tracked():
        if path.suffix == ".py" and (tests or path.relative_to(ROOT).parts[0] in PACKAGES):
            yield path


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Outline(NamedTuple):
    """What the rules ask of a module, which is parsed once for all of them."""

    theory: str
    classes: list[str]  # those of the module's own level
    functions: list[tuple[str, int]]  # name, lines; inner ones as well


@cache
def _outline(path: Path) -> Outline:
    module = ast.parse(path.read_text())
    functions = [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in _statements(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    classes = [node.name for node in module.body if isinstance(node, ast.ClassDef)]
    return Outline(ast.get_docstring(module) or "", classes, functions)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node consists of, without looking for statements in expressions."""
    yield node
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield from _statements(child)


def test_functions_are_short() -> None:
    """No function has more than 70 lines."""
    long = [
        f"{_name(path)}:{name} has {lines} lines"
        for path in _python()
        for name, lines in _outline(path).functions
        if lines > LONGEST_FUNCTION
    ]
    assert not long


def test_files_are_short() -> None:
    """No Python file has more than 700 lines."""
    lengths = {_name(path): len(path.read_text().splitlines()) for path in _python()}
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE}


def test_folders_are_small() -> None:
    """No folder of the product has more than 25 Python files, folders of plug-ins excepted."""
    folders = Counter(_name(path.parent) for path in _python(tests=False))
    crowded = {name: count for name, count in folders.items() if count > MAX_FILES}
    assert crowded.keys() <= PLUGIN_FOLDERS, crowded


def test_small_modules_belong_to_their_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of under 100 lines that one module of its package imports is part of that module.

    Plug-ins and cores without I/O are exceptions, which is why the number is not 0. The kit is for
    drivers of other packages, which are importers, too; mutants have one module for each mode.
    """
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    structure = import_module("structure")
    found = structure.lone(structure.sources(*PACKAGES))
    elsewhere = ("clusters.kit.", "clusters.flotilla_mutants.")
    lone = [module for module in found if not module.startswith(elsewhere)]
    assert len(lone) <= MAX_LONE, lone


def test_class_names_are_unique() -> None:
    """A class of the product has a name that no other module gives to a class."""
    modules: dict[str, list[str]] = {}
    for path in _python(tests=False):
        for name in _outline(path).classes:
            modules.setdefault(name, []).append(_name(path))
    assert not {name: paths for name, paths in modules.items() if len(paths) > 1}


def test_the_product_and_docs_use_plain_words() -> None:
    """Words of the code's old idiom are in no module of the product and on no page."""
    docs = [p for p in _tracked() if p.suffix == ".md"]
    found = [
        f"{_name(path)}:{number}: {line.strip()}"
        for path in [*_python(tests=False), *docs]
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if BANNED.search(line) and not any(words in line for words in ALLOWED)
    ]
    assert not found


def test_every_module_states_its_theory() -> None:
    """Every module opens with a docstring, and its first paragraph ends like a sentence."""
    poor = []
    for path in _python():
        theory = _outline(path).theory
        if not theory.split("\n\n")[0].rstrip().endswith((".", ":", "?")):
            poor.append(_name(path))
    assert not poor


def test_no_vague_module_names() -> None:
    """A module is named for its noun; utils, common, helpers, base and manager say nothing."""
    assert not [_name(p) for p in _python() if p.stem.strip("_") in VAGUE]


def test_no_module_is_named_like_the_standard_library() -> None:
    """Two modules of one name confuse readers, tracebacks and, one day, the import path."""
    ours = {p.stem: _name(p) for p in _python() if not p.stem.startswith("__")}
    assert not {name for stem, name in ours.items() if stem in sys.stdlib_module_names}


def test_nothing_is_left_undone() -> None:
    """Work that is left is an issue, not a remark in a file."""
    undone = [
        f"{_name(path)}:{number}"
        for path in _python()
        if path.name != Path(__file__).name
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not undone


def test_nobody_elses_machine_is_named() -> None:
    """No path of one machine, no address of one registry: a clone works anywhere."""
    named = []
    for path in _tracked():
        if path.suffix not in TEXTS or path.name == Path(__file__).name:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if PRIVATE.search(line):
                named.append(f"{_name(path)}:{number}: {line.strip()}")
    assert not named


def test_tests_are_not_a_package() -> None:
    """An `__init__.py` under tests/ would shadow a real package; basenames are unique instead."""
    inside = [p for p in _python() if p.relative_to(ROOT).parts[0] == "tests"]
    assert not [_name(p) for p in inside if p.name == "__init__.py"]
    names = [p.name for p in inside if p.name != "conftest.py"]
    assert not {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_what_it_is_for(package: str) -> None:
    """A folder's `__init__.py` is its front door."""
    assert _outline(ROOT / package / "__init__.py").theory


def test_versions_are_pinned_without_addresses() -> None:
    """constraints.txt says exact versions and nothing of where they come from."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert not [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", pin)]
