"""What every command line offers: defaults, completion, quiet and colored output, dry runs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree as Xml

import click
import pytest
from terminal_lab import Terminal

from harness.cli.commands._group import COMMANDS
from harness.cli.commands._group import seatrial as group

Script = Callable[..., "CompletedProcess[str]"]

SCRIPT = Path(sys.executable).with_name("seatrial")
CSV = """\
time,process,type,f,value
1,0,invoke,write,1
2,0,ok,write,1
3,1,invoke,read,
4,1,ok,read,1
"""
SIMULATED = ("run", "messages", "--hosts", "simulated", "--duration", "8s", "--no-report")
SIMULATED += ("--load", "rate=40")  # a tenth of the usual load, which no test here looks at
ESCAPE = "\x1b["


def _commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    yield "seatrial", group
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        yield name, command
        yield from ((f"{name} {n}", c) for n, c in getattr(command, "commands", {}).items())


@pytest.mark.parametrize(("name", "command"), [*_commands()], ids=[n for n, _ in _commands()])
def test_every_option_says_what_it_does_and_its_default(name: str, command: click.Command) -> None:
    """In the help; an option that has to be given says that instead."""
    context = click.Context(command, show_default=True)
    for option in command.params:
        if isinstance(option, click.Option) and option.name != "version":
            extra = option.get_help_extra(context)
            assert extra.get("default") or extra.get("required"), (name, option.opts)
            assert option.help, (name, option.opts)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(seatrial: Script, shell: str) -> None:
    """Each shell's own, for this command."""
    ran = seatrial("completion", shell)
    assert ran.returncode == 0
    assert f"_SEATRIAL_COMPLETE={shell}_complete" in ran.stdout
    assert seatrial("completion", "csh").returncode == 254


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (("che",), {"check"}),
        (("run", "--fail"), {"--fail-fast"}),
        (("run", "--hosts", "lo"), {"local"}),
        (("run", "--faults", "kill,pau"), {"kill,pause"}),
        (("run", "regi"), {"register"}),
        (("run", "--color", "a"), {"auto", "always"}),
        (("rum", "--x"), set()),
    ],
)
def test_bash_completes_it(tmp_path: Path, words: tuple[str, ...], completions: set[str]) -> None:
    """A real bash sources the script and asks it; an unknown command completes to nothing."""
    asks = (
        f'PATH="{SCRIPT.parent}:$PATH"; source <(seatrial completion bash);'
        f" COMP_WORDS=(seatrial {' '.join(words)}); COMP_CWORD={len(words)};"
        ' _seatrial_completion seatrial; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ran = subprocess.run(
        ["bash", "--norc", "-c", asks],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
        check=False,
    )
    assert set(ran.stdout.split()) == completions, ran.stderr


def test_a_dry_run_prints_a_plan_that_can_be_given_back(seatrial: Script, tmp_path: Path) -> None:
    """The same plan comes out again, nothing was begun, and times say what they count from."""
    ran = seatrial("run", "--faults", "kill,pause", "--seed", "7", "--dry-run")
    assert ran.returncode == 0, ran.stderr
    assert "seconds since the load began" in ran.stdout
    assert not (tmp_path / "runs").exists()
    (tmp_path / "plan.toml").write_text(ran.stdout)
    again = seatrial("run", "--plan", "plan.toml", "--seed", "7", "--dry-run")
    assert again.stdout == ran.stdout
    assert "kind" in ran.stdout
    other = seatrial("run", "--faults", "kill,pause", "--seed", "8", "--dry-run")
    assert other.stdout != ran.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--seeds", "1..2", "--dry-run"], "--dry-run prints one plan"),
        (["run", "--faults", "kill", "--duration", "2s", "--dry-run"], "no room for a fault"),
        (["run", "suite.toml"], "suite.toml is a suite; run it with: "),
        (["run", "plan.toml"], "plan.toml is a plan; run it with: "),
        (["suite", "trial.toml"], "trial.toml is a trial, not a suite; run it with: "),
        (["suite", "plan.toml"], "plan.toml is a plan, not a suite; run it with: "),
        (["run", "--junit", "no/such/folder.xml"], "--junit: no/such/folder.xml cannot be"),
        (["list", "--color", "sometimes"], "'sometimes' is not one of 'auto', 'always', 'never'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_requests_that_are_refused(
    seatrial: Script, tmp_path: Path, arguments: list[str], says: str
) -> None:
    """One sentence, and where another command does it, that command."""
    (tmp_path / "suite.toml").write_text('[[trial]]\nrun = "trial.toml"\nexpect = "valid"\n')
    (tmp_path / "trial.toml").write_text("duration_s = 8\n")
    fault = '[[fault]]\nkind = "kill"\nat_s = 1\nfor_s = 5\ntarget = "master"\n'
    (tmp_path / "plan.toml").write_text(f"[trial]\nduration_s = 20.0\n{fault}")
    ran = seatrial(*arguments)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (254, 1)
    assert says in ran.stderr
    if command := re.search(r"run it with: \S*seatrial (.*)", ran.stderr):
        words = command[1].split()
        dry = ("--dry-run",) if words[0] == "run" else ("--only", "nothing")
        right = seatrial(*words, *dry)
        assert "run it with" not in right.stderr
        assert (right.returncode == 0) == (words[0] == "run")


