"""A run in progress as server-sent events.

The events contain what the run's folder has: `status.json`, which the command that runs it writes a
few times a second (`harness.run.status_file`), and beside each journal the number of rows written.
Both are small, so a viewer costs a run nothing. A stream ends when the run has a verdict, or no
process is working on one; then the browser reloads the page. A run that has ended is read twice,
because checking begins a moment later.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from harness.history.journal import announced_rows, table_of
from harness.history.rundir import RunDir
from harness.history.runs import is_running
from harness.judge.lock import is_being_judged
from harness.judge.stored_verdict import BROKEN
from harness.run.status_file import FILE
from reports._format import clip
from reports._site.run_index import trouble
from reports._site.run_list import read_row

MAX_BYTES = 200_000  # of a status file
EVERY_S = 1.0
AGAIN_MS = 3_000  # delay before a browser reconnects
MAX_JOURNALS = 1_000
MAX_ITEMS, LONGEST = 60, 200
MAX_WHY = 800  # letters of the reason why there is no verdict
RUNNING, CHECKING, JUDGED, ENDED = "running", "checking", "judged", "ended"


async def live_events(folder: Path) -> AsyncIterator[str]:
    """Yield events, each with all current data; unchanged data is not repeated."""
    yield f"retry: {AGAIN_MS}\n\n"
    before = ""
    while True:
        now = await run_in_threadpool(run_state, folder)
        if now["state"] == ENDED:
            await asyncio.sleep(EVERY_S)
            now = await run_in_threadpool(run_state, folder)
        text = json.dumps(now, sort_keys=True)
        yield f"data: {text}\n\n" if text != before else ": still there\n\n"
        if now["state"] in (JUDGED, ENDED):
            return
        before = text
        await asyncio.sleep(EVERY_S)


def run_state(folder: Path) -> dict[str, Any]:
    """Return the current state of a run."""
    if is_running(folder):
        return {"state": RUNNING, "rows": rows(folder), **status(folder)}
    if is_being_judged(folder):
        return {"state": CHECKING}
    if (folder / "verdict.json").is_file():
        return {"state": JUDGED}
    return {"state": ENDED, "why": clip("; ".join(read_row(folder).notes), MAX_WHY)}


def status(folder: Path) -> dict[str, Any]:
    """Return the last status of a run; empty if it has none that can be read."""
    path = folder / FILE
    if trouble(path, MAX_BYTES):
        return {}
    try:
        fields = json.loads(path.read_text())
    except BROKEN:
        return {}
    return {"status": bounded(fields)} if isinstance(fields, dict) else {}


def rows(folder: Path) -> dict[str, int]:
    """Return the number of rows of each table that writers have reported."""
    sums: Counter[str] = Counter()
    journals = RunDir(folder).journal
    if journals.is_symlink():
        return {}
    for number, path in enumerate(journals.glob("*.arrows")):
        if number >= MAX_JOURNALS:
            break
        if not trouble(path.with_suffix(".count"), 64):
            try:
                sums[clip(table_of(path), 20)] += max(0, announced_rows(path) or 0)
            except OSError:
                continue
    return dict(sums.most_common(MAX_ITEMS))


def bounded(value: Any, depth: int = 4) -> Any:
    """Return a value of a size that a page can take, with numbers that JSON has."""
    if isinstance(value, str):
        return clip(value, LONGEST)
    if isinstance(value, bool | None):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 1e15 and math.isfinite(value) else None
    if depth and isinstance(value, Mapping):
        some = list(value.items())[:MAX_ITEMS]
        return {clip(name, LONGEST): bounded(item, depth - 1) for name, item in some}
    if depth and isinstance(value, Sequence):
        return [bounded(item, depth - 1) for item in value[:MAX_ITEMS]]
    return None
