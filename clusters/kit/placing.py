"""Programs on their way to the nodes: found or fetched here, and put where a node lacks them."""

import asyncio
import re
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from clusters.kit.service import Service
from clusters.supply import (
    Program,
    Supplied,
    built_for,
    choices,
    on_nodes,
    portable,
    resolve,
    ways_to_get,
)
from harness.contracts import Agent, Node, TestBed
from harness.errors import BedFailed
from harness.trial import Trial

PRINT_WITHIN_S = 20.0


def chosen(service: type[Service], trial: Trial) -> dict[str, tuple[str, str]]:
    """Return the version and the supply of each program, as the trial names them."""
    return choices(service.programs, trial.version, trial.supply)


def supplied(service: type[Service], trial: Trial) -> dict[str, Supplied]:
    """Return the programs, fetched if need be. The first one is the system; others are what it
    needs to run."""
    named = chosen(service, trial)
    return {each.name: resolve(each, *named[each.name]) for each in service.programs}


async def supplied_to(bed: TestBed, service: type[Service], trial: Trial) -> dict[str, Supplied]:
    """Return the programs as the nodes of this bed get them: with the supply `path`, nodes
    elsewhere have them by themselves."""
    found = await asyncio.to_thread(supplied, service, trial)
    named = chosen(service, trial)
    for program in service.programs if not bed.hosts.shares_files else ():
        version, supply = named[program.name]
        if supply == "path":
            found[program.name] = on_nodes(program, version)
    return found


async def place(
    bed: TestBed, node: Node, program: Program, there: Supplied, version: str, to: str
) -> str:
    """Return the program's path on the node, where it is put into the folder `to` if the node lacks
    it. `version`: what the trial names, if anything."""
    agent = bed.agents[node.name]
    if there.path is None or (program.linked and not bed.hosts.shares_files):
        return await _on_path(agent, node, program, version)
    if bed.hosts.shares_files:
        return str(there.path)
    whole, path = there.path, there.path
    if found := portable(program):
        with suppress(BedFailed):
            return await _on_path(agent, node, program, "")
        whole, path = found
    if path.is_file():
        await _refuse_other_machine(agent, node, path)
    above = whole.parent
    for below, files in groupby(_files(whole), key=lambda each: each.parent):
        await agent.run(["mkdir", "-p", f"{to}/{below.relative_to(above)}"])
        for source in files:
            data = await asyncio.to_thread(source.read_bytes)
            await agent.put(f"{to}/{source.relative_to(above)}", data)
    await agent.run(["chmod", "-R", "755", to])
    return f"{to}/{path.relative_to(above)}"


async def _on_path(agent: Agent, node: Node, program: Program, version: str) -> str:
    """Return where the PATH of a node has a program. Raises BedFailed if it has none, or one of
    another version than `version`."""
    folders = "".join(f"; ls {folder}/{program.name} | sort -r" for folder in program.folders)
    found = await agent.run(["sh", "-c", f"(command -v {program.name}{folders}) | grep -m 1 ."])
    if found.code:
        ways = "; or ".join(ways_to_get(program))
        raise BedFailed(f"{node.name} has no {program.name}; to get it: {ways}")
    path = found.out.strip()
    if version and (there := await printed_version(agent, program, path)) != version:
        raise BedFailed(
            f"{node.name} has {program.name} {there or 'of an unknown version'}, and the trial "
            f"names {version}; to fix it: install {version} there, or name another supply than "
            "'path'"
        )
    return path


async def printed_version(agent: Agent, program: Program, path: str) -> str:
    """Return the version that a program prints on a node; empty if it prints none."""
    if not program.version_argv:
        return ""
    argv = ["env", *program.version_env, path, *program.version_argv]
    ran = await agent.run(argv, timeout_s=PRINT_WITHIN_S)
    there = re.search(program.version_re, ran.out + ran.err)
    return there[1] if there else ""


async def _refuse_other_machine(agent: Agent, node: Node, path: Path) -> None:
    """Raise BedFailed if a program is built for other machines than the node."""
    machine = (await agent.run(["uname", "-m"])).out.strip()
    built = await asyncio.to_thread(built_for, path)
    if built and machine and built != machine:
        raise BedFailed(
            f"{node.name} is {machine}, and {path} is built for {built}; to fix it: install "
            f"{path.name} there and name supply = 'path'"
        )


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
