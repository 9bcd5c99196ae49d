"""SSH hosts: faults end by themselves, broken connections cost nothing, and a host is given back as
it was.

`test_every_kind.py` has what every kind of hosts must do. The sshds are real (tests/labs); each
host that a test used must look the same afterwards.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ssh_lab import LabHost, SshLab

from clusters.hosts._agent import machine_id as _driver
from clusters.hosts.ssh import claims as _ssh_taken
from clusters.hosts.ssh import hosts as ssh
from harness.contracts import Agent, ClockOffset, LinkRule, Node
from harness.errors import BadRequest, BedFailed, NodeGone
from harness.history.rundir import RunDir
from harness.history.runs import locked, start_run
from harness.trial import Trial

pytestmark = pytest.mark.bed

DRIVER = Path(__file__).with_name("ssh_driver.py")
ROOT = DRIVER.parents[2]
PATIENCE_S = 120.0
SHORT_LEASE_S = 8.0
NAMES = ("h1", "h2", "h3")
NODES = [Node(name, "broker") for name in "abc"]
OURS = 'grep -als "seatria[l]" /proc/[0-9]*/cmdline /proc/[0-9]*/environ || :'
AHEAD_S = 5000
SSHD = ("/usr/sbin/sshd", "-f", "/run/lab/sshd_config", "-E", "/run/lab/sshd.log")
HOLD = """
import fcntl, os
held = os.open("/run/seatrial-agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(held, fcntl.LOCK_EX)
print(os.getpid(), flush=True)
input()
os.unlink("/run/seatrial-agent.lock")
"""

Agents = Mapping[str, Agent]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without keys, configuration or ssh-agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def lab(ssh_lab: SshLab) -> Iterator[SshLab]:
    """The lab, with this test as the driver; its hosts must be left as they were."""
    with ssh_lab.network():
        yield ssh_lab
    for host in ssh_lab.standing:
        assert left_on(host) == "", host.name


@pytest.fixture
def three(lab: SshLab) -> list[LabHost]:
    return [lab.host(name) for name in NAMES]


@pytest.fixture
def bed(lab: SshLab, three: list[LabHost]) -> dict[str, Any]:
    return {"inventory": str(lab.inventory(three))}


@pytest.fixture
def run(tmp_path: Path, bed: dict[str, Any]) -> RunDir:
    """A run's folder as its command makes it; `heal` finds that the run is over."""
    return made_run(tmp_path, bed)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "LEASE_S", SHORT_LEASE_S)


def test_what_nodes_wrote_comes_home_and_nothing_stays(
    run: RunDir, bed: dict[str, Any], three: list[LabHost], capfd: Any
) -> None:
    """The files of every node are in the run's folder; one that is too large is listed. Processes
    that left their session end, too; folder, rules and agent are gone."""

    async def scene(hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents) -> None:
        assert [node.address for node in nodes] == [host.address for host in three]
        assert hosts.clock("a") == ClockOffset()  # the lab's hosts share our kernel
        for name, agent in agents.items():
            await agent.put(f"{hosts.folder(name)}/logs/deep.log", name.encode() * 1000)
        large = f"{hosts.folder('b')}/large"
        await agents["b"].run(["sh", "-c", f"head -c 70000000 /dev/zero > {large}"])
        await agents["c"].start("astray", ["sh", "-c", "setsid sleep 1000 & wait"])
        await agents["c"].links([LinkRule(nodes[0].address)])
        python = hosts.python("a")
        ours = await agents["a"].run(
            [python.executable, "-S", "-s", "-c", "import clusters.flotilla, tomli_w"]
        )
        assert ours.code != 0  # not without the folder of our packages
        at = f"import sys; sys.path.insert(0, {python.packages!r}); import clusters.flotilla"
        done = await agents["a"].run([python.executable, "-S", "-s", "-c", at])
        assert done.code == 0, done.err

    play(run, bed, scene)
    for name in "abc":
        assert (run.node(name) / "logs" / "deep.log").read_bytes() == name.encode() * 1000
    assert not (run.node("b") / "large").exists()
    assert "b: too large to be copied: b/large (66 MB)" in capfd.readouterr().err
    assert ssh.heal(run, ()) == []


