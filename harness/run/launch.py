"""The command's side of a run: create its folder, start the runner, and watch it to its end.

The runner is a process in a session of its own, so the terminal's Ctrl-C reaches only this one: the
first asks the runner for an early end, the second kills it. If this process dies, by whatever
signal, the runner's standard input ends and the kernel kills it too, so nothing is left behind. The
kernel ties it to the *thread* that started it: call `run` from a thread that lives on.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
from harness import registry
from harness.cli.hints import recorded_run_hint
from harness.cli.prog_name import seatrial
from harness.contracts import CLIENT, KEY_PREFIX, Hosts, Node, System
from harness.contracts.membership import REJOIN, VERSIONS
from harness.errors import BadRequest, BedFailed, UnknownName, Unsupported
from harness.history.rundir import RunDir
from harness.history.runs import start_run
from harness.run.interrupts import on_stop_signal
from harness.run.status_file import StatusFile
from harness.trial import Trial
from harness.zones import assign_zones, distances

Status = Mapping[str, Any]


def make_plan(trial: Trial, plan_text: str | None = None) -> str:
    """Return the trial's plan as explicit TOML: from the text of a plan file, else drawn from its
    seed.

    Raises BadRequest or Unsupported if it makes no sense for this system on these hosts.
    """
    nemesis = registry.nemesis()
    stage = PlanLimits.of(trial)
    plan = nemesis.plan_for_trial(trial, plan_text, stage.detection_s, stage.nodes, stage.can)
    text: str = nemesis.dump(plan)
    return text


@dataclass(frozen=True)
class PlanLimits:
    """What a plan has to fit: the nodes, and what can be done to them."""

    nodes: Sequence[Node]
    detection_s: float
    can: frozenset[str]

    @classmethod
    def of(cls, trial: Trial) -> "PlanLimits":
        """Return the limits of a trial. Raises BadRequest if the hosts have no place for such a
        cluster."""
        system: System = registry.load("system", trial.system)(trial)
        hosts: Hosts = registry.load("hosts", trial.hosts)(trial, Path())
        nodes = assign_zones(system.nodes(), trial.zones)
        hosts.check(nodes)
        if distances(nodes, trial.zone_latency) and "delay" not in hosts.can:
            raise Unsupported(
                f"{trial.hosts} hosts cannot delay packets, which zone_latency needs; choose "
                "other hosts"
            )
        # a driver that declares nothing starts nodes again as they are, even without their data
        able = getattr(system, "can", frozenset({REJOIN}))
        cannot: frozenset[str] = getattr(system, "cannot", frozenset())
        _check_programs(trial)
        _check_mixed(trial, nodes, able)
        return cls(nodes, system.detection_s, (hosts.can | able) - cannot)


def _check_programs(trial: Trial) -> None:
    """Raise Unsupported if the trial selects programs of a system that has none to select."""
    for name in ("version", "supply"):
        chosen = getattr(trial, name) != getattr(Trial(), name)
        if chosen and registry.system(trial.system).supply is None:
            raise Unsupported(
                f"{trial.system} has no programs that {name} could select; leave {name} out"
            )


def _check_mixed(trial: Trial, nodes: Sequence[Node], able: frozenset[str]) -> None:
    """Raise BadRequest or Unsupported if nodes cannot run the versions that the trial names."""
    servers = [node.name for node in nodes if node.role != CLIENT]
    for name, version in trial.mixed.items():
        if name not in servers:
            raise UnknownName("node of mixed", name, servers)
        if not isinstance(version, str) or not version:
            raise BadRequest(f"mixed.{name} must be a version as a string, not {version!r}")
    if trial.mixed and VERSIONS not in able:
        raise Unsupported(
            f"{trial.system} has no versions of its program to choose from; leave mixed out"
        )


def run(
    trial: Trial,
    plan_text: str | None = None,
    on_status: Callable[[Status], None] = lambda status: None,
    runs: Path = Path("runs"),
) -> RunDir:
    """Run a trial to its end; return the folder with what it recorded.

    Raises BedFailed if it ended before its load began, so that there is nothing to judge. If the
    test bed failed later, `state()["error"]` of the run says why.
    """
    plan = make_plan(trial, plan_text)
    if registry.hosts(trial.hosts).attach:
        prefix = f"seatrial-{secrets.token_hex(4)}-"
        trial = replace(trial, bed={**trial.bed, KEY_PREFIX: prefix})
    with start_run(trial, plan, runs) as folder, StatusFile(folder) as bulletin:
        running = RunnerProcess(folder)
        with running.interruptible():
            for status in running:
                bulletin.update(status)
                on_status(status)
            running.check()
    return folder


class RunnerProcess:
    """A runner process: iterate over its status lines until it has exited."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._stops = 0
        with run.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.run.runner", str(run.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": packages_path()},
                start_new_session=True,
            )

    def __iter__(self) -> Iterator[Status]:
        """Yield status lines until the runner and its children have exited."""
        with self._process as process:
            for line in process.stdout or ():
                with suppress(ValueError):  # a line was cut short because the pipe was full
                    yield json.loads(line)

    def stop(self) -> None:
        """Ask for an early end; when called again, kill the runner."""
        self._stops += 1
        if self._stops > 1:
            self._process.kill()
        elif self._process.stdin:
            with suppress(OSError):
                self._process.stdin.write(b"stop\n")
                self._process.stdin.flush()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Stop the run on Ctrl-C, SIGTERM and SIGHUP during the block; at its end, the run is
        over."""
        with on_stop_signal(self.stop):
            try:
                yield
            finally:
                self._process.kill()
                self._process.wait()

    def _heal_hint(self) -> str:
        """Return a hint for a run that was killed on hosts that outlive it, to heal what it left
        there."""
        hosts = self.run.trial().hosts
        if self._stops < 2 or not registry.hosts(hosts).heal:
            return ""
        return f"; what is left on its hosts is removed by: {seatrial()} heal {self.run.path}"

    def check(self) -> None:
        """After the end: raise KeyboardInterrupt or BedFailed if there is nothing to judge."""
        code = self._process.wait()
        state = self.run.state()
        stopped = self._stops > 0
        if not stopped and not state.get("ended") and not state.get("error"):
            why = f"the runner ended by itself (exit code {code}); see {self.run.log}"
            self.run.update_state(error=why)
            state = self.run.state()
        if self._stops > 1 or (stopped and "load_began_ns" not in state):
            unloaded = f"the load had not begun, so {self.run.path} has nothing to judge"
            judgeable = recorded_run_hint(self.run) if "load_began_ns" in state else unloaded
            raise KeyboardInterrupt(f"; {judgeable}{self._heal_hint()}")
        if "load_began_ns" not in state:
            raise BedFailed(state["error"])


def packages_path() -> str:
    """Return the PYTHONPATH of our packages and everything else this process imports, as absolute
    paths."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    root = str(Path(harness.__file__).parents[1])
    return os.pathsep.join(os.path.abspath(folder) for folder in (root, *given))
