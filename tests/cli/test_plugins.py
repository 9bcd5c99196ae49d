"""Plug-ins of other packages: what their declarations may not be, and what their exceptions say."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness import registry
from harness.contracts import HOST_ABILITIES

Seatrial = Callable[..., "subprocess.CompletedProcess[str]"]

FAULT = '''"""A fault of a package of its own."""
from harness.contracts import Effects, Ends, FaultPlugin, Param


def fault(planned, scene):
    raise KeyError("oars")


def draw(random, targets):
    return "master", {}


def takes_s(planned, nodes):
    return 1.0


'''
SOUND = {
    "fault": "fault",
    "effects": "Effects(may_break=frozenset())",
    "draw": "draw",
    "takes_s": "takes_s",
    "needs": 'frozenset({"signal"})',
}


def declared(**changes: str | None) -> str:
    """The module of a fault, with some attributes changed, added or (None) left out."""
    attributes = {name: text for name, text in {**SOUND, **changes}.items() if text is not None}
    words = ", ".join(f"{name}={text}" for name, text in attributes.items())
    return f"{FAULT}PLUGIN = FaultPlugin({words})\n"


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str, str, str, str], None]:
    """Install a package with one plug-in."""

    def install(package: str, kind: str, name: str, text: str) -> None:
        info = tmp_path / "site" / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (tmp_path / "site" / f"{package}.py").write_text(text)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[seatrial.{kind}]\n{name} = {package}\n")

    return install


@pytest.fixture
def seatrial(tmp_path: Path) -> Seatrial:
    """Run the console script in an empty folder, where the packages are installed."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        script = Path(sys.executable).with_name("seatrial")
        return subprocess.run(
            [script, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            declared(takes_s=None, take_s="takes_s"),
            "FaultPlugin has no 'take_s' (did you mean 'takes_s'?)",
        ),
        (
            declared().replace("takes_s", "take_s").replace(", take_s=take_s", ""),
            "has 'take_s', which its PLUGIN does not use: pass it as takes_s=take_s",
        ),
        (declared(takes_s=None), "has 'takes_s', which its PLUGIN does not use"),
        (declared(effects=None), "FaultPlugin lacks 'effects', which has no default"),
        (
            declared(needs='{"signal"}'),
            "'needs' of FaultPlugin must be a frozenset of strings, not {'signal'}",
        ),
        (declared(params='{"speed": 3}'), "'params' of FaultPlugin must be a mapping"),
        (declared(hits_clients='"yes"'), "'hits_clients' of FaultPlugin must be True or False"),
        (declared(check="3"), "'check' of FaultPlugin must be a function, not 3"),
        (
            declared(effects="Effects(may_break=frozenset({'luck'}))"),
            "unknown demand in may_break of FaultEffects 'luck'",
        ),
        (
            declared(effects="Effects(may_break={'no-loss'})"),
            "'may_break' of FaultEffects must be a frozenset of strings, not {'no-loss'}",
        ),
        (
            declared(effects="Effects(may_break=frozenset(), ends='kill')"),
            "'ends' of FaultEffects must be one of ProcessEnd.NONE, ProcessEnd.KILLED",
        ),
        (
            declared(effects="Effects(may_break=frozenset(), destroys=True)"),
            "'destroys' of FaultEffects must be one of DataLoss.NONE, DataLoss.TARGETS",
        ),
        (
            declared(effects="Effects(may_break=frozenset(), silence=True)"),
            "FaultEffects has no 'silence' (did you mean 'silences'?)",
        ),
        (declared(effects="Effects(silences=True)"), "Effects lacks 'may_break'"),
        (
            declared(params="{'speed': Param(3, 'how fast', unit=4)}"),
            "'unit' of Param must be a string, not 4",
        ),
        (FAULT, "declares no PLUGIN = FaultPlugin(...)"),
        ("PLUGIN = 1 / 0\n", "outside.py:1: ZeroDivisionError: division by zero"),
        ("def fault(:\n", "outside.py:1: SyntaxError"),
    ],
)
def test_a_declaration_that_the_contract_forbids_is_refused(
    install: Callable[..., None], seatrial: Seatrial, text: str, says: str
) -> None:
    """One sentence names module, file, attribute and the nearest right spelling; exit code 254."""
    install("outside", "fault", "slow-disk", text)
    ran = seatrial("run", "--faults", "slow-disk")
    words = " ".join(ran.stderr.split())
    assert says in words
    assert "the fault 'slow-disk' (module outside" in words
    assert "outside.py" in words
    assert "Traceback" not in words
    assert ran.returncode == 254


