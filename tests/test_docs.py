"""Documentation that could go stale is generated, and compared with what the code says today.

`pytest tests/test_docs.py --rewrite` (or `make docs`) writes docs/catalogue.md, docs/cli.md and
docs/files.md. Links inside the documentation lead somewhere.
"""

import ast
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import click
import pytest
from format_pages import files_page, load_options

from harness import registry
from harness.cli.commands._group import COMMANDS, seatrial
from harness.cli.commands.list import mutants, profiles
from harness.contracts.membership import REJOIN
from harness.trial import Trial
from nemesis._plan.aliases import OPENCHAOS, aliases
from nemesis._plan.plan import SYSTEM_ABILITIES

WRITTEN_BY = "<!-- generated: make docs -->"
WIDTH = 100
KIND_TITLES = {
    "system": "Systems: what is tested (`--system`)",
    "hosts": "Hosts: where the nodes run (`--hosts`)",
    "workload": "Workloads: what clients do",
    "fault": "Faults: ways to break things (`--faults`)",
    "checker": "Checkers: the properties that are checked (`--checkers`)",
    "report": "Reports: formats of results (`--format`)",
    "importer": "Importers: histories of other tools (`--as`)",
}


def catalogue() -> str:
    """docs/catalogue.md: every plug-in, from the registry."""
    lines = [
        WRITTEN_BY,
        "# Catalogue",
        "",
        "Everything that can be named in a trial, as `seatrial list` prints it.",
    ]
    for kind in registry.KINDS:
        lines += ["", f"## {KIND_TITLES[kind]}", "", "| name | description |", "| --- | --- |"]
        lines += [f"| `{name}` | {_cell(text)} |" for name, text in registry.descriptions(kind)]
        for name in registry.names(kind):
            registry.plugin(kind, name)  # it keeps its contract
            lines += _details(kind, name)
        if kind == "fault":
            lines += _others()
    lines += [*_workloads_that_fit(), *_faults_that_fit(), *_checkers_that_fit()]
    return "\n".join(lines) + "\n"


def _details(kind: str, name: str) -> Iterator[str]:
    """A fault's parameters, a workload's options, a system's profiles and mutants."""
    if kind == "workload":
        yield from ("", f"### Options of `{name}` (`--load`)", "")
        yield from ("| option | default | meaning |", "|" + " --- |" * 3)
        rows = load_options(registry.workload(name).options)
        yield from (f"| {' | '.join(map(_cell, row))} |" for row in rows)
    if kind == "fault" and (params := registry.fault(name).params):
        yield from ("", f"### Parameters of `{name}`", "")
        yield from ("| parameter | meaning | default | values or unit |", "|" + " --- |" * 4)
        for key, param in params.items():
            values = ", ".join(f"`{word}`" for word in param.among) or param.unit
            yield f"| `{key}` | {_cell(param.meaning)} | `{json.dumps(param.default)}` | {values} |"
    for what, named in (("profile", profiles(kind, name)), ("mutant", mutants(kind, name))):
        rows = [f"| `{each}` | {_cell(about)} |" for each, about in named]
        if rows:
            title = f"### {what.capitalize()}s of `{name}`"
            yield from ("", title, "", f"| {what} | description |", "| --- | --- |", *rows)


def _workloads_that_fit() -> Iterator[str]:
    """Which system's clients have the calls that a workload needs."""
    systems = registry.names("system")
    yield from ("", "## What fits which system: workloads", "")
    yield "A workload fits a system whose clients have its calls; the others are refused before"
    yield "anything is started. `or` separates alternatives; where only some profiles fit, they are"
    yield "named."
    yield from ("", *_head("workload", "calls", *(f"`{name}`" for name in systems)))
    for workload in registry.names("workload"):
        needed = registry.workload(workload).calls
        fits = [_fits(system, needed) for system in systems]
        calls = " or ".join(", ".join(f"`{c}`" for c in sorted(each)) for each in needed)
        yield _row(f"`{workload}`", calls, *fits)


