"""Connections to the hosts of an inventory, kept open: commands on them cost milliseconds.

A `Fleet` opens them, in threads beside each other, by fabric; a `Machine` is a host that answered,
proved to be itself, let us in and lets us act as root. Jump hosts are connected once and shared.

*Host keys are pinned.* A key must be in known_hosts before we speak. With `accept_new_host_keys`
an unknown one is written there; one that changed is refused with or without.

*TCP_NODELAY* is set on the socket before the first byte. Without it the kernel holds back each
small request until the one before is acknowledged, which the other side puts off for 40 ms.

*Root.* Commands run as root: by `sudo -n` where we are somebody else.

Everything here blocks, with a deadline, and is safe to use from several threads. `Unready` says
which host failed, why, and what mends it.
"""

import io
import logging
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import fabric
import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from paramiko.hostkeys import InvalidHostKey

from clusters.hosts._agent.errors import Unready
from clusters.hosts.local.requirements import Problem
from clusters.hosts.ssh import requirements as _ssh_survey
from clusters.hosts.ssh.config import KNOWN_TO_ALL, USUAL_KEYS, Route, route, ssh_config
from clusters.hosts.ssh.diagnosis import (
    BROKEN,
    CONNECT_WITHIN_S,
    LET_IN_WITHIN_S,
    NoKey,
    NotKnownHosts,
    NotLetIn,
    Undecided,
    UnknownHostKey,
    explained,
)
from clusters.hosts.ssh.inventory import Host
from harness.cli.doctor import unready
from harness.contracts import Completed
from harness.errors import BadRequest, BedFailed

CHANNEL_WITHIN_S = 5.0
KEEPALIVE_S = 5
AT_ONCE = 16  # more handshakes would starve each other of this process's one core
PORTION_BYTES = 32 * 1024
MAX_OUTPUT_BYTES = 64 << 20  # of a command
ROOT_WITHIN_S = 10.0
BROKE = -1  # paramiko's exit code of a command whose connection broke
_PKCS8 = b"-----BEGIN PRIVATE KEY-----"
_PKCS8_KINDS = (
    (RSAPrivateKey, paramiko.RSAKey),
    (EllipticCurvePrivateKey, paramiko.ECDSAKey),
    (Ed25519PrivateKey, paramiko.Ed25519Key),
)
HOST_NAME = re.compile(r"[\w.:%@+\[\]-]+")  # white space and what a shell interprets is no name
KNOWN_HOST = re.compile(
    r"(@(cert-authority|revoked)[ \t]+)?\S+[ \t]+[\w.@-]+[ \t]+[\w+/]+=*([ \t].*)?"
)
_known_hosts_file = threading.Lock()


class Machine:
    """A host with a connection to it. `facts`: what it said of itself."""

    facts: _ssh_survey.Facts

    def __init__(self, host: Host, connection: fabric.Connection) -> None:
        self.host = host
        self.user = str(connection.user)
        self._connection = connection
        self._prefix: tuple[str, ...] = ()
        self.sudo = ""  # why root is out of reach
        self.seen_from = ""  # the address that it sees us come from
        self._become_root()

    @property
    def transport(self) -> paramiko.Transport:
        return self._connection.transport

    @property
    def alive(self) -> bool:
        """Whether the connection is open as far as we know: a cut link does not show."""
        return bool(self._connection.is_connected)

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 10.0) -> Completed:
        """A command, as root. BedFailed when it takes too long or the connection breaks."""
        deadline = time.monotonic() + timeout_s
        try:
            channel = self.open_channel(argv)
            try:
                return _completed(channel, stdin, deadline)
            finally:
                channel.close()
        except TimeoutError:
            raise BedFailed(
                f"`{argv[0]}` on {self.host} took longer than {timeout_s:g} s"
            ) from None
        except BROKEN as e:
            raise BedFailed(f"the connection to {self.host} broke: {e or 'it ended'}") from e

    def open_channel(self, argv: Sequence[str]) -> paramiko.Channel:
        """Start a command, as root; its standard input and output are the channel's."""
        channel = self.transport.open_session(timeout=CHANNEL_WITHIN_S)
        channel.settimeout(CHANNEL_WITHIN_S)
        channel.exec_command(shlex.join([*self._prefix, *argv]))
        channel.settimeout(None)
        return channel

    def close(self) -> None:
        with suppress(*BROKEN):
            self._connection.close()

    def _become_root(self) -> None:
        asked = self.run(["sh", "-c", 'echo "$SSH_CONNECTION"; id -u'], timeout_s=ROOT_WITHIN_S)
        came, user = ["", "", *asked.out.splitlines()][-2:]
        if not user.isdecimal():
            raise Unready(_ssh_survey.no_shell(self, asked))
        self.seen_from = came.split(" ")[0]
        if user == "0":
            return
        asked = self.run(["sudo", "-n", "true"], timeout_s=ROOT_WITHIN_S)
        self._prefix = ("sudo", "-n", "--")
        if asked.code:
            self.sudo = " ".join((asked.err or asked.out).split()) or f"exit code {asked.code}"


