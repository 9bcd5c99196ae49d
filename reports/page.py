"""Writes report.html: one self-contained page with the verdict, its evidence, and the run.

The page loads nothing from the network. All data of a run is escaped by the template engine, or is
data in an embedded JSON text that cannot close its <script> element. A content security policy
allows only the page's own style and two scripts, named by their hashes, so that even an error here
cannot run the contents of a log line.

Curves are drawn by uPlot, unmodified in `_vendor`: 50 KB, no dependencies, fast on a canvas, and it
accepts our axis; plotly has 4 MB and echarts 1 MB, more than all the rest. Lanes and drawings are
our own SVG.
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
from harness.judge.claims import claims_text
from harness.text.parsing import MAX_TOML_BYTES, parse_toml, read_bytes
from harness.text.sanitize import sanitize
from reports import _format, _lanes, _recovery, _replication_lag
from reports._cells import Cells
from reports._run import IMPORTED, LOGS, RunView, read_run, rerun_command, write_report
from reports._stories import page_findings, space_time

# What to do about a run that proves nothing, by the code of the reason: a short form of
# docs/verdicts.md; a test keeps both in step.


RUN_AGAIN = "Run it again."
LONGER = "Make the load longer, or use fewer faults."
NOT_BACK = (
    "The cluster did not recover, or the deadline is too short: see the end of the run below."
)
UNIQUE = "Write each value once."
LOOK_AT_LOGS = "Look at harness.log and at the nodes' logs in the run's folder."

ADVICE = {
    "EXCUSED": "Nothing; or claim the kind of fault (--claims) to hold the system to it.",
    "INTERRUPTED": "Run it to the end.",
    "BED_FAILED": "Fix what the sentence names (details: harness.log); run it again.",
    "HISTORY_MALFORMED": "Repair the file, or use the verdict on the rest.",
    "NOTHING_COMPLETED": "Record a history in which something succeeds.",
    "NODE_GONE": "Make sure that the host is up and reachable; run it again.",
    "DISK_FULL": "Free space there; run it again.",
    "NO_LOAD": LOOK_AT_LOGS,
    "NO_OPERATIONS": LOOK_AT_LOGS,
    "NO_OK_BEFORE": "Lengthen rhythm.quiet_s, or find out why nothing succeeds at first.",
    "NO_OK_AFTER": "Lengthen rhythm.recovery_s, or find out why it does not recover.",
    "IDLE_AFTER": "End the faults earlier, or raise the load's rate.",
    "NO_OK_BETWEEN": "Lengthen rhythm.recovery_s, or find out why it does not recover.",
    "FAULT_NOT_OBSERVED": "Read the observed effect of the fault, below the table of faults.",
    "FAULTS_MISSING": "Read the observed effect of each fault, below the table of faults.",
    "CLIENT_BROKEN": "Correct the client of the driver, where the reason says.",
    "IDLE_FAULTS": "Raise the load's rate, or make the faults longer.",
    "NOT_HEALED": "See the cause. On hosts that outlive a run: seatrial heal. Run it again.",
    "HEALING_NOT_OBSERVED": "See harness.log for why its end was not observed.",
    "MASTER_FAULT_UNSEEN": "Make the fault longer than the time it takes to detect it.",
    "NO_FINAL_READ": NOT_BACK,
    "NO_FINAL_POP": NOT_BACK,
    "OBJECTS_NOT_READ": NOT_BACK,
    "CLOCKS_DOUBTFUL": "Make sure that no machine is suspended and no clock slewed; run it again.",
    "LAWS_NOT_WATCHED": "Run it again; report it if that does not help.",
    "LAWS_UNSEEN": "Look at the nodes' logs, and whether a disk was full.",
    "REPLICAS_NOT_COMPARED": "Make the quiet times longer; see why the last comparison failed.",
    "NOTHING_COMPARED": "See harness.log for why the logs could not be read.",
    "NO_POPS_ACKNOWLEDGED": LONGER,
    "NO_CHANGES": LONGER,
    "NO_MEMBERS": LONGER,
    "NO_OFFSETS": LONGER,
    "NO_FINAL_LOOK": NOT_BACK,
    "GROUPS_NOT_JUDGED": "Use fewer consumer groups.",
    "NO_TRANSACTIONS": LONGER,
    "VALUES_NOT_UNIQUE": UNIQUE,
    "WRITING_UNRECORDED": RUN_AGAIN,
    "NOT_CHECKED": "Add the checker that the sentence names, or omit the demand from the contract.",
    "NO_MESSAGES": "Name the checkers that are for its kind of operations.",
    "NO_REGISTERS": "See whether the history is of this kind, and has reads that ended ok.",
    "REGISTERS_NOT_DECIDED": f"{UNIQUE} Go on to new keys after some hundred operations, or use "
    "fewer clients for each key.",
    "NO_OBJECTS": "See whether the history is of this kind.",
    "OBJECTS_NOT_DECIDED": f"{UNIQUE} Count in equal steps; give a process a new number after a "
    "timeout.",
    "NO_ACKNOWLEDGEMENTS": LONGER,
    "NO_DELAYED_MESSAGES": LONGER,
    "NO_COMMITS": LONGER,
    "NO_EVENTS": LOOK_AT_LOGS,
    "WATCH_UNFINISHED": NOT_BACK,
    "OPERATIONS_UNRECORDED": RUN_AGAIN,
    "RECOVERY_UNRECORDED": RUN_AGAIN,
    "SENDING_UNRECORDED": RUN_AGAIN,
    "TOO_MUCH_LOAD": "Lower the load's rate or body_bytes.",
    "CHECKER_FAILED": "Check it again (seatrial check); report the crash.",
    "CHECKER_TIMEOUT": "Check it again (seatrial check), on more cores.",
    "JOURNAL_DAMAGED": RUN_AGAIN,
}


MIN_NS = 1_000_000  # of the time axis
MAX_LINES = 6000  # node events
MAX_TEXT = 60_000  # letters of a file
MAX_NODES = 200  # nodes with links to their logs
MAX_OUTPUT = 6000  # letters of a node's output
ASIDE = {"poll": "polls", "read": "final reads", "commit": "commits"}  # operations besides sends
NONE: list[Any] = []  # instead of a part that could not be read
SCRIPTS = ("scale.js", "lanes.js", "curves.js", "select.js", "start.js")
TEMPLATES = Environment(
    loader=PackageLoader("reports", "_templates"),
    autoescape=True,
    finalize=lambda value: sanitize(value) if type(value) is str else value,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "cell": _format.cell,
    "clip": _format.clip,
    "decided": _format.decided_text,
    "full": _format.end_sentence,
    "heading": _format.heading,
    "json": _format.json_text,
    "moment": _format.moment,
    "seconds": _format.seconds,
}


def render(run: RunDir) -> Path | None:
    """Write the page, replacing the old one atomically; return its path."""
    return write_report(run.report_file, page_html(read_run(run)))


PLUGIN = ReportPlugin(render=render)


def page_html(view: RunView, links: Sequence[tuple[str, str]] = (), folder: str = "") -> str:
    """Return the whole page. `links`: text and address of each link to other pages. `folder`: the
    address of the run's files; empty if they are beside the page."""
    findings = view.part("the findings", lambda: page_findings.finding_views(view), NONE)
    head, rest = _format.headline(_format.clip(view.sentence, 1500))
    carried = scripts()
    return TEMPLATES.get_template("page.html").render(
        view=view,
        verdict=view.verdict,
        word=_format.VERDICT_WORDS[view.verdict.verdict],
        head=head or _format.MEANING[view.verdict.verdict],
        rest=rest,
        subject=view.part("the trial", lambda: _format.trial_line(view), ""),
        numbers=_format.key_numbers_or_none(view),
        advice=ADVICE,
        findings=findings,
        messages=view.part("the messages", lambda: space_time.space_time(view), space_time.NOTHING),
        faults=view.part("the table of faults", lambda: _recovery.fault_rows(view), NONE),
        spreads=view.part("the times to recover", lambda: _recovery.spreads(view), NONE),
        machine=view.part("the machine", lambda: list(_format.machine(view.state)), NONE),
        availability=view.part("the availability", lambda: _recovery.availability(view), None),
        addresses=sorted((str(k), str(v)) for k, v in view.named("addresses").items()),
        trial=view.part("trial.toml", lambda: _trial(view.run.trial_file), ""),
        plan=_format.clip(view.plan, MAX_TEXT),
        logs=view.part("the nodes' logs", lambda: _logs(view, folder), NONE),
        printed=view.part("what nodes printed", lambda: _printed(view), NONE),
        command_line=rerun_command(view),
        imported=view.trial.system == IMPORTED,
        programs=view.part("the programs", lambda: _format.programs(view), NONE),
        sends=not view.words or any(layer.f == "send" for layer in view.counted.layers),
        claims=view.part("the claims", lambda: _claims(view), ""),
        data=embedded(_data(view, findings)),
        curves=bool(view.counted.layers),
        style=asset("_vendor/uPlot.min.css") + asset("_templates/style.css"),
        scripts=carried,
        links=links,
        hashes=[_hash(script) for script in carried],
        doubts=view.shown_doubts,
    )


