"""Against real sshds: connections that are kept, and one sentence for each way to fail.

Tests that break a host use a host of their own; the lab's standing hosts are left as they were.
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from docker_lab import _until
from ssh_lab import DRIVER, LabHost, SshLab

from clusters.hosts._problems import Unready
from clusters.hosts.ssh import connections as _ssh_connect
from clusters.hosts.ssh.connections import HostConnections, RemoteHost
from clusters.hosts.ssh.hosts import problems
from clusters.hosts.ssh.inventory import InventoryHost, load
from harness.cli.doctor import refuse_unready
from harness.errors import BadRequest, BedFailed

pytestmark = pytest.mark.bed

Listed = Callable[..., InventoryHost]
AHEAD = """#!/usr/bin/env {python}
import sys, time
real = time.time
time.time = lambda: real() + 100
sys.argv = ["-c", *sys.argv[sys.argv.index("-c") + 1:]]
exec(sys.argv.pop(1))
"""
OLD = AHEAD.replace("real = time.time\n", "sys.version_info = (3, 9, 2)\n").replace(
    "time.time = lambda: real() + 100\n", ""
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without keys, configuration or ssh-agent."""
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


@pytest.fixture
def lab(ssh_lab: SshLab) -> Iterator[SshLab]:
    """The lab, with this test as the driver."""
    with ssh_lab.network():
        yield ssh_lab


@pytest.fixture
def listed(lab: SshLab) -> Listed:
    """A host of the lab as an inventory gives it."""

    def entry(host: LabHost, **more: object) -> InventoryHost:
        return load(lab.inventory([host], **more)).hosts[0]

    return entry


@contextmanager
def connected(hosts: Sequence[InventoryHost], **options: bool) -> Iterator[list[RemoteHost]]:
    with HostConnections(**options) as fleet:
        yield fleet.connect_all(hosts)


def refused(host: InventoryHost, **options: bool) -> str:
    with HostConnections(**options) as fleet, pytest.raises(Unready) as failed:
        fleet.connect(host)
    return str(failed.value)


# ------------------------------------------------------------------------------------- that works


def test_all_hosts_are_connected_and_each_is_itself(lab: SshLab) -> None:
    """In the order of the inventory; each runs commands on its own host, as root."""
    hosts = load(lab.inventory()).hosts
    with connected(hosts) as machines:
        assert [machine.host for machine in machines] == list(hosts)
        names = [machine.run(["hostname"]).out.strip() for machine in machines]
        assert names == [host.name for host in lab.standing]
        assert {machine.run(["id", "-u"]).out for machine in machines} == {"0\n"}
        facts = [machine.facts for machine in machines]
        assert all(abs(fact.skew_s) <= fact.skew_error_s for fact in facts)
    assert not any(machine.alive for machine in machines)


@pytest.fixture
def machine(lab: SshLab, listed: Listed) -> Iterator[RemoteHost]:
    with connected([listed(lab.standing[0])]) as machines:
        yield machines[0]


def test_a_command_has_its_input_output_and_code(machine: RemoteHost) -> None:
    """Arguments arrive unchanged, both outputs come back, even large ones, and a signal is
    a code."""
    said = machine.run(["sh", "-c", 'printf "%s|" "$@"; echo no >&2; exit 7', "x", "a b", "*", ""])
    assert (said.code, said.out, said.err) == (7, "a b|*||", "no\n")
    blob = b"x" * 3_000_000
    both = machine.run(["sh", "-c", "tee /dev/stderr"], blob, timeout_s=30)
    assert (len(both.out), len(both.err)) == (len(blob), len(blob))
    assert machine.run(["true"], blob).code == 0
    assert machine.run(["no-such-program"]).code == 127


def test_a_command_has_a_deadline(machine: RemoteHost) -> None:
    """One that takes too long is left running, and the connection can be used."""
    with pytest.raises(BedFailed, match=r"`sleep` on 198\.18\.1\.11 took longer than 0\.2 s"):
        machine.run(["sleep", "30"], timeout_s=0.2)
    assert machine.run(["echo", "still"]).out == "still\n"


