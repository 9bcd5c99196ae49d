"""docs/files.md, made from the code: what a run's folder holds, and the fields of each format.

What a field means stands beside it in the source, as a comment, or here. A field of which neither
says anything makes no page.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import ModuleType
from typing import Any

from harness import contracts, operation, trial
from harness.history import rundir, schema
from harness.operation import F, Type

REMARK = re.compile(r'^\s*(?:pa\.field\()?\(?"?(\w+)"?(?:,.*?|: .*?| = .*?)  # (.+)$', re.MULTILINE)
SETTINGS = """\
A TOML file in the current folder with defaults for the options of commands. A key is an option's
long name; at the top it holds for every command that has the option, in a table for that command
alone.

```toml
runs = "/var/lib/seatrial/runs"
color = "never"

[run]
hosts = "docker"
duration = "2m"
faults = ["kill", "pause"]
bed = { memory = "512m" }
no-report = true

[cluster.up]
hosts = "docker"
```

The command line, the environment, trial files and plans take precedence over it. A key that is no
option, and a value that the option does not take, are refused with their line.

| variable | what it sets |
| --- | --- |
| `SEATRIAL_RUNS` | the folder for runs, where `--runs` is not given |
| `SEATRIAL_RUNS_CAP_GB` | how much all runs may take together |
| `SEATRIAL_JAVA_WITHIN_S` | how long Java may take to start; 90 s where it is not set |
| `SEATRIAL_DEBUG` | set to 1: the traceback of an error, as with `-v` |"""
TRIAL = {
    "name": "in the name of the run's folder",
    "system": "what is tested",
    "profile": "a named configuration of the system; empty: its own default",
    "hosts": "where its nodes run",
    "workload": "what clients do",
    "faults": "kinds that a drawn plan uses",
    "nodes": "role -> how many; else the system's",
    "zones": "where nodes stand",
    "checkers": "who judges; empty: the workload's",
    "seed": "every random choice comes from it",
    "rhythm": "of a drawn plan: load alone, then each fault, then each recovery",
    "recover_within_s": "how long the healed cluster may need to come back, a reader to get on",
    "contract": "what the trial demands",
    "claims": "kind of fault -> how many of a replica group may be hit by it",
}
FAULT = {
    "kind": "a fault's name",
    "at_s": "seconds after the load began",
    "for_s": "how long it lasts; with `until`, at most so long",
    "target": "a selector, resolved at the moment of the fault",
    "params": "the fault's own",
    "after": "it begins only once this holds, too",
    "until": "it is healed as soon as this holds",
    "repeat": "`times`, `every_s`, `until_s`: it happens so often; saved as so many faults",
}
COLUMNS = {
    "t": "ns since the run's start",
    "process": "who; a number for each client's life",
    "value": "the message, or what was written or read",
    "offset": "in the queue or log",
    "epoch": "of the master that answered",
    "node": "the node that answered, reported or holds it",
    "attempts": "how often the client tried",
    "kind": "of fault, or of event",
    "selector": "whom the plan named",
    "planned_for": "how long, as the plan says",
    "begin": "when putting it in place began",
    "applied": "when it was in force",
    "observed": "when its effect was seen",
    "heal": "when healing began",
    "healed": "when it was seen gone",
    "type": "how it stands; see below",
    "f": "what was asked; see below",
    "observation": "what was seen of it, JSON",
    "text": "the note's words",
    "crc": "of the body",
}
FOLDER = {
    "trial.toml": "the trial, complete: enough to run it again",
    "plan.toml": "the faults as planned, each by itself",
    "run.json": "how it went: phase, times, versions, machine, seed",
    "names.json": "what the numbers in the history stand for; which broker set holds what",
    "journal/": "the history while the run goes on: Arrow streams, one writer each",
    "history/": "the same, sealed to Parquet: `TABLE-WRITER-NNN.parquet`",
    "nodes/NODE/": "each node's configuration, data and logs",
    "ledger.jsonl": "what was done to the world, and undone: for `seatrial heal`",
    "harness.log": "what the harness itself said",
    "status.json": "what a run in progress last said of itself",
    "verdict.json": "the verdict, by [its schema](verdict.schema.json)",
    "report.html": "the page",
}
VERDICT = """\
`verdict.json` holds `verdict`, `sentence`, `reasons`, and for each checker its findings, each with
its `code`, the exact `count`, the `demand` it offends, a plain `message`, and a capped list of
`evidence`. `events` counts the rows of history that were judged, by table; it equals what the
writers counted beside their journals. It carries no time of its own making, so `seatrial check`
writes the same bytes however often it is run."""
HISTORY = """\
Five tables. `key` and `node` of a row are places in the lists of `names.json`; what does not apply
is null. Histories of other origin are described in [Histories of other tools](importing.md)."""


def files_page() -> Iterator[str]:
    """The page's lines."""
    yield from ("# Files and formats", "", "## A run's folder", "")
    yield from ("Below `runs/`, named for its time and the trial; `runs/latest` is the newest.", "")
    assert rundir.__doc__
    assert not [name for name in FOLDER if name not in rundir.__doc__]
    yield from _table("file", ((name, text) for name, text in FOLDER.items()))
    yield from ("", VERDICT)
    yield from ("", "## A trial", "")
    yield "A TOML file. All may be left out; flags of `seatrial run` lie over it."
    yield from ("", "| key | default | what it is |", "| --- | --- | --- |", *_trial())
    yield from ("", "## A plan", "")
    yield "A TOML file with a `[[fault]]` for each, and `[trial]` for what it needs of its trial"
    yield from ("([Faults and plans](faults.md)).", "")
    written = [f.name for f in fields(contracts.PlannedFault)]
    yield from _table("key", ((name, FAULT[name]) for name in (*written, "repeat")))
    yield from ("", "A suite is a TOML file, too ([Suites, nights and CI](suites.md)).")
    yield from ("", "## seatrial.toml", "", SETTINGS)
    yield from _history()


