"""A run in progress, told to a browser as it goes on: server-sent events.

What is told is what the run's folder says: `status.json`, which the command that runs it writes a
few times a second (`harness.run.status_file`), and beside each journal the number of rows that its
writer has written. Both are small, so that a viewer costs a run nothing. A stream ends when there
is a verdict, or nobody is at work on one; the browser asks again, and learns what has become of
it. A run that has ended is looked at twice, for whoever judges it begins a moment later.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from harness.history.journal import counted, table_of
from harness.history.rundir import RunDir
from harness.history.runs import is_running
from harness.judge.lock import is_being_judged
from harness.judge.stored_verdict import BROKEN
from harness.run.status_file import FILE
from reports._site.rows import read_row
from reports._site.shelf import trouble
from reports._words import clip

MOST_BYTES = 200_000  # of a status
EVERY_S = 1.0
AGAIN_MS = 3_000  # after that a browser asks again
MOST_JOURNALS = 1_000
MOST_ITEMS, LONGEST = 60, 200
MOST_WHY = 800  # letters of why there is no verdict
RUNNING, CHECKING, JUDGED, ENDED = "running", "checking", "judged", "ended"


async def told(folder: Path) -> AsyncIterator[str]:
    """Events, each with all that is known; nothing is said twice."""
    yield f"retry: {AGAIN_MS}\n\n"
    before = ""
    while True:
        now = await run_in_threadpool(standing, folder)
        if now["state"] == ENDED:
            await asyncio.sleep(EVERY_S)
            now = await run_in_threadpool(standing, folder)
        text = json.dumps(now, sort_keys=True)
        yield f"data: {text}\n\n" if text != before else ": still there\n\n"
        if now["state"] in (JUDGED, ENDED):
            return
        before = text
        await asyncio.sleep(EVERY_S)


def standing(folder: Path) -> dict[str, Any]:
    """What is known of a run at this moment."""
    if is_running(folder):
        return {"state": RUNNING, "rows": rows(folder), **status(folder)}
    if is_being_judged(folder):
        return {"state": CHECKING}
    if (folder / "verdict.json").is_file():
        return {"state": JUDGED}
    return {"state": ENDED, "why": clip("; ".join(read_row(folder).notes), MOST_WHY)}


def status(folder: Path) -> dict[str, Any]:
    """What the run last said of itself; nothing when it said nothing that can be read."""
    path = folder / FILE
    if trouble(path, MOST_BYTES):
        return {}
    try:
        said = json.loads(path.read_text())
    except BROKEN:
        return {}
    return {"status": bounded(said)} if isinstance(said, dict) else {}


def rows(folder: Path) -> dict[str, int]:
    """Rows of each table that writers say they have written."""
    sums: Counter[str] = Counter()
    journals = RunDir(folder).journal
    if journals.is_symlink():
        return {}
    for number, path in enumerate(journals.glob("*.arrows")):
        if number >= MOST_JOURNALS:
            break
        if not trouble(path.with_suffix(".count"), 64):
            try:
                sums[clip(table_of(path), 20)] += max(0, counted(path) or 0)
            except OSError:
                continue
    return dict(sums.most_common(MOST_ITEMS))


def bounded(value: Any, depth: int = 4) -> Any:
    """The same, no larger than a page can take, and in numbers that JSON knows."""
    if isinstance(value, str):
        return clip(value, LONGEST)
    if isinstance(value, bool | None):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 1e15 and math.isfinite(value) else None
    if depth and isinstance(value, Mapping):
        some = list(value.items())[:MOST_ITEMS]
        return {clip(name, LONGEST): bounded(item, depth - 1) for name, item in some}
    if depth and isinstance(value, Sequence):
        return [bounded(item, depth - 1) for item in value[:MOST_ITEMS]]
    return None
