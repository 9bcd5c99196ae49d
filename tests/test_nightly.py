"""The nightly workflow does what it says: its `run:` steps are executed here, on a short suite."""

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "nightly.yml"


def job() -> dict[str, Any]:
    (only,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    return dict(only)


def steps() -> list[str]:
    return [step["run"] for step in job()["steps"] if "run" in step]


def test_it_installs_runs_and_keeps_the_reports() -> None:
    """Checkout first, then the steps, then the reports are kept whatever happened."""
    uses = [step.get("uses", "") for step in job()["steps"]]
    assert uses[0].startswith("actions/checkout@")
    assert uses[-1].startswith("actions/upload-artifact@")
    kept = job()["steps"][-1]
    assert kept["if"] == "always()"
    assert "report.html" in kept["with"]["path"]
    assert "verdict.json" in kept["with"]["path"]


def test_it_allows_user_namespaces_on_ubuntu() -> None:
    """Ubuntu's runners deny them otherwise, and every local trial would be refused."""
    allow = "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    trials = next(i for i, step in enumerate(steps()) if "seatrial suite" in step)
    assert any(allow in step for step in steps()[:trials])


def test_the_suite_it_runs_exists() -> None:
    """Every trial of the nightly suite can be asked for: names, files and plans are there."""
    from harness.preflight import refuse_unknown
    from harness.suite import read_suite

    suite = ROOT / "suites" / "nightly.toml"
    assert suite.name in job()["env"]["SUITE"]
    runs = list(read_suite(suite))
    for expected in runs:
        refuse_unknown(expected.asked.trial)
    assert {expected.verdict for expected in runs} >= {"valid", "invalid"}
    on_processes = [one.asked.trial for one in runs if one.asked.trial.hosts == "local"]
    types = {trial.settings.get("controllerType", "dledger") for trial in on_processes}
    assert types == {"dledger", "jraft"}


SHORT = """\
    [[trial]]
    run = "messages"
    with = { name = "calm", duration_s = 5, seed = 1 }
    expect = "valid"
"""


@pytest.mark.bed
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_its_steps_work(tmp_path: Path) -> None:
    """Each `run:` step, in order, as the shell of a runner would execute it."""
    suite = tmp_path / "short.toml"
    suite.write_text(textwrap.dedent(SHORT))
    summary = tmp_path / "summary.md"
    env = {
        **os.environ,
        "SUITE": str(suite),
        "CAMPAIGN": "20s",
        "NIGHT": "0",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    for step in steps():
        if step.startswith("sudo sysctl"):
            continue  # a setting of the machine's own, which a test must not touch
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step]
        ran = subprocess.run(shell, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{step}\n{ran.stdout}\n{ran.stderr}"
    assert "as expected" in summary.read_text()
    assert "of 10,000 seeds of flotilla" in summary.read_text()
