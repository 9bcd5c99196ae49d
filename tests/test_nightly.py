"""The workflows do what they say: their `run:` steps are executed here, on short suites."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.options import Duration

ROOT = Path(__file__).resolve().parents[1]
ACTION = ROOT / "action.yml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"
NIGHT = ROOT / ".ci" / "night"
SUITES = ROOT / "docs" / "suites.md"
PARTS = ("trials", "published", "systems", "campaign", "benchmarks", "search", "hosts", "tables")


def job(workflow: Path = NIGHTLY) -> dict[str, Any]:
    (only,) = yaml.safe_load(workflow.read_text())["jobs"].values()
    return dict(only)


def steps(workflow: Path = NIGHTLY) -> list[dict[str, Any]]:
    """All steps of a workflow, those of our own action in the place where it is used, with its
    inputs filled in."""
    found: list[dict[str, Any]] = []
    for step in job(workflow)["steps"]:
        found += _of_the_action(step["with"]) if step.get("uses") == "./" else [step]
    return found


def _of_the_action(given: dict[str, str]) -> list[dict[str, Any]]:
    action = yaml.safe_load(ACTION.read_text())
    assert set(given) <= set(action["inputs"])
    values = {name: about.get("default") for name, about in action["inputs"].items()} | given

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: filled(value) for key, value in part.items()}
        if isinstance(part, str):
            for name, value in values.items():
                part = part.replace("${{ inputs." + name + " }}", str(value))
        return part

    return [dict(filled(step)) for step in action["runs"]["steps"]]


def runs_the_night(step: dict[str, Any]) -> bool:
    return ".ci/night" in step.get("run", "") + step.get("env", {}).get("COMMAND", "")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_it_installs_runs_and_keeps_the_reports(workflow: Path) -> None:
    """Checkout first, then the steps, then the reports are kept whatever happened."""
    assert steps(workflow)[0]["uses"].startswith("actions/checkout@")
    (kept,) = (s for s in steps(workflow) if s.get("uses", "").startswith("actions/upload-artif"))
    assert kept["if"] == "always()"
    for what in ("report.html", "verdict.json", "runs/suites/*"):
        assert what in kept["with"]["path"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(workflow: Path) -> None:
    """A tag can be moved to other code; the tag that the commit had is in a comment."""
    used = re.findall(r"uses: (.*)", workflow.read_text() + ACTION.read_text())
    assert used
    for one in used:
        assert one == "./" or re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)


def test_a_night_looks_for_known_vulnerabilities() -> None:
    """In every package that make installs; once, not in each part."""
    (step,) = (step for step in steps() if "pip-audit" in step.get("run", ""))
    assert "-r constraints.txt" in step["run"]
    assert step["if"].split("'")[1] in PARTS


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_it_allows_user_namespaces_on_ubuntu(workflow: Path) -> None:
    """Ubuntu's runners deny them otherwise, and every local trial would be refused."""
    allow = "kernel.apparmor_restrict_unprivileged_userns"
    trials = next(i for i, step in enumerate(steps(workflow)) if runs_the_night(step))
    assert any(allow in step.get("run", "") for step in steps(workflow)[:trials])


def test_every_part_of_the_night_is_run() -> None:
    """And one that fails does not end the others."""
    strategy = job()["strategy"]
    assert strategy["matrix"]["part"] == list(PARTS)
    assert strategy["fail-fast"] is False
    assert all(f"\n        {part})" in NIGHT.read_text() for part in (*PARTS, "small"))


def test_the_suites_of_the_night_exist() -> None:
    """Every trial can be asked for: names, files and plans are there; real processes run under both
    kinds of controllers, and something is expected to fail."""
    from harness.run.preflight import refuse_unknown
    from harness.suite.suite_file import read_suite

    named = job()["env"]["SUITES"].split("'")[1].split()
    assert all(name in NIGHT.read_text() for name in named)
    runs = [run for name in named for run in read_suite(ROOT / name)]
    for expected in runs:
        refuse_unknown(expected.request.trial)
    assert {expected.verdict for expected in runs} >= {"valid", "invalid"}
    on_processes = [one.request.trial for one in runs if one.request.trial.hosts == "local"]
    types = {trial.settings.get("controllerType", "dledger") for trial in on_processes}
    assert types == {"dledger", "jraft"}