@pytest.mark.parametrize(
    ("names", "by"),
    [
        ({"one": "kill"}, "by nemesis.kill"),
        ({"one": "slow-disk", "two": "slow-disk"}, "by one"),
    ],
)
def test_a_name_that_is_taken_is_refused(
    install: Callable[..., None], seatrial: Seatrial, names: Mapping[str, str], by: str
) -> None:
    """By a plug-in of ours or of another package."""
    for package, name in names.items():
        install(package, "fault", name, declared())
    ran = seatrial("list", "faults")
    last, name = list(names.items())[-1]
    assert f"the fault '{name}' of the package {last} (module {last})" in ran.stderr
    assert f"has a name that is taken, {by}" in ran.stderr
    assert ran.returncode == 254


def test_a_sound_declaration_is_listed(install: Callable[..., None], seatrial: Seatrial) -> None:
    """With the first sentence of its module."""
    install("outside", "fault", "slow-disk", declared())
    ran = seatrial("list", "faults")
    assert "slow-disk" in ran.stdout
    assert "A fault of a package of its own" in ran.stdout
    assert ran.returncode == 0


def test_an_exception_in_a_fault_names_its_line(
    install: Callable[..., None], seatrial: Seatrial
) -> None:
    """The package's file and line are named, and not Seatrial; the exit code is 255."""
    install("outside", "fault", "slow-disk", declared())
    ran = seatrial("run", "--hosts", "simulated", "--faults", "slow-disk", "--duration", "20s")
    words = " ".join(ran.stderr.split())
    assert "the fault 'slow-disk' of the package outside failed at " in words
    assert "outside.py:6: KeyError: 'oars'" in words
    assert "Seatrial itself" not in words
    assert ran.returncode == 255


REAPER = '''"""Kill a node by a fault that this package made, and start it again."""
from harness.contracts import DEMANDS, Effects, Ends, FaultPlugin, Observation


class Reaper:
    def __init__(self, scene, nodes):
        self.targets, self._bed = scene.by_role(nodes), scene.bed
        self._nodes = [node.name for node in nodes]

    async def __aenter__(self):
        for node in self._nodes:
            await self._bed.agents[node].signal(self._bed.system.process(node), 9)
        return self

    async def __aexit__(self, *exc):
        for node in self._nodes:
            if await self._state(node) == "exited":
                await self._bed.system.start_node(self._bed, node)

    async def _state(self, node):
        return (await self._bed.agents[node].state(self._bed.system.process(node))).state

    async def _seen(self, wanted):
        await self._bed.sleep(0.5)
        states = {node: await self._state(node) for node in self._nodes}
        good = set(states.values()) == {wanted}
        return Observation("installed" if good else "failed", {"states": states})

    async def observe(self):
        return await self._seen("exited")

    async def observe_healed(self):
        return await self._seen("running")


def fault(planned, scene):
    return Reaper(scene, scene.resolve(planned.target, spare=scene.claimed))


def draw(random, targets):
    return random.choice(targets or ("master", "one slave")), {}


PLUGIN = FaultPlugin(
    fault=fault,
    effects=EFFECTS,
    draw=draw,
    needs=frozenset({"signal", "restart"}),
)
'''
KILLS = "Effects(may_break=frozenset(DEMANDS), ends=Ends.KILLED, silences=True)"
NOTHING = "Effects(may_break=frozenset())"


PLAN = """
[trial]
duration_s = 25.0

[[fault]]
kind = "reaper"
at_s = 4.0
for_s = 5.0
target = "master"

[[fault]]
kind = "reaper"
at_s = 15.0
for_s = 5.0
target = "one slave"
"""