def test_a_channel_is_a_stream_both_ways(machine: RemoteHost) -> None:
    """It carries an agent's lines."""
    channel = machine.open_channel(["cat"])
    channel.settimeout(10)
    channel.sendall(b"line\n")
    assert channel.recv(100) == b"line\n"
    channel.shutdown_write()
    assert channel.recv(100) == b""
    assert channel.recv_exit_status() == 0


def test_small_requests_are_not_held_back(machine: RemoteHost) -> None:
    """TCP_NODELAY is set on the connection's socket."""
    assert machine.transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_machine_can_be_reached_again(lab: SshLab, listed: Listed) -> None:
    """A broken connection is reported, and a new one replaces it."""
    host = lab.add()
    with HostConnections() as fleet:
        machine = fleet.connect(listed(host))
        host.kill_sshd()
        with pytest.raises(BedFailed, match=rf"the connection to {host.address} broke"):
            machine.run(["true"])
        with pytest.raises(Unready, match="refuses connections"):
            fleet.reconnect(machine)
        host.start_sshd()
        again = fleet.reconnect(machine)
        assert again.run(["hostname"]).out.strip() == host.name
        assert again.facts == machine.facts


# ------------------------------------------------------------------------------------- jump hosts


def test_a_host_behind_another_is_reached_through_it(lab: SshLab, listed: Listed) -> None:
    """By `jump`: both sockets without delay, and one connection to the jump host for all."""
    jump, *inner = lab.add(), lab.add(), lab.add()
    for host in inner:
        host.cut_off(DRIVER)
    with connected([listed(host, jump=f"root@{jump.address}") for host in inner]) as machines:
        names = [machine.run(["hostname"]).out.strip() for machine in machines]
        assert names == [host.name for host in inner]
        outer = machines[0].transport.sock.get_transport()
        assert outer.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert machines[1].transport.sock.get_transport() is outer


def test_the_users_own_config_is_honoured(lab: SshLab, home: Path) -> None:
    """An alias with HostName, User, IdentityFile, UserKnownHostsFile and ProxyJump."""
    jump, inner = lab.add(), lab.add()
    inner.cut_off(DRIVER)
    (home / ".ssh" / "config").write_text(
        f"Host db\n HostName {inner.address}\n ProxyJump bastion\n"
        f"Host bastion\n HostName {jump.address}\n"
        f"Host *\n User root\n IdentityFile {lab.key}\n UserKnownHostsFile {lab.known_hosts}\n"
    )
    (home / "inventory.toml").write_text('[[host]]\nhost = "db"\n')
    assert not problems({"inventory": str(home / "inventory.toml")})


def test_no_host_may_be_the_way_to_another(lab: SshLab, listed: Listed) -> None:
    """A fault between the two would cut the driver off."""
    jump, inner = lab.standing[:2]
    hosts = [listed(jump), listed(inner, jump=f"root@{jump.address}")]
    with HostConnections() as fleet, pytest.raises(BedFailed) as failed:
        fleet.connect_all(hosts)
    assert str(failed.value).startswith(
        f"{inner.address} sees us come from {jump.address}, which is {jump.address}'s address"
    )


def test_it_is_said_which_leg_fails(lab: SshLab, listed: Listed) -> None:
    """The jump host itself, the host behind it, and a jump host that forbids forwarding."""
    jump, inner = lab.add(), lab.add()
    behind = listed(inner, jump=f"root@{jump.address}")
    inner.kill_sshd()
    assert refused(behind).startswith(
        f"{inner.address} cannot be reached from its jump host root@{jump.address}, which gets no "
        f"answer from {inner.address}:22"
    )
    inner.start_sshd()
    jump.kill_sshd()
    assert refused(behind).startswith(
        f"{inner.address} cannot be reached: its jump host root@{jump.address} refuses "
        "connections to port 22"
    )
    jump.start_sshd("AllowTcpForwarding no")
    assert "which forbids forwarding" in refused(behind)


# -------------------------------------------------------------------------------- ways to fail