def test_the_modes_of_the_night_are_profiles(tmp_path: Path) -> None:
    """Each mode of Flotilla has its campaign every night."""
    from harness.run.preflight import refuse_unknown
    from harness.trial import Trial

    (named,) = re.findall(r'^MODES="\$\{MODES-(.*)\}"$', NIGHT.read_text(), re.MULTILINE)
    for profile in named.split():
        refuse_unknown(Trial(profile=profile))


def test_the_line_for_cron_works_in_a_new_clone(tmp_path: Path) -> None:
    """Where there is no runs/ yet; whoever comes second takes nothing from the first one's log."""
    (line,) = re.findall(r"^17 2 \* \* \*\s+(.*)$", SUITES.read_text(), re.MULTILINE)
    script = tmp_path / "seatrial" / ".ci" / "night"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\necho a night\n")
    script.chmod(0o755)
    for _ in range(2):
        subprocess.run(["/bin/sh", "-c", line], env={**os.environ, "HOME": str(tmp_path)})
    log = tmp_path / "seatrial" / "runs" / "night.log"
    assert log.read_text() == "a night\n" * 2


def test_what_was_measured_is_kept_from_night_to_night() -> None:
    """Also of a night that failed, else the trend would have only the good ones; under a name that
    is new in each attempt, for what is kept is never written over."""
    steps = {str(step.get("uses", "")).partition("@")[0]: step for step in job()["steps"]}
    before, after = steps["actions/cache/restore"], steps["actions/cache/save"]
    assert "actions/cache" not in steps, "it saves nothing when the job has failed"
    assert after["if"] == "always()"
    for key in ("path", "key"):
        assert before["with"][key] == after["with"][key]
    assert "github.run_attempt" in after["with"]["key"]
    assert after["with"]["key"].startswith(before["with"]["restore-keys"])


def test_the_systems_of_the_night_are_installed() -> None:
    """Redis, RabbitMQ and PostgreSQL are no part of what a trial needs, and suites of the night are
    about them."""
    installs = next(i for i, step in enumerate(steps()) if "PACKAGES" in step.get("env", {}))
    assert installs < next(i for i, step in enumerate(steps()) if runs_the_night(step))
    assert steps()[installs]["env"]["PACKAGES"].split()[0] == "test"
    of_tests = (ROOT / ".ci" / "packages").read_text().split("= test")[1]
    for name in ("redis-server", "rabbitmq-server", "postgresql"):
        assert f"need {name}" in of_tests or f"missing {name}" in of_tests


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_part_ends_before_the_job_is_ended(workflow: Path) -> None:
    """Else nothing of it would be kept."""
    budget = job(workflow)["env"]["BUDGET"]
    budget = budget.split("'")[1] if "'" in budget else budget
    assert Duration()(budget) + 15 * 60 <= job(workflow)["timeout-minutes"] * 60


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A clone whose `seatrial` says what it was asked for, and where an hour passes whenever
    somebody looks at the clock."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(NIGHT, tmp_path / ".ci" / "night")
    scripts = {
        ".venv/bin/seatrial": f'echo "$@" >>{tmp_path}/asked',
        ".venv/bin/python": f'exec {sys.executable} "$@"',
        "bin/date": f"echo x >>{tmp_path}/looks; expr 3600 '*' $(wc -l <{tmp_path}/looks)",
    }
    for name, line in scripts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    return tmp_path


