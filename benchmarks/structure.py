"""Measure how the code is laid out: sizes, importers, shared class names, banned words, and the
walk of one loss check from module to module.

    python benchmarks/structure.py            the table
    python benchmarks/structure.py --walk     and the steps of the walk, one a line
    python benchmarks/structure.py --bytes 200 > before.txt
                                              digests of 200 simulated seeds' verdicts, to compare
                                              with those of another commit by `diff`

A step of the walk is a run of functions of one module, in the order in which they were first
called; a step into a module that was left before is a return. The traced call is `loss.check` on a
simulated run that lost acknowledged messages, judged in this process.
"""

import argparse
import ast
import hashlib
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("harness", "nemesis", "checkers", "clusters", "reports")
PLUGIN_FOLDERS = {
    "nemesis", "checkers", "reports", "clusters/systems", "clusters/hosts",
    "harness/workloads", "harness/importers", "harness/cli/commands",
}  # fmt: skip
SMALL_LINES = 100
BANNED = re.compile(r"\b(nobody|somebody|whoever|told|anew|by lot|for ever)\b", re.IGNORECASE)
LOSING = ("--hosts", "simulated", "--profile", "unsafe-default", "--plan", "isolate-then-kill")


def sources(*folders: str) -> list[Path]:
    """Python files of these folders, caches excepted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def module(path: Path) -> str:
    """The dotted name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """Every name that a file's import statements could mean as a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            source = ".".join((*package, *((node.module,) if node.module else ())))
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def lone(paths: list[Path]) -> list[str]:
    """Modules of under 100 lines that one module of the same package alone imports."""
    modules = {module(path): path for path in paths}
    importers: dict[str, set[str]] = {name: set() for name in modules}
    for path in paths:
        for name in set(imported(path)) & modules.keys():
            importers[name].add(module(path))
    return [
        name
        for name, users in importers.items()
        if len(users) == 1
        and min(users).split(".")[0] == name.split(".")[0]
        and modules[name].name != "__init__.py"
        and lines([modules[name]]) < SMALL_LINES
    ]


def fullest(paths: list[Path]) -> tuple[str, int]:
    """The folder with the most Python files, folders of plug-ins excepted."""
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in paths)
    return max(
        ((name, count) for name, count in folders.items() if name not in PLUGIN_FOLDERS),
        key=lambda one: one[1],
    )


def homonyms(paths: list[Path]) -> Counter[str]:
    """Class names that several modules define, and how many do."""
    names: Counter[str] = Counter()
    for path in paths:
        tree = ast.parse(path.read_text())
        names.update({node.name for node in tree.body if isinstance(node, ast.ClassDef)})
    return Counter({name: count for name, count in names.items() if count > 1})


def banned(paths: list[Path]) -> int:
    """Banned words in docs, and in strings and comments of the product, identifiers excepted."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sum(len(BANNED.findall(path.read_text())) for path in [*paths, *documents])


def walk(folder: Path) -> list[tuple[str, list[str]]]:
    """Each step of the loss check: a module and its functions called for the first time."""
    from checkers.loss import check
    from harness.history.reader import History
    from harness.history.rundir import RunDir

    run = RunDir.open(folder)
    check(History.open(run), run.trial(), None)  # what is imported meanwhile is not of the walk
    history = History.open(run)
    history.read_ahead()  # as the judge does
    first: dict[tuple[str, str], None] = {}

    def called(frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT) and ".venv" not in file.parts:
            first[str(file.relative_to(ROOT)), frame.f_code.co_qualname] = None

    trial = run.trial()
    sys.setprofile(called)
    try:
        check(history, trial, None)
    finally:
        sys.setprofile(None)
    steps = groupby(first, key=lambda one: one[0])
    return [(name, [function for _, function in functions]) for name, functions in steps]


def losing_run(folder: Path) -> Path:
    """A simulated run that lost acknowledged messages."""
    command = [str(Path(sys.executable).with_name("seatrial")), "run", "messages", "--seed", "1"]
    subprocess.run([*command, *LOSING, "--no-report", "--quiet", "--runs", str(folder)], cwd=ROOT)
    return (folder / "latest").resolve()


def verdicts(seeds: int) -> Iterator[str]:
    """A digest of each simulated seed's verdict."""
    from harness.campaign.simulation import simulate
    from harness.campaign.swarm import draw_trial
    from harness.trial import Trial

    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, seeds + 1):
            trial, plan = draw_trial(seed, Trial(name="structure"))
            run = simulate(trial, plan, Path(folder) / str(seed)).run
            yield f"{seed} {hashlib.sha256(run.verdict_file.read_bytes()).hexdigest()}"


def table() -> Iterator[tuple[str, str]]:
    product, tests = sources(*PACKAGES), sources("tests")
    folder, most = fullest(product)
    shared = homonyms(product)
    yield "lines of product Python", f"{lines(product):,}"
    yield "modules", f"{len(product):,}"
    yield f"of them under {SMALL_LINES} lines with one importer", f"{len(lone(product)):,}"
    yield "most files in a folder that is no plug-in folder", f"{most} ({folder})"
    yield "class names that several modules define", f"{len(shared)}"
    yield "banned words in product and docs", f"{banned(product):,}"
    yield "lines of tests", f"{lines(tests):,}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--walk", action="store_true", help="print the steps of the walk")
    parser.add_argument("--bytes", type=int, default=0, metavar="SEEDS", help="print digests only")
    asked = parser.parse_args()
    if asked.bytes:
        for line in verdicts(asked.bytes):
            print(line, flush=True)
        return 0
    for name, value in table():
        print(f"{name:>52}  {value}")
    with tempfile.TemporaryDirectory() as folder:
        steps = walk(losing_run(Path(folder)))
    rooms = len({name for name, _ in steps})
    print(f"{'steps, modules and returns of the loss check':>52}  ", end="")
    print(f"{len(steps)}, {rooms}, {len(steps) - rooms}")
    if asked.walk:
        for name, functions in steps:
            print(f"  {name}: {', '.join(functions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