def _fits(system: str, needed: Collection[Collection[str]]) -> str:
    """Return whether a system's clients have one of the sets of calls, or the profiles that do."""
    plugin = registry.system(system)

    def has(profile: str = "") -> bool:
        trial = Trial(name="x", system=system, profile=profile)
        there = set(plugin.calls(trial)) if plugin.calls else set()
        return plugin.calls is None or any(there >= set(each) for each in needed)

    return "yes" if has() else ", ".join(f"`{name}`" for name in plugin.profiles() if has(name))


def _faults_that_fit() -> Iterator[str]:
    """Which faults a system can be given, and which its default profile claims to survive."""
    systems = registry.names("system")
    claims = {s: registry.system(s).claims(Trial(name="x", system=s)) for s in systems}
    yield from ("", "## What fits which system: faults", "")
    yield "`all`, `one`: the default profile claims to survive the fault on so many nodes. `yes`:"
    yield "the fault can be injected, and what it breaks is excused. Empty: it is refused, as the"
    yield "system cannot do what it needs (`rejoin`, `members`, `handover`, `versions`). Hosts need"
    yield "the other abilities that are named ([the table](writing-a-plugin.md#a-fault))."
    yield from ("", *_head("fault", "needs", *(f"`{name}`" for name in systems)))
    for fault in registry.names("fault"):
        needs = registry.fault(fault).needs
        fits = [
            claims[s].get(fault, "yes") if needs & SYSTEM_ABILITIES <= _able(s) else ""
            for s in systems
        ]
        yield _row(f"`{fault}`", ", ".join(f"`{n}`" for n in sorted(needs)), *fits)


def _able(system: str) -> Collection[str]:
    driver = registry.load("system", system)(Trial(name="x", system=system))
    return frozenset(getattr(driver, "can", {REJOIN}))


def _checkers_that_fit() -> Iterator[str]:
    """Which workloads run a checker by default, and on which systems these fit."""
    ran = {
        name: registry.load("workload", name)(Trial(name="x", workload=name)).checkers
        for name in registry.names("workload")
    }
    yield from ("", "## What fits which system: checkers", "")
    yield "A checker fits a system if a workload that runs it does."
    yield from ("", *_head("checker", "workloads that run it", "systems"))
    for checker in registry.names("checker"):
        workloads = [name for name, checkers in ran.items() if checker in checkers]
        systems = [
            system
            for system in registry.names("system")
            if any(_fits(system, registry.workload(name).calls) for name in workloads)
        ]
        names = (", ".join(f"`{name}`" for name in each) for each in (workloads, systems))
        yield _row(f"`{checker}`", *(cell or "none by default" for cell in names))


def _head(*names: str) -> Iterator[str]:
    yield from (_row(*names), "|" + " --- |" * len(names))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _others() -> Iterator[str]:
    """What the names of other programs stand for."""
    yield from ("", "### Names of OpenChaos and Jepsen", "")
    yield from ("| name | origin | fault | target | parameters |", "|" + " --- |" * 5)
    for name, alias in aliases().items():
        whose = "OpenChaos" if name in OPENCHAOS else "Jepsen"
        target = f"`{alias.target}`" if alias.target else "the trial's" if alias.kind else ""
        params = ", ".join(f"{key} {value}" for key, value in alias.params.items())
        kind = f"`{alias.kind}`" if alias.kind else "none"
        yield f"| `{name}` | {whose} | {kind} | {target} | {params} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def command_line() -> str:
    """docs/cli.md: the help texts, from click."""
    lines = [WRITTEN_BY, "# Commands", "", *_help("seatrial", seatrial)]
    context = click.Context(seatrial, info_name="seatrial")
    for name in COMMANDS:
        command = seatrial.get_command(context, name)
        assert command is not None
        lines += [f"## {name}", "", *_help(f"seatrial {name}", command)]
        for part, within in getattr(command, "commands", {}).items():
            lines += [f"### {name} {part}", "", *_help(f"seatrial {name} {part}", within)]
    return "\n".join(lines).rstrip() + "\n"


def files() -> str:
    """docs/files.md: folders, fields and columns."""
    return "\n".join((WRITTEN_BY, *files_page())) + "\n"


