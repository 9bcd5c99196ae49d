"""Clusters that are raised and left running, for people who want to look at one.

A cluster has a folder like a run's, under `clusters` in the folder of runs. Its keeper, a process
of its own, has raised it and holds its agents; everybody else asks at the keeper's desk. Local
hosts die with the command that raised them, so there `up` stays; elsewhere it returns.
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
from harness.history.run_files import opened
from harness.history.rundir import RunDir
from harness.history.runs import LATEST, is_running, new_run
from harness.run.launch import packages_path
from harness.run.preflight import refuse
from harness.text.sanitize import sayable

FOLDER = "clusters"
LOOK_EVERY_S = 0.1
DOWN_WITHIN_S = 60.0
FOLLOW_EVERY_S = 0.5
LACKING = "without full redundancy"


def up(asked: Request, runs: Path) -> int:
    """Raise a cluster; on hosts that outlive this command, leave it."""
    refuse(asked, runs)
    _refuse_fleeting(asked.trial.hosts)
    run = new_run(asked.trial, "", runs / FOLDER)
    stays = registry.hosts(asked.trial.hosts).heal is None  # hosts that die with who raised them
    with _keeper(run, stays) as keeper:
        _await_raised(run, keeper)
        show_status(run)
        if stays:
            with suppress(KeyboardInterrupt):  # from when it says so
                print("Ctrl-C takes it down.", flush=True)
                keeper.wait()
            down(run)
            keeper.wait()
            if why := run.state().get("error"):
                raise BedFailed(str(why))
        else:
            print(f"{seatrial()} cluster down takes it down.")
    return EXIT_VALID


def _refuse_fleeting(hosts: str) -> None:
    """Unsupported where there is nothing that somebody could look at."""
    if registry.hosts(hosts).shell is None:
        raise Unsupported(
            f"no cluster can be kept on {hosts} hosts, where nothing happens but in a trial; "
            "choose other hosts, such as local"
        )


def chosen(folder: Path | None, runs: Path) -> RunDir:
    """The cluster in a folder, else the newest that runs. BadRequest when there is none."""
    latest = runs / FOLDER / LATEST
    if folder is None and not latest.exists():
        raise BadRequest(f"no cluster was raised under {runs}: {seatrial()} cluster up raises one")
    run = opened(folder or _newest_running(runs / FOLDER) or latest)
    _refuse_foreign(run)
    if is_running(run.path):
        return run
    state = run.state()
    if not state.get("ended") and not state.get("error"):
        heal = f"{seatrial()} heal {shlex.quote(str(run.path))}"
        raise BadRequest(f"the keeper of {run.path} was killed: {heal} removes what it left")
    raise BadRequest(f"the cluster of {run.path} is down: {seatrial()} cluster up raises one")


def _refuse_foreign(run: RunDir) -> None:
    """Raise BadRequest if another user made the folder: what it says of processes, nodes and
    addresses is acted upon."""
    if run.path.stat().st_uid not in (0, os.geteuid()):
        raise BadRequest(f"the cluster of {run.path} is another user's; only that user may use it")


def _newest_running(clusters: Path) -> Path | None:
    """Names begin with the time; the link to the latest stands after them, and is none of them."""
    folders = sorted((p for p in clusters.iterdir() if not p.is_symlink()), reverse=True)
    return next((p for p in folders if (p / "trial.toml").is_file() and is_running(p)), None)


def show_status(run: RunDir, as_json: bool = False) -> int:
    """Who is there, and who plays which part."""
    answer = ask(run.path, do="status")
    if as_json:
        print(json.dumps(answer, indent=2, sort_keys=True))
        return EXIT_VALID
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("node", "address", "process", "part"):
        table.add_column(heading, overflow="fold")
    for row in answer["nodes"]:
        table.add_row(*map(Text, (row["node"], row["address"], row["state"], _part(row, answer))))
    console = standard_output()
    console.print(table)
    redundancy = ("with full redundancy", "") if answer["redundant"] else (LACKING, "red")
    console.print(Text.assemble(f"{run.trial().system} on {run.trial().hosts} hosts, ", redundancy))
    return EXIT_VALID


def show_log(run: RunDir, node: str, file: str, lines: int, follow: bool) -> int:
    """The end of a node's log, or of another file of its folder, and what comes after it."""

    def read(start: int) -> Mapping[str, Any]:
        return ask(run.path, do="log", node=node, file=file, **{"from": start})

    answer = read(-lines)
    end = answer["end"]
    with suppress(KeyboardInterrupt):
        while True:
            text = answer["text"]
            print(sayable(text), end="", flush=True)
            if not text or answer["next"] >= end:  # else one answer could not hold it
                if not follow:
                    print(end="" if not text or text.endswith("\n") else "\n")
                    break
                time.sleep(FOLLOW_EVERY_S)
            answer = read(answer["next"])
    return EXIT_VALID


def shell(run: RunDir, node: str, command: Sequence[str]) -> int:
    """Become a shell, or a command, on a node."""
    names = run.names()["nodes"]
    if node not in names:
        raise BadRequest(f"there is no node {node!r}; there are: {', '.join(names)}")
    join = registry.hosts(run.trial().hosts).shell
    assert join, "a cluster is kept on no others"
    argv = join(run, node, command or ("sh",))
    try:
        os.execvp(argv[0], list(argv))
    except FileNotFoundError as e:
        raise BedFailed(f"{argv[0]} is not installed, and a shell on {node} needs it") from e


def down(run: RunDir) -> int:
    """Take a cluster down, and wait until it is."""
    with suppress(BedFailed):  # it went by itself meanwhile
        ask(run.path, do="down")
    deadline = time.monotonic() + DOWN_WITHIN_S
    while is_running(run.path):
        if time.monotonic() > deadline:
            raise BedFailed(
                f"the keeper of {run.path} did not end within {DOWN_WITHIN_S:g} s; see {run.log}"
            )
        time.sleep(LOOK_EVERY_S)
    print(sayable(f"{run.path.name} is down."))
    return EXIT_VALID


@contextmanager
def _keeper(run: RunDir, stays: bool) -> Iterator["subprocess.Popen[bytes]"]:
    """The keeper's process. One that stays with us ends with us: its standard input is ours."""
    line, held_end = os.pipe()
    with run.log.open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.cli.cluster_process", str(run.path)],
            stdin=line,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, "PYTHONPATH": packages_path()},
            pass_fds=() if stays else (held_end,),
            start_new_session=True,
        )
    run.update_state(keeper=keeper.pid)
    os.close(line)
    try:
        yield keeper
    finally:
        os.close(held_end)


def _await_raised(run: RunDir, keeper: "subprocess.Popen[bytes]") -> None:
    """Until the cluster serves; what was begun is taken down when it never will."""
    with standard_error().status("raising the cluster"):
        try:
            while run.state().get("phase") != "raised":
                if keeper.poll() is not None:
                    why = run.state().get("error") or f"its keeper ended; see {run.log}"
                    raise BedFailed(str(why))
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            keeper.terminate()
            keeper.wait()
            raise


def _part(row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    node = row["node"]
    for name, master in answer["masters"].items():
        if master == node:
            return f"master of {name}, epoch {answer['epochs'][name]}"
    if node == answer["controller_leader"]:
        return "leader"
    return "in the SyncStateSet" if row["in_set"] else row["role"]
