"""Writes report.html: one self-contained page, the verdict first, then what convicts, then the run.

The page loads nothing from anywhere. Whatever a run contains is escaped by the template engine,
and a content security policy allows the page's own style and one script, named by its hash, so that
even a mistake here could not run what a log line says.
"""

import base64
import hashlib
import os
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.intervals import FaultInterval
from harness.rundir import RunDir
from harness.verdict import Finding
from reports import _words
from reports._chart import timeline
from reports._run import LANES, Told, rank, read, rerun_command

ROWS_SHOWN = 6  # evidence rows of a finding; the others unfold
LONG = 110  # letters of a verdict that needs smaller type
TEMPLATES = Environment(
    loader=PackageLoader("reports", "_templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "cell": _words.cell,
    "full": _words.full,
    "heading": _words.heading,
    "moment": _words.moment,
    "seconds": _words.seconds,
}


def render(run: RunDir) -> Path | None:
    """The page's path. The old page stays until the new one is complete."""
    page = html(read(run))
    temporary = run.report_file.with_suffix(".tmp")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, run.report_file)
    return run.report_file


def html(told: Told) -> str:
    """The whole page."""
    script = _asset("zoom.js")
    return TEMPLATES.get_template("page.html").render(
        told=told,
        verdict=told.verdict,
        word=_words.VERDICT_WORDS[told.verdict.verdict],
        meaning=_words.MEANING[told.verdict.verdict],
        size="long" if len(told.sentence) > LONG else "",
        subject=_words.one_line(told),
        numbers=list(_words.numbers(told)),
        findings=[_finding(told, result.checker, found) for result, found in told.findings()],
        faults=[_fault(told, fault) for fault in told.faults],
        machine=list(_words.machine(told.state)),
        availability=told.stats("availability").get("availability", {}),
        timeline=timeline(told),
        lanes=_lanes(told),
        trial=tomli_w.dumps(_filled(told.run.trial_file)),
        command=rerun_command(told, f"runs/{told.run.path.name}"),
        style=_asset("style.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _finding(told: Told, checker: str, found: Finding) -> dict[str, Any]:
    """What only informs shows no rows until it is unfolded."""
    shown = ROWS_SHOWN if rank(found) < 2 else 0
    return {
        "checker": checker,
        "code": found.code,
        "explain": f"seatrial explain runs/{told.run.path.name} {found.code}",
        "count": found.count,
        "message": found.message,
        "demand": found.demand,
        "standing": _words.standing_of(found),
        "tone": ("bad", "doubt", "quiet")[rank(found)],
        "faults": found.faults,
        "columns": _words.columns(found.evidence),
        "rows": found.evidence[:shown],
        "more": found.evidence[shown:],
    }


def _fault(told: Told, fault: FaultInterval) -> dict[str, Any]:
    """A row of the table of faults: what was planned, what happened, how long it hurt."""
    begin = told.phases.get("load", 0)
    times = [t for t in told.stats("availability").get("faults", ()) if t["fault"] == fault.id]
    worth = told.stats("coverage").get("worth", {}).get(str(fault.id), "")
    return {
        "id": fault.id,
        "words": fault.words,
        "kind": fault.kind,
        "selector": fault.selector,
        "params": fault.params,
        "state": fault.state,
        "worth": worth,
        "planned_s": None if fault.planned is None else (begin + fault.planned) / 1e9,
        "took_ms": _between(fault.begin, fault.applied, 1e6),
        "observed_ms": _between(fault.begin, fault.observed, 1e6),
        "healing_ms": _between(fault.heal, fault.healed, 1e6),
        "begin_s": None if fault.begin is None else fault.begin / 1e9,
        "lasted_s": _between(fault.applied, fault.heal, 1e9),
        "times": times,
        "observation": fault.observation,
    }


def _between(begin: int | None, end: int | None, unit: float) -> float | None:
    return None if begin is None or end is None else (end - begin) / unit


def _lanes(told: Told) -> dict[str, Any]:
    """The series under the cursor."""
    lanes = told.lanes
    series = {name: lanes.series[name] for name in LANES}
    return {"from_ms": lanes.from_s * 1000, "bin_ms": lanes.bin_s * 1000, **series}


def _filled(path: Path) -> dict[str, Any]:
    """The trial without what it leaves at nothing."""
    table = tomllib.loads(path.read_text())
    return {key: value for key, value in table.items() if value not in ("", [], {})}


def _asset(name: str) -> Markup:
    """A file of ours, which needs no escaping."""
    path = Path(__file__).parent / "_templates" / name
    return Markup(path.read_text(encoding="utf-8"))