def test_of_many_names_the_near_ones(seatrial: Script) -> None:
    """Not a hundred; and the command that lists them all."""
    ran = seatrial("run", "--faults", "partitoin")
    assert "did you mean partition?" in ran.stderr
    assert "`seatrial list faults` names all" in ran.stderr
    assert len(ran.stderr.split()) < 30
    few = seatrial("run", "--hosts", "dokcer").stderr
    assert "did you mean docker?" in few
    assert "there are: attached, docker, local, " in few


def test_workloads_of_a_system_are_listed(seatrial: Script) -> None:
    """Those that the clients of one of its profiles can serve, which `run` accepts."""
    systems = json.loads(seatrial("list", "systems", "--json").stdout)["system"]
    workloads = {each["name"]: each["workloads"] for each in systems}
    assert workloads["rabbitmq"] == ["log", "queue", "set"]
    assert "consume" in workloads["redis"]
    assert "    workloads  " in seatrial("list", "systems").stdout
    for name in ("messages", "queue"):
        ran = seatrial("run", name, "--system", "rabbitmq", "--dry-run")
        assert (ran.returncode == 0) == (name in workloads["rabbitmq"]), ran.stderr


@pytest.mark.bed
def test_the_trial_that_doctor_names_tests_that_system(seatrial: Script) -> None:
    """With a workload that its clients can serve; the demo tests another one."""
    said = seatrial("doctor", "--system", "zookeeper").stdout.splitlines()[-1]
    command = re.fullmatch(r"A trial can run here: \S*seatrial (run .*)", said)
    assert command, said
    assert "--system zookeeper" in said
    assert seatrial(*command[1].split(), "--dry-run").returncode == 0


# -------------------------------------------------------------------- the folder of runs, defaults