class Fleet:
    """Opens connections, and closes those it opened."""

    def __init__(self, *, accept_new_host_keys: bool = False) -> None:
        self._accept = accept_new_host_keys
        self._config = ssh_config()
        self._jumps: dict[Route, fabric.Connection] = {}
        self._opening: dict[Route, threading.Lock] = {}
        self._machines: list[Machine] = []
        self._lock = threading.Lock()
        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its tracebacks

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, host: Host) -> Machine:
        """The host's machine, surveyed. Unready, when no node can live there."""
        machine = self._reached(host)
        try:
            machine.facts = _fit(machine)
        except BaseException:
            machine.close()
            raise
        with self._lock:
            self._machines.append(machine)
        return machine

    def reach(self, host: Host) -> Machine:
        """The host's machine whatever it lacks, to clean up there: root is all that it takes."""
        machine = self._reached(host)
        if machine.sudo:
            machine.close()
            raise Unready(_ssh_survey.no_root(machine))
        with self._lock:
            self._machines.append(machine)
        return machine

    def reconnect(self, machine: Machine) -> Machine:
        """A new connection to a machine that was ready before, without asking it all again."""
        machine.close()
        again = self._reached(machine.host)
        again.facts = machine.facts
        with self._lock:
            self._machines = [again if m is machine else m for m in self._machines]
        return again

    def attempt(self, hosts: Sequence[Host]) -> list[Machine | Problem]:
        """All of them, beside each other: each a machine, or why it is none."""
        with ThreadPoolExecutor(max(1, min(AT_ONCE, len(hosts)))) as pool:
            tried = list(pool.map(self._attempted, hosts))
        return [_apart(each, hosts) for each in tried]

    def connect_all(self, hosts: Sequence[Host]) -> list[Machine]:
        """All of them; BedFailed with a sentence for each that is not ready."""
        tried = self.attempt(hosts)
        if problems := [each for each in tried if isinstance(each, Problem)]:
            raise unready([problem.sentence() for problem in problems], "ssh")
        return [each for each in tried if isinstance(each, Machine)]

    def close(self) -> None:
        with self._lock:
            machines, self._machines = self._machines, []
            jumps, self._jumps = list(self._jumps.values()), {}
        for machine in machines:
            machine.close()
        for jump in reversed(jumps):  # the far ones go through the near ones
            with suppress(*BROKEN):
                jump.close()

    def _attempted(self, host: Host) -> Machine | Problem:
        try:
            return self.connect(host)
        except Unready as e:
            return e.problem
        except BedFailed as e:
            return Problem(str(e), "it was there a moment ago", "try again, and see its sshd's log")

    def _reached(self, host: Host) -> Machine:
        way = route(host, self._config)
        connection = self._opened(way, str(host))
        try:
            return Machine(host, connection)
        except BaseException:
            connection.close()
            raise

    def _opened(self, way: Route, called: str) -> fabric.Connection:
        gateway = self._jump(way.jump, called) if way.jump else None
        connection = _connection(way, gateway, self._accept)
        try:
            if gateway is None:
                connection.connect_kwargs["sock"] = _socket(way)
            connection.open()
            connection.transport.set_keepalive(KEEPALIVE_S)
        except BROKEN as e:
            connection.client.close()  # fabric closes only what it thinks is open
            if way.jump:
                self._forget_if_silent(way.jump)
            raise Unready(explained(e, way, called)) from e
        return connection

    def _jump(self, leg: Route, called: str) -> fabric.Connection:
        """The connection to a jump host, opened by the first who needs it."""
        with self._lock:
            opening = self._opening.setdefault(leg, threading.Lock())
        with opening:
            known = self._jumps.get(leg)
            if known is None or not known.is_connected:
                name = f"{called} cannot be reached: its jump host {leg.name}"
                known = self._jumps[leg] = self._opened(leg, name)
            return known

    def _forget_if_silent(self, leg: Route) -> None:
        """Others behind a jump host that answers keep it; a new one is made where it does not."""
        jump = self._jumps.get(leg)
        if jump is None:
            return
        try:
            jump.transport.open_session(timeout=CONNECT_WITHIN_S).close()
        except BROKEN:
            jump.client.close()


