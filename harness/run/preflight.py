"""Refuse a trial that cannot run, before anything is started.

Every name is looked up, every option is checked by its owner, the plan is drawn and discarded, and
the machine is checked. A trial that passes fails only for reasons that could not be known before.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Timer

from harness import registry
from harness.campaign.swarm import draw_faults
from harness.cli.console import message, output
from harness.cli.doctor import refuse_unready
from harness.cli.options import Request
from harness.contracts.calls import lacking_calls
from harness.contracts.cluster_view import Omniscient
from harness.errors import BadRequest, SeatrialError, UnknownName, Unsupported
from harness.judge.claims import claims_in_force
from harness.run.launch import PlanLimits, make_plan
from harness.run.replica_comparison import ReplicaComparingSystem
from harness.text.trial_lines import source_position
from harness.trial import ANY_KIND, DEMANDS, ISOLATION, Trial

SLOW_S = 2.0  # what takes longer than this to fetch is announced


def refuse_unrunnable(request: Request, runs: Path, master: str | None = None) -> None:
    """Raise BadRequest or BedFailed if the trial cannot run as requested, and be judged by this
    Spark."""
    refuse_impossible(request)
    refuse_unready(request.trial.hosts, request.trial.bed, runs, master)
    prepare(request)


def prepare(request: Request) -> None:
    """Fetch what the nodes will run, in each version that the trial or its plan names. Raises
    BadRequest or BedFailed if it is not to be had."""
    trial = request.trial
    fetch = registry.system(trial.system).prepare
    if fetch is None:
        return
    nemesis = registry.nemesis()
    plan = nemesis.load(make_plan(trial, request.plan_text), "the plan").faults
    for version in dict.fromkeys(
        (trial.version, *trial.mixed.values(), *nemesis.planned_versions(plan))
    ):
        words = f"fetching {trial.system} {version}".strip()
        slow = Timer(SLOW_S, lambda words=words: _say(words))
        slow.start()
        try:
            fetch(replace(trial, version=version))
        finally:
            slow.cancel()


def _say(words: str) -> None:
    if not output().quiet:
        with suppress(OSError):
            print(message(f"seatrial: {words}"), file=sys.stderr)


def refuse_any_unrunnable(
    requests: Sequence[Request], runs: Path, master: str | None = None
) -> None:
    """Do the same for trials that differ in their seeds: the machine is checked once."""
    for one in requests:
        refuse_impossible(one)
    refuse_unready(requests[0].trial.hosts, requests[0].trial.bed, runs, master)
    prepare(requests[0])


def refuse_impossible(request: Request) -> None:
    """Raise BadRequest for what makes no sense on any machine, with the position in the file."""
    try:
        _refuse_impossible(request)
    except BadRequest as e:
        if place := source_position(e, request.written):
            raise BadRequest(f"{place}: {e}") from e
        raise


def _refuse_impossible(request: Request) -> None:
    trial = request.trial
    refuse_unknown(trial)
    if registry.hosts(trial.hosts).attach and not request.attached:
        raise BadRequest(
            f"{trial.hosts} hosts are a cluster that exists already, which only the command line "
            "may name: use --attach FILE of `run` or `replay`"
        )
    registry.nemesis().check_kinds(trial.faults)
    workload = registry.load("workload", trial.workload)(trial)
    workload.check_options()
    _refuse_unknown("checker", workload.checkers)
    refuse_unable_clients(trial)
    _refuse_comparison(trial, trial.checkers or workload.checkers)
    claims_in_force(trial)
    make_plan(trial, request.plan_text)


def refuse_unknown(trial: Trial) -> None:
    """Raise UnknownName for the first name in the trial that is not registered."""
    for kind, names in (
        ("system", (trial.system,)),
        ("hosts", (trial.hosts,)),
        ("workload", (trial.workload,)),
        ("fault", tuple(kind for kind in trial.claims if kind != ANY_KIND)),
        ("checker", trial.checkers),
    ):
        _refuse_unknown(kind, names)
    for demand in trial.contract:
        if demand not in (*DEMANDS, *ISOLATION):
            raise UnknownName("demand of the contract", demand, (*DEMANDS, *ISOLATION))


def missing_calls(trial: Trial) -> list[str]:
    """Return the calls that the trial's workload makes and the clients of its system lack."""
    system, needed = registry.system(trial.system), registry.workload(trial.workload).calls
    calls = system.calls
    if trial.client:  # of several sets of calls, it needs the first
        calls, needed = system.program_calls, needed[:1]
    return lacking_calls(calls(trial), needed) if calls is not None else []


