"""Inject faults: plans, targets, injection, observation and healing.

A *fault* is one way to break the cluster, one file in this package: `nemesis/pause.py` is `--faults
pause`. A *plan* lists faults with their times and targets by *selector* (`master`, `minority
broker`); it is drawn from the trial's seed or written by hand, and saved before the run. The
*nemesis* carries it out: it resolves each selector at the moment of its fault, applies the fault,
*observes* its effect (probes that do not arrive, stopped threads, a process id that is gone), heals
it in any case, and observes the healing too. A fault that was not observed proves nothing, so it is
recorded as `partial` or `failed`, never as `installed`.

A network fault is a set of directed links with an effect. Shapes are pure functions that make such
sets (`_network/shapes.py`), and the rules of all faults in force are merged, so that healing one
leaves the others in place (`_network/link_rules.py`). Faults reach nodes only through the verbs of
their agents, so every fault works on every kind of hosts that has what it `needs`.

The public functions: `plan_for_trial` returns a trial's plan, checked (`draw` or `load`, then
`check`); `swarm` draws a dense one for campaigns; `demo_plan` demonstrates each kind; `dump` saves
a plan and `carry_out` executes it. `unsupported_reason` says why nodes cannot carry out a plan,
`describe_effect` describes what a fault did, and `open_entries` are the faults that a crashed run
left in the world, if there is no `ledger_damage`. `delay_zones` delays the links between zones
before anything else.
"""

from nemesis._plan.drawing import DemoPlan, demo_plan, has_target, swarm
from nemesis._plan.kinds import check_kinds
from nemesis._plan.plan import check, draw, longest_s, plan_for_trial, planned_versions
from nemesis._plan.toml import Plan, dump, load
from nemesis._runner.capabilities import unsupported_reason
from nemesis._runner.interval import describe_effect
from nemesis._runner.ledger import FaultLedger, LedgerEntry, ledger_damage, open_entries
from nemesis._runner.nemesis import carry_out
from nemesis.delay import delay_zones

__all__ = [
    "DemoPlan",
    "FaultLedger",
    "LedgerEntry",
    "Plan",
    "carry_out",
    "check",
    "check_kinds",
    "delay_zones",
    "demo_plan",
    "describe_effect",
    "draw",
    "dump",
    "has_target",
    "ledger_damage",
    "load",
    "longest_s",
    "open_entries",
    "plan_for_trial",
    "planned_versions",
    "swarm",
    "unsupported_reason",
]