def test_seatrial_runs_is_the_folder_of_runs(
    seatrial: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For whatever has --runs, which outweighs it."""
    monkeypatch.setenv("SEATRIAL_RUNS", str(tmp_path / "elsewhere"))
    assert f"no folder {tmp_path}/elsewhere with runs" in seatrial("heal", "--all").stderr
    assert "no folder here with runs" in seatrial("heal", "--all", "--runs", "here").stderr
    assert seatrial(*SIMULATED, "--seed", "1").returncode == 0
    assert (tmp_path / "elsewhere" / "latest" / "verdict.json").is_file()


CONFIGURED = """\
color = "never"
[run]
hosts = "simulated"
duration = "24s"
faults = ["pause"]
load = { rate = 77 }
no-report = true
"""


def test_a_file_sets_defaults_beneath_everything_else(seatrial: Script, tmp_path: Path) -> None:
    """Options, then the trial file, then seatrial.toml."""
    (tmp_path / "seatrial.toml").write_text(CONFIGURED)
    (tmp_path / "trial.toml").write_text("duration_s = 23\n")
    assert 'kind = "pause"' in seatrial("run", "--dry-run").stdout
    assert 'kind = "kill"' in seatrial("run", "--dry-run", "--faults", "kill").stdout
    ran = seatrial("run", "trial.toml", "--seed", "9")
    assert ran.returncode in (0, 2), ran.stderr
    run = tmp_path / "runs" / "latest"
    trial = (run / "trial.toml").read_text()
    assert 'hosts = "simulated"' in trial
    assert "duration_s = 23" in trial
    assert "rate = 77" in trial
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('runs = "x"\ncolour = "never"\n', "seatrial.toml line 2: unknown option 'colour' (did"),
        ('[run]\nhost = "local"\n', "line 2: unknown option 'host' (did you mean hosts?)"),
        ('[rum]\nhosts = "local"\n', "line 1: unknown option 'rum' (did you mean run?)"),
        ('[run]\nduration = "soon"\n', "line 2: duration: 'soon' is not a duration"),
        ("[suite]\nrepeat = 0\n", "line 2: repeat: 0 is not in the range x>=1"),
        ("[run]\nfail-fast = 3\n", "line 2: fail-fast must be true or false, not 3"),
        ("[cluster.up]\nnods = 3\n", "line 2: unknown option 'nods'"),
        ("run = 3\n", "line 1: run must be a table of options"),
        ("runs = 5\n", "line 1: runs must be text in quotes, not 5"),
        ("[run]\nfaults = 5\n", "line 2: faults must be text in quotes, not 5"),
        ('[run]\nseed = "a"\n', "line 2: seed: 'a' is not a valid whole number\n"),
        ("[run\n", "seatrial.toml is not valid TOML"),
        ('[run]\nhosts = "cloud"\n', "seatrial.toml: hosts: unknown hosts 'cloud'"),
    ],
)
def test_a_broken_file_of_defaults_is_refused_with_its_line(
    seatrial: Script, tmp_path: Path, text: str, says: str
) -> None:
    """Whatever the command; it names the file, the line, and what is like it."""
    (tmp_path / "seatrial.toml").write_text(text)
    ran = seatrial("run", "--dry-run")
    assert ran.returncode == 254
    assert says in ran.stderr


# ------------------------------------------------------------------------------------ several runs


def test_fail_fast_ends_after_the_first_that_is_not_valid(seatrial: Script, tmp_path: Path) -> None:
    """Each of three seeds loses messages; only one of them is run."""
    losing = ("--profile", "unsafe-default", "--plan", "isolate-then-kill", "--duration", "30s")
    ran = seatrial(*SIMULATED, *losing, "--seeds", "1..3", "--fail-fast", "--junit", "out.xml")
    assert ran.returncode == 1, ran.stderr
    assert "stopped early: --fail-fast" in ran.stderr
    assert "1 run: 1 invalid" in ran.stdout
    root = Xml.parse(tmp_path / "out.xml").getroot()
    assert len(root.findall("testsuite")) == 1
    assert int(root.attrib["failures"]) > 0


def test_junit_has_a_suite_for_each_run(seatrial: Script, tmp_path: Path) -> None:
    """One file for all seeds; its counts add up."""
    ran = seatrial(*SIMULATED, "--seeds", "1..2", "--junit", "out.xml")
    assert ran.returncode == 0, ran.stderr
    root = Xml.parse(tmp_path / "out.xml").getroot()
    suites = root.findall("testsuite")
    assert len(suites) == 2
    assert int(root.attrib["tests"]) == sum(len(suite.findall("testcase")) for suite in suites) > 2
    assert (root.attrib["failures"], root.attrib["errors"]) == ("0", "0")


# --------------------------------------------------------------------------------------- terminals


def on_a_terminal(folder: Path, columns: int, *arguments: str) -> str:
    """What a terminal of so many columns is given."""
    with closing(Terminal([SCRIPT, *arguments], os.environ, columns, folder)) as terminal:
        terminal.exit_code()
        return terminal.printed


def plain(said: str) -> list[str]:
    """Its lines, without escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said).replace("\r", "").splitlines()


