"""Refusing a trial that can not be, before anything is started.

Every name is looked up, every option is checked by who owns it, the plan is drawn and thrown away,
and the machine is asked whether it can. A trial that gets past this fails only for reasons that
nobody could know beforehand.
"""

from harness import registry
from harness.doctor import refuse_unready
from harness.errors import UnknownName
from harness.launch import planned
from harness.options import Request
from harness.trial import DEMANDS, Trial


def refuse(asked: Request) -> None:
    """BadRequest or BedFailed when the trial can not be run as asked for."""
    trial = asked.trial
    refuse_unknown(trial)
    registry.load("workload", trial.workload)(trial).check_options()
    planned(trial, asked.plan_text)
    refuse_unready(trial.hosts)


def refuse_unknown(trial: Trial) -> None:
    """UnknownName for the first name in the trial that nobody registered."""
    for kind, names in (
        ("system", (trial.system,)),
        ("hosts", (trial.hosts,)),
        ("workload", (trial.workload,)),
        ("fault", trial.survives),
        ("checker", trial.checkers),
    ):
        for name in names:
            registry.module(kind, name)
    for demand in trial.contract:
        if demand not in DEMANDS:
            raise UnknownName("demand of the contract", demand, DEMANDS)