@pytest.mark.parametrize(
    ("effects", "code"), [(KILLS, 0), (NOTHING, 1)], ids=["that it kills", "nothing"]
)
def test_a_fault_of_another_package_may_end_nodes_if_it_says_so(
    tmp_path: Path, install: Callable[..., None], seatrial: Seatrial, effects: str, code: int
) -> None:
    """What it killed has not crashed, and its faults count; undeclared it is NODE_CRASHED."""
    install("outside", "fault", "reaper", REAPER.replace("EFFECTS", effects))
    (tmp_path / "plan.toml").write_text(PLAN)
    ran = seatrial("simulate", "messages", "--plan", "plan.toml", "--seeds", "1..1")
    words = " ".join((ran.stdout + ran.stderr).split())
    assert ("NODE_CRASHED" in words) == bool(code), words
    assert "reaper 2 2" in words, "planned and counted"
    assert ran.returncode == code, words


# --------------------------------------------- a package with a plug-in of each of five kinds

OUTSIDE = Path(__file__).with_name("outside")
OWN_KEYS = ("run", "own-keys", "--hosts", "simulated", "--duration", "3s", "--no-report")

TRIAL = """
system = "tinykv"
workload = "own-keys"
faults = ["file-size", "kill"]
targets = ["broker"]
duration_s = 8

[rhythm]
quiet_s = 1
fault_s = 1
recovery_s = 2

[settings]
stale = true
"""


@pytest.fixture
def tinykv(tmp_path: Path) -> Path:
    """Install the package `tinykv`; return the folder of its modules."""
    shutil.copytree(OUTSIDE, tmp_path / "site")
    return tmp_path / "site" / "tinykv"


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.bed
def test_an_outside_package_brings_system_workload_fault_checker_and_report(
    tmp_path: Path, tinykv: Path, seatrial: Seatrial
) -> None:
    """Its system runs, its fault takes effect, its checker convicts, and reports show all of it."""
    (tmp_path / "kv.toml").write_text(TRIAL)
    ran = seatrial("run", "kv.toml")
    words = " ".join((ran.stdout + ran.stderr).split())
    assert ran.returncode == 1, words
    assert "fault 0: file-size on kv-1: observed" in words
    assert "faults that took effect 2 of 2 1 file-size, 1 kill" in words
    assert "violates read-your-writes; found by read-your-writes" in words
    run = tmp_path / "runs" / "latest"
    assert seatrial("report", "runs/latest", "--format", "tsv").returncode == 0
    header, *rows = (run / "findings.tsv").read_text().splitlines()
    assert header.split("\t") == ["checker", "code", "demand", "evidence"]
    assert all(row.split("\t")[1] == "STALE_READ" for row in rows)
    assert rows
    page = (run / "report.html").read_text()
    assert "STALE_READ" in page
    assert "file-size" in page


