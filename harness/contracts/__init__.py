"""The extension points: what a kind of hosts, a system, a workload, a fault, a checker, a report
and an importer must offer.

One file with one function adds one of them:

    clusters/hosts/NAME.py     hosts(trial, folder) -> Hosts         where nodes run
    clusters/systems/NAME.py   system(trial) -> System               what is tested
    harness/workloads/NAME.py  workload(trial) -> Workload           what clients do
    nemesis/NAME.py            fault(planned, context) -> Injection  one way to break things
    checkers/NAME.py           check(history, trial, spark) -> Result   one property
    reports/NAME.py            render(run) -> path written           one format

Plug-ins communicate only through the values below. Plug-ins of other packages import this module,
and nothing else of Seatrial; each name is explained in its own docstring. The last ones are loaded
when they are first used, because a node or a client process may lack the libraries that they need:
`History`, `batches` and `RunDir` (a run's history and folder), `Trial`, `ObjectClient` and
`check_load` (for workloads), `Model`, `ModelOperation` and `search_model` (for checkers).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.contracts.agent import Agent as Agent
from harness.contracts.agent import CommandResult as CommandResult
from harness.contracts.agent import DiskAgent as DiskAgent
from harness.contracts.agent import DiskFault as DiskFault
from harness.contracts.agent import DiskProbe as DiskProbe
from harness.contracts.agent import LinkRule as LinkRule
from harness.contracts.agent import OwnDiskAgent as OwnDiskAgent
from harness.contracts.agent import PowerAgent as PowerAgent
from harness.contracts.agent import ProcessState as ProcessState
from harness.contracts.agent import TimedDatagram as TimedDatagram
from harness.contracts.agent import UnsyncedAgent as UnsyncedAgent
from harness.contracts.agent import UnsyncedReport as UnsyncedReport
from harness.contracts.checkers import Check as Check
from harness.contracts.checkers import CheckerPlugin as CheckerPlugin
from harness.contracts.clients import DelayClient as DelayClient
from harness.contracts.clients import GroupClient as GroupClient
from harness.contracts.clients import GroupConsumer as GroupConsumer
from harness.contracts.clients import HalfClient as HalfClient
from harness.contracts.clients import HalfQuestion as HalfQuestion
from harness.contracts.clients import MessageClient as MessageClient
from harness.contracts.clients import MetadataClient as MetadataClient
from harness.contracts.clients import PollResult as PollResult
from harness.contracts.clients import PopClient as PopClient
from harness.contracts.clients import PopDelivery as PopDelivery
from harness.contracts.clients import PopResult as PopResult
from harness.contracts.clients import ReceivedMessage as ReceivedMessage
from harness.contracts.clients import RegisterAccess as RegisterAccess
from harness.contracts.clients import RegisterClient as RegisterClient
from harness.contracts.clients import SelectingClient as SelectingClient
from harness.contracts.cluster_view import ClusterState as ClusterState
from harness.contracts.faults import ANY_BUT_INTEGRITY as ANY_BUT_INTEGRITY
from harness.contracts.faults import CUT as CUT
from harness.contracts.faults import LOST_COPIES as LOST_COPIES
from harness.contracts.faults import NEUTRAL as NEUTRAL
from harness.contracts.faults import NO_EFFECT as NO_EFFECT
from harness.contracts.faults import DataLoss as DataLoss
from harness.contracts.faults import FaultContext as FaultContext
from harness.contracts.faults import FaultEffects as FaultEffects
from harness.contracts.faults import FaultPlugin as FaultPlugin
from harness.contracts.faults import Injection as Injection
from harness.contracts.faults import Link as Link
from harness.contracts.faults import LinkEffect as LinkEffect
from harness.contracts.faults import MergedLinkRules as MergedLinkRules
from harness.contracts.faults import Observation as Observation
from harness.contracts.faults import Param as Param
from harness.contracts.faults import PlannedFault as PlannedFault
from harness.contracts.faults import ProcessEnd as ProcessEnd
from harness.contracts.faults import RecurringInjection as RecurringInjection
from harness.contracts.faults import ResolveSelector as ResolveSelector
from harness.contracts.hosts import CLIENT as CLIENT
from harness.contracts.hosts import HOST_ABILITIES as HOST_ABILITIES
from harness.contracts.hosts import KEY_PREFIX as KEY_PREFIX
from harness.contracts.hosts import AttachedCluster as AttachedCluster
from harness.contracts.hosts import AttachingHosts as AttachingHosts
from harness.contracts.hosts import ClockComparingHosts as ClockComparingHosts
from harness.contracts.hosts import ClockOffset as ClockOffset
from harness.contracts.hosts import Distance as Distance
from harness.contracts.hosts import Hosts as Hosts
from harness.contracts.hosts import HostsPlugin as HostsPlugin
from harness.contracts.hosts import InterceptingHosts as InterceptingHosts
from harness.contracts.hosts import Node as Node
from harness.contracts.hosts import OwnDiskHosts as OwnDiskHosts
from harness.contracts.hosts import Problem as Problem
from harness.contracts.hosts import PythonRuntime as PythonRuntime
from harness.contracts.plugin import ImporterPlugin as ImporterPlugin
from harness.contracts.plugin import Plugin as Plugin
from harness.contracts.reports import Render as Render
from harness.contracts.reports import ReportPlugin as ReportPlugin
from harness.contracts.systems import ClientProcesses as ClientProcesses
from harness.contracts.systems import ContainerNeeds as ContainerNeeds
from harness.contracts.systems import Recorder as Recorder
from harness.contracts.systems import System as System
from harness.contracts.systems import SystemPlugin as SystemPlugin
from harness.contracts.systems import TestBed as TestBed
from harness.contracts.workloads import Workload as Workload
from harness.contracts.workloads import WorkloadContext as WorkloadContext
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
from harness.judge.verdict import Judgement as Judgement
from harness.judge.verdict import Reason as Reason
from harness.judge.verdict import Result as Result
from harness.judge.verdict import Verdict as Verdict
from harness.operation import Completion as Completion
from harness.operation import F as F
from harness.operation import Type as Type

if TYPE_CHECKING:
    from harness.history.reader import History as History
    from harness.history.reader import batches as batches
    from harness.history.rundir import RunDir as RunDir
    from harness.trial import Trial as Trial
    from harness.workloads._clients import ObjectClient as ObjectClient
    from harness.workloads._clients import check_load as check_load

# Earlier names, for plug-ins of other packages.
Batch, Received, Standing, Bed = PollResult, ReceivedMessage, ClusterState, TestBed
Effects, Ends, Destroys = FaultEffects, ProcessEnd, DataLoss

_LATER = {
    "ILLEGAL": "checkers._linear.batch",
    "LEGAL": "checkers._linear.batch",
    "Model": "checkers._linear.models",
    "ModelOperation": "checkers._linear.models",
    "search_model": "checkers._linear.models",
    "ObjectClient": "harness.workloads._clients",
    "check_load": "harness.workloads._clients",
    "History": "harness.history.reader",
    "RunDir": "harness.history.rundir",
    "Trial": "harness.trial",
    "batches": "harness.history.reader",
}


def __getattr__(name: str) -> Any:
    """Load on first use what a simulated node or a client process never needs."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
