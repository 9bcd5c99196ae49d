"""Generate docs/files.md: the files of a run's folder, and the fields of each format.

The meaning of a field is the comment next to it in the source, or is listed here. A field without
either raises KeyError.
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
A TOML file in the current folder with defaults for the options of commands. A key is the long name
of an option. At the top level it applies to every command that has the option, in a table to that
command only.

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

The command line, the environment, trial files and plans take precedence over it. An unknown key,
or a value that the option does not accept, is refused with its line.

| variable | meaning |
| --- | --- |
| `SEATRIAL_RUNS` | the folder for runs, if `--runs` is not given |
| `SEATRIAL_RUNS_CAP_GB` | the maximum size of all runs together |
| `SEATRIAL_SPARK` | the Spark master of every command, if `--spark` is not given |
| `SEATRIAL_JAVA_WITHIN_S` | how long Java may take to start; default: 90 s |
| `SEATRIAL_DEBUG` | 1: print the traceback of an error, as with `-v` |"""
TRIAL = {
    "name": "the last part of the name of the run's folder",
    "system": "the system under test",
    "profile": "a named configuration of the system; empty: the system's default",
    "hosts": "where the nodes run",
    "workload": "what the clients do",
    "faults": "the kinds of fault that a plan is drawn from",
    "targets": "the selectors that a plan is drawn from; empty: each kind's own",
    "plan": "plan files, separated by commas; empty: the plan is drawn from the seed",
    "nodes": "the number of nodes by role; default: the system's",
    "zones": "the number of zones, or the zone of each node ([Zones](faults.md#zones))",
    "checkers": "the checkers to run; empty: the workload's",
    "seed": "the seed of all random choices",
    "duration_s": "the duration of the load",
    "rhythm": "a drawn plan: time without faults at first, length of a fault, time to recover",
    "recover_within_s": "the maximum time for the cluster to recover after all faults are healed",
    "compare_replicas": "compare replicas between faults, not only at the end",
    "settings": "settings of the system; they override the profile's",
    "contract": "the demands that decide the verdict",
    "claims": "overrides the profile's claims, by kind of fault",
}
FAULT = {
    "kind": "the kind of fault",
    "at_s": "when it begins: seconds after the load began",
    "for_s": "how long it lasts; with `until`, at most",
    "target": "a selector, resolved at the moment of the fault",
    "params": "parameters of this kind of fault",
    "after": "a condition: the fault begins when it holds, not before `at_s`",
    "until": "a condition: the fault is healed as soon as it holds",
    "repeat": "`times`, `every_s`, `until_s`: repetitions, which are stored as separate faults",
}
COLUMNS = {
    "t": "nanoseconds since the run's start",
    "process": "the logical process; a client that is restarted gets a new number",
    "op": "the number of the operation, the same for its invocation and completions",
    "value": "the message, or the value written or read",
    "arg": "a second value: new value of a cas, lease of a lock, store time of a message (ms)",
    "offset": "offset in the queue or log",
    "epoch": "epoch of the master that answered",
    "node": "the node that answered, or that the row is about",
    "attempts": "number of attempts of the client",
    "id": "position in the plan, from 0",
    "kind": "kind of fault, or of event",
    "params": "parameters, as JSON",
    "selector": "the target as the plan names it",
    "targets": "names of nodes by role, as JSON",
    "planned": "when the plan begins it, nanoseconds after the load began",
    "planned_for": "planned duration",
    "begin": "when applying it began",
    "applied": "when it was in force",
    "observed": "when its effect was observed",
    "heal": "when healing began",
    "healed": "when its end was observed",
    "type": "invocation or outcome; see below",
    "f": "the operation; see below",
    "observation": "the observed effect, as JSON",
    "fields": "fields of the event, as JSON",
    "text": "text of the note",
    "crc": "a checksum of the rest of the record (Flotilla: of key, body and store time)",
}
FOLDER = {
    "trial.toml": "the complete trial, which can be run again",
    "plan.toml": "the planned faults, one by one",
    "run.json": "phase, times, versions, machine, seed",
    "names.json": "names for the numbers in the history; the brokers and queues of each broker set",
    "journal/": "the history while the run is in progress: Arrow streams, one for each writer",
    "history/": "the history after the run, as Parquet: `TABLE-WRITER-NNN.parquet`",
    "nodes/NODE/": "configuration, data and logs of each node",
    "ledger.jsonl": "what was changed on hosts, and undone: for `seatrial heal`",
    "harness.log": "the log of Seatrial itself",
    "status.json": "the state of a run in progress",
    "messages.parquet": "of a failed simulated run: the messages around its first violation",
    "verdict.json": "the verdict, by [its schema](verdict.schema.json)",
    "report.html": "the report",
}
VERDICT = """\
`verdict.json` contains `verdict`, `sentence`, `reasons`, and for each checker its findings. Each
finding has its `code`, the exact `count`, the violated `demand`, a `message`, and a limited list of
`evidence`. `events` is the number of judged rows of the history, by table; it equals the numbers
that the writers recorded next to their journals. The file contains no time of its own, so
`seatrial check` always writes the same bytes."""
HISTORY = """\
The history consists of five tables. `key` and `node` of a row are positions in the lists of
`names.json`; values that do not apply are null. [Histories of other tools](importing.md) describes
imported histories."""