def _fit(machine: Machine) -> _ssh_survey.Facts:
    """What it has. Unready, when that is not enough."""
    found = _ssh_survey.facts(machine)
    if isinstance(found, Problem):
        raise Unready(found)
    for problem in _ssh_survey.lacking(machine.host, found):
        raise Unready(problem)
    return found


def _apart(each: Machine | Problem, hosts: Sequence[Host]) -> Machine | Problem:
    """A problem, when a fault between two hosts would cut us off as well."""
    if isinstance(each, Problem):
        return each
    for other in hosts:
        if other.address == each.seen_from and other != each.host:
            each.close()
            return Problem(
                f"{each.host} sees us come from {other.address}, which is {other.host}'s address",
                "a fault between the two would cut us off, too",
                f"take {other.host} out of the inventory, or go another way (`jump`)",
            )
    return each


# -------------------------------------------------------------------------------- one connection


def _connection(
    way: Route, gateway: fabric.Connection | None, accept_new_host_keys: bool
) -> fabric.Connection:
    """By fabric, but with our own reading of ~/.ssh/config, deadlines and rules for host keys."""
    config = fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)
    connection = fabric.Connection(
        way.hostname,
        user=way.user,
        port=way.port,
        gateway=gateway or False,
        config=config,
        connect_timeout=LET_IN_WITHIN_S,  # the handshake's: many at once are slow
        connect_kwargs={
            "auth_strategy": _Keys(way),
            "banner_timeout": CONNECT_WITHIN_S,
            "auth_timeout": LET_IN_WITHIN_S,
            "channel_timeout": CHANNEL_WITHIN_S,
        },
    )
    for path in (*way.known_hosts, KNOWN_TO_ALL):
        try:
            connection.client.load_system_host_keys(path)
        except OSError:  # no file, no keys
            continue
        except (InvalidHostKey, ValueError) as e:
            raise BadRequest(f"{path} has a line that cannot be used: {e}; correct it") from None
    policy = _Write(way.known_hosts[0]) if accept_new_host_keys else _Refuse()
    connection.client.set_missing_host_key_policy(policy)
    return connection


