"""Several versions of a service's program side by side, and which of them each node runs."""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from clusters.kit import running_program
from clusters.kit.placing import place, supplied_to
from clusters.kit.service import NodeAccess, Service
from clusters.supply import GoModule, MavenJars, PythonProgram, Supplied, Wheel
from harness.contracts import CLIENT, Node, TestBed
from harness.errors import BedFailed
from harness.trial import Trial

FETCHED = (GoModule, MavenJars, PythonProgram, Wheel)  # sources that have many versions
AS_RESTART = ("upgrade", "downgrade")


def has_versions(service: type[Service]) -> bool:
    """Return whether several versions of a service's first program can be had."""
    return any(isinstance(source, FETCHED) for source in service.programs[0].sources)


def claims_of_versions(service: type[Service], claims: Mapping[str, str]) -> dict[str, str]:
    """Return the claims with those of changes of the version: who survives restarts survives a
    restart with another version, if nothing else is claimed."""
    if "restart" not in claims or not has_versions(service):
        return {**claims}
    return {**dict.fromkeys(AS_RESTART, claims["restart"]), **claims}


class VersionedNodes:
    """The part of a driver that knows the versions, and carries out an operator's commands
    (`harness.contracts.membership`)."""

    _of: type[Service]
    _trial: Trial
    _service: Service  # with the programs that the nodes were installed with
    _programs: dict[str, dict[str, str]]  # node -> program -> path, of the same

    def __init__(self) -> None:
        self._others: dict[str, Service] = {}  # version -> the service, as it runs that
        self._paths: dict[tuple[str, str], str] = {}  # node, version -> where its program is
        self._at: dict[str, str] = {}  # node -> the version that it is to run

    def _here(self, bed: TestBed, node: Node) -> NodeAccess:
        paths = dict(self._programs.get(node.name, {}))
        if other := self._paths.get((node.name, self._at.get(node.name, ""))):
            paths[self._first] = other
        return NodeAccess(node, bed.agents[node.name], bed.hosts.folder(node.name), paths)

    def _peers(self, bed: TestBed) -> tuple[Node, ...]:
        raise NotImplementedError

    def _other_nodes(self, bed: TestBed, node: str) -> list[NodeAccess]:
        return [self._here(bed, other) for other in self._peers(bed) if other.name != node]

    def _as_run_by(self, node: str) -> Service:
        """Return the service with the programs that a node runs."""
        return self._others.get(self._at.get(node, ""), self._service)

    @property
    def _first(self) -> str:
        return self._of.programs[0].name

    @property
    def _installed(self) -> str:
        return self._service.supplied[self._first].version

    # what faults call

    def version(self, node: str) -> str:
        return self._as_run_by(node).supplied[self._first].version

    def first_version(self, node: str) -> str:
        return self._trial.mixed.get(node, self._installed)

    async def install_version(self, bed: TestBed, version: str) -> None:
        if version in ("", self._installed, *self._others):
            return
        found = await supplied_to(bed, self._of, replace(self._trial, version=version))
        there, program = found[self._first], self._of.programs[0]

        async def put(node: Node) -> None:
            to = f"{bed.hosts.folder(node.name)}/versions/{version}"
            self._paths[node.name, version] = await place(bed, node, program, there, version, to)

        await asyncio.gather(*(put(node) for node in bed.nodes if node.role != CLIENT))
        other = self._others[version] = copy(self._service)
        other.supplied = {**self._service.supplied, self._first: there}

    async def before_version(self, bed: TestBed, node: str, version: str) -> None:
        here = self._here(bed, bed.node(node))
        try:
            await self._as_run_by(node).before_version(here, version)
        except (OSError, ValueError, LookupError) as e:
            raise BedFailed(f"{node} cannot be prepared for {self._first} {version}: {e}") from e

    async def set_version(self, bed: TestBed, node: str, version: str) -> None:
        """Files that the program may have changed since are written only if the version changes
        what the service puts there."""
        peers, where = self._peers(bed), bed.node(node)
        before = self._as_run_by(node).files(self._here(bed, where), peers)
        self._at[node] = version
        here = self._here(bed, where)
        for name, text in self._as_run_by(node).files(here, peers).items():
            if before.get(name) != text:
                await here.agent.put(f"{here.folder}/{name}", text.encode())

    async def running_version(self, bed: TestBed, node: str) -> str:
        where, process = bed.node(node), await bed.agents[node].state(self._of.name)
        if process.state not in ("running", "stopped"):
            return ""
        paths = {self._installed: self._programs[node][self._first]}
        paths |= {v: self._paths[node, v] for v in self._others}
        here, python = self._here(bed, where), bed.hosts.python(node).executable
        script = inspect.getsource(running_program)
        pairs = [word for pair in paths.items() for word in pair]
        found = await here.run(python, "-I", "-S", "-c", script, str(process.pid), *pairs)
        return found.strip()

    async def hand_over(self, bed: TestBed, node: str) -> str:
        """Have a node hand over what it leads (`harness.contracts.membership`)."""
        here = self._here(bed, bed.node(node))
        try:
            return await self._as_run_by(node).hand_over(here, self._other_nodes(bed, node))
        except (OSError, ValueError, LookupError) as e:
            raise BedFailed(f"{node} cannot be asked to hand over: {e}") from e

    # what the run records

    async def _versions_in_use(self, bed: TestBed) -> Mapping[str, Any]:
        """Return the other versions with their digests, and those that nodes of a mixed cluster
        were observed to run. Raises BedFailed if one runs another."""
        mixed = {node: await self.running_version(bed, node) for node in self._trial.mixed}
        for node, version in self._trial.mixed.items():
            if mixed[node] != version:
                found = mixed[node] or "none that was installed"
                raise BedFailed(f"{node} was to run {self._first} {version}, but runs {found}")
        others = [_recorded(of.supplied[self._first]) for of in self._others.values()]
        return {"mixed": mixed, "other_versions": others} if others else {}


def _recorded(of: Supplied) -> Mapping[str, str]:
    return {
        "program": of.program,
        "version": of.version,
        "source": of.source,
        "sha256": of.sha256,
    }


def version_words(first: str, mixed: Sequence[str]) -> str:
    """Return the versions of a cluster as text: `2.11.4 with 2.12.1`."""
    return " with ".join(dict.fromkeys((first, *mixed)))