def files_page() -> Iterator[str]:
    """The page's lines."""
    yield from ("# Files and formats", "", "## A run's folder", "")
    yield from (
        "Below `runs/`, named after its time and the trial; `runs/latest` links to the newest.",
        "",
    )
    assert rundir.__doc__
    assert not [name for name in FOLDER if name not in rundir.__doc__]
    yield from _table("file", ((name, text) for name, text in FOLDER.items()))
    yield from ("", VERDICT)
    yield from ("", "## A trial", "")
    yield "A TOML file. Every key is optional; flags of `seatrial run` override it."
    yield from ("", "| key | default | meaning |", "| --- | --- | --- |", *_trial())
    yield from ("", "## A plan", "")
    yield "A TOML file with a `[[fault]]` table for each fault, and optionally a `[trial]` table"
    yield from ("with the fields of the trial that it needs ([Faults and plans](faults.md)).", "")
    written = [f.name for f in fields(contracts.PlannedFault)]
    yield from _table("key", ((name, FAULT[name]) for name in (*written, "repeat")))
    yield from ("", "A suite is a TOML file, too ([Suites and nights](suites.md)).")
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
    modules = [sys.modules[each.__module__] for each in reversed(options.__mro__[:-1])]
    said = {name: text for module in modules for name, text in _remarks(module).items()}
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
        yield from ("| column | type | meaning |", "| --- | --- | --- |")
        for column in schema.TABLES[name]:
            meaning = "the object" if column.name == "key" else said[column.name]
            yield f"| `{column.name}` | {column.type} | {meaning} |"
    assert {name for name, _ in tables} == set(schema.TABLES)
    yield from ("", "### What `type` and `f` mean", "")
    yield "| `type` | " + " | ".join(f"`{t.name.lower()}`" for t in Type) + " |"
    yield "| --- |" + " --- |" * len(Type)
    yield "| | " + " | ".join(f"{t.value}" for t in Type) + " |"
    yield from ("", "| `f` | | the operation |", "| --- | --- | --- |")
    asked = _remarks(operation)
    for f in F:
        yield f"| {f.value} | {f.name} | {asked[f.name]} |"


def _remarks(module: ModuleType) -> Mapping[str, str]:
    """The comments behind fields, with those that go on in the next line."""
    source = re.sub(r"\n +# ", " ", inspect.getsource(module))
    return {name: text.replace("|", "\\|") for name, text in REMARK.findall(source)}


def _table(what: str, rows: Any) -> Iterator[str]:
    yield from (f"| {what} | meaning |", "| --- | --- |")
    yield from (f"| `{name}` | {text} |" for name, text in rows)
