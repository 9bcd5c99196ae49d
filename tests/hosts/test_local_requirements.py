"""The requirements of local hosts: each known obstacle is named, with its reason and a remedy."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusters.hosts._agent import agent as _agent
from clusters.hosts.local import requirements as _probe


def test_missing_programs_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One problem for each package, before anything is tried."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_agent, "SYSTEM_FOLDERS", ())
    found = _probe.problems()
    assert [problem.fix.split()[-1] for problem in found] == ["iproute2", "iptables"]
    assert found[0].what == "the program ip is missing"


@pytest.mark.parametrize(
    ("step", "number", "what", "fix"),
    [
        ("namespaces", errno.EINVAL, "had started threads", "run the `seatrial` command"),
        ("namespaces", errno.ENOSPC, "limit of user namespaces", "user.max_user_namespaces="),
        ("links", 0, "refused a bridge", "sudo modprobe -a bridge veth"),
        ("rules", 0, "iptables does not work", "nf_tables"),
        ("statistic", 0, "no statistic match", "sudo modprobe xt_statistic"),
        ("unknown", 0, "network failed", "unshare"),
    ],
)
def test_every_failed_step_is_explained(step: str, number: int, what: str, fix: str) -> None:
    """What failed, why it matters and one command, in a sentence."""
    problem = _probe._explain({"step": step, "number": number, "text": "some words"})
    assert what in problem.what
    assert fix in problem.fix
    assert problem.sentence() == f"{problem.what}: {problem.why}; to fix it: {problem.fix}"


@pytest.mark.parametrize(
    ("switch", "value", "fix"),
    [
        ("apparmor_restrict_unprivileged_userns", "1", "apparmor_restrict_unprivileged_userns=0"),
        ("unprivileged_userns_clone", "0", "unprivileged_userns_clone=1"),
    ],
)
def test_the_switches_of_distributions_are_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, value: str, fix: str
) -> None:
    """Ubuntu's and Debian's restrictions of ordinary users, each with its sysctl."""
    (tmp_path / switch).write_text(f"{value}\n")
    monkeypatch.setattr(_probe, "_KERNEL", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    problem = _probe._explain({"step": "namespaces", "number": errno.EPERM, "text": ""})
    assert problem.fix == f"sudo sysctl -w kernel.{fix}"


ASK = """
import json
from clusters.hosts.local.requirements import problems

print(json.dumps(problems()))
"""
IN_A_USER_NAMESPACE = ("unshare", "--user", "--map-root-user")
NONE_LEFT = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'


def probed(root: Path, *wrapper: str) -> list[list[str]]:
    """Return the problems when no more user namespaces may be made."""
    done = subprocess.run(
        [*IN_A_USER_NAMESPACE, "sh", "-c", NONE_LEFT, "sh", *wrapper, sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=True,
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.bed
def test_a_real_refusal_is_explained(root: Path) -> None:
    """Without privilege it is a problem, with a remedy."""
    ((what, _, fix),) = probed(root, "setpriv", "--bounding-set=-all", "--inh-caps=-all")
    assert what == "the limit of user namespaces is reached"
    assert fix == "sudo sysctl -w user.max_user_namespaces=15000"


@pytest.mark.bed
def test_root_goes_without_a_user_namespace_where_it_must(root: Path) -> None:
    """With privilege the other namespaces are enough."""
    assert probed(root) == []
