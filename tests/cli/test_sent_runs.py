"""Runs that another person sent: `heal`, `replay`, `shrink` and `cluster` act on nothing that their
folders say of hosts, keys, interpreters or files, unless the user names it."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from socket import create_server, socket
from subprocess import CompletedProcess
from threading import Thread
from typing import Any

import paramiko
import pytest

from clusters.hosts.ssh import claims as _ssh_taken
from clusters.hosts.ssh import connections
from clusters.hosts.ssh.claims import HostClaim
from clusters.hosts.ssh.hosts import problems
from clusters.hosts.ssh.inventory import InventoryHost, load
from harness.cli.cluster import select_cluster
from harness.cli.healing import heal
from harness.errors import BadRequest, BedFailed
from harness.history.rundir import RunDir
from harness.history.runs import locked, start_run
from harness.trial import Trial
from harness.user_folders import private_folder, read_signed, state_folder, write_signed
from nemesis import FaultLedger, LedgerEntry

Script = Callable[..., "CompletedProcess[str]"]

SHELL = "export PATH=/bin\n"
KEY = f"ecdsa-sha2-nistp256 {paramiko.ECDSAKey.generate().get_base64()}\n"
KNOWN = f"h1,192.0.2.7 {KEY}"
HASHED = f"|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= {KEY}"


class Anybody(paramiko.ServerInterface):
    """An SSH server that lets everybody in, and runs nothing."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL


class Stranger:
    """A host of the sender of the run. `came`: how many connections it got."""

    def __init__(self) -> None:
        self.came = 0
        self._listener = create_server(("127.0.0.1", 0))
        self._kept: list[paramiko.Transport] = []
        self._key = paramiko.ECDSAKey.generate()
        Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._listener.close()
        for transport in self._kept:
            transport.close()

    def _serve(self) -> None:
        while True:
            try:
                self._let_in(self._listener.accept()[0])
            except OSError:
                return

    def _let_in(self, connection: socket) -> None:
        self.came += 1
        transport = paramiko.Transport(connection)
        transport.add_server_key(self._key)
        self._kept.append(transport)
        with suppress(paramiko.SSHException, EOFError):  # the client may leave during the handshake
            transport.start_server(server=Anybody())


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    monkeypatch.setattr(connections, "AUTHENTICATE_WITHIN_S", 120)  # both ends are this process
    stranger = Stranger()
    yield stranger
    stranger.close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that has nothing in it."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_STATE_HOME", "SSH_AUTH_SOCK"):
        monkeypatch.delenv(name, raising=False)
    return home


def key(folder: Path) -> str:
    paramiko.ECDSAKey.generate().write_private_key_file(str(folder / "id"))
    return str(folder / "id")


def sent(tmp_path: Path, stranger: Stranger, **trial: Any) -> RunDir:
    """A run on the stranger's hosts, as other versions wrote it down in its folder."""
    with start_run(Trial(**{"hosts": "ssh", **trial}), "", tmp_path / "runs") as run:
        host = {"host": "127.0.0.1", "port": stranger.port, "user": "u", "key": key(run.path)}
        host |= {"known_hosts": "~/.zshenv", "python": "touch", "jump": [], "roles": []}
        entry = {"node": "a", "folder": str(tmp_path / "victim"), "host": host}
        (run.path / "ssh_hosts.json").write_text(json.dumps([entry]))
        (run.path / "inventory.toml").write_text(
            f'[[host]]\nhost = "127.0.0.1"\naddress = "10.0.0.1"\nport = {stranger.port}\n'
            f'user = "u"\nkey = "{run.path}/id"\nknown_hosts = "~/.zshenv"\n'
        )
    (tmp_path / "victim").mkdir()
    return run


# ---------------------------------------------------------------------------------------- heal


def test_heal_does_not_go_where_a_folder_says(
    seatrial: Script, tmp_path: Path, stranger: Stranger, home: Path
) -> None:
    """It connects to none of its hosts, removes nothing and writes nothing."""
    run = sent(tmp_path, stranger, bed={"accept_new_host_keys": True})
    healed = seatrial("heal", str(run.path))
    assert healed.returncode == 0, healed.stderr
    assert "Nothing to heal" in healed.stdout
    ledger = FaultLedger(run.ledger)
    ledger.intend(LedgerEntry(0, "kill", ("a",)))
    ledger.close()
    for words in ((str(run.path),), ("--all",)):
        healed = seatrial("heal", *words)
        assert healed.returncode == 254
        assert "are not in the registry of this user" in healed.stderr
    assert stranger.came == 0
    assert (tmp_path / "victim").is_dir()
    assert not (home / ".zshenv").exists()