def test_a_killed_connection_is_made_anew_and_no_line_is_lost(
    run: RunDir, bed: dict[str, Any], three: list[LabHost]
) -> None:
    """All sessions of an sshd die during a run; it costs the time of a connection."""
    lines: list[str] = []

    async def scene(hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents) -> None:
        counting = "i=0; while read go; do for j in 1 2 3; do i=$((i+1)); echo $i; done; done"
        await agents["a"].start("count", ["sh", "-c", counting], on_line=lines.append)
        for _ in range(3):
            await agents["a"].tell("count", "go")
            await asyncio.to_thread(three[0].kill_sshd)
            telling = asyncio.gather(*(agents["a"].tell("count", "go") for _ in range(10)))
            await asyncio.to_thread(three[0].start_sshd)
            await telling
        await asyncio.to_thread(eventually, lambda: len(lines) == 99)
        await agents["a"].signal("count", signal.SIGTERM)
        await agents["a"].exited("count")

    play(run, bed, scene)
    assert lines == [str(number) for number in range(1, 100)]


def test_a_silent_link_is_noticed_and_survived(
    run: RunDir, bed: dict[str, Any], lab: SshLab, three: list[LabHost]
) -> None:
    """Packets to the driver's address are dropped for a while, shorter than the lease."""

    async def scene(hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents) -> str:
        await asyncio.to_thread(three[0].signal_sshd, "STOP")
        asked = asyncio.ensure_future(agents["a"].state("nobody"))
        await asyncio.sleep(1.0)
        assert not asked.done()
        await asyncio.to_thread(three[0].signal_sshd, "CONT")
        return (await asked).state

    assert play(run, bed, scene) == "absent"


@pytest.mark.usefixtures("short_lease")
def test_a_host_whose_sshd_hangs_beyond_the_lease_is_gone(
    run: RunDir, bed: dict[str, Any], three: list[LabHost]
) -> None:
    """Open and new calls report it, other hosts go on, its faults end by themselves; leaving does
    not wait for it and says what is left there, and `heal` removes that."""

    async def scene(hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents) -> None:
        await agents["a"].start("sleeper", ["sleep", "1001"])
        await agents["a"].links([LinkRule(nodes[1].address)])
        waiting = asyncio.ensure_future(agents["a"].exited("sleeper"))
        await asyncio.sleep(0)
        await asyncio.to_thread(three[0].signal_sshd, "STOP")
        with pytest.raises(NodeGone, match="a is gone: it was not heard for 8 s"):
            await waiting
        with pytest.raises(NodeGone):
            await agents["a"].state("sleeper")
        assert (await agents["b"].state("nobody")).state == "absent"
        eventually(lambda: "DROP" not in three[0].run("iptables", "-S"))
        eventually(lambda: "sleep 1001" not in three[0].run("ps", "axo", "args"))

    with pytest.raises(BedFailed) as stuck:
        play(run, bed, scene)
    assert f"what a wrote is still in /var/tmp/seatrial-{run.path.name}-" in str(stuck.value)
    assert f"seatrial heal {run.path}" in str(stuck.value)
    assert [each.node for each in _ssh_taken.read(run.path)] == ["a"]
    three[0].signal_sshd("CONT")
    assert ssh.heal(run, ()) == ["1 folder"]
    assert ssh.heal(run, ()) == []


