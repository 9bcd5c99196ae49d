"""How fast foreign histories come in: Jepsen's kafka as EDN or JSON, and Porcupine's logs.

    python benchmarks/importing.py [OPERATIONS] [--format edn|json|porcupine|porcupine-kv] [--check]
    python benchmarks/importing.py --runs 5 --against CHECKOUT

Clients send to a few keys at a time and poll those that are theirs; a key is retired after a while
and another takes its place, as Jepsen's generator does. Clients of registers write and read. Each
run is a process of its own, which prints lines a second for reading, pairing and writing, the time
of the whole and the memory of all its processes together, and, with --check, the verdict's. With
--against another checkout of this repository runs in turn with this one, on the same file. Printed
are medians, and how often the other's seconds this one takes. A first run of each, which compiles,
does not count. On a busy machine the processor's seconds tell more than the clock's.
"""

import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from _used import Peak, used

from harness import registry
from harness.cli import session
from harness.history.rundir import RunDir
from harness.importers import _recording
from harness.importers import _run_folder as _folder
from harness.judge.judge import judge
from harness.spark.master import DEFAULT

HERE = Path(__file__).resolve().parents[1]
WARM_UP = 20_000  # operations of the run that does not count
FORMATS = {
    "edn": "jepsen-kafka",
    "json": "jepsen-kafka",
    "porcupine": "porcupine",
    "porcupine-kv": "porcupine-kv",
}
CLIENTS = 5  # of registers
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


def as_json(lines: Iterable[str]) -> Iterator[str]:
    """The same history in JSON."""
    for line in lines:
        line = re.sub(r":(\w+)", r'"\1"', line).replace("nil", "null")
        line = re.sub(r'("(?:index|type|process|f|value|time)") ', r"\1: ", line)
        line = re.sub(r"(\d+) \[\[", r'"\1": [[', line)  # the messages of a key
        yield re.sub(r"(?<=[\w\]\"]) (?=[\d\[{])", ", ", line).replace(":,", ":")


def registers(operations: int, format_: str, seed: int = 1) -> Iterator[str]:
    """A sound history of registers, as Porcupine's logs and key-value histories have them."""
    dice = random.Random(seed)
    held = dict.fromkeys(range(1 if format_ == "porcupine" else 100), "")
    open_: dict[int, tuple[str, int, str]] = {}
    begun = 0
    while begun < operations or open_:
        process = dice.randrange(CLIENTS)
        if process in open_:
            f, key, value = open_.pop(process)
            if f == "write":
                held[key] = value
            value, kind = value or held[key], "ok"
        elif begun < operations:
            begun, kind, key = begun + 1, "invoke", dice.choice(list(held))
            f = dice.choice(("read", "write"))
            value = str(dice.randrange(1, 1000)) if f == "write" else ""
            open_[process] = f, key, value
        else:
            continue
        if format_ == "porcupine":
            yield f"INFO  jepsen.util - {process}\t:{kind}\t:{f}\t{value or 'nil'}\n"
        else:
            name = {"read": "get", "write": "put"}[f]
            text = f'"x {process} {value} y"' if value else "nil"
            head = f"{{:process {process}, :type :{kind}, :f :{name}"
            yield f'{head}, :key "{key}", :value {text}}}\n'


