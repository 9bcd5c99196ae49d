"""Whole trials on machines reached by SSH, by the real command, which leave the hosts as they were.

The trials run in the background, one after another, in the SSH lab; each checks itself that
files, processes, sockets and rules of every host are as before. Plans that lose messages run on
local hosts (test_plans.py), and here every night (tests/acceptance/host_trials.py).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_command
import tomli_w
import trial_assertions
import trial_scenarios
from host_labs import HostLab, left_on
from ssh_lab import LabHost, SshLab

pytestmark = pytest.mark.bed


def test_the_trial_of_all_hosts_is_valid_over_ssh(smoke: run_command.FinishedCommand) -> None:
    """All four kinds of faults at work, all that was recorded judged, the nodes' files here."""
    trial_assertions.took_effect(smoke)
    trial_assertions.was_cleaned_up(smoke)


def test_a_killed_driver_leaves_no_fault_and_heal_removes_the_rest(
    killed: trial_scenarios.Left,
) -> None:
    """kill -9 of command and runner during a partition: it ends by itself; `heal --all` removes the
    folders; the run can be judged."""
    trial_assertions.healed(killed, removed="6 folders")
    trial_assertions.interrupted(killed.done)


def test_kills_at_random_moments_leave_nothing(random_kills: list[str]) -> None:
    """Processes, rules and folders are gone after `heal`, and what was recorded up to 50 ms before
    the kill is there: `kills.py` asserts it of each."""
    assert len(random_kills) == trial_scenarios.KILLS


def test_a_stopped_driver_leaves_no_fault_either(stopped: run_command.FinishedCommand) -> None:
    """SIGSTOP: the partition ends with the lease. Going on, the runner learns that all its nodes
    are gone, and still brings their files home and cleans up."""
    trial_assertions.ended_early(
        stopped, "NODE_GONE", "its agent left: no driver was heard for 20 s"
    )
    trial_assertions.was_cleaned_up(stopped)


def test_an_sshd_that_hangs_ends_the_run_and_heal_clears_its_host(
    hung: trial_scenarios.Left,
) -> None:
    """Unknown, and it says which node; its cut ended by itself; its folder is removed when it can
    be reached again."""
    trial_assertions.ended_early(
        hung.done, "NODE_GONE", r"broker-\d is gone for good \(it was not heard"
    )
    trial_assertions.healed(hung, removed="1 folder")


def test_a_full_disk_ends_the_run(full_host: run_command.FinishedCommand) -> None:
    """Unknown, and it says where no space was left; the broker is not convicted for it."""
    trial_assertions.ended_early(full_host, "DISK_FULL", "no space was left for broker-1")
    assert full_host.findings["NODE_CRASHED"] == 0


def test_a_cluster_can_be_kept_and_looked_at(kept: dict[str, run_command.FinishedCommand]) -> None:
    """cluster up, status, logs, shell and down."""
    trial_assertions.was_inspected(kept)


def test_a_driver_of_another_package_and_its_program_reach_machines(
    outside: run_command.FinishedCommand,
) -> None:
    """NATS: driver and program are sent, and each replica's files are read at the end."""
    trial_assertions.ran_outside(outside, "nats-server")
    stats = {row["checker"]: row["stats"] for row in outside.verdict["checkers"]}
    assert stats["replicas"]["compared"] >= 50


# ---------------------------------------------------------------------------------- refusals

Entry = dict[str, Any]


def another_key(lab: SshLab, host: LabHost, entry: Entry) -> Entry:
    """The private key of a host lets nobody in."""
    return entry | {"key": str(lab.folder / host.name / "host_key")}


def nobody_knows_it(lab: SshLab, host: LabHost, entry: Entry) -> Entry:
    return entry | {"known_hosts": str(lab.folder / "known_to_nobody")}


def key_changed(lab: SshLab, host: LabHost, entry: Entry) -> Entry:
    host.change_key()
    return entry


def no_iptables(lab: SshLab, host: LabHost, entry: Entry) -> Entry:
    host.remove_iptables()
    return entry


def no_sshd(lab: SshLab, host: LabHost, entry: Entry) -> Entry:
    host.kill_sshd()
    return entry


def no_sudo(lab: SshLab, host: LabHost, entry: Entry) -> Entry:
    host.add_user("ops", sudo=False)
    return entry | {"user": "ops"}


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (another_key, "does not let root in with .*host_key: .*to fix it: correct `user` or `key`"),
        (nobody_knows_it, "has a host key that is not in .*to fix it: compare .*ssh-keyscan"),
        (key_changed, "shows another host key .*to fix it: if you know why, forget the old key"),
        (no_iptables, "has no iptables: .*to fix it: install it there"),
        (no_sshd, "refuses connections to port 22.*to fix it: start its SSH server"),
        (no_sudo, "lets ops in, but not act as root .*to fix it: add a line to its sudoers"),
    ],
)
def test_a_host_that_is_not_fit_is_one_sentence(
    ssh_lab: SshLab,
    host_lab: HostLab,
    tmp_path: Path,
    broken: Callable[[SshLab, LabHost, Entry], Entry],
    says: str,
) -> None:
    """Exit code 255: which host, what, and what mends it; nothing is begun, nothing left."""
    host = ssh_lab.add()
    entry = broken(ssh_lab, host, ssh_lab.entry(host))
    others = [ssh_lab.entry(other) for other in ssh_lab.standing[1:]]
    before = left_on(host)
    done = refusal(host_lab, tmp_path, {"host": [entry, *others]})
    trial_assertions.refused(done, 255, f"{host.address} {says}")
    assert left_on(host) == before


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"hosts": [{"host": "h1"}]}, "hosts.toml.*unknown"),
        ({"host": [{"host": "h1", "colour": "red"}]}, "hosts.toml.*'?colour"),
        ({"host": [{"host": "h1"}, {"host": "h1"}]}, "hosts.toml.*h1"),
    ],
)
def test_an_inventory_that_makes_no_sense_is_one_sentence(
    host_lab: HostLab, tmp_path: Path, wrong: dict[str, Any], says: str
) -> None:
    """Exit code 254: the file, and what is wrong in it."""
    trial_assertions.refused(refusal(host_lab, tmp_path, wrong), 254, says)


def test_too_few_hosts_are_refused_before_anything_is_begun(
    ssh_lab: SshLab, host_lab: HostLab, tmp_path: Path
) -> None:
    """Exit code 254: one host for each node is needed, and the file that lists too few."""
    few = {"host": [ssh_lab.entry(host) for host in ssh_lab.standing[:3]]}
    trial_assertions.refused(
        refusal(host_lab, tmp_path, few), 254, "9 nodes, .*hosts.toml lists 3 hosts"
    )


def test_a_missing_inventory_is_one_sentence(host_lab: HostLab, tmp_path: Path) -> None:
    """Exit code 254, with the path that was looked at."""
    done = host_lab.seatrial(
        "run", trial_scenarios.SMOKE, runs=tmp_path / "runs", inventory=tmp_path / "none.toml"
    )
    trial_assertions.refused(done, 254, "none.toml")


def refusal(
    host_lab: HostLab, folder: Path, inventory: dict[str, Any]
) -> run_command.FinishedCommand:
    (folder / "hosts.toml").write_text(tomli_w.dumps(inventory))
    asked = ("run", trial_scenarios.SMOKE)
    return host_lab.seatrial(*asked, runs=folder / "runs", inventory=folder / "hosts.toml")