def test_a_driver_that_is_stopped_leaves_no_fault_behind(
    lab: SshLab, run: RunDir, bed: dict[str, Any], three: list[LabHost], root: Path
) -> None:
    """SIGSTOP of the driver during a partition: at the end of the lease the rule is gone and its
    processes are dead. When it resumes, it learns that its nodes are gone, and still cleans up."""
    with begun(lab, run, bed, root, SHORT_LEASE_S) as driver:
        a, b, _ = three
        assert "-j DROP" in b.run("iptables", "-S")
        os.kill(driver.pid, signal.SIGSTOP)
        eventually(lambda: "-j DROP" not in b.run("iptables", "-S"))
        eventually(lambda: "sleep 1001" not in a.run("ps", "axo", "args"))
        eventually(lambda: "sleep 1003" not in a.run("ps", "axo", "args"))
        os.kill(driver.pid, signal.SIGCONT)
        out, _ = driver.communicate("go on\n", timeout=PATIENCE_S)
    assert "a is gone" in json.loads(out)["gone"]
    assert driver.returncode == 0


def test_after_a_killed_driver_faults_end_by_themselves_and_heal_removes_the_rest(
    lab: SshLab, run: RunDir, bed: dict[str, Any], three: list[LabHost], root: Path
) -> None:
    """kill -9 during a partition; `heal` removes folders and processes that left their session."""
    with begun(lab, run, bed, root, SHORT_LEASE_S) as driver:
        driver.kill()
    a, b, _ = three
    eventually(lambda: "-j DROP" not in b.run("iptables", "-S"))
    eventually(lambda: "sleep 1001" not in a.run("ps", "axo", "args"))
    assert "sleep 1002" in a.run("ps", "axo", "args")
    eventually(lambda: not any("daemon.py" in host.run("ps", "axo", "args") for host in three))
    assert ssh.heal(run, ()) == ["1 process", "3 folders"]
    assert ssh.heal(run, ()) == []


def test_heal_need_not_wait_for_the_lease(
    lab: SshLab, run: RunDir, bed: dict[str, Any], three: list[LabHost], root: Path
) -> None:
    """Agents that still hold a partition are asked to leave; the work of one that was killed is
    done for it."""
    with begun(lab, run, bed, root, 20.0) as driver:
        driver.kill()
    kill_agent = "kill -9 $(cat /var/tmp/seatrial-*/agent.pid)"
    three[1].run("sh", "-c", kill_agent)
    assert "-j DROP" in three[1].run("iptables", "-S")
    assert ssh.heal(run, ()) == ["2 agents", "1 process", "1 link rule", "3 folders"]


def test_the_next_run_sweeps_what_a_killed_one_left_but_not_what_is_in_use(
    lab: SshLab, run: RunDir, bed: dict[str, Any], root: Path, tmp_path: Path, capfd: Any
) -> None:
    """A running trial keeps its hosts, and the error of another one names its run."""
    with begun(lab, run, bed, root, 20.0) as driver:
        with locked(run), pytest.raises(BedFailed, match=f"is in use by the run {run.path}"):
            play(made_run(tmp_path, bed, "greedy"), bed, nothing)
        driver.kill()
    play(made_run(tmp_path, bed, "next"), bed, nothing)
    removed = rf"removed what seatrial-{run.path.name}-\w{{8}} left: 1 agent"
    assert re.search(removed, capfd.readouterr().err)
    _ssh_taken.write(run.path, ())


def test_a_run_of_another_machine_keeps_its_files_but_nothing_that_goes_on(
    run: RunDir, bed: dict[str, Any], three: list[LabHost]
) -> None:
    """Only that machine knows whether it needs them; a stray process would disturb our run."""
    theirs = "/var/tmp/seatrial-theirs"
    owner = json.dumps({"driver": "elsewhere/0", "run": "/runs/theirs"})
    three[0].run("sh", "-c", f"mkdir {theirs} && cat > {theirs}/owner.json", stdin=owner)
    three[0].run("sh", "-c", f"SEATRIAL_RUN={theirs} setsid sleep 1004 > /dev/null 2>&1 &")
    play(run, bed, nothing)
    assert "sleep 1004" not in three[0].run("ps", "axo", "args")
    assert three[0].run("ls", theirs).split() == ["owner.json"]
    three[0].run("rm", "-r", theirs)


