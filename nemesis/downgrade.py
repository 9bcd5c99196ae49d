"""Bring nodes back to the version of the system's program that they had when the trial began, or to
another one.

It is done like an `upgrade`. Not every system can go back: a program that refuses what a newer one
has written is replaced by the newer one again, which is no failure of the system, and the fault
counts as partial or failed.
"""

from dataclasses import replace

from harness.contracts import Param
from nemesis import upgrade
from nemesis._plan.plan import VERSION
from nemesis._process.victims import check

PLUGIN = replace(
    upgrade.PLUGIN,
    effects=replace(upgrade.PLUGIN.effects, excuses_exit=True),
    params={
        **upgrade.PLUGIN.params,
        "to": Param("", "the version; by default the one that each node had first", unit=VERSION),
    },
    check=check,
)