def test_an_outside_workload_and_checker_work_in_a_simulated_world(
    tinykv: Path, seatrial: Seatrial
) -> None:
    """With a cluster of ours. A fault that runs programs on nodes is refused there."""
    ran = seatrial(*OWN_KEYS, "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "read-your-writes" in ran.stdout
    ran = seatrial(*OWN_KEYS, "--faults", "file-size", "--duration", "16s")
    assert "cannot be done on simulated hosts, which lack: commands" in ran.stderr
    assert ran.returncode == 254


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "system.py",
            "async def collect(",
            "async def collected(",
            "the system 'tinykv' (module tinykv.system, PATH) is wrong: system returned a TinyKv, "
            "which lacks 'collect' of System",
        ),
        (
            "own_keys.py",
            "async def drain(",
            "async def drained(",
            "the workload 'own-keys' (module tinykv.own_keys, PATH) is wrong: workload returned an "
            "OwnKeys, which lacks 'drain' of Workload",
        ),
        (
            "system.py",
            '{"kill": "all"}',
            '{"kil": "all"}',
            "the system 'tinykv' (module tinykv.system, PATH) claims 'kil' (did you mean kill?)",
        ),
        (
            "system.py",
            '{"kill": "all"}',
            '{"kill": "most"}',
            "the system 'tinykv' (module tinykv.system, PATH) claims 'most'",
        ),
    ],
)
def test_a_driver_or_workload_that_lacks_something_is_refused(
    tmp_path: Path, tinykv: Path, seatrial: Seatrial, file: str, old: str, new: str, says: str
) -> None:
    """Before the run: one sentence names the plug-in, its file and what is wrong."""
    _replace(tinykv / file, old, new)
    ran = seatrial("run", "own-keys", "--system", "tinykv", "--duration", "3s")
    words = " ".join(ran.stderr.split())
    assert says.replace("PATH", str(tinykv / file)) in words
    assert "Traceback" not in words
    assert ran.returncode == 254, words
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "command", "says"),
    [
        (
            "own_keys.py",
            '{"registers"}',
            '{"registers", "scan"}',
            OWN_KEYS,
            "has a client that lacks 'scan', which the workload 'own-keys' calls",
        ),
        (
            "read_your_writes.py",
            "return Result(",
            "return list, (",
            OWN_KEYS,
            "the checker 'read-your-writes' (module tinykv.read_your_writes, PATH) is wrong: check "
            "must return Result, not",
        ),
        (
            "tsv.py",
            "return path",
            "return str(path)",
            ("report", "runs/latest", "--format", "tsv"),
            "the report 'tsv' (module tinykv.tsv, PATH) is wrong: render must return Path "
            "or None, not '",
        ),
    ],
)
def test_what_a_plugin_returns_is_checked_when_it_is_used(
    tinykv: Path,
    seatrial: Seatrial,
    file: str,
    old: str,
    new: str,
    command: tuple[str, ...],
    says: str,
) -> None:
    """A client, a result and a path of a wrong type are named, with the plug-in and its file."""
    if command[0] != "run":
        assert seatrial(*OWN_KEYS).returncode == 0
    _replace(tinykv / file, old, new)
    ran = seatrial(*command)
    words = " ".join((ran.stdout + ran.stderr).split())
    assert says.replace("PATH", str(tinykv / file)) in words
    assert "Traceback" not in words
    assert ran.returncode not in (0, 1)


@pytest.mark.parametrize("file", ["file_size", "own_keys", "read_your_writes", "system", "tsv"])
def test_a_module_without_a_declaration_is_refused_by_list(
    tinykv: Path, seatrial: Seatrial, file: str
) -> None:
    """For each kind of plug-in."""
    _replace(tinykv / f"{file}.py", "PLUGIN = ", "DECLARED = ")
    ran = seatrial("list")
    assert f"(module tinykv.{file}, {tinykv / file}.py) declares no PLUGIN = " in ran.stderr
    assert ran.returncode == 254


def test_an_injection_that_cannot_be_observed_is_refused(
    install: Callable[..., None], seatrial: Seatrial
) -> None:
    """The sentence names what it lacks."""
    install(
        "outside", "fault", "slow-disk", declared().replace('raise KeyError("oars")', "return 3")
    )
    ran = seatrial("run", "--hosts", "simulated", "--faults", "slow-disk", "--duration", "20s")
    words = " ".join(ran.stderr.split())
    assert "is wrong: fault returned an int, which lacks '__aenter__', '__aexit__', " in words
    assert "'observe', 'observe_healed', 'targets' of Injection" in words


def test_abilities_of_hosts_are_documented(root: Path) -> None:
    """Of every kind of hosts, and of every fault that needs one."""
    text = (root / "docs" / "writing-a-plugin.md").read_text()
    for name, meaning in HOST_ABILITIES.items():
        assert f"| `{name}` | {meaning} |" in text
    needs = {need for name in registry.names("fault") for need in registry.fault(name).needs}
    of_systems = {"members", "handover", "rejoin", "versions", "containers", "modes", "zones"}
    of_systems |= {"consensus-kinds"}
    assert needs <= {*HOST_ABILITIES} | of_systems