def _help(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(
        command,
        info_name=path,
        max_content_width=WIDTH,
        terminal_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    yield "```text"
    yield from (line.rstrip() for line in command.get_help(context).splitlines())
    yield from ("```", "")


@pytest.mark.parametrize(
    ("name", "generate"),
    [("catalogue.md", catalogue), ("cli.md", command_line), ("files.md", files)],
)
def test_generated_docs_are_fresh(root: Path, rewrite: bool, name: str, generate: object) -> None:
    """What the documentation says of names, options and defaults is what the code says."""
    assert callable(generate)
    path = root / "docs" / name
    if rewrite:
        path.write_text(generate())
    assert path.read_text() == generate(), "stale: run make docs"


def test_every_code_is_explained(root: Path) -> None:
    """Whatever a checker can say by a code, docs/verdicts.md says in words."""
    page = (root / "docs" / "verdicts.md").read_text()
    sources = [*root.glob("checkers/*.py"), *root.glob("harness/*.py")]
    codes = {
        code
        for path in sources
        for code in re.findall(r'(?:Finding|Reason)\(\s*(?:code=)?"([A-Z_]+)"', path.read_text())
    }
    assert len(codes) > 15
    assert not {code for code in codes if f"`{code}`" not in page}


def test_every_code_is_declared(root: Path) -> None:
    """Whatever code stands in a checker's file is one that it declares, in a file that several
    share one of theirs."""
    page = (root / "docs" / "verdicts.md").read_text()
    known = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", page)) | set(registry.finding_codes())
    declared = {
        registry.module("checker", name).__file__: plugin.findings | plugin.reasons
        for name in registry.names("checker")
        for plugin in (registry.checker(name),)
    }
    union = frozenset[str]().union(*declared.values())
    for path in sorted(root.glob("checkers/**/*.py")):
        strings = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not strings & known - declared.get(str(path), union), path


def test_the_model_of_an_object_is_one(root: Path) -> None:
    """The example runs, and its assertions hold."""
    page = (root / "docs" / "writing-a-plugin.md").read_text()
    (example,) = re.findall(
        r"^```python\n(from harness\.contracts import ILLEGAL.*?)^```$", page, re.M | re.S
    )
    exec(compile(example, "writing-a-plugin.md", "exec"), {})


def test_every_finding_has_advice(root: Path) -> None:
    """Whatever a table calls a finding, or a law, another one says what to do about."""
    page = (root / "docs" / "verdicts.md").read_text()
    laws = (root / "docs" / "simulation.md").read_text()
    told = _codes(page, "| finding |") | _codes(laws, "| law |")
    assert len(told) > 60
    assert _codes(page, "| findings |") == told
    assert set(registry.finding_codes()) == told, "what checkers declare"


def _codes(page: str, header: str) -> set[str]:
    """Those in the first column of each table that begins so."""
    tables = [part.split("\n\n")[0] for part in page.split(f"\n{header}")[1:]]
    rows = [row.split("|")[1] for table in tables for row in table.splitlines()[1:]]
    return {code for row in rows for code in re.findall(r"`([A-Z][A-Z0-9_]+)`", row)}


def _pages(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob("docs/**/*.md"))
    yield from sorted(root.glob("*.md"))


def test_what_can_be_simulated_is_told(root: Path) -> None:
    """All of it, where the page says what can not."""
    from clusters.hosts.simulated.hosts import SYSTEMS

    page = (root / "docs" / "simulation.md").read_text().partition("## What it cannot show")[2]
    systems = page.partition("Of systems only")[2].partition("can be simulated")[0]
    assert tuple(re.findall("`([a-z]+)`", systems)) == SYSTEMS


def test_links_lead_somewhere(root: Path) -> None:
    """Every relative link in README and docs names a file that is there."""
    dead = [
        f"{page.relative_to(root)}: {target}"
        for page in _pages(root)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not dead


def test_paths_in_the_readme_exist(root: Path) -> None:
    """The table of where things are names what is there."""
    table = (root / "README.md").read_text().split("## Where is it")[1].split("\n## ")[0]
    paths = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.\w+)`", table)
    assert len(paths) > 8
    assert not [path for path in paths if not (root / path).exists()]


def test_every_page_is_in_the_site(root: Path) -> None:
    """mkdocs.yml leads to every page of docs/."""
    navigation = (root / "mkdocs.yml").read_text()
    pages = [str(p.relative_to(root / "docs")) for p in root.glob("docs/**/*.md")]
    assert pages
    assert not [page for page in pages if page not in navigation]