def _trial() -> Iterator[str]:
    said = {**_remarks(trial), **TRIAL}
    fresh = trial.Trial()
    for field in fields(trial.Trial):
        yield f"| `{field.name}` | {_default(getattr(fresh, field.name))} | {said[field.name]} |"


def _default(value: Any) -> str:
    if isinstance(value, trial.Rhythm):
        return ", ".join(f"`{f.name} = {getattr(value, f.name)}`" for f in fields(value))
    if isinstance(value, Mapping):
        return ""
    if isinstance(value, tuple):
        return ", ".join(f"`{word}`" for word in value)
    return f"`{json.dumps(value)}`" if value != "" else ""


def load_options(options: type) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of what `load` may say."""
    said = _remarks(sys.modules[options.__module__])
    for field in fields(options):
        yield f"`{field.name}`", _default(field.default), said[field.name]


def _history() -> Iterator[str]:
    yield from ("", "## A history", "")
    yield HISTORY
    said = {**_remarks(schema), **COLUMNS}
    tables = re.findall(r"^    (\w+)  +(\w.+)$", schema.__doc__ or "", re.MULTILINE)
    for name, about in tables:
        about = f"{about[0].upper()}{about[1:].rstrip('. ')}."
        yield from ("", f"### `{name}`", "", about, "")
        yield from ("| column | type | what it is |", "| --- | --- | --- |")
        for column in schema.TABLES[name]:
            meaning = "which object" if column.name == "key" else said[column.name]
            yield f"| `{column.name}` | {column.type} | {meaning} |"
    assert {name for name, _ in tables} == set(schema.TABLES)
    yield from ("", "### What `type` and `f` mean", "")
    yield "| `type` | " + " | ".join(f"`{t.name.lower()}`" for t in Type) + " |"
    yield "| --- |" + " --- |" * len(Type)
    yield "| | " + " | ".join(f"{t.value}" for t in Type) + " |"
    yield from ("", "| `f` | | what was asked |", "| --- | --- | --- |")
    asked = _remarks(operation)
    for f in F:
        yield f"| {f.value} | {f.name} | {asked[f.name]} |"


def _remarks(module: ModuleType) -> Mapping[str, str]:
    """The comments behind fields, with those that go on in the next line."""
    source = re.sub(r"\n +# ", " ", inspect.getsource(module))
    return {name: text.replace("|", "\\|") for name, text in REMARK.findall(source)}


def _table(what: str, rows: Any) -> Iterator[str]:
    yield from (f"| {what} | what it is |", "| --- | --- |")
    yield from (f"| `{name}` | {text} |" for name, text in rows)
