"""The edition covers everything that a simulated run depends on, and no code that only shows
results.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

from clusters.hosts.simulated.edition import PACKAGES, ROOT, _imported_names, sources

RUN = """
import json, sys
from pathlib import Path
from harness.campaign.simulation import simulate
from harness.campaign.swarm import draw_trial
from harness.trial import Trial

trial, plan = draw_trial(3, Trial(hosts="simulated", duration_s=4.0))
simulate(trial, plan, Path(sys.argv[1]) / "run")
modules = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
print(json.dumps(modules))
"""


def test_whatever_a_run_imports_is_covered(tmp_path: Path) -> None:
    """A seed is drawn, run and judged in a fresh process: no module of ours is left out."""
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    loaded = {Path(file) for file in json.loads(out.splitlines()[-1]) if file}
    ours = {file for file in loaded if file.is_relative_to(ROOT) and ".venv" not in file.parts}
    assert len(ours) > 50
    assert ours <= sources()


def test_imports_are_found_as_a_parser_finds_them() -> None:
    """In every file of the edition, and in any form of the statement."""
    forms = (
        "import clusters.kit as kit, harness.trial\n"
        "def late():\n"
        "    from .a import (  # why\n        b as c,\n        d,\n    )\n"
        "    from ... import e  # f, g\n"
        "    from harness.trial import Trial, h\n"
    )
    cases = [(("harness", "run", "x"), forms.encode())]
    cases += [
        (path.parent.relative_to(ROOT).parts, path.read_bytes())
        for path in sources()
        if path.suffix == ".py"
    ]
    for package, code in cases:
        assert _imported_names(package, code) == _parsed_names(package, code), package


def _parsed_names(package: tuple[str, ...], code: bytes) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = (*above, *(node.module.split(".") if node.module else ()))
            found |= {module, *((*module, alias.name) for alias in node.names)}
    return {name for name in found if name[0] in PACKAGES}


def test_what_looks_on_is_not() -> None:
    """Commands, reports and other hosts may change without making evidence worthless."""
    names = {path.relative_to(ROOT).as_posix() for path in sources()}
    assert "clusters/systems/flotilla/profiles.toml" in names
    assert "checkers/loss.py" in names
    for name in (
        "harness/cli/main.py",
        "harness/campaign/run.py",
        "clusters/hosts/docker/hosts.py",
    ):
        assert (ROOT / name).is_file()
        assert name not in names
    assert not any(name.startswith(("reports/", "harness/commands/")) for name in names)