def lines_of(operations: int, format_: str) -> Iterator[str]:
    if format_ in ("edn", "json"):
        found = history(operations)
        return as_json(found) if format_ == "json" else found
    return registers(operations, format_)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("operations", nargs="?", type=int, default=1_000_000)
    asked.add_argument("--format", choices=FORMATS, default="edn")
    asked.add_argument("--check", action="store_true", help="judge it too, with Spark")
    asked.add_argument("--runs", type=int, default=1)
    asked.add_argument("--against", type=Path, help="another checkout, to compare with")
    asked.add_argument("--file", type=Path, help="one run, of a file that is there")
    options = asked.parse_args()
    if options.file:
        with tempfile.TemporaryDirectory() as folder, Peak() as peak:
            name = FORMATS[options.format]
            one = _measure(options.file, name, Path(folder) / "run", check=options.check)
        json.dump(one | {"peak_gb": round(peak.gb, 2)}, sys.stdout)
        return
    trees = {"this": HERE} | ({"other": options.against.resolve()} if options.against else {})
    results: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        for run in range(options.runs + 1):
            path = Path(folder) / f"history-{min(run, 1)}"
            if run < 2:
                with path.open("w") as file:
                    size = min(WARM_UP, options.operations) if run == 0 else options.operations
                    file.writelines(lines_of(size, options.format))
            for name, tree in trees.items():
                found = _run(tree, path, options.format, check=options.check and run > 0)
                results[name] += [found] if run else []
    printed = {name: _medians(some) for name, some in results.items()}
    if "other" in printed:
        printed["ratio"] = {
            key: round(value / printed["other"][key], 2)
            for key, value in printed["this"].items()
            if isinstance(value, float) and printed["other"].get(key)
        }
    json.dump(printed, sys.stdout, indent=2)
    print()


def _run(tree: Path, path: Path, format_: str, *, check: bool) -> dict[str, float]:
    """Run one measurement with the packages of a checkout."""
    command = [sys.executable, __file__, "--file", str(path), "--format", format_]
    command += ["--check"] if check else []
    environment = os.environ | {"PYTHONPATH": str(tree)}
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, float] = json.loads(printed)
    return found


def _medians(results: list[dict[str, float]]) -> Mapping[str, float]:
    first = results[0]
    return {
        key: statistics.median(one[key] for one in results) if isinstance(value, float) else value
        for key, value in first.items()
    }


def _measure(path: Path, name: str, out: Path, *, check: bool) -> dict[str, object]:
    read_history = registry.load("importer", name)
    getattr(_recording, "use_system_memory", lambda: None)()  # as `import` does
    began, cpu = time.perf_counter(), _cpu_s()
    with starting_spark(wanted=check) as spark:
        imported, run = _import(path, name, read_history, out, began, cpu)
        return imported | (_judged(run, began, spark) if check else {})


@contextmanager
def starting_spark(*, wanted: bool) -> Iterator[Any]:
    """Spark, which starts while the file is read, if this checkout's `import --check` can do it."""
    start = getattr(session, "starting_spark", None)
    with start(DEFAULT, wanted=wanted) if start else nullcontext() as spark:
        yield spark


def _import(
    path: Path, name: str, read_history: Any, out: Path, began: float, cpu: float
) -> tuple[dict[str, object], RunDir]:
    size = path.stat().st_size
    history = read_history(path)
    read, read_cpu = time.perf_counter(), _cpu_s()
    lines = len(history.events)
    run = _folder.write(history, path, name, out)
    written = time.perf_counter()
    told: dict[str, object] = {
        "lines": lines,
        "file_mb": round(size / 1e6, 1),
        "read_s": round(read - began, 2),
        "read_cpu_s": round(read_cpu - cpu, 2),
        "lines_read_per_s": round(lines / (read - began)),
        "pair_and_write_s": round(written - read, 2),
        "import_s": round(written - began, 2),
        "import_cpu_s": round(_cpu_s() - cpu, 2),
        "lines_per_cpu_s": round(lines / (_cpu_s() - cpu)),
        "history_mb": round(sum(p.stat().st_size for p in run.history.iterdir()) / 1e6, 1),
    }
    return told, run


def _judged(run: RunDir, began: float, spark: Any) -> dict[str, object]:
    start = time.perf_counter()
    verdict = judge(run, spark.session() if spark else None)
    end = time.perf_counter()
    return {
        "check_s": round(end - start, 2),
        "file_to_verdict_s": round(end - began, 2),
        "file_to_verdict_cpu_s": round(used()[0], 2),
        "verdict": verdict.sentence,
    }


def _cpu_s() -> float:
    """Of this process and of children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


if __name__ == "__main__":
    main()