def _night(bare: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    path = f"{bare}/bin:{os.environ['PATH']}"
    return subprocess.run(
        [bare / ".ci" / "night", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "NIGHT": "0", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_suites_of_a_night_share_its_budget(bare: Path) -> None:
    """The later ones get what is left; one that nothing is left for is asked all the same, for it
    says what was not run."""
    assert _night(bare, "trials", SUITES="a b c", BUDGET="2h").returncode == 0
    asked = (bare / "asked").read_text().splitlines()
    assert [line.split()[1] for line in asked] == ["a", "b", "c"]
    assert [line.split()[3] for line in asked] == ["3600s", "1s", "1s"]


@pytest.mark.parametrize(("shown", "code"), [(0, 2), (1, 1)])
def test_the_hosts_of_a_night_get_the_published_trial(bare: Path, shown: int, code: int) -> None:
    """Some of its cells, with what is left of the budget, after the trials of tests/acceptance; the
    exit code is the worse of both."""
    scripts = {
        "tests/acceptance/host_trials.py": f"sys.exit({shown})",
        "tests/acceptance/kills.py": "",
        "tests/labs/machines/yarn_check.py": "",
        "tests/labs/machines/nightly_suite.py": "print(*sys.argv[1:])\nsys.exit(2)",
    }
    for name, text in scripts.items():
        (bare / name).parent.mkdir(parents=True, exist_ok=True)
        (bare / name).write_text(f"import sys\n{text}\n")
    sudo = bare / "bin" / "sudo"
    sudo.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    sudo.chmod(0o755)
    ran = _night(bare, "hosts", PUBLISHED="p.toml", CELLS="kill", BUDGET="3h", SUMMARY="s.md")
    assert ran.returncode == code, ran.stderr
    words = ran.stdout.split()
    assert words[:4] == ["--budget-time", "7200s", "--summary", "s.md"]
    assert words[4:] == ["--suite", "p.toml", "--only", "kill", "--share", "0.25"]


@pytest.mark.parametrize(
    ("given", "searched"),
    [({}, "--tenth 7"), ({"MUTANTS": "no-fsync one-ack"}, "no-fsync one-ack")],
)
def test_a_night_searches_a_tenth_of_the_mutants_or_those_named(
    bare: Path, given: dict[str, str], searched: str
) -> None:
    """A tenth every night, so that ten nights search for all."""
    (bare / "benchmarks").mkdir()
    (bare / "benchmarks" / "guided.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    ran = _night(bare, "search", NIGHT="7", SUMMARY="s.md", **given)
    assert ran.stdout == f"{searched} --runs 2 --cap 1200\n", ran.stderr


def test_a_budget_that_is_none_is_refused(bare: Path) -> None:
    """Before anything is run."""
    ran = _night(bare, "trials", BUDGET="soon")
    assert ran.returncode == 254
    assert ran.stderr == "seatrial: BUDGET=soon is not a duration; write 5h or 90m\n"
    assert not (bare / "asked").exists()


@pytest.mark.parametrize("night", ["abc", "-1", "1.5", "9" * 30, "08", "1+1"])
def test_a_night_that_is_no_number_is_refused(bare: Path, night: str) -> None:
    """Its seeds would be none; a shell would do sums with it."""
    ran = _night(bare, "campaign", NIGHT=night)
    assert ran.returncode == 254
    assert ran.stderr.startswith(f"seatrial: NIGHT={night} is no number of a night; ")
    assert not (bare / "asked").exists()


def test_a_part_that_is_not_there_is_refused(bare: Path) -> None:
    """254, and a line that names those that are."""
    ran = _night(bare, "tirals")
    assert ran.returncode == 254
    assert " ".join([*PARTS, "small"]) in ran.stderr


SHORT = """\
    [[trial]]
    run = "messages"
    with = { name = "calm", duration_s = 5, seed = 1, hosts = "HOSTS" }
    expect = "valid"
"""


NOT_IN_TESTS = (
    "sudo sysctl",  # the machine's own settings
    "key=kernel.apparmor",
    "pipx run --spec pip-audit",  # it asks a public service about all packages
)


@pytest.mark.bed
def test_their_steps_work(tmp_path: Path) -> None:
    """Each `run:` step, in order, as the shell of a runner would execute it; for each part of the
    night, on short suites."""
    summary = tmp_path / "summary.md"
    records = [ROOT / "runs" / f"rocketmq-trial{suffix}.tsv" for suffix in ("", "-worlds")]
    before = {record: record.read_bytes() for record in records if record.exists()}
    env = {
        **os.environ,
        **{
            name: str(_short(tmp_path, name))
            for name in ("SUITES", "PUBLISHED", "WHOLE", "SYSTEMS", "SMALL")
        },
        "MODES": "raft-log",
        "WORLDS": "1",
        "REPEATS": "2",
        "NIGHT": "0",
        "BENCHMARKS": str(_benchmark(tmp_path)),
        "MUTANTS": "key-damaged",
        "SEARCHES": "1",
        "SEARCH_S": "1",
        "TABLES": "tests/checkers/linear/test_set_causes.py",
        "GITHUB_STEP_SUMMARY": str(summary),
        **_of_a_runner(tmp_path),
    }
    try:
        asked = [(step, "") for step in steps() if "run" in step and not runs_the_night(step)]
        parts = [part for part in PARTS if part != "hosts"]  # docker, ssh and Spark: minutes
        asked += [(step, part) for part in parts for step in steps() if runs_the_night(step)]
        asked += [(step, "small") for step in steps(WORKFLOWS[-1]) if runs_the_night(step)]
        for step, part in asked:
            if not step["run"].startswith(NOT_IN_TESTS):
                _executed(step, {**env, "PART": part})
    finally:
        (ROOT / "runs" / "short-systems.tsv").unlink(missing_ok=True)
        for record in records:
            record.unlink(missing_ok=True)
        for record, content in before.items():
            record.write_bytes(content)
    told = summary.read_text()
    assert told.count("1 of 1 run of") == 4
    assert told.count("2 of 2 runs of") == 1
    assert told.count("1 of 1 seed of flotilla") == 3
    assert "## Mode raft-log\n" in told
    assert "```\nmeasured\n```" in told
    assert re.search(r"\| mutant \| uniform.*\n.*\n\| key-damaged \|", told)


def _short(folder: Path, name: str) -> Path:
    path = folder / f"short-{name.lower()}.toml"
    hosts = "local" if name == "SUITES" else "simulated"
    path.write_text(textwrap.dedent(SHORT).replace("HOSTS", hosts))
    return path


def _benchmark(folder: Path) -> Path:
    path = folder / "benchmark.py"
    path.write_text('print("measured")\n')
    return path


def _of_a_runner(folder: Path) -> dict[str, str]:
    """What GitHub sets for the steps of an action."""
    (folder / "path").touch()
    return {
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_PATH": str(folder / "path"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "RUNNER_TEMP": str(folder),
    }


def _executed(step: dict[str, Any], env: dict[str, str], code: int = 0) -> None:
    """Execute the script of a step. Of the packages only those that tests need."""
    added = Path(env["GITHUB_PATH"]).read_text().split()
    own = {**step.get("env", {}), "PATH": ":".join([*added, env["PATH"]])}
    if "PACKAGES" in own:
        own["PACKAGES"] = own["PACKAGES"].split()[0]
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    ran = subprocess.run(
        shell, cwd=ROOT, env=env | own, capture_output=True, text=True, check=False
    )
    assert ran.returncode == code, f"{step}\n{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("code", [0, 2])
def test_the_action_keeps_the_exit_code_and_shows_what_was_printed(
    tmp_path: Path, code: int
) -> None:
    """On the page of the job, unless the command has written a page of its own."""
    given = {"command": f"echo valid; exit {code}"}
    (step,) = (s for s in _of_the_action(given) if "COMMAND" in s.get("env", {}))
    env = {**os.environ, **_of_a_runner(tmp_path)}
    page = tmp_path / "summary.md"
    _executed(step, env, code)
    assert page.read_text() == "```\nvalid\n```\n"
    page.write_text("a suite\n")
    _executed(step, env, code)
    assert page.read_text() == "a suite\n"
