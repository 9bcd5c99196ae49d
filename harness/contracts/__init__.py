"""The extension points: what a host kind, system, workload, fault, checker and report must offer.

One file with one function adds one of them:

    clusters/hosts/NAME.py     hosts(trial, folder) -> Hosts         where nodes run
    clusters/systems/NAME.py   system(trial) -> System               what is tested
    harness/workloads/NAME.py  workload(trial) -> Workload           what clients do
    nemesis/NAME.py            fault(planned, scene) -> Injection    one way to break things
    checkers/NAME.py           check(history, trial, spark) -> Result   one property
    reports/NAME.py            render(run) -> path written           one format

They meet only through the values below. Plug-ins of other packages import this module, and no other
of `harness`. `History`, `batches`, `Trial` and `RunDir` are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.contracts.agent import Agent as Agent
from harness.contracts.agent import Completed as Completed
from harness.contracts.agent import Disked as Disked
from harness.contracts.agent import DiskFault as DiskFault
from harness.contracts.agent import DiskSeen as DiskSeen
from harness.contracts.agent import Flight as Flight
from harness.contracts.agent import Forgetful as Forgetful
from harness.contracts.agent import Forgotten as Forgotten
from harness.contracts.agent import LinkRule as LinkRule
from harness.contracts.agent import Powered as Powered
from harness.contracts.agent import ProcessState as ProcessState
from harness.contracts.checkers import Check as Check
from harness.contracts.checkers import CheckerPlugin as CheckerPlugin
from harness.contracts.clients import Batch as Batch
from harness.contracts.clients import GroupClient as GroupClient
from harness.contracts.clients import GroupMember as GroupMember
from harness.contracts.clients import MessageClient as MessageClient
from harness.contracts.clients import MetadataClient as MetadataClient
from harness.contracts.clients import Received as Received
from harness.contracts.clients import SelectingClient as SelectingClient
from harness.contracts.cluster_view import Standing as Standing
from harness.contracts.faults import ANY_BUT_INTEGRITY as ANY_BUT_INTEGRITY
from harness.contracts.faults import CUT as CUT
from harness.contracts.faults import LOST_COPIES as LOST_COPIES
from harness.contracts.faults import NEUTRAL as NEUTRAL
from harness.contracts.faults import NOTHING as NOTHING
from harness.contracts.faults import Aim as Aim
from harness.contracts.faults import Destroys as Destroys
from harness.contracts.faults import Effect as Effect
from harness.contracts.faults import Effects as Effects
from harness.contracts.faults import Ends as Ends
from harness.contracts.faults import FaultPlugin as FaultPlugin
from harness.contracts.faults import Injection as Injection
from harness.contracts.faults import Link as Link
from harness.contracts.faults import Links as Links
from harness.contracts.faults import Observation as Observation
from harness.contracts.faults import Param as Param
from harness.contracts.faults import PlannedFault as PlannedFault
from harness.contracts.faults import Recurring as Recurring
from harness.contracts.faults import Scene as Scene
from harness.contracts.hosts import CLIENT as CLIENT
from harness.contracts.hosts import Clock as Clock
from harness.contracts.hosts import Distance as Distance
from harness.contracts.hosts import Gating as Gating
from harness.contracts.hosts import Hosts as Hosts
from harness.contracts.hosts import HostsPlugin as HostsPlugin
from harness.contracts.hosts import Node as Node
from harness.contracts.hosts import Problem as Problem
from harness.contracts.hosts import Python as Python
from harness.contracts.hosts import Timed as Timed
from harness.contracts.importers import ImporterPlugin as ImporterPlugin
from harness.contracts.plugin import Plugin as Plugin
from harness.contracts.reports import Render as Render
from harness.contracts.reports import ReportPlugin as ReportPlugin
from harness.contracts.systems import Bed as Bed
from harness.contracts.systems import Clients as Clients
from harness.contracts.systems import Recorder as Recorder
from harness.contracts.systems import System as System
from harness.contracts.systems import SystemPlugin as SystemPlugin
from harness.contracts.workloads import Crew as Crew
from harness.contracts.workloads import Workload as Workload
from harness.contracts.workloads import WorkloadPlugin as WorkloadPlugin
from harness.errors import BadRequest as BadRequest
from harness.errors import BedFailed as BedFailed
from harness.errors import Unsupported as Unsupported
from harness.judge.demands import ALL_DEMANDS as ALL_DEMANDS
from harness.judge.demands import DEMANDS as DEMANDS
from harness.judge.demands import INTEGRITY as INTEGRITY
from harness.judge.demands import ISOLATION as ISOLATION
from harness.judge.demands import LINEARIZABLE as LINEARIZABLE
from harness.judge.verdict import Finding as Finding
from harness.judge.verdict import Reason as Reason
from harness.judge.verdict import Result as Result
from harness.operation import Completion as Completion
from harness.operation import F as F
from harness.operation import Type as Type

if TYPE_CHECKING:
    from harness.history.reader import History as History
    from harness.history.reader import batches as batches
    from harness.history.rundir import RunDir as RunDir
    from harness.trial import Trial as Trial

_LATER = {
    "History": "harness.history.reader",
    "RunDir": "harness.history.rundir",
    "Trial": "harness.trial",
    "batches": "harness.history.reader",
}


def __getattr__(name: str) -> Any:
    """Load what a simulated node or a client process never needs only when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