def _claims(view: RunView) -> str:
    """Return the faults that the system claims to survive, if the run recorded them."""
    claims = view.state.get("claims")
    if not isinstance(claims, Mapping):
        return ""
    return claims_text({str(kind): str(extent) for kind, extent in claims.items()})


def policy() -> str:
    """Return the page's content security policy, for a server: its own style and the scripts it
    carries."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts())
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; "
        f"img-src data:; script-src {hashes}"
    )


def scripts() -> list[Markup]:
    """Return the plotting library, and our own scripts."""
    return [asset("_vendor/uPlot.iife.min.js"), _script()]


def embedded(data: Any) -> Markup:
    """Return JSON for a script element, which cannot close the element or open another."""
    text = json.dumps(_finite(data), separators=(",", ":"), sort_keys=True)
    for letter in "<>&'":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _data(view: RunView, findings: Sequence[page_findings.FindingView]) -> dict[str, Any]:
    """Return the data that the page draws and filters."""
    counted = view.counted
    begin, end = view.begin, max(view.end, counted.end, view.begin + MIN_NS)
    if counted.layers and not view.phases:
        begin = min(begin or counted.begin, counted.begin)
    marks = [mark for one in findings for mark in one.marks()]
    scene = _lanes.LaneInput(view, end, [mark for mark in marks if begin <= mark.t <= end])
    lanes = view.part("the lanes", lambda: [lane.plain() for lane in _lanes.lanes(scene)], NONE)
    empty: dict[str, Any] = {}
    behind = view.part(
        "replication", lambda: _replication_lag.lag_curves(view.events, begin, end), empty
    )
    return {
        "begin": _lanes.ms(begin),
        "end": _lanes.ms(end),
        "lanes": lanes,
        "cells": counted.plain(),
        "behind": behind,
        "functions": _aside(counted),
        "log": view.part("the node events", lambda: _lanes.log_lines(view, MAX_LINES), NONE),
        "eventCount": len(_lanes.shown_events(view)),
        "findings": [_found(one) for one in findings],
        "faults": [_fault(view, end, fault) for fault in view.faults],
    }


def _aside(counted: Cells) -> dict[str, str]:
    """Return the operations that curves show on request only."""
    sends = any(layer.f == "send" for layer in counted.layers)
    return {f: words for f, words in ASIDE.items() if sends or f != "commit"}


def _found(one: page_findings.FindingView) -> dict[str, Any]:
    return {
        "code": _format.clip(one.finding.code, 80),
        "faults": list(one.finding.faults),
        "nodes": list(one.nodes),
        "times": sorted({_lanes.ms(mark.t) for mark in one.marks()}),
    }


def _fault(view: RunView, end: int, fault: Any) -> dict[str, Any]:
    begin, _, _, healed = _lanes.stages(fault, end)
    began = fault.begin is not None
    return {
        "id": fault.id,
        "words": _format.clip(fault.label, 200),
        "nodes": list(fault.names),
        "begin": _lanes.ms(begin) if began else None,
        "end": _lanes.ms(healed) if began else None,
    }


def _logs(view: RunView, folder: str) -> list[tuple[str, list[tuple[str, str, int]]]]:
    """Return each node's logs that are not empty: name, address and bytes."""
    files: dict[str, list[tuple[str, str, int]]] = {}
    for path in sorted(view.run.path.glob("nodes/*/*")):
        if path.name.endswith(LOGS) and path.is_file() and not path.is_symlink():
            node, size = path.parent.name, path.stat().st_size
            target = "/".join(quote(os.fsencode(p), safe="") for p in ("nodes", node, path.name))
            files.setdefault(node, []).append((path.name, folder + target, size))
    logs = (
        (node, [log for log in files_of_node if log[2]]) for node, files_of_node in files.items()
    )
    return [(node, files_of_node) for node, files_of_node in logs if files_of_node][:MAX_NODES]


