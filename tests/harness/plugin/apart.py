"""Apart: local hosts that are to the runner what other people's machines are.

Nodes share no files with it, run a Python without packages on our archive, and each has a monotonic
clock of its own: their programs run in time namespaces, hundreds of seconds ahead. The option
`error_ms` says how far off those clocks are believed to be, `moved_ms` how far
those of clients have gone when they are asked again; with `stuck` they are never given back.
"""

import io
import os
import shutil
import sys
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clusters.hosts._agent.archive import archive
from clusters.hosts.local import hosts as local
from clusters.hosts.local.hosts import LocalHosts
from harness.contracts import Agent, ClockOffset, HostsPlugin, Node, PythonRuntime
from harness.errors import BedFailed
from harness.trial import Trial

HERE = Path(__file__).resolve().parent
AHEAD_S = 100
SCRIPT = """#!/bin/sh
exec unshare --time --monotonic={ahead_s} --fork --kill-child {python} "$@"
"""


def hosts(trial: Trial, folder: Path) -> "Apart":
    return Apart(Path(folder).resolve(), trial.bed)


def problems(bed: Mapping[str, Any]) -> list[Any]:
    return local.problems({})


PLUGIN = HostsPlugin(hosts=hosts, problems=problems)


class Apart(LocalHosts):
    shares_files = False

    def __init__(self, folder: Path, bed: Mapping[str, Any]) -> None:
        super().__init__(folder)
        self._run, self._stuck = folder, bool(bed.get("stuck"))
        self._error_ns = round(float(bed.get("error_ms", 0)) * 1e6)
        self._moved_ns = round(float(bed.get("moved_ms", 0)) * 1e6)
        self._nodes: list[str] = []

    @property
    def _elsewhere(self) -> Path:
        return self._run.parents[1] / f"apart-{self._run.name}"

    @asynccontextmanager
    async def start_nodes(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        self._nodes = [node.name for node in nodes]
        self._install()
        async with super().start_nodes(nodes) as raised:
            yield raised
        for node in self._nodes:
            if os.path.isdir(self.folder(node)):
                shutil.copytree(self.folder(node), self._run / "nodes" / node)
        if self._stuck:
            raise BedFailed("they stay as they are; clean up by hand")

    def folder(self, node: str) -> str:
        return str(self._elsewhere / node)

    def python(self, node: str) -> PythonRuntime:
        return PythonRuntime(f"{self._elsewhere}/python-{node}", f"{self._elsewhere}/packages")

    def clock(self, node: str) -> ClockOffset:
        return ClockOffset(self._ahead_s(node) * 1_000_000_000, self._error_ns)

    async def compare_clocks(self) -> Mapping[str, ClockOffset]:
        """As `clock` says, but those of clients went on by `moved_ms` meanwhile."""
        if not self._error_ns:
            return {}
        moved = {name: self._moved_ns * name.startswith("client") for name in self._nodes}
        return {
            name: ClockOffset(self.clock(name).offset_ns + ns, 1000) for name, ns in moved.items()
        }

    def _ahead_s(self, node: str) -> int:
        return AHEAD_S * (1 + self._nodes.index(node))

    def _install(self) -> None:
        packages = self._elsewhere / "packages"
        with tarfile.open(fileobj=io.BytesIO(archive())) as packed:
            packed.extractall(packages, filter="data")
        shutil.copytree(HERE, packages, dirs_exist_ok=True)  # the systems of the tests, too
        for node in self._nodes:
            script = Path(self.python(node).executable)
            script.write_text(SCRIPT.format(ahead_s=self._ahead_s(node), python=sys.executable))
            script.chmod(0o755)