def test_who_looks_at_our_files_is_no_agent(
    run: RunDir, bed: dict[str, Any], three: list[LabHost]
) -> None:
    """A pager on a file of that name neither blocks a host nor is ended by us."""
    name = "/tmp/daemon.py"
    pager = f"touch {name}; setsid tail -f {name} /dev/null > /dev/null 2>&1 & echo $!"
    pid = three[0].run("sh", "-c", pager).strip()
    play(run, bed, nothing)
    assert pid in three[0].run("ps", "axo", "pid,args")
    three[0].run("kill", pid)


def test_one_machine_under_two_names_is_refused(
    run: RunDir, lab: SshLab, three: list[LabHost]
) -> None:
    """Two addresses of one machine: links are cut by address, so one of them would be wrong."""
    twin = "198.18.9.9"
    three[0].run("ip", "addr", "add", f"{twin}/16", "dev", "eth0")
    known = lab.known_hosts.read_text()
    [line] = [one for one in known.splitlines() if one.startswith(f"{three[0].address} ")]
    lab.known_hosts.write_text(known + line.replace(three[0].address, twin) + "\n")
    entries = [*map(lab.entry, three[:2]), {**lab.entry(three[0]), "host": twin}]
    path = lab.folder / "twins.toml"
    path.write_text("".join(f"[[host]]\n{toml(entry)}" for entry in entries))
    with pytest.raises(BedFailed, match="is the same machine as another host of the inventory"):
        play(run, {"inventory": str(path)}, nothing)
    three[0].run("ip", "addr", "del", f"{twin}/16", "dev", "eth0")


def test_a_host_that_is_not_fit_leaves_nothing_on_the_others(run: RunDir, lab: SshLab) -> None:
    """The error names it; no other host is left occupied."""
    bare = lab.add()
    bare.remove_iptables()
    bed = {"inventory": str(lab.inventory([*lab.standing[:2], bare]))}
    with pytest.raises(BedFailed, match=f"{bare.address} has no iptables|iptables that does not"):
        play(run, bed, nothing)
    assert ssh.heal(run, ()) == []


def test_a_raising_that_is_interrupted_leaves_nothing(
    run: RunDir, bed: dict[str, Any], three: list[LabHost]
) -> None:
    """While archives are unpacked and agents started in threads: these are waited for."""

    async def interrupted() -> None:
        hosts = ssh.hosts(Trial(hosts="ssh", bed=bed), run.path)
        raising = asyncio.create_task(enter(hosts))
        while not list(three[0].path("/var/tmp").glob(f"seatrial-{run.path.name}-*")):
            assert not raising.done()
            await asyncio.sleep(0.001)
        raising.cancel()
        with pytest.raises(asyncio.CancelledError):
            await raising

    async def enter(hosts: ssh.SshHosts) -> None:
        async with hosts.start_nodes(NODES):
            pytest.fail("it was not interrupted")

    asyncio.run(interrupted())
    assert ssh.heal(run, ()) == []


def test_a_host_that_cannot_be_healed_now_is_healed_later(
    lab: SshLab, run: RunDir, bed: dict[str, Any], three: list[LabHost], root: Path
) -> None:
    """The others are healed at once, and the error names the one that was not."""
    with begun(lab, run, bed, root, SHORT_LEASE_S) as driver:
        driver.kill()
    three[2].kill_sshd()
    with pytest.raises(BedFailed, match=f"is still on {three[2].address}: .*refuses connections"):
        ssh.heal(run, ())
    assert [left_on(host) for host in three[:2]] == ["", ""]
    three[2].start_sshd()
    assert "1 folder" in ssh.heal(run, ())


