"""Run a suite once on a Docker engine and once on SSH hosts, both started by the labs. The recorded
runs are judged again by a standalone Spark master with two workers; its verdicts must have the same
bytes.

    python tests/labs/machines/nightly_suite.py --suite suites/rocketmq-2024.toml
        --only pool/dledger --share 0.25

It needs root, and what `.ci/packages test` installs. Exit code 1 when a verdict was not as
expected or differs on the cluster, 2 when one is undecided, 255 when a lab cannot be started.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import docker_lab
import spark_lab
import ssh_lab

ROOT = Path(__file__).resolve().parents[3]
SEATRIAL = Path(sys.executable).with_name("seatrial")
SSH_HOSTS = 9  # a nameserver, three controllers, three brokers, two clients
BED_FAILED, INVALID = 255, 1
Inside = Callable[[Sequence[str]], list[str]]


def suite(
    asked: argparse.Namespace, hosts: Sequence[str], inside: Inside, env: Mapping[str, str]
) -> int:
    """Run the suite there; its exit code."""
    command = [str(SEATRIAL), "suite", asked.suite, "--only", asked.only, *hosts, "--no-report"]
    command += ["--share", str(asked.share), "--runs", asked.runs]
    if asked.budget_time:
        command += ["--budget-time", asked.budget_time]
    if asked.summary:
        command += ["--summary", asked.summary]
    return subprocess.run(inside(command), cwd=ROOT, env={**os.environ, **env}).returncode


def on_docker(asked: argparse.Namespace) -> int:
    with docker_lab.raised() as lab:
        return suite(asked, ["--hosts", "docker"], lab.inside, lab.environment)


def on_ssh(asked: argparse.Namespace) -> int:
    with ssh_lab.raised(SSH_HOSTS) as lab:
        bed = f"inventory={lab.inventory()}"
        return suite(asked, ["--hosts", "ssh", "--bed", bed], lab.inside, {})


def on_spark(runs: Sequence[Path]) -> int:
    """Judge each run by a cluster of two workers; 1 when any verdict differs."""
    differ = []
    with tempfile.TemporaryDirectory() as folder, spark_lab.cluster(Path(folder)) as spark:
        master = spark.master()
        for number in (1, 2):
            spark.worker(f"worker-{number}", master)
        for run in runs:
            before = (run / "verdict.json").read_bytes()
            command = [str(SEATRIAL), "check", str(run), "--spark", master]
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
            if (run / "verdict.json").read_bytes() != before:
                differ.append(run.name)
    print(f"{len(runs) - len(differ)} of {len(runs)} verdicts are the same on a Spark cluster")
    for name in differ:
        print(f"the verdict of {name} differs on a Spark cluster")
    return INVALID if differ else 0


def judged(runs: Path) -> set[Path]:
    """The runs on docker and SSH hosts that have a verdict."""
    files = runs.glob("*/verdict.json")
    return {file.parent for file in files if not file.parent.is_symlink()}


def worst(codes: Sequence[int]) -> int:
    """1 outweighs a failed lab, that what is undecided, and that success."""
    return next((code for code in (INVALID, BED_FAILED, 2) if code in codes), max(codes, default=0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--suite", default="suites/rocketmq-2024.toml")
    parser.add_argument("--only", default="pool/dledger")
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--budget-time", default="")
    parser.add_argument("--summary", default="")
    asked = parser.parse_args()
    if why := docker_lab.lacking() or ssh_lab.lacking():
        print(f"seatrial: no hosts of our own can be started here: {why}", file=sys.stderr)
        return BED_FAILED
    before = judged(Path(asked.runs))
    codes = [on_docker(asked), on_ssh(asked)]
    codes.append(on_spark(sorted(judged(Path(asked.runs)) - before)))
    return worst(codes)


if __name__ == "__main__":
    sys.exit(main())
