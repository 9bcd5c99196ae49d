"""How long a large run's page takes to make, how large it is, and how soon a browser shows it.

    python benchmarks/pages.py [OPERATIONS]

The run is made up: two crews whose sends take as long as a log-normal dice says, some refused and
some never answered, each message polled once, over an hour in which faults follow each other. An
operation is two rows, and a polled message one more. Printed are seconds by the clock and by the
processor; the browser is Debian's chromium, where it is installed.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.history.journal import TableJournal
from harness.history.rundir import RunDir
from harness.history.schema import FAULTS
from harness.history.seal import seal
from harness.judge.verdict import Judgement, Verdict
from harness.operation import F, Type
from harness.trial import Trial
from reports import page

CREWS, QUEUES, CHUNK = 2, 8, 500_000
TIMES = 5
HOUR_NS = 3_600_000_000_000
KINDS = ("kill", "pause", "partition", "loss")
FAULT_EVERY_S, FAULT_S = 60, 20
SMALL = {"type": np.int8, "f": np.int8, "pos": np.int32, "key": np.int32, "process": np.int32}


def chunks(operations: int, crew: int) -> Iterator[dict[str, Any]]:
    """A crew's rows, in the order of time within each chunk."""
    dice = np.random.default_rng(crew)
    apart = HOUR_NS // operations
    offsets = np.zeros(QUEUES, np.int64)
    for first in range(0, operations, CHUNK):
        number = np.arange(first, min(first + CHUNK, operations), dtype=np.int64)
        begun = number * apart
        took = np.exp(dice.normal(14.8, 0.6, len(number))).astype(np.int64)
        key = number % QUEUES
        offset = offsets[key] + (number - first) // QUEUES
        offsets += len(number) // QUEUES
        kind = dice.choice((1, 1, 1, 1, 1, 1, 1, 1, 2, 3), len(number))
        ok = kind == Type.OK
        common = {"process": np.full(len(number), crew), "op": number * CREWS + crew, "key": key}
        parts = [
            {**common, "t": begun, "type": 0, "f": F.SEND, "offset": -1, "pos": -1},
            {**common, "t": begun + took, "type": kind, "f": F.SEND, "offset": offset, "pos": -1},
            {
                **{name: values[ok] for name, values in common.items()},
                "process": np.full(int(ok.sum()), 100 + crew),
                "t": (begun + 3 * took)[ok],
                "type": 1,
                "f": F.POLL,
                "offset": offset[ok],
                "pos": 0,
            },
        ]
        yield _in_order(parts)


def _in_order(parts: list[dict[str, Any]]) -> dict[str, Any]:
    full = [{k: np.broadcast_to(v, len(part["t"])) for k, v in part.items()} for part in parts]
    rows = {name: np.concatenate([part[name] for part in full]) for name in full[0]}
    order = np.argsort(rows["t"], kind="stable")
    return {n: rows[n][order].astype(SMALL.get(n, np.int64)) for n in rows}


def made_up(folder: Path, operations: int) -> RunDir:
    """A sealed and judged run."""
    run = RunDir(folder)
    run.journal.mkdir(parents=True)
    run.trial_file.write_text(Trial(name="large", duration_s=3600.0).to_toml())
    processes = {str(100 + crew): f"consumer {crew} of billing on client-{crew}" for crew in (0, 1)}
    run.write_names({"keys": [f"orders-{n}" for n in range(QUEUES)], "processes": processes})
    run.update_state(ended=True, started="2026-11-22T10:00:00Z")
    for crew in range(CREWS):
        journal = TableJournal(run.journal, "ops", f"client-{crew}")
        for rows in chunks(operations // CREWS, crew):
            journal.append_columns(rows)
        journal.close()
    _faults(run)
    seal(run)
    verdict = Verdict(Judgement.VALID, "Valid: it is made up.", (), ())
    run.verdict_file.write_text(verdict.to_json())
    return run


def _faults(run: RunDir) -> None:
    table = TableJournal(run.journal, "faults", "runner")
    for number in range(3600 // FAULT_EVERY_S):
        begin = (number * FAULT_EVERY_S + 20) * 10**9
        row: dict[str, Any] = dict.fromkeys(FAULTS.names)
        row |= {"id": number, "kind": KINDS[number % len(KINDS)], "state": "installed"}
        row |= {"targets": json.dumps({"master": [f"broker-{number % 3 + 1}"]})}
        row |= {"begin": begin, "applied": begin + 10**8, "observed": begin + 2 * 10**8}
        heal = begin + FAULT_S * 10**9
        table.append(tuple((row | {"heal": heal, "healed": heal + 10**8}).values()))
    table.close()


def browser() -> str:
    """The program, or nothing; then it is said what is missing."""
    program = shutil.which("chromium") or ""
    if not program:
        print("not shown in a browser: there is no chromium here")
    elif find_spec("playwright") is None:
        print(f"not shown in a browser: {sys.executable} -m pip install playwright")
        return ""
    return program


def shown_after_s(path: Path, browser_path: str) -> float:
    """Until the picture is drawn and answers to a key."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = opened.new_page()
        began = time.perf_counter()
        tab.goto(path.as_uri())
        tab.wait_for_selector("#time[data-drawn]")
        before = tab.get_attribute("#time", "data-drawn")
        tab.focus("#time")
        tab.keyboard.press("+")
        tab.wait_for_selector(f"#time:not([data-drawn='{before}'])")
        took = time.perf_counter() - began
        opened.close()
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("operations", type=int, nargs="?", default=10_000_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = made_up(Path(folder) / "run", asked.operations)
        wall, cpu = time.perf_counter(), time.process_time()
        page.render(run)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        size = run.report_file.stat().st_size / 1e6
        print(f"{asked.operations:,} operations: made in {wall:.1f} s ({cpu:.1f} s of processor)")
        print(f"{size:.2f} MB")
        if program := browser():
            took = [shown_after_s(run.report_file, program) for _ in range(TIMES)]
            told = f"median of {TIMES} new browsers; {min(took):.2f} to {max(took):.2f}"
            print(f"drawn, and zoomed by a key, after {median(took):.2f} s ({told})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