def test_the_registry_is_believed_only_where_this_user_signed_it(tmp_path: Path) -> None:
    """And even then no folder is removed that has not the name of a run's."""
    run = tmp_path / "runs" / "it"
    taken = HostClaim(
        "a", InventoryHost("h1", jump=("j",)), "/var/tmp/seatrial-it-0a", _ssh_taken.owner(run)
    )
    _ssh_taken.write(run, [taken])
    assert _ssh_taken.read(run) == [taken]
    assert _ssh_taken.read(run.parent / "another") == []
    (file,) = (state_folder() / "hosts").iterdir()
    signed = json.loads(file.read_text())
    file.write_text(json.dumps({**signed, "content": signed["content"].replace("h1", "h2")}))
    with pytest.raises(BedFailed, match="was not written by this user's Seatrial"):
        _ssh_taken.read(run)
    for folder in ("/etc", "seatrial-it", "/var/tmp/seatrial-x/../../../etc", "/var/tmp/seatrial-"):
        _ssh_taken.write(run, [HostClaim("a", InventoryHost("h1"), folder, _ssh_taken.owner(run))])
        with pytest.raises(BedFailed, match="is not the folder of a run"):
            _ssh_taken.read(run)
    _ssh_taken.write(run, [])
    assert not file.exists()


def test_the_state_is_this_users_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a link nor a folder that others may write to, and a key that only the user reads."""
    write_signed(state_folder() / "x.json", [1])
    assert read_signed(state_folder() / "x.json") == [1]
    assert (state_folder() / "key").stat().st_mode & 0o777 == 0o600
    assert state_folder().stat().st_mode & 0o777 == 0o700
    (state_folder() / "key").chmod(0o644)
    with pytest.raises(BedFailed, match="is not a key that only you can read"):
        read_signed(state_folder() / "x.json")
    state_folder().chmod(0o770)
    with pytest.raises(BedFailed, match="other users may write to"):
        state_folder()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    (home / "state").mkdir()
    (home / "state" / "seatrial").symlink_to(home)
    with pytest.raises(BedFailed, match="belongs to another user or is not a folder"):
        state_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Who has made /tmp/seatrial-0 beforehand could put compiled code into it."""
    theirs = tmp_path / "seatrial-0"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(BedFailed, match="belongs to another user"):
        private_folder(theirs)


def linked(path: Path, target: Path) -> None:
    path.symlink_to(target)


def piped(path: Path, target: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [linked, piped])
@pytest.mark.parametrize("name", ["ledger.jsonl", ".run.json.tmp", "nodes", "run.json"])
def test_heal_follows_no_link_and_waits_at_no_pipe(
    tmp_path: Path, make: Callable[[Path, Path], None], name: str
) -> None:
    target = tmp_path / "precious"
    line = '{"is": "intent", "id": 0, "kind": "kill", "nodes": ["a"], "params": {}}\n'
    target.write_text(line)
    with start_run(Trial(), "", tmp_path / "runs") as run:
        pass
    path = run.path / name
    path.unlink(missing_ok=True)
    make(path, target)
    with pytest.raises(BadRequest, match="is not opened"):
        heal(run.path, tmp_path / "runs")
    assert heal(None, tmp_path / "runs", every=True) == 254
    assert target.read_text() == line


def test_a_ledger_is_never_a_link(tmp_path: Path) -> None:
    """Not even one that stays in its folder."""
    (tmp_path / "x").write_text("")
    (tmp_path / "ledger.jsonl").symlink_to("x")
    with pytest.raises(OSError, match="symbolic links"):
        FaultLedger(tmp_path / "ledger.jsonl")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_cluster_of_another_user_is_not_entered(tmp_path: Path) -> None:
    """Its folder names the processes whose namespaces a shell would enter."""
    with start_run(Trial(), "", tmp_path / "clusters") as run:
        pass
    os.chown(run.path, 65534, 65534)
    with locked(run), pytest.raises(BadRequest, match="belongs to another user"):
        select_cluster(run.path, tmp_path)


# --------------------------------------------------------------------------- replay and shrink