def without_fractions(word: str) -> str:
    """The word, with its decimal numbers made equal: free space changes from one call of `doctor`
    to the next."""
    return re.sub(r"\d+\.\d+", "0.0", word)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--help"),
        ("suite", "--help"),
        ("list",),
        ("list", "faults"),
        ("doctor", "--hosts", "simulated"),
        ("run", "--faults", "partitoin"),
        ("check", "a-folder-that-is-not-there/" + "20261124-132951-demo"),
        ("suite", "trial.toml"),
    ],
    ids=" ".join,
)
def test_60_columns_break_no_word(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """No line ends within a word: the words of 60 columns are those of 200."""
    (tmp_path / "trial.toml").write_text("duration_s = 8\n")
    narrow = plain(on_a_terminal(tmp_path, 60, *arguments))
    wide = plain(on_a_terminal(tmp_path, 200, *arguments))
    words = {without_fractions(word) for word in " ".join(wide).split()}
    assert {without_fractions(word) for word in " ".join(narrow).split()} <= words
    wrapped = [line for line in narrow if "/seatrial run demo" not in line]  # to be copied whole
    assert max(map(len, wrapped)) <= max(60, 20 + max(map(len, words)))


def test_a_narrow_terminal_breaks_no_word_of_a_run(seatrial: Script, tmp_path: Path) -> None:
    """Neither the summary of a run nor the timeline of a finding: numbers, paths and commands stay
    whole, and no label is cut off."""
    losing = ("--profile", "unsafe-default", "--plan", "isolate-then-kill", "--duration", "30s")
    assert seatrial(*SIMULATED, *losing).returncode == 1
    for arguments in (
        ("explain", "runs/latest"),
        ("report", "runs/latest", "--format", "terminal"),
    ):
        wide = plain(on_a_terminal(tmp_path, 400, *arguments))
        words = set(" ".join(wide).split())
        for columns in (60, 40):
            narrow = plain(on_a_terminal(tmp_path, columns, *arguments))
            assert set(" ".join(narrow).split()) <= words
            assert max(map(len, narrow)) <= max(columns, 20 + max(map(len, words)))


def test_color_is_asked_for_or_forbidden(tmp_path: Path, seatrial: Script) -> None:
    """always: into a pipe, too; never: not even on a terminal."""
    assert ESCAPE in seatrial("list", "hosts", "--color", "always").stdout
    assert ESCAPE in seatrial("--color", "always", "list", "hosts").stdout
    assert ESCAPE not in seatrial("list", "hosts").stdout
    assert ESCAPE in on_a_terminal(tmp_path, 80, "list", "hosts")
    assert ESCAPE not in on_a_terminal(tmp_path, 80, "list", "hosts", "--color", "never")
    assert ESCAPE in seatrial("doctor", "--hosts", "simulated", "--color", "always").stdout


def first_line(folder: Path, *arguments: str) -> str:
    """The first line of a command's stderr; then the command is killed."""
    with subprocess.Popen(
        [SCRIPT, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr
        try:
            return running.stderr.readline()
        finally:
            running.kill()


def test_what_takes_long_says_how_long(tmp_path: Path) -> None:
    """Before it begins: a hundred worlds do, two short ones do not."""
    hundred = first_line(tmp_path, "simulate", "--seeds", "1..100", "--time", "65s")
    assert "100 seeds, about 65 s in all" in hundred
    few = first_line(tmp_path, "simulate", "--seeds", "1..2", "--duration", "3s")
    assert "takes a while" not in few


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("report", "run"), "reporting run: page"),
        (("check", "run"), "checking run: "),
        (("import", "x.csv", "--as", "csv", "--out", "out"), "importing x.csv: reading"),
    ],
    ids=["report", "check", "import"],
)
def test_progress_is_shown_on_a_terminal_alone(
    seatrial: Script, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    """Which part is under way; nothing of it in a pipe or with -q."""
    (tmp_path / "x.csv").write_text(CSV)
    imported = seatrial("import", "x.csv", "--as", "csv", "--out", "run")
    assert imported.returncode == 0, imported.stderr
    assert says not in imported.stderr
    if arguments[0] == "report":
        assert seatrial("check", "run").returncode in (0, 1, 2)
    assert says in " ".join(plain(on_a_terminal(tmp_path, 100, *arguments)))
    if arguments[0] == "report":
        assert seatrial(*arguments).stderr == ""
        assert says not in " ".join(plain(on_a_terminal(tmp_path, 100, *arguments, "-q")))


def test_quiet_leaves_results_and_errors(seatrial: Script) -> None:
    """Nothing on standard error where nothing is wrong; the verdict all the same."""
    loud = seatrial(*SIMULATED)
    quiet = seatrial(*SIMULATED, "-q")
    assert "load" in loud.stderr
    assert quiet.stderr == ""
    assert "VALID" in quiet.stdout
    assert seatrial("-q", *SIMULATED).stderr == ""
    assert "unknown hosts" in seatrial("run", "--hosts", "cloud", "-q").stderr


def test_verbose_shows_where_an_error_comes_from(seatrial: Script) -> None:
    """Its traceback; the exit code is the same."""
    ran = seatrial("run", "--hosts", "outside", "-v", ending="bed failed")
    assert (ran.returncode, "Traceback" in ran.stderr) == (255, True)
    assert "Traceback" not in seatrial("run", "--hosts", "outside", ending="bed failed").stderr
