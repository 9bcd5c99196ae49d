"""Break the cluster: faults, whom they hit, when, and what becomes of them.

A *fault* is one way to break things, one file here: `nemesis/pause.py` is `--faults pause`. A
*plan* says what breaks when and aims by *selector* (`master`, `minority broker`); it is drawn from
the trial's seed or written by hand, and saved before the run. The *nemesis* carries it out: each
selector is resolved at the moment of its fault, the fault is applied, its effect is *observed* in
the world (probes that arrive nowhere, threads that are stopped, a process id that is gone), it is
healed whatever happens, and the healing is observed too. A fault that nobody saw proves nothing,
so what was not observed is recorded as `partial` or `failed`, never as `installed`.

A network fault is a set of directed links with an effect. Shapes are pure functions that make such
sets (`shapes`), and one fabric merges the rules of all faults in force, so that healing one leaves
the other (`rules`). Faults reach nodes through an agent's few verbs and nothing else, so every
fault works on every kind of host that has the verbs it `needs`.

The front door: `planned` is a trial's plan, checked (`draw` or `load`, then `check`), `swarm` a
dense one for campaigns, `shown` one that shows each kind, `dump` saves it, `carry_out` does it;
`lacking` says why nodes can not do a plan, `measured` what a fault came to, and `open_entries` are
the faults that a crashed run left in the world, if there is no `ledger_damage`. `set_apart` lays
what is between zones before anything else.
"""

from nemesis._network.zone_latency import set_apart
from nemesis._plan.demo import Shown, shown
from nemesis._plan.drawing import swarm
from nemesis._plan.plan import Plan, check, check_kinds, draw, dump, load, longest_s, planned
from nemesis._runner.capabilities import lacking
from nemesis._runner.ledger import Entry, Ledger, ledger_damage, open_entries
from nemesis._runner.measured import measured
from nemesis._runner.nemesis import carry_out

__all__ = [
    "Entry",
    "Ledger",
    "Plan",
    "Shown",
    "carry_out",
    "check",
    "check_kinds",
    "draw",
    "dump",
    "lacking",
    "ledger_damage",
    "load",
    "longest_s",
    "measured",
    "open_entries",
    "planned",
    "set_apart",
    "shown",
    "swarm",
]