def _printed(view: RunView) -> list[tuple[str, str]]:
    """Return the end of each node's non-empty output."""
    logs = sorted(view.run.path.glob("nodes/*/*.log"))
    return [
        (f"{path.parent.name}, {path.name}", _tail(path)) for path in logs if path.stat().st_size
    ][:20]


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MAX_OUTPUT))
        text = file.read().decode("utf-8", "replace")
    return text if size <= MAX_OUTPUT else f"... {text}"


def _trial(path: Path) -> str:
    """Return the trial without empty values; the file's text if it is not valid TOML."""
    text = read_bytes(path, MAX_TOML_BYTES).decode(errors="replace")
    try:
        table = parse_toml(text, path.name)
    except BadRequest:
        return _format.clip(text, MAX_TEXT)
    full = {key: value for key, value in table.items() if value not in ("", [], {})}
    return _format.clip(tomli_w.dumps(full), MAX_TEXT)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by null, and remove control characters."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _script() -> Markup:
    """Return our own scripts as one, in a private scope."""
    parts = Markup("\n").join(asset(f"_templates/{name}") for name in SCRIPTS)
    return Markup('(() => {\n"use strict";\n') + parts + Markup("})();\n")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def asset(name: str) -> Markup:
    """Return one of our own files, which needs no escaping."""
    return Markup((Path(__file__).parent / name).read_text(encoding="utf-8"))