def test_an_unknown_host_key_is_refused_with_the_line_that_adds_it(
    lab: SshLab, listed: Listed, tmp_path: Path
) -> None:
    """The command in the message makes the host known."""
    known = tmp_path / "known hosts"
    host = listed(lab.standing[0], known_hosts=str(known))
    said = refused(host)
    printed = lab.standing[0].run("ssh-keygen", "-lf", "/run/lab/host_key.pub").split()[1]
    assert f"host key that is not in {known} (ssh-ed25519 {printed})" in said
    assert not known.exists()
    command = said.rpartition("if they agree: ")[2]
    assert command.endswith(f">> '{known}'")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=600)
    with connected([host]):
        pass


def test_an_unknown_host_key_behind_a_jump_is_added_by_ssh(
    lab: SshLab, listed: Listed, tmp_path: Path
) -> None:
    """ssh-keyscan supports no jump hosts, so the message has an ssh command, which works as
    it is."""
    known = tmp_path / "known hosts"
    jump, inner = lab.add(), lab.add()
    inner.cut_off(DRIVER)
    lines = lab.known_hosts.read_text().splitlines(keepends=True)
    known.write_text("".join(line for line in lines if not line.startswith(f"{inner.address} ")))
    host = listed(inner, jump=f"root@{jump.address}", known_hosts=str(known))
    command = refused(host).rpartition("if they agree: ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=600)
    with connected([host]):
        pass


def test_new_host_keys_are_written_when_asked_for(
    lab: SshLab, listed: Listed, tmp_path: Path
) -> None:
    """Each as a line at the end of the file, whose other lines stay; next time they are known."""
    known = tmp_path / "new" / "known_hosts"
    hosts = [listed(host, known_hosts=str(known)) for host in lab.standing]
    known.parent.mkdir()
    known.write_text("# mine\nother ssh-ed25519 AAAA")
    with connected(hosts, accept_new_host_keys=True):
        pass
    lines = known.read_text().splitlines()
    assert lines[:2] == ["# mine", "other ssh-ed25519 AAAA"]
    assert {line.split()[0] for line in lines[2:]} == {host.host for host in hosts}
    assert len(lines) == 2 + len(hosts)
    with connected(hosts):
        pass


def test_a_changed_host_key_is_refused_always(lab: SshLab, listed: Listed) -> None:
    """With the flag, too; the message says how to forget the old one."""
    host = lab.add()
    entry = listed(host)
    host.change_key()
    for accept in (False, True):
        said = refused(entry, accept_new_host_keys=accept)
        assert said.startswith(f"{host.address} shows another host key (ssh-ed25519 SHA256:")
        assert f"ssh-keygen -f {lab.known_hosts} -R {host.address}" in said


def test_who_is_not_let_in_is_told_with_which_key(
    lab: SshLab, listed: Listed, tmp_path: Path
) -> None:
    """A wrong key, a wrong user, no key at all, no key file, no key in it, a locked key."""
    host = lab.standing[0]
    other, locked, none = tmp_path / "other", tmp_path / "locked", tmp_path / "none"
    for path, phrase in ((other, ""), (locked, "secret")):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", str(path)]
        subprocess.run(make, check=True)
    none.write_text("nothing")
    to_mend = f"ssh-copy-id -i KEY.pub -p 22 root@{host.address}"
    said = refused(listed(host, key=str(other)))
    assert said.startswith(f"{host.address} does not let root in with {other}")
    assert to_mend in said
    assert "does not let nobody-here in with" in refused(listed(host, user="nobody-here"))
    assert f"the key {tmp_path}/no, which does not exist" in refused(
        listed(host, key=f"{tmp_path}/no")
    )
    assert f"the key {none}, which is not a private key" in refused(listed(host, key=str(none)))
    needs = f"the key {locked} needs a passphrase, and no ssh-agent runs"
    assert needs in refused(listed(host, key=str(locked)))
    keyless = InventoryHost(
        host.address, host.address, user="root", known_hosts=str(lab.known_hosts)
    )
    assert "wants a key for root, and there is none" in refused(keyless)


def test_a_locked_key_is_left_to_the_agent(
    lab: SshLab, listed: Listed, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the agent does not hold is named; with one that it holds we can log in. A locked key
    of ~/.ssh does not keep us from trying the next."""
    host = lab.standing[0]
    locked = home / ".ssh" / "id_rsa"
    shutil.copy(lab.key, locked)
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(locked)]
    subprocess.run(change, check=True, capture_output=True)
    entry = InventoryHost(
        host.address,
        host.address,
        user="root",
        known_hosts=str(lab.known_hosts),
        python=lab.python,
    )
    assert f"the key {locked} needs a passphrase, and no ssh-agent runs" in refused(entry)
    with agent(tmp_path / "agent", monkeypatch):
        assert f"the key {locked} needs a passphrase, and the ssh-agent does not" in refused(entry)
        subprocess.run(["ssh-add", "-q", str(lab.key)], check=True)
        with connected([entry]) as (machine,):
            assert machine.run(["id", "-u"]).out == "0\n"
    shutil.copy(lab.key, home / ".ssh" / "id_ed25519")
    with connected([entry]) as (machine,):
        assert machine.run(["id", "-u"]).out == "0\n"


@contextmanager
def agent(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An ssh-agent without keys, for the length of a block."""
    running = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        assert _until(path.exists)
        with monkeypatch.context() as here:
            here.setenv("SSH_AUTH_SOCK", str(path))
            yield
    finally:
        running.terminate()
        running.wait()


def test_a_key_in_pkcs8_lets_us_in(lab: SshLab, listed: Listed, tmp_path: Path) -> None:
    """OpenSSH reads that format, so an inventory may name such a key."""
    key = serialization.load_ssh_private_key(lab.key.read_bytes(), None)
    kind = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    plain, locked = tmp_path / "plain", tmp_path / "locked"
    plain.write_bytes(key.private_bytes(*kind, serialization.NoEncryption()))
    secret = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(*kind, secret))
    host = lab.standing[0]
    with connected([listed(host, key=str(plain))]) as (machine,):
        assert machine.run(["id", "-u"]).out == "0\n"
    assert f"the key {locked} needs a passphrase" in refused(listed(host, key=str(locked)))


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_every_kind_of_key_is_read_in_pkcs8(tmp_path: Path, kind: str) -> None:
    """With the same public key as in OpenSSH's own format."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key)], check=True)
    before = _ssh_connect._key(str(key))
    change = ["ssh-keygen", "-q", "-p", "-m", "PKCS8", "-P", "", "-N", "", "-f", str(key)]
    subprocess.run(change, check=True, capture_output=True)
    assert b"BEGIN PRIVATE KEY" in key.read_bytes()
    assert _ssh_connect._key(str(key)) == before


def test_a_server_that_wants_a_password_is_told(lab: SshLab, listed: Listed) -> None:
    """It cannot be typed while a trial runs."""
    host = lab.add()
    host.kill_sshd()
    host.start_sshd("PubkeyAuthentication no", "PasswordAuthentication yes")
    assert f"{host.address} takes no keys, only password" in refused(listed(host))


def test_silence_is_told_from_refusal(lab: SshLab, listed: Listed) -> None:
    """A closed port, a host that drops packets, an sshd that hangs."""
    host = lab.add()
    entry = listed(host)
    host.signal_sshd("STOP")
    assert "accepts connections on port 22, but its SSH server sends nothing" in refused(entry)
    host.signal_sshd("CONT")
    host.kill_sshd()
    assert f"{host.address} refuses connections to port 22" in refused(entry)
    assert "refuses connections to port 2222" in refused(listed(host, port=2222))
    host.cut_off(DRIVER)
    assert f"{host.address} does not answer on port 22 within 3 s" in refused(entry)


def test_a_port_of_something_else_is_told(lab: SshLab) -> None:
    """A server that closes the connection, and one with another protocol."""
    with socket.create_server((DRIVER, 0)) as server:
        host = InventoryHost(DRIVER, DRIVER, port=server.getsockname()[1], key=str(lab.key))
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(refused, host)
            server.accept()[0].close()
            assert f"{DRIVER} closed the connection before it let us in" in asked.result()
            asked = pool.submit(refused, host)
            with server.accept()[0] as talking:
                talking.sendall(b"220 mail.example ESMTP\r\n")
                assert "that port is another service" in asked.result()


def test_a_key_may_be_the_agents(
    lab: SshLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no key is named and none is in ~/.ssh, the ssh-agent's are tried."""
    at = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(at)], stdout=subprocess.DEVNULL)
    try:
        assert _until(at.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(at))
        subprocess.run(["ssh-add", "-q", str(lab.key)], check=True)
        name = lab.standing[0].address
        with connected(
            [InventoryHost(name, name, user="root", known_hosts=str(lab.known_hosts))]
        ) as ready:
            assert len(ready) == 1
    finally:
        agent.kill()
        agent.wait()