def test_a_shell_opens_in_the_folder_of_a_node_as_root(run: RunDir, lab: SshLab) -> None:
    """The command of `cluster shell`: ssh itself, with arguments and spaces kept."""
    host = lab.add()
    host.add_user("ops", sudo=True)

    async def scene(hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents) -> str:
        argv = ssh.shell(run, "a", ["sh", "-c", 'id -un; pwd; echo "$1"', "sh", "two  words"])
        return await asyncio.to_thread(lambda: output(argv))

    said = play(run, {"inventory": str(lab.inventory([host], user="ops"))}, scene, NODES[:1])
    folder = rf"/var/tmp/seatrial-{run.path.name}-\w{{8}}/a"
    assert re.fullmatch(rf"root\n{folder}\ntwo  words\n", said)
    with pytest.raises(BadRequest, match="no host is known for a"):
        ssh.shell(run, "a", [])


def test_a_clock_of_its_own_is_compared(run: RunDir, lab: SshLab) -> None:
    """The monotonic clock of a host with a longer uptime reads more; the error covers the
    comparison's own."""
    host = lab.add()
    host.kill_sshd()
    later = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--"]
    host.run(*later, *SSHD)

    async def scene(
        hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents
    ) -> tuple[ClockOffset, ClockOffset]:
        return hosts.clock("a"), (await hosts.compare_clocks())["a"]

    clock, again = play(run, {"inventory": str(lab.inventory([host]))}, scene, NODES[:1])
    assert 0 < clock.error_ns < 1e9
    assert abs(clock.offset_ns - AHEAD_S * 1e9) <= clock.error_ns
    assert abs(again.offset_ns - AHEAD_S * 1e9) <= again.error_ns


def test_whoever_is_not_root_needs_sudo_and_no_more(run: RunDir, lab: SshLab) -> None:
    """Folder, agent and rules are root's, and gone afterwards."""
    host = lab.add()
    host.add_user("ops", sudo=True)
    path = lab.inventory([host], user="ops")

    async def scene(hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents) -> str:
        await agents["a"].links([LinkRule("198.18.1.12")])
        host.kill_sshd()
        host.start_sshd()
        return (await agents["a"].run(["id", "-un"])).out

    assert play(run, {"inventory": str(path)}, scene, NODES[:1]) == "root\n"
    assert left_on(host) == ""


def test_another_user_of_a_host_can_do_a_run_no_harm_and_comes_to_none(
    run: RunDir, lab: SshLab, three: list[LabHost], tmp_path: Path
) -> None:
    """Whatever an ordinary user makes before or attacks during a run (`ssh_mallory.py`): the run
    starts, is not ended, counts its own probes only, and ends; neither that user's files and
    processes nor others of root's are touched."""
    host = lab.add()
    host.add_user("mallory", sudo=False)
    host.run("sh", "-c", "mkdir /var/tmp/precious; echo mine > /var/tmp/precious/file")
    owner = json.dumps({"driver": _driver.driver_id(), "run": "/gone"})
    host.write("/var/tmp/precious/owner.json", owner)
    bed = {"inventory": str(lab.inventory([host, *three[:2]]))}
    with mallory(lab, host) as (ask, end):

        async def scene(hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents) -> Any:
            achieved = await asyncio.to_thread(ask, "token")
            await agents["b"].probe(nodes[0].address, "token", 20)
            await agents["a"].probe(nodes[1].address, "token", 20)
            await agents["a"].links([LinkRule(nodes[2].address)])
            await agents["c"].probe(nodes[0].address, "cut", 20)
            return achieved, await agents["a"].probed("token"), await agents["a"].probed("cut")

        assert play(run, bed, scene) == ([], 20, 0)
        play(made_run(tmp_path, bed, "again"), bed, nothing)
        killed = made_run(tmp_path, bed, "killed")
        with begun(lab, killed, bed, ROOT, 20.0) as driving:
            assert ask("token") == []
            driving.kill()
        host.run("sh", "-c", "kill -9 $(cat /var/tmp/seatrial-2*/agent.pid)")
        host.run("iptables", "-A", "SEATRIAL", "-s", "192.0.2.1", "-j", "DROP")
        assert "1 link rule" in ssh.heal(killed, ())
        assert "SEATRIAL" not in host.run("iptables", "-S")
        assert end() == "alive\n"
    assert host.run("cat", "/var/tmp/precious/file") == "mine\n"
    kept = host.run("sh", "-c", "ls -d /var/tmp/*; ls -d /etc").split()
    names = ("precious", "seatrial-link", "seatrial-mine")
    assert kept == [*(f"/var/tmp/{name}" for name in names), "/etc"]


