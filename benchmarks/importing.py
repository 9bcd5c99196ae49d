"""How fast foreign histories come in: Jepsen-style kafka histories with keys that rotate.

    python benchmarks/importing.py [OPERATIONS] [--check]

Clients send to a few keys at a time and poll those that are theirs; a key is retired after a while
and another takes its place, as Jepsen's generator does. Printed are lines a second for reading,
pairing and writing, the time of the whole and the memory of all its processes together, and, with
--check, the verdict's. On a busy machine the processor's seconds tell more than the clock's.
"""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _used import Peak

from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.importers import jepsen_kafka
from harness.importers._jepsen import recording
from harness.judge.judge import judge

PROCESSES, ACTIVE_KEYS, WRITES_OF_A_KEY, MOST_POLLED = 20, 12, 1024, 32
SHARES = 5  # each process reads the keys of one share


def history(operations: int, seed: int = 1) -> Iterator[str]:
    """A sound history, line by line."""
    dice = random.Random(seed)
    keys = list(range(ACTIVE_KEYS))
    logs: dict[int, list[int]] = {key: [] for key in keys}
    values = dict.fromkeys(keys, 0)
    read: list[dict[int, int]] = [{} for _ in range(PROCESSES)]
    open_: dict[int, tuple[str, int, int]] = {}
    index, now, begun = 0, 0, 0
    while begun < operations or open_:
        process = dice.randrange(PROCESSES)
        now += dice.randrange(200_000)
        if process in open_:
            f, value = _completed(open_.pop(process), logs, read[process], process)
            kind = "ok"
        elif begun < operations:
            begun, kind = begun + 1, "invoke"
            if dice.random() < 0.5:
                key = dice.choice(keys)
                values[key] += 1
                open_[process] = ("send", key, values[key])
                f, value = "send", f"[[:send {key} {values[key]}]]"
                if values[key] == WRITES_OF_A_KEY:
                    _rotate(keys, key, logs, values)
            else:
                open_[process] = ("poll", 0, 0)
                f, value = "poll", "[[:poll]]"
        else:
            continue
        yield _line(index, kind, process, f, value, now)
        index += 1
    for process in range(SHARES):  # at the end all is read
        yield _line(index, "invoke", process, "poll", "[[:poll]]", now + 1)
        found = [_rest(key, logs[key], read[process]) for key in range(process, len(logs), SHARES)]
        value = f"[[:poll {{{', '.join(filter(None, found))}}}]]"
        yield _line(index + 1, "ok", process, "poll", value, now + 2)
        index, now = index + 2, now + 2


def _line(index: int, kind: str, process: int, f: str, value: str, now: int) -> str:
    head = f"{{:index {index}, :type :{kind}, :process {process}, :f :{f}, "
    return f"{head}:value {value}, :time {now}}}\n"


def _rotate(keys: list[int], key: int, logs: dict[int, list[int]], values: dict[int, int]) -> None:
    new = len(logs)
    keys[keys.index(key)] = new
    logs[new], values[new] = [], 0


def _completed(
    asked: tuple[str, int, int], logs: dict[int, list[int]], read: dict[int, int], process: int
) -> tuple[str, str]:
    f, key, value = asked
    if f == "send":
        logs[key].append(value)
        return f, f"[[:send {key} [{len(logs[key]) - 1} {value}]]]"
    found = []
    for each in range(max(0, len(logs) - 2 * ACTIVE_KEYS), len(logs)):
        if each % SHARES != process % SHARES:
            continue
        found.append(_rest(each, logs[each], read, MOST_POLLED))
    return f, f"[[:poll {{{', '.join(filter(None, found))}}}]]"


def _rest(key: int, log: list[int], read: dict[int, int], most: int | None = None) -> str:
    """What a poll has of a key: what was not read yet, or so much of it; empty where nothing is."""
    at = read.get(key, 0)
    some = log[at:][:most]
    if not some:
        return ""
    read[key] = at + len(some)
    return f"{key} [{' '.join(f'[{at + n} {v}]' for n, v in enumerate(some))}]"


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("operations", nargs="?", type=int, default=1_000_000)
    asked.add_argument("--check", action="store_true", help="judge it too, with Spark")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.edn"
        with path.open("w") as file:
            file.writelines(history(options.operations))
        with Peak() as peak:
            told = _measure(path, Path(folder) / "run", check=options.check)
    json.dump(told | {"peak_gb": round(peak.gb, 2)}, sys.stdout, indent=2)
    print()


def _measure(path: Path, out: Path, *, check: bool) -> dict[str, object]:
    size = path.stat().st_size
    began, cpu = time.perf_counter(), _cpu_s()
    history = recording(path, jepsen_kafka.FORMAT)
    read = time.perf_counter()
    lines = len(history.events)
    run = _folder.write(history, path, "jepsen-kafka", out)
    written = time.perf_counter()
    told: dict[str, object] = {
        "lines": lines,
        "file_mb": round(size / 1e6, 1),
        "read_s": round(read - began, 2),
        "lines_read_per_s": round(lines / (read - began)),
        "pair_and_write_s": round(written - read, 2),
        "import_s": round(written - began, 2),
        "import_cpu_s": round(_cpu_s() - cpu, 2),
        "lines_per_s": round(lines / (written - began)),
        "history_mb": round(sum(p.stat().st_size for p in run.history.iterdir()) / 1e6, 1),
    }
    if check:
        told |= _judged(run, began)
    return told


def _judged(run: RunDir, began: float) -> dict[str, object]:
    start = time.perf_counter()
    verdict = judge(run)
    end = time.perf_counter()
    return {
        "check_s": round(end - start, 2),
        "file_to_verdict_s": round(end - began, 2),
        "verdict": verdict.sentence,
    }


def _cpu_s() -> float:
    """Of this process and of children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


if __name__ == "__main__":
    main()
