"""`seatrial cluster`: starts a cluster that keeps running, for inspection.

A cluster has a folder like a run's, under `clusters` in the folder of runs. A separate process
starts it and holds its agents (`cluster_process`); commands send that process requests
(`cluster_server`). Local hosts end with the command that started them, so there `up` stays in the
foreground; elsewhere it returns.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from harness import registry
from harness.cli.cluster_server import ask
from harness.cli.console import standard_error, standard_output
from harness.cli.options import Request
from harness.cli.prog_name import seatrial
from harness.errors import EXIT_VALID, BadRequest, BedFailed, Unsupported
from harness.history.run_files import open_untrusted
from harness.history.rundir import RunDir
from harness.history.runs import LATEST, is_running, new_run
from harness.run.launch import packages_path
from harness.run.preflight import refuse_unrunnable
from harness.text.own_words import words_of
from harness.text.sanitize import sanitize

FOLDER = "clusters"
LOOK_EVERY_S = 0.1
DOWN_WITHIN_S = 60.0
FOLLOW_EVERY_S = 0.5
NOT_REDUNDANT = "without full redundancy"


def up(request: Request, runs: Path) -> int:
    """Start a cluster, and on hosts that outlive this command, return while it runs."""
    refuse_unrunnable(request, runs)
    _refuse_simulated(request.trial.hosts)
    run = new_run(request.trial, "", runs / FOLDER)
    stays = registry.hosts(request.trial.hosts).heal is None  # hosts that end with this command
    with _cluster_process(run, stays) as process:
        _await_start(run, process)
        show_status(run)
        if stays:
            with suppress(KeyboardInterrupt):  # the message must be printed first
                print("Ctrl-C stops it.", flush=True)
                process.wait()
            down(run)
            process.wait()
            if why := run.state().get("error"):
                raise BedFailed(str(why))
        else:
            print(f"Stop it with: {seatrial()} cluster down")
    return EXIT_VALID


def _refuse_simulated(hosts: str) -> None:
    """Raise Unsupported for hosts that exist only within a trial."""
    if registry.hosts(hosts).shell is None:
        raise Unsupported(
            f"no cluster can be kept on {hosts} hosts, which exist only during a trial; "
            "choose other hosts, such as local"
        )


def select_cluster(folder: Path | None, runs: Path) -> RunDir:
    """Return the cluster of a folder, or the newest that runs. Raises BadRequest if none does."""
    latest = runs / FOLDER / LATEST
    if folder is None and not latest.exists():
        raise BadRequest(
            f"there is no cluster under {runs}; start one with: {seatrial()} cluster up"
        )
    run = open_untrusted(folder or _newest_running(runs / FOLDER) or latest)
    _refuse_foreign(run)
    if is_running(run.path):
        return run
    state = run.state()
    if not state.get("ended") and not state.get("error"):
        heal = f"{seatrial()} heal {shlex.quote(str(run.path))}"
        raise BadRequest(
            f"the process of the cluster {run.path} was killed; remove what it left with: {heal}"
        )
    raise BadRequest(f"the cluster {run.path} is down; start one with: {seatrial()} cluster up")


def _refuse_foreign(run: RunDir) -> None:
    """Raise BadRequest if another user owns the folder: commands act on the processes, nodes and
    addresses in it."""
    if run.path.stat().st_uid not in (0, os.geteuid()):
        raise BadRequest(
            f"the cluster {run.path} belongs to another user; only that user may use it"
        )


def _newest_running(clusters: Path) -> Path | None:
    """Return the newest running cluster; names begin with the time."""
    folders = sorted((p for p in clusters.iterdir() if not p.is_symlink()), reverse=True)
    return next((p for p in folders if (p / "trial.toml").is_file() and is_running(p)), None)


def show_status(run: RunDir, as_json: bool = False) -> int:
    """Print the nodes with their addresses and roles."""
    answer = ask(run.path, do="status")
    if as_json:
        print(json.dumps(answer, indent=2, sort_keys=True))
        return EXIT_VALID
    words = words_of(run.state())
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("node", "address", "process", "role"):
        table.add_column(heading, overflow="fold")
    for row in answer["nodes"]:
        table.add_row(
            *map(Text, (row["node"], row["address"], row["state"], words(_role(row, answer))))
        )
    console = standard_output()
    console.print(table)
    redundancy = ("with full redundancy", "") if answer["redundant"] else (NOT_REDUNDANT, "red")
    console.print(Text.assemble(f"{run.trial().system} on {run.trial().hosts} hosts, ", redundancy))
    return EXIT_VALID


def show_log(run: RunDir, node: str, file: str, lines: int, follow: bool) -> int:
    """Print the end of a node's log, or of another file of its folder; with `follow`, new lines."""

    def read(start: int) -> Mapping[str, Any]:
        return ask(run.path, do="log", node=node, file=file, **{"from": start})

    answer = read(-lines)
    end = answer["end"]
    with suppress(KeyboardInterrupt):
        while True:
            text = answer["text"]
            print(sanitize(text), end="", flush=True)
            if not text or answer["next"] >= end:  # else the file did not fit into one answer
                if not follow:
                    print(end="" if not text or text.endswith("\n") else "\n")
                    break
                time.sleep(FOLLOW_EVERY_S)
            answer = read(answer["next"])
    return EXIT_VALID


def shell(run: RunDir, node: str, command: Sequence[str]) -> int:
    """Replace this process by a shell, or a command, on a node."""
    names = run.names()["nodes"]
    if node not in names:
        raise BadRequest(f"there is no node {node!r}; there are: {', '.join(names)}")
    join = registry.hosts(run.trial().hosts).shell
    assert join, "a cluster runs on hosts with a shell"
    argv = join(run, node, command or ("sh",))
    try:
        os.execvp(argv[0], list(argv))
    except FileNotFoundError as e:
        raise BedFailed(f"{argv[0]} is not installed; a shell on {node} needs it") from e


def down(run: RunDir) -> int:
    """Stop a cluster, and wait until it is gone."""
    with suppress(BedFailed):  # it has just ended
        ask(run.path, do="down")
    deadline = time.monotonic() + DOWN_WITHIN_S
    while is_running(run.path):
        if time.monotonic() > deadline:
            raise BedFailed(
                f"the process of {run.path} did not end within {DOWN_WITHIN_S:g} s; see {run.log}"
            )
        time.sleep(LOOK_EVERY_S)
    print(sanitize(f"{run.path.name} is down."))
    return EXIT_VALID


@contextmanager
def _cluster_process(run: RunDir, stays: bool) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the cluster's process. If `stays`, it ends with this one, by its standard input."""
    line, held_end = os.pipe()
    with run.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.cli.cluster_process", str(run.path)],
            stdin=line,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, "PYTHONPATH": packages_path()},
            pass_fds=() if stays else (held_end,),
            start_new_session=True,
        )
    run.update_state(keeper=process.pid)
    os.close(line)
    try:
        yield process
    finally:
        os.close(held_end)


def _await_start(run: RunDir, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the cluster serves requests. Ctrl-C stops what was started."""
    with standard_error().status("starting the cluster"):
        try:
            while run.state().get("phase") != "raised":
                if process.poll() is not None:
                    why = run.state().get("error") or f"its process ended; see {run.log}"
                    raise BedFailed(str(why))
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


def _role(row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    node = row["node"]
    for name, master in answer["masters"].items():
        if master == node:
            return f"master of {name}, epoch {answer['epochs'][name]}"
    if node == answer["controller_leader"]:
        return "leader"
    return "in the SyncStateSet" if row["in_set"] else row["role"]
