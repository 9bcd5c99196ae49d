"""Writes report.html: one self-contained page, the verdict first, then what convicts, then the run.

The page loads nothing from anywhere. Whatever a run contains is escaped by the template engine, or
is data in an embedded JSON text in which no letter can end the script it stands in; and a content
security policy allows the page's own style and two scripts, named by their hashes, so that even a
mistake here could not run what a log line says.

Curves are drawn by uPlot, which stands in `_vendor` as published: 50 KB, no dependencies, fast on a
canvas, and it leaves the axis to us; plotly is 4 MB and echarts 1 MB, more than all the rest. Lanes
and drawings are SVG of our own.
"""

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.contracts import ReportPlugin
from harness.errors import BadRequest
from harness.history.rundir import RunDir
from harness.judge.claims import claims_words
from harness.text.parsing import MAX_TOML_BYTES, bytes_of, parsed
from harness.text.sanitize import sayable
from reports import _behind, _findings, _lanes, _recovery, _words
from reports._advice import ADVICE
from reports._cells import Cells
from reports._run import IMPORTED, LOGS, Told, put, read, rerun_command

LEAST_NS = 1_000_000  # of a picture
MOST_LINES = 6000  # of the node events
MOST_TEXT = 60_000  # letters of a file that is shown
MOST_NODES = 200  # whose logs are linked
MOST_OUTPUT = 6000  # letters of what a node printed
ASIDE = {"poll": "polls", "read": "final reads", "commit": "commits"}  # beside messages
NONE: list[Any] = []  # of what could not be read
SCRIPTS = ("scale.js", "lanes.js", "curves.js", "select.js", "start.js")
TEMPLATES = Environment(
    loader=PackageLoader("reports", "_templates"),
    autoescape=True,
    finalize=lambda value: sayable(value) if type(value) is str else value,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "cell": _words.cell,
    "clip": _words.clip,
    "decided": _words.decided,
    "full": _words.full,
    "heading": _words.heading,
    "json": _words.json_text,
    "moment": _words.moment,
    "seconds": _words.seconds,
}


def render(run: RunDir) -> Path | None:
    """The page's path. The old page stays until the new one is complete."""
    return put(run.report_file, html(read(run)))


PLUGIN = ReportPlugin(render=render)


def html(told: Told, links: Sequence[tuple[str, str]] = (), folder: str = "") -> str:
    """The whole page. `links`: where it leads to, when it is one of several: words and address.
    `folder`: the address of the run's files; empty where they lie beside the page."""
    findings = told.part("the findings", lambda: _findings.shown(told), NONE)
    head, rest = _words.headline(_words.clip(told.sentence, 1500))
    carried = scripts()
    return TEMPLATES.get_template("page.html").render(
        told=told,
        verdict=told.verdict,
        word=_words.VERDICT_WORDS[told.verdict.verdict],
        head=head or _words.MEANING[told.verdict.verdict],
        rest=rest,
        subject=told.part("the trial", lambda: _words.one_line(told), ""),
        numbers=_words.known(told),
        advice=ADVICE,
        findings=findings,
        faults=told.part("the table of faults", lambda: _recovery.rows(told), NONE),
        spreads=told.part("the times to recover", lambda: _recovery.spreads(told), NONE),
        machine=told.part("the machine", lambda: list(_words.machine(told.state)), NONE),
        availability=told.part("the availability", lambda: _recovery.availability(told), None),
        addresses=sorted((str(k), str(v)) for k, v in told.named("addresses").items()),
        trial=told.part("trial.toml", lambda: _trial(told.run.trial_file), ""),
        plan=_words.clip(told.plan, MOST_TEXT),
        logs=told.part("the nodes' logs", lambda: _logs(told, folder), NONE),
        printed=told.part("what nodes printed", lambda: _printed(told), NONE),
        command_line=rerun_command(told),
        imported=told.trial.system == IMPORTED,
        claims=told.part("the claims", lambda: _claims(told), ""),
        data=embedded(_data(told, findings)),
        curves=bool(told.counted.layers),
        style=asset("_vendor/uPlot.min.css") + asset("_templates/style.css"),
        scripts=carried,
        links=links,
        hashes=[_hash(script) for script in carried],
        doubts=told.lacking,
    )


def _claims(told: Told) -> str:
    """What was claimed to be survived, where the run recorded it."""
    claims = told.state.get("claims")
    if not isinstance(claims, Mapping):
        return ""
    return claims_words({str(kind): str(extent) for kind, extent in claims.items()})