def fitting_workloads(trial: Trial) -> list[str]:
    """Return the workloads whose calls the system's clients have."""
    return [
        name
        for name in registry.names("workload")
        if registry.workload(name).calls and not missing_calls(replace(trial, workload=name))
    ]


def drawable_workloads(base: Trial, hosts: str) -> list[str]:
    """Return the workloads that the system's clients can do on these hosts and that have a load to
    draw. If there are some, but no trial like `base` can be drawn, raise why."""
    names, refused = [], None
    for name in registry.names("workload"):
        trial = replace(base, workload=name, hosts=hosts)
        if registry.workload(name).swarm is None or missing_calls(trial):
            continue
        try:
            drawn, _ = draw_faults(1, trial, hosts=hosts)
            registry.client(drawn, PlanLimits.of(drawn).nodes)
        except SeatrialError as exc:
            refused = refused or exc
        else:
            names.append(name)
    if refused and not names:
        raise refused
    return names


def refuse_unable_clients(trial: Trial) -> None:
    """Raise BadRequest if the clients of the system lack calls that the workload makes."""
    refuse_no_program(trial)
    if missing := missing_calls(trial):
        of = f"the clients of {trial.system} lack"
        if trial.client:
            of = f"the client program {trial.client[0]} lacks"
        fitting = ", ".join(fitting_workloads(trial)) or "none"
        raise BadRequest(
            f"{of} {', '.join(missing)}, which the workload "
            f"{trial.workload} needs; workloads that fit: {fitting}"
        )


def refuse_no_program(trial: Trial) -> None:
    """Raise BadRequest or Unsupported if no client program can serve such a trial."""
    if not trial.client:
        return
    if "commands" not in registry.load("hosts", trial.hosts)(trial, Path()).can:
        raise Unsupported(
            f"client: {trial.hosts} hosts run no programs; choose other hosts, or leave client out"
        )
    if not registry.system(trial.system).program_calls:
        systems = registry.names("system")
        fitting = [name for name in systems if registry.system(name).program_calls]
        raise BadRequest(
            f"client: {trial.system} cannot be tested with a client program, because its clients "
            f"have calls of their own; systems that can be: {', '.join(fitting)}"
        )


def compares_replicas(trial: Trial) -> bool:
    """Return whether the trial's system can compare its replicas while it serves."""
    return isinstance(registry.load("system", trial.system)(trial), ReplicaComparingSystem)


def _refuse_comparison(trial: Trial, checkers: Sequence[str]) -> None:
    """Raise BadRequest if replicas are to be compared between faults, and the system cannot, or no
    checker judges it."""
    if not trial.compare_replicas:
        return
    if not compares_replicas(trial):
        raise BadRequest(
            f"compare_replicas: {trial.system} cannot compare its replicas while it serves;"
            " leave it out"
        )
    if "replicas" not in checkers:
        raise BadRequest(
            "compare_replicas: the trial does not name the checker replicas, which needs it; "
            "add it to checkers, or leave compare_replicas out"
        )
    if isinstance(registry.load("hosts", trial.hosts)(trial, Path()), Omniscient):
        raise BadRequest(
            f"compare_replicas: on {trial.hosts} hosts replicas are not compared between faults,"
            " because internal invariants are monitored all the time; leave it out"
        )


def _refuse_unknown(kind: str, names: Sequence[str]) -> None:
    for name in names:
        if name not in registry.names(kind):
            raise UnknownName(kind, name, registry.names(kind))
