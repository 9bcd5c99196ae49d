"""Every way a command can end, through the real console script: code and message.

0, 1 and 2 are verdicts and nothing else; a person, a script and a pipeline tell them apart from
254 (the request makes no sense) and 255 (the test bed failed) without reading a word.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from harness.cli.doctor import _disk
from harness.cli.exit_codes import DiscardingStream

Script = Callable[..., "CompletedProcess[str]"]


INTERRUPTED = """
import sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
"""


def sentence(ran: "CompletedProcess[str]") -> str:
    """The one line on standard error, without its prefix; nothing else may be there."""
    lines = ran.stderr.splitlines()
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("seatrial: ")
    return lines[0].removeprefix("seatrial: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rum"], "unknown command 'rum' (did you mean run?)"),
        (["run", "--sistem", "x"], "--sistem"),
        (["run", "--seed", "x"], "'x' is not a valid integer"),
        (["run", "--seeds", "9..1"], "no seed"),
        (["run", "--seeds", "a..b"], "not a list of seeds"),
        (["run", "--seed", "7", "--seeds", "1..2"], "--seed and --seeds exclude each other"),
        (["run", "--duration", "60 parsecs"], "not a duration"),
        (["run", "--nodes", "broker"], "not key=value"),
        (["run", "--nodes", "broker=many", "--faults", ""], "broker"),
        (["run", "--repeat", "0"], "--repeat"),
        (["run", "--rhythm", "bpm=120"], "bpm"),
        (["run", "missing.toml"], "the trial file missing.toml does not exist"),
        (["run", "broken.toml"], "line 2"),
        (["run", "stray.toml"], "stray.toml line 2: unknown key 'sytem'"),
        (["run", "mistyped.toml"], "mistyped.toml line 1: seed must be a whole number"),
        (["run", "--plan", "missing-plan.toml"], "the plan file missing-plan.toml does not exist"),
        (["run", "dance"], "unknown workload or trial 'dance'"),
        (["run", "--system", "flotila"], "unknown system 'flotila' (did you mean flotilla?)"),
        (["run", "--hosts", "cloud"], "unknown hosts 'cloud'"),
        (["run", "--faults", "kil,pause"], "unknown fault 'kil' (did you mean kill?)"),
        (
            ["run", "register", "--system", "valkey-cluster", "--nodes", "broker=2"],
            "3 shards need at least 3 nodes, and the trial has 2",
        ),
        (
            ["run", "register", "--system", "valkey", "--version", "banana"],
            "version must read like 3.5.0, not 'banana'",
        ),
        (["run", "--faults", "none"], "for a trial without faults omit --faults"),
        (["run", "--faults", "kill,none"], "there is no fault 'none'"),
        (["run", "--profile", "unsafe"], "unknown profile 'unsafe' (did you mean unsafe-default?)"),
        (["run", "--checkers", "loos"], "unknown checker 'loos' (did you mean loss?)"),
        (["run", "--contract", "no-lost"], "did you mean no-loss?"),
        (["run", "--load", "producres=3"], "producres"),
        (["check"], "DIR"),
        (["check", "nowhere"], "nowhere does not exist; name the folder of a run"),
        (["check", "broken.toml"], "broken.toml is a file; name the folder of a run"),
        (["explain", "."], ". is not a run: there is no trial.toml in it"),
        (["replay", "all"], "all is a folder of runs; name one of them, such as all/latest"),
        (["list", "nope"], "unknown kind 'nope'; there are: checkers, faults, hosts, importers"),
        (["run", "--zones", "x"], "'x' is not a number of zones or node=zone,node=zone"),
        (["run", "--faults", "kill", "--duration", "8s"], "use --duration 16s or longer"),
        (["check", "nowhere", "--spark", "locla[2]"], "'locla[2]' is not a Spark master"),
        (["run", "--spark", "spark://nowhere"], "write local[N], spark://HOST:PORT, yarn"),
        (["check", "s3a://bucket"], "s3a://bucket names no run: write s3a://BUCKET/PATH"),
        (["check", "gs://bucket/run"], "mount that storage, or copy the run"),
        (["heal", "s3a://bucket/run"], "mount that storage, or copy the run"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["report", "nowhere", "--format", ""], "--format names no report"),
        (["explain"], "RUN"),
        (["explain", "nowhere"], "nowhere does not exist"),
        (["replay", "nowhere"], "nowhere does not exist"),
        (["list", "bugs"], "unknown kind 'bugs'"),
        (["suite", "nothing.toml"], "nothing.toml"),
        (["suite", "nothing.toml", "--only", ""], "--only names no run"),
        (["suite", "nothing.toml", "--scale", "nan"], "'nan' is not a finite number"),
        (["suite", "nothing.toml", "--share", "nan"], "'nan' is not a finite number"),
        (["run", "--plan", ""], "plan: no plan file given"),
        (["list", "faults", "--verify", "--faults", ","], "--faults names no fault"),
        (
            ["list", "faults", "--verify", "--faults", "noop", "--hosts", "simulated"],
            "noop breaks nothing, so nothing can be verified",
        ),
        (["heal", "--all", "--runs", "nope"], "there is no folder nope with runs"),
        (["doctor", "--hosts", "cloud"], "unknown hosts 'cloud'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_request_that_makes_no_sense_is_254(
    seatrial: Script, tmp_path: Path, arguments: list[str], says: str
) -> None:
    """Usage, unknown names and broken files: 254, one sentence, nothing started."""
    (tmp_path / "all" / "latest").mkdir(parents=True)
    (tmp_path / "all" / "latest" / "trial.toml").write_text("")
    (tmp_path / "broken.toml").write_text('name = "x"\nseed = = 1\n')
    (tmp_path / "stray.toml").write_text('name = "x"\nsytem = "flotilla"\n')
    (tmp_path / "mistyped.toml").write_text('seed = "one"\n')
    ran = seatrial(*arguments)
    assert says in sentence(ran)
    assert ran.returncode == 254
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("ending", "code", "says"),
    [
        ("bad request", 254, "the request makes no sense"),
        ("unsupported", 254, "these hosts cannot pause"),
        ("bed failed", 255, "the bed broke down"),
        ("no space", 255, "No space left on device"),
        ("bug", 255, "outside_hosts.py:18: ZeroDivisionError: division by zero"),
        ("library", 255, "a library ended the command, with 0"),
        ("ctrl-c", 2, "stopped before there was a verdict"),
    ],
)
@pytest.mark.parametrize("command", ["run", "doctor"])
def test_every_error_class_has_its_code(
    seatrial: Script, command: str, ending: str, code: int, says: str
) -> None:
    """Whose fault it was decides the code, wherever it was raised; a traceback is never shown."""
    ran = seatrial(command, "--hosts", "outside", ending=ending)
    assert says in sentence(ran)
    assert ran.returncode == code


def test_run_refuses_with_the_doctor_s_sentence(seatrial: Script, tmp_path: Path) -> None:
    """What the doctor finds missing, `run` says in the same words, before it starts anything."""
    ran = seatrial("run", "--hosts", "outside")
    assert ran.returncode == 255
    assert not (tmp_path / "runs").exists()
    doctor = seatrial("doctor", "--hosts", "outside")
    assert doctor.returncode == 255
    what, why, remedy = "the hull leaks", "ships float better without", "apt-get install tar"
    for words in (what, why, remedy):
        assert words in sentence(ran)
        assert words in doctor.stdout


def test_the_doctor_cuts_nothing(seatrial: Script) -> None:
    """What hosts say of their options can be copied whole, however long it is."""
    damage = f"/a/hull/{'with-planks/' * 30}[bold]"
    doctor = seatrial("doctor", "--hosts", "outside", "--bed", f"damage={damage}")
    assert damage in doctor.stdout


@pytest.mark.parametrize("runs", ["a-file", "a-file/below", "a-link"])
def test_a_folder_of_runs_that_can_be_none(tmp_path: Path, runs: str) -> None:
    """A file is in its place, or a link to nothing."""
    (tmp_path / "a-file").write_text("")
    (tmp_path / "a-link").symlink_to("nowhere")
    disk = _disk(tmp_path / runs)
    assert not disk.ready
    assert disk.found == f"{tmp_path / runs.partition('/')[0]} is not a folder"


@pytest.mark.bed
def test_the_doctor_judges_the_folder_that_runs_go_to(seatrial: Script) -> None:
    """`doctor --runs DIR` speaks of DIR, and so does the command that it ends with."""
    assert "free under /proc" in seatrial("doctor", "--runs", "/proc/runs").stdout
    doctor = seatrial("doctor", "--runs", "/tmp")
    assert doctor.stdout.endswith("seatrial run demo --runs /tmp\n")


def test_help_and_version_are_0(seatrial: Script) -> None:
    """Asking is no error, and is instant: no engine is imported for it."""
    for arguments in (["--help"], ["run", "--help"], ["--version"], ["list", "reports"]):
        assert seatrial(*arguments).returncode == 0


@pytest.mark.parametrize("module", ["click", "harness.cli.commands._group", "harness.cli.doctor"])
def test_ctrl_c_during_an_import_is_2(
    seatrial: Script, outside: Path, tmp_path: Path, module: str
) -> None:
    """However early it comes, it is an ending like any other: one sentence and no traceback."""
    (outside / "sitecustomize.py").write_text(INTERRUPTED.format(module=module))
    ran = seatrial("doctor")
    assert sentence(ran) == "stopped before there was a verdict"
    assert ran.returncode == 2


def test_help_imports_no_engine(root: Path) -> None:
    """Spark and Arrow take a second to import, so a command imports them when it runs."""
    code = (
        "import sys; from harness.cli.exit_codes import exit_code; exit_code(['--help']);"
        "sys.exit(bool({'pyspark', 'pyarrow', 'pandas', 'rich'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=root, check=False)
    assert ran.returncode == 0


def test_nobody_reading_is_no_error(root: Path) -> None:
    """`seatrial list | head -1` is not a failure."""
    script = Path(sys.executable).with_name("seatrial")
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script} --help | true"],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("list >&-", 0),
        ("rum 2>&-", 254),
        ("rum 2>/dev/full", 254),
        ("list >/dev/full", 255),
        ("list >/dev/full 2>&1", 255),
    ],
)
def test_where_the_words_go_never_makes_a_1(root: Path, command: str, code: int) -> None:
    """Python ends with 1 when it can not write, which here would read "the cluster lost data"."""
    script = Path(sys.executable).with_name("seatrial")
    ran = subprocess.run(
        ["bash", "-c", f"{script} {command}"], capture_output=True, text=True, cwd=root, check=False
    )
    assert ran.returncode == code
    assert "Traceback" not in ran.stderr


def test_silence_costs_no_descriptor(tmp_path: Path) -> None:
    """However often somebody was not heard."""
    with DiscardingStream((tmp_path / "said").open("wb")) as outlet:
        before = len(os.listdir("/proc/self/fd"))
        outlet.silence()
        outlet.silence()
        assert len(os.listdir("/proc/self/fd")) == before


def test_words_that_nobody_reads_stop_nothing(root: Path) -> None:
    """`seatrial run | head`: the command goes on to its end, and ends with its own code."""
    code = (
        "import sys; from harness.cli.exit_codes import flush_stdio, wrap_stdio; wrap_stdio()\n"
        "for n in range(100_000): print(n, file=sys.stderr if n % 2 else sys.stdout)\n"
        "sys.exit(42 if flush_stdio() else 1)"
    )
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; '{sys.executable}' -c '{code}' 2>&1 | head -1"],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
    )
    assert (ran.returncode, len(ran.stdout.splitlines())) == (42, 1)