def policy() -> str:
    """What the page may do, for whoever serves it: use its own style and the scripts it carries."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts())
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; "
        f"img-src data:; script-src {hashes}"
    )


def scripts() -> list[Markup]:
    """The library that draws curves, and our own."""
    return [asset("_vendor/uPlot.iife.min.js"), _script()]


def embedded(data: Any) -> Markup:
    """JSON for a script element: no letter of it can end the element or begin another."""
    text = json.dumps(_finite(data), separators=(",", ":"), sort_keys=True)
    for letter in "<>&'":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _data(told: Told, findings: Sequence[_findings.Shown]) -> dict[str, Any]:
    """What the page draws and filters by."""
    counted = told.counted
    begin, end = told.begin, max(told.end, counted.end, told.begin + LEAST_NS)
    if counted.layers and not told.phases:
        begin = min(begin or counted.begin, counted.begin)
    marks = [mark for one in findings for mark in one.marks()]
    scene = _lanes.Scene(told, end, [mark for mark in marks if begin <= mark.t <= end])
    lanes = told.part("the lanes", lambda: [lane.plain() for lane in _lanes.lanes(scene)], NONE)
    nobody: dict[str, Any] = {}
    behind = told.part("replication", lambda: _behind.plain(told.events, begin, end), nobody)
    return {
        "begin": _lanes.ms(begin),
        "end": _lanes.ms(end),
        "lanes": lanes,
        "cells": counted.plain(),
        "behind": behind,
        "functions": _aside(counted),
        "log": told.part("the node events", lambda: _lanes.log(told, MOST_LINES), NONE),
        "told": len(_lanes.telling(told)),
        "findings": [_found(one) for one in findings],
        "faults": [_fault(told, end, fault) for fault in told.faults],
    }


def _aside(counted: Cells) -> dict[str, str]:
    """Operations that curves show only when they are asked for."""
    sends = any(layer.f == "send" for layer in counted.layers)
    return {f: words for f, words in ASIDE.items() if sends or f != "commit"}


def _found(one: _findings.Shown) -> dict[str, Any]:
    return {
        "code": _words.clip(one.finding.code, 80),
        "faults": list(one.finding.faults),
        "nodes": list(one.nodes),
        "times": sorted({_lanes.ms(mark.t) for mark in one.marks()}),
    }


def _fault(told: Told, end: int, fault: Any) -> dict[str, Any]:
    begin, _, _, healed = _lanes.stages(fault, end)
    known = fault.begin is not None
    return {
        "id": fault.id,
        "words": _words.clip(fault.words, 200),
        "nodes": list(fault.names),
        "begin": _lanes.ms(begin) if known else None,
        "end": _lanes.ms(healed) if known else None,
    }


def _logs(told: Told, folder: str) -> list[tuple[str, list[tuple[str, str, int]]]]:
    """Each node's logs that are not empty: name, address and bytes."""
    files: dict[str, list[tuple[str, str, int]]] = {}
    for path in sorted(told.run.path.glob("nodes/*/*")):
        if path.name.endswith(LOGS) and path.is_file() and not path.is_symlink():
            node, size = path.parent.name, path.stat().st_size
            target = "/".join(quote(os.fsencode(p), safe="") for p in ("nodes", node, path.name))
            files.setdefault(node, []).append((path.name, folder + target, size))
    logs = ((node, [log for log in found if log[2]]) for node, found in files.items())
    return [(node, found) for node, found in logs if found][:MOST_NODES]


def _printed(told: Told) -> list[tuple[str, str]]:
    """The end of what each node printed, of those that did."""
    logs = sorted(told.run.path.glob("nodes/*/*.log"))
    return [
        (f"{path.parent.name}, {path.name}", _tail(path)) for path in logs if path.stat().st_size
    ][:20]


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MOST_OUTPUT))
        text = file.read().decode("utf-8", "replace")
    return text if size <= MOST_OUTPUT else f"... {text}"


def _trial(path: Path) -> str:
    """The trial without what it leaves at nothing; as it stands, when it is none."""
    text = bytes_of(path, MAX_TOML_BYTES).decode(errors="replace")
    try:
        table = parsed(text, path.name)
    except BadRequest:
        return _words.clip(text, MOST_TEXT)
    full = {key: value for key, value in table.items() if value not in ("", [], {})}
    return _words.clip(tomli_w.dumps(full), MOST_TEXT)


def _finite(value: Any) -> Any:
    """Without what JSON has no word for, or no reader should be shown."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return sayable(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _script() -> Markup:
    """Our own, in one piece: what its parts know of each other nobody else can see."""
    parts = Markup("\n").join(asset(f"_templates/{name}") for name in SCRIPTS)
    return Markup('(() => {\n"use strict";\n') + parts + Markup("})();\n")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def asset(name: str) -> Markup:
    """A file of ours, which needs no escaping."""
    return Markup((Path(__file__).parent / name).read_text(encoding="utf-8"))