def _socket(way: Route) -> socket.socket:
    """Behind a jump host the last leg's delay is the jump host's to avoid."""
    sock = socket.create_connection((way.hostname, way.port), CONNECT_WITHIN_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class _Keys:
    """Authentication by key, in paramiko's shape: those asked for, else the usual and the agent's.

    A passphrase cannot be typed while a trial runs, so a locked key is left to the agent.
    """

    def __init__(self, way: Route) -> None:
        self._way = way
        self._locked: list[str] = []  # files of keys that need a passphrase

    def authenticate(self, transport: paramiko.Transport) -> object:
        tried, allowed = 0, []
        for key in self._keys():
            tried += 1
            try:
                allowed = transport.auth_publickey(self._way.user, key)
            except paramiko.BadAuthenticationType as e:
                raise NotLetIn(tried, e.allowed_types) from e
            except paramiko.AuthenticationException as e:
                if "timeout" in str(e):
                    raise Undecided(str(e)) from e
                if not transport.is_active():  # too many wrong keys for its taste
                    break
            else:
                if not allowed:
                    return None
                raise NotLetIn(tried, allowed)
        raise NotLetIn(tried, allowed or _methods(transport, self._way.user), self._locked)

    def _keys(self) -> Iterator[paramiko.PKey]:
        asked = [path for path in self._way.keys if Path(path).exists()]
        if self._way.keys and not asked:
            raise NoKey(f"is to be reached with the key {self._way.keys[0]}, which does not exist")
        usual = (path for each in USUAL_KEYS if os.path.exists(path := os.path.expanduser(each)))
        for path in asked or usual:
            if key := _key(path):
                yield key
            else:
                self._locked.append(path)
        if self._locked or not asked:
            yield from _agents_keys()


def _key(path: str) -> paramiko.PKey | None:
    """Return the private key in a file, or None if it needs a passphrase.

    Raises NoKey if it cannot be read or is not a private key.
    """
    try:
        text = Path(path).read_bytes()
        if _PKCS8 in text:
            return _pkcs8(text)
        return paramiko.PKey.from_path(path)
    except PermissionError as e:
        raise NoKey(f"is to be reached with the key {path}, which we may not read") from e
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography's way to say so
        return None
    except (ValueError, OSError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as e:
        raise NoKey(f"is to be reached with the key {path}, which is not a private key") from e


def _pkcs8(text: bytes) -> paramiko.PKey:
    """Load a key in PKCS #8 (`openssl genpkey`, `ssh-keygen -m PKCS8`), which paramiko does not
    read: it gets the same key in OpenSSH's format.

    Raises ValueError if OpenSSH has no such kind of key.
    """
    key = serialization.load_pem_private_key(text, None)
    kind = next((ours for theirs, ours in _PKCS8_KINDS if isinstance(key, theirs)), None)
    if kind is None:
        raise ValueError(f"SSH has no keys of this kind: {type(key).__name__}")
    plain = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    loaded: paramiko.PKey = kind.from_private_key(io.StringIO(plain.decode()))
    return loaded


def _agents_keys() -> Iterator[paramiko.PKey]:
    with suppress(paramiko.SSHException, OSError), closing(paramiko.Agent()) as agent:
        yield from agent.get_keys()


def _methods(transport: paramiko.Transport, user: str) -> Sequence[str]:
    """What the server would take."""
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as e:
        return tuple(e.allowed_types)
    except BROKEN:
        pass
    return ()


class _Refuse:
    """A policy of paramiko's for host keys that nobody vouches for."""

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        raise UnknownHostKey(key)


class _Write:
    """Adds a line, and leaves the others as they are: the file may be its owner's own work."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        if not HOST_NAME.fullmatch(hostname):
            raise UnknownHostKey(key)
        with _known_hosts_file:
            if str(self._path) != os.devnull:  # ssh's way to say that nothing is written down
                self._add(f"{hostname} {key.get_name()} {key.get_base64()}\n")

    def _add(self, line: str) -> None:
        """Raises NotKnownHosts if the file is anything else: it is never written."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = self._path.read_text(errors="replace") if self._path.exists() else ""
        lines = [each for each in text.splitlines() if each.strip() and each[0] != "#"]
        fits = all(map(KNOWN_HOST.fullmatch, lines)) if lines else "known_hosts" in self._path.name
        if not fits or (self._path.exists() and not self._path.is_file()):
            raise NotKnownHosts(str(self._path))
        with self._path.open("a") as file:
            file.write(line if not text or text.endswith("\n") else f"\n{line}")


# ---------------------------------------------------------------------------------- one command


def _completed(channel: paramiko.Channel, stdin: bytes, deadline: float) -> Completed:
    """Feed a command and read both its streams to their end; TimeoutError at the deadline.

    The three go on beside each other: a command that is not read stops reading, too.
    """
    out, errors = bytearray(), bytearray()
    beside = (lambda: _feed(channel, stdin), lambda: _read(channel.recv_stderr, errors))
    threads = [threading.Thread(target=work, daemon=True) for work in beside]
    channel.settimeout(max(0.001, deadline - time.monotonic()))
    for thread in threads:
        thread.start()
    _read(channel.recv, out)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError
    code = channel.recv_exit_status()
    if code == BROKE:
        raise EOFError("no exit code came")
    return Completed(code, out.decode(errors="replace"), errors.decode(errors="replace"))


def _feed(channel: paramiko.Channel, stdin: bytes) -> None:
    with suppress(*BROKEN):  # it may end without reading all
        for start in range(0, len(stdin), PORTION_BYTES):
            channel.sendall(stdin[start : start + PORTION_BYTES])
        channel.shutdown_write()


def _read(receive: Callable[[int], bytes], into: bytearray) -> None:
    with suppress(TimeoutError):
        while len(into) < MAX_OUTPUT_BYTES and (data := receive(PORTION_BYTES)):
            into += data