@pytest.mark.parametrize("command", ["replay", "shrink"])
@pytest.mark.parametrize(
    ("trial", "says"),
    [
        ({"bed": {"inventory": "inventory.toml"}}, "--bed inventory=..."),
        ({}, "--bed inventory=..."),
        (
            {"bed": {"inventory": "x", "accept_new_host_keys": True}},
            "--bed accept_new_host_keys=... --bed inventory=...",
        ),
        ({"hosts": "docker", "bed": {"base": "stranger/image"}}, "--bed base=..."),
    ],
)
def test_hosts_that_a_stored_run_names_are_refused(
    seatrial: Script,
    tmp_path: Path,
    stranger: Stranger,
    home: Path,
    command: str,
    trial: dict[str, Any],
    says: str,
) -> None:
    """Exit code 254, what to name instead, and no connection is made."""
    run = sent(tmp_path, stranger, **trial)
    done = seatrial(command, str(run.path))
    assert done.returncode == 254, done.stderr
    assert "is not trusted to choose options of" in done.stderr
    assert says in done.stderr
    assert stranger.came == 0
    assert list(home.iterdir()) == []


def test_hosts_that_the_user_names_or_trusts_are_obeyed(
    seatrial: Script, tmp_path: Path, stranger: Stranger
) -> None:
    run = sent(tmp_path, stranger, bed={"inventory": "theirs.toml"})
    named = seatrial("replay", str(run.path), "--bed", "inventory=ours.toml")
    assert "the inventory ours.toml does not exist" in named.stderr
    trusted = seatrial("replay", str(run.path), "--trust-run")
    assert "the inventory theirs.toml does not exist" in trusted.stderr


# --------------------------------------------------------------------------------- known_hosts


@pytest.mark.parametrize(
    "before",
    [None, "", SHELL, KNOWN + SHELL, "#!/bin/sh\n"],
    ids=["none", "empty", "shell", "mixed", "comment"],
)
def test_what_is_no_known_hosts_file_is_not_written(
    tmp_path: Path, stranger: Stranger, home: Path, before: str | None
) -> None:
    """Neither made nor appended to; the sentence names it."""
    file = home / ".zshenv"
    if before is not None:
        file.write_text(before)
    run = sent(tmp_path, stranger)
    bed = {"inventory": str(run.path / "inventory.toml"), "accept_new_host_keys": True}
    (problem,) = problems(bed)
    assert f"{file} is not a known_hosts file" in problem.what
    assert stranger.came == 1
    assert (file.read_text() if file.exists() else None) == before


@pytest.mark.parametrize(
    "before",
    ["", KNOWN, HASHED.rstrip(), f"# mine\n\n{KNOWN}"],
    ids=["empty", "one", "hashed", "comment"],
)
def test_a_known_hosts_file_gains_a_line(
    tmp_path: Path, stranger: Stranger, home: Path, before: str
) -> None:
    """Whatever such files hold: names, hashes, comments, no newline at the end."""
    file = home / "known_hosts"
    file.write_text(before)
    run = sent(tmp_path, stranger)
    inventory = run.path / "inventory.toml"
    inventory.write_text(inventory.read_text().replace("~/.zshenv", str(file)))
    problems({"inventory": str(inventory), "accept_new_host_keys": True})
    (line,) = file.read_text().removeprefix(before).split("\n")[-2:-1]
    assert line.startswith(f"[127.0.0.1]:{stranger.port} ecdsa-sha2-nistp256 ")
    assert file.read_text().startswith(before)


def test_a_known_hosts_file_that_is_damaged_is_a_sentence(
    tmp_path: Path, stranger: Stranger, home: Path
) -> None:
    run = sent(tmp_path, stranger)
    (home / ".zshenv").write_text("@revoked h1 ssh-ed25519 AAAA\n")
    with pytest.raises(BadRequest, match="zshenv has a line that cannot be used"):
        problems({"inventory": str(run.path / "inventory.toml")})


@pytest.mark.parametrize(
    "name", ["touch${IFS}x;#", "a b", "a\tb", "a\nb", "$(x)", "`x`", "a|b", "a&b", "-oX", "a\0b"]
)
@pytest.mark.parametrize("field", ["host", "user", "jump"])
def test_a_name_that_a_shell_would_interpret_is_refused(
    tmp_path: Path, name: str, field: str
) -> None:
    entry = {"host": "h1", field: name}
    path = tmp_path / "inventory.toml"
    path.write_text("[[host]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in entry.items()))
    with pytest.raises(BadRequest, match=f"{field} must be"):
        load(path)