def test_a_server_that_can_not_decide_is_told(
    lab: SshLab, listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not say that the server refused the key."""
    monkeypatch.setattr(_ssh_connect, "AUTHENTICATE_WITHIN_S", 3)
    host = lab.add()
    host.kill_sshd()
    host.write("/etc/keys", "#!/bin/sh\nsleep 30\n", program=True)
    asking = ("AuthorizedKeysCommand /etc/keys", "AuthorizedKeysCommandUser root")
    host.start_sshd("AuthorizedKeysFile none", *asking)
    said = refused(listed(host))
    assert said.startswith(f"{host.address} did not decide within 10 s whether to let root in")


def test_a_host_that_nobody_knows_is_told(lab: SshLab) -> None:
    """An address that no host on the network has, and a name."""
    missing = InventoryHost("198.18.99.99", "198.18.99.99", key=str(lab.key))
    assert re.match(r"198\.18\.99\.99 (does not answer on port 22|cannot be)", refused(missing))
    unnamed = InventoryHost("no.such.invalid", "198.18.1.11", key=str(lab.key))
    assert "has a name that cannot be resolved (no.such.invalid)" in refused(unnamed)


# ------------------------------------------------------------------------- what a node must have


def test_who_is_not_root_acts_as_root_by_sudo(lab: SshLab, listed: Listed) -> None:
    """Commands, files and channels are root's."""
    host = lab.add()
    host.add_user("ops", sudo=True)
    with connected([listed(host, user="ops")]) as (machine,):
        assert machine.run(["id", "-un"]).out == "root\n"
        machine.run(["sh", "-c", "cat > /etc/file"], b"x")
        assert machine.run(["stat", "-c", "%U %s", "/etc/file"]).out == "root 1\n"
        channel = machine.open_channel(["id", "-un"])
        assert channel.recv(100) == b"root\n"


def test_who_may_not_act_as_root_is_told(lab: SshLab, listed: Listed) -> None:
    """With sudo's own message, and the line that allows it."""
    host = lab.add()
    host.add_user("ops", sudo=False)
    said = refused(listed(host, user="ops"))
    assert said.startswith(f"{host.address} lets ops in, but not act as root (sudo -n says: ")
    assert "ops ALL=(ALL) NOPASSWD: ALL" in said


def test_a_sudo_that_demands_a_terminal_is_named(lab: SshLab, listed: Listed) -> None:
    """`Defaults requiretty` is not a missing line in sudoers, and has a remedy of its own."""
    host = lab.add()
    host.add_user("ops", sudo=True)
    sudoers = "Defaults requiretty\nroot ALL=(ALL) ALL\nops ALL=(ALL) NOPASSWD: ALL\n"
    host.write("/etc/sudoers", sudoers)
    message = refused(listed(host, user="ops"))
    assert message.startswith(f"{host.address} lets ops in, but its sudo demands a terminal")
    assert "Defaults:ops !requiretty" in message
    host.write("/etc/sudoers", f"{sudoers}Defaults:ops !requiretty\n")
    with connected([listed(host, user="ops")]) as (machine,):
        assert machine.run(["id", "-un"]).out == "root\n"


@pytest.mark.parametrize("shell", ["/usr/sbin/nologin", "/bin/false"])
def test_a_user_without_a_shell_is_named(lab: SshLab, listed: Listed, shell: str) -> None:
    """It is not reported as a refusal of sudo."""
    host = lab.add()
    host.add_user("ops", sudo=True)
    host.run("usermod", "--shell", shell, "ops")
    message = refused(listed(host, user="ops"))
    assert message.startswith(f"{host.address} lets ops in, but runs no commands for ops (it ")
    assert "chsh -s /bin/sh ops" in message


def test_what_a_host_lacks_is_told(lab: SshLab, listed: Listed) -> None:
    """Python missing, broken or too old; no folder; no space; a wrong clock; no iptables."""
    host = lab.add()
    host.write("/etc/old", OLD.format(python=lab.python), program=True)
    host.write("/etc/ahead", AHEAD.format(python=lab.python), program=True)
    host.run("mkdir", "/var/tmp/small")
    host.run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/var/tmp/small")
    name = host.address
    assert f"{name} has no program /no/python" in refused(listed(host, python="/no/python"))
    assert f"{name} cannot run false: it exits with 1" in refused(listed(host, python="false"))
    assert f"{name} has Python 3.9 as /etc/old" in refused(listed(host, python="/etc/old"))
    assert f"{name} has no folder /nowhere" in refused(listed(host, folder="/nowhere"))
    assert f"{name} has 1 MB left in /var/tmp/small" in refused(
        listed(host, folder="/var/tmp/small")
    )
    told = re.search(
        r"a clock that is (\d+) s ahead of", refused(listed(host, python="/etc/ahead"))
    )
    assert told
    assert 95 <= int(told[1]) <= 105, "by 100 s, and what a busy machine adds"
    host.remove_iptables()
    assert f"{name} has no iptables" in refused(listed(host))


def test_a_login_that_talks_disturbs_nothing(lab: SshLab, listed: Listed) -> None:
    """A .bashrc may print anything."""
    host = lab.add()
    host.write(os.path.expanduser("~root/.bashrc"), "echo welcome; echo '{'")
    with connected([listed(host)]) as (machine,):
        assert machine.facts.system == "Linux"


# ---------------------------------------------------------------------------- several at once


def test_several_hosts_fail_in_one_message(lab: SshLab, listed: Listed) -> None:
    """A line for each of the first five, and the number of the others; open connections are
    closed."""
    host = lab.standing[0]
    wrong = [listed(host, port=3000 + at) for at in range(7)]
    with HostConnections() as fleet, pytest.raises(BedFailed) as failed:
        fleet.connect_all([listed(host), *wrong])
    lines = str(failed.value).splitlines()
    assert [f"port {3000 + at}" in line for at, line in enumerate(lines)] == [True] * 5 + [False]
    assert lines[5] == "and 2 more; for all of them: seatrial doctor --hosts ssh"


def test_problems_are_a_row_for_each_host(lab: SshLab) -> None:
    """For the doctor: what, why, remedy, in the order of the inventory; empty if all are ready."""
    assert not problems({"inventory": str(lab.inventory(lab.standing[:2]))})
    found = problems({"inventory": str(lab.inventory(lab.standing[:2], port=1))})
    assert [what for what, _, _ in found] == [
        f"{host.address} refuses connections to port 1" for host in lab.standing[:2]
    ]
    assert {why for _, why, _ in found} == {"a node of the trial is to run there"}


@pytest.mark.parametrize(
    ("bed", "said"),
    [
        ({"inventori": "x"}, "ssh hosts have no option bed.inventori; known: inventory, accept"),
        ({"inventory": 7}, "bed.inventory must be the path of a file, not 7"),
        ({"inventory": "/no/such"}, "the inventory /no/such does not exist"),
    ],
)
def test_options_that_make_no_sense_are_refused(bed: dict[str, object], said: str) -> None:
    """The error names the key."""
    with pytest.raises(BadRequest) as wrong:
        problems(bed)
    assert str(wrong.value).startswith(said)


def test_a_trial_is_refused_with_every_host_that_is_not_ready(lab: SshLab, tmp_path: Path) -> None:
    """Before anything is started: what, why and remedy of five, in a line each, and a count."""
    wrong = str(lab.inventory(port=1))
    with pytest.raises(BedFailed) as failed:
        refuse_unready("ssh", {"inventory": wrong}, tmp_path)
    *first, last = str(failed.value).splitlines()
    assert [line.split()[0] for line in first] == [host.address for host in lab.standing[:5]]
    assert last.startswith("and 4 more; ")