def test_a_login_that_talks_disturbs_no_run(run: RunDir, lab: SshLab) -> None:
    """A .bashrc may print anything: files are copied all the same, and nothing stays."""
    host = lab.add()
    host.write(os.path.expanduser("~root/.bashrc"), "echo welcome; echo '{'")

    async def scene(hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents) -> None:
        await agents["a"].put(f"{hosts.folder('a')}/it.log", b"what it wrote")

    play(run, {"inventory": str(lab.inventory([host]))}, scene, NODES[:1])
    assert (run.node("a") / "it.log").read_bytes() == b"what it wrote"
    assert left_on(host) == ""


def test_an_agent_that_does_not_start_says_why(
    run: RunDir, bed: dict[str, Any], three: list[LabHost]
) -> None:
    """Another agent holds the host's lock, as from another process namespace."""
    argv = three[1].inside(["python3", "-c", HOLD])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(BedFailed, match="another agent of Seatrial is running on this host"):
            play(run, bed, nothing)
        holder.communicate("\n")


async def nothing(hosts: ssh.SshHosts, nodes: Sequence[Node], agents: Agents) -> None:
    pass


def play(run: RunDir, bed: dict[str, Any], scene: Any, nodes: Sequence[Node] = NODES) -> Any:
    """Run a scene on raised hosts; return its result."""

    async def played() -> Any:
        hosts = ssh.hosts(Trial(hosts="ssh", bed=bed), run.path)
        async with hosts.start_nodes(nodes) as (addressed, agents):
            return await scene(hosts, addressed, agents)

    return asyncio.run(played())


def made_run(tmp_path: Path, bed: dict[str, Any], name: str = "ssh") -> RunDir:
    with start_run(Trial(name=name, hosts="ssh", bed=bed), "", tmp_path / "runs") as made:
        return made


@contextmanager
def begun(
    lab: SshLab, run: RunDir, bed: dict[str, Any], root: Path, lease_s: float
) -> Iterator["subprocess.Popen[str]"]:
    """A driver in a process of its own that holds a partition, and that a test may kill."""
    with subprocess.Popen(
        [sys.executable, str(DRIVER), str(run.path), json.dumps(bed), str(lease_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        text=True,
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def mallory(
    lab: SshLab, host: LabHost
) -> Iterator[tuple[Callable[[str], list[str]], Callable[[], str]]]:
    """Run the attacks of an ordinary user on a host; return the result."""
    user = ("setpriv", "--reuid=mallory", "--regid=mallory", "--clear-groups", "--")
    script = Path(__file__).with_name("ssh_mallory.py").read_text()
    argv = host.inside([*user, lab.python, "-S", "-c", script, _driver.driver_id()])
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        said, tell = process.stdout, process.stdin

        def ask(token: str) -> list[str]:
            tell.write(f"{token}\n")
            tell.flush()
            achieved: list[str] = json.loads(said.readline())
            return achieved

        assert said.readline() == "ready\n"
        try:
            yield ask, lambda: process.communicate(timeout=PATIENCE_S)[0]
        finally:
            process.kill()


def output(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.stdout


def left_on(host: LabHost) -> str:
    """Return what of ours is on a host."""
    rules = [line for line in host.run("iptables", "-S").splitlines() if "SEATRIAL" in line]
    folders = host.run("sh", "-c", "ls -d /var/tmp/seatrial-* 2> /dev/null || :")
    return " ".join([*rules, folders, host.run("sh", "-c", OURS)]).strip()


def toml(entry: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)
