"""Connections to the hosts of an inventory, kept open, so that commands cost milliseconds.

fabric opens them, through jump hosts, in parallel threads; jump hosts are connected once and
shared. A `Machine` is a host that answered, has the pinned key, accepted our key and lets us act as
root.

Commands and files go through paramiko's channels, not through fabric's `run` and `put`. `run` is
built on invoke, which feeds standard input as text, one byte at a time, and keeps all output; our
scripts take an archive of a megabyte on standard input, and a hostile host may print without end.
`put` is SFTP, which acts as the user who logs in, not as root.

*Host keys are pinned.* A key must be in known_hosts before anything is sent. With
`accept_new_host_keys` an unknown one is added there; a changed one is always refused.

*TCP_NODELAY* is set on the socket before the first byte. Without it the kernel holds back each
small request until the one before is acknowledged, which the other side delays by 40 ms.

*Root.* Commands run as root: by `sudo -n` if we log in as another user.

All functions block, with a deadline, and may be called from several threads. `Unready` names the
host, the reason, and how to fix it.
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

from clusters.hosts._problems import Problem, Unready
from clusters.hosts.ssh import requirements
from clusters.hosts.ssh.config import DEFAULT_KEYS, SYSTEM_KNOWN_HOSTS, Route, route, ssh_config
from clusters.hosts.ssh.diagnosis import (
    AUTHENTICATE_WITHIN_S,
    BROKEN,
    CONNECT_WITHIN_S,
    AuthenticationRefused,
    AuthenticationTimeout,
    InvalidKnownHosts,
    UnknownHostKey,
    UnusableKey,
    explain,
)
from clusters.hosts.ssh.inventory import InventoryHost
from harness.cli.doctor import unready
from harness.contracts import CommandResult
from harness.errors import BadRequest, BedFailed

CHANNEL_WITHIN_S = 5.0
KEEPALIVE_S = 5
MAX_PARALLEL = 16  # handshakes; more would slow each other down, as Python uses one core
PORTION_BYTES = 32 * 1024
MAX_OUTPUT_BYTES = 64 << 20  # per command
ROOT_WITHIN_S = 10.0
CONNECTION_BROKE = -1  # paramiko's exit code of a command whose connection broke
_PKCS8 = b"-----BEGIN PRIVATE KEY-----"
_PKCS8_KINDS = (
    (RSAPrivateKey, paramiko.RSAKey),
    (EllipticCurvePrivateKey, paramiko.ECDSAKey),
    (Ed25519PrivateKey, paramiko.Ed25519Key),
)
HOST_NAME = re.compile(r"[\w.:%@+\[\]-]+")  # no white space, nothing that a shell interprets
KNOWN_HOST = re.compile(
    r"(@(cert-authority|revoked)[ \t]+)?\S+[ \t]+[\w.@-]+[ \t]+[\w+/]+=*([ \t].*)?"
)
_known_hosts_file = threading.Lock()


class RemoteHost:
    """A host with a connection to it. `facts`: what it has, if it was surveyed."""

    facts: requirements.HostFacts

    def __init__(self, host: InventoryHost, connection: fabric.Connection) -> None:
        self.host = host
        self.user = str(connection.user)
        self._connection = connection
        self._prefix: tuple[str, ...] = ()
        self.sudo_error = ""  # why root is out of reach
        self.our_address = ""  # the address that it sees us come from
        self._become_root()

    @property
    def transport(self) -> paramiko.Transport:
        return self._connection.transport

    @property
    def alive(self) -> bool:
        """Whether the connection is open as far as we know: a cut link does not show."""
        return bool(self._connection.is_connected)

    def run(
        self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 10.0
    ) -> CommandResult:
        """Run a command as root. Raises BedFailed if it takes too long or the connection breaks."""
        deadline = time.monotonic() + timeout_s
        try:
            channel = self.open_channel(argv)
            try:
                return _complete(channel, stdin, deadline)
            finally:
                channel.close()
        except TimeoutError:
            raise BedFailed(
                f"`{argv[0]}` on {self.host} took longer than {timeout_s:g} s"
            ) from None
        except BROKEN as e:
            raise BedFailed(f"the connection to {self.host} broke: {e or 'it ended'}") from e

    def open_channel(self, argv: Sequence[str]) -> paramiko.Channel:
        """Start a command as root; its standard input and output are the channel's."""
        channel = self.transport.open_session(timeout=CHANNEL_WITHIN_S)
        channel.settimeout(CHANNEL_WITHIN_S)
        channel.exec_command(shlex.join([*self._prefix, *argv]))
        channel.settimeout(None)
        return channel

    def close(self) -> None:
        with suppress(*BROKEN):
            self._connection.close()

    def _become_root(self) -> None:
        answer = self.run(["sh", "-c", 'echo "$SSH_CONNECTION"; id -u'], timeout_s=ROOT_WITHIN_S)
        came, user = ["", "", *answer.out.splitlines()][-2:]
        if not user.isdecimal():
            raise Unready(requirements.no_shell(self, answer))
        self.our_address = came.split(" ")[0]
        if user == "0":
            return
        answer = self.run(["sudo", "-n", "true"], timeout_s=ROOT_WITHIN_S)
        self._prefix = ("sudo", "-n", "--")
        if answer.code:
            self.sudo_error = (
                " ".join((answer.err or answer.out).split()) or f"exit code {answer.code}"
            )


class HostConnections:
    """Opens connections, and closes those that it opened."""

    def __init__(self, *, accept_new_host_keys: bool = False) -> None:
        self._accept = accept_new_host_keys
        self._config = ssh_config()
        self._jumps: dict[Route, fabric.Connection] = {}
        self._opening: dict[Route, threading.Lock] = {}
        self._hosts: list[RemoteHost] = []
        self._lock = threading.Lock()
        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # hides its tracebacks

    def __enter__(self) -> "HostConnections":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, host: InventoryHost) -> RemoteHost:
        """Connect to a host and survey it. Raises Unready if no node can run there."""
        machine = self._connect(host)
        try:
            machine.facts = _survey(machine)
        except BaseException:
            machine.close()
            raise
        with self._lock:
            self._hosts.append(machine)
        return machine

    def reach(self, host: InventoryHost) -> RemoteHost:
        """Connect to a host to clean up there, whatever it lacks; only root is needed."""
        machine = self._connect(host)
        if machine.sudo_error:
            machine.close()
            raise Unready(requirements.no_root(machine))
        with self._lock:
            self._hosts.append(machine)
        return machine

    def reconnect(self, machine: RemoteHost) -> RemoteHost:
        """Open a new connection to a host that was ready before, without another survey."""
        machine.close()
        again = self._connect(machine.host)
        again.facts = machine.facts
        with self._lock:
            self._hosts = [again if m is machine else m for m in self._hosts]
        return again

    def attempt(self, hosts: Sequence[InventoryHost]) -> list[RemoteHost | Problem]:
        """Connect to all hosts in parallel; return a connection or a problem for each."""
        with ThreadPoolExecutor(max(1, min(MAX_PARALLEL, len(hosts)))) as pool:
            tried = list(pool.map(self._attempt, hosts))
        return [_refuse_shared_address(each, hosts) for each in tried]

    def connect_all(self, hosts: Sequence[InventoryHost]) -> list[RemoteHost]:
        """Connect to all hosts in parallel. Raises BedFailed with a sentence for each that is not
        ready."""
        tried = self.attempt(hosts)
        if problems := [each for each in tried if isinstance(each, Problem)]:
            raise unready([problem.sentence() for problem in problems], "ssh")
        return [each for each in tried if isinstance(each, RemoteHost)]

    def close(self) -> None:
        with self._lock:
            machines, self._hosts = self._hosts, []
            jumps, self._jumps = list(self._jumps.values()), {}
        for machine in machines:
            machine.close()
        for jump in reversed(jumps):  # later ones go through earlier ones
            with suppress(*BROKEN):
                jump.close()

    def _attempt(self, host: InventoryHost) -> RemoteHost | Problem:
        try:
            return self.connect(host)
        except Unready as e:
            return e.problem
        except BedFailed as e:
            return Problem(str(e), "it answered a moment ago", "try again, and see its sshd's log")

    def _connect(self, host: InventoryHost) -> RemoteHost:
        way = route(host, self._config)
        connection = self._open(way, str(host))
        try:
            return RemoteHost(host, connection)
        except BaseException:
            connection.close()
            raise

    def _open(self, way: Route, called: str) -> fabric.Connection:
        gateway = self._jump(way.jump, called) if way.jump else None
        connection = _connection(way, gateway, self._accept)
        try:
            if gateway is None:
                connection.connect_kwargs["sock"] = _socket(way)
            connection.open()
            connection.transport.set_keepalive(KEEPALIVE_S)
        except BROKEN as e:
            connection.client.close()  # fabric closes only connections that it counts as open
            if way.jump:
                self._forget_if_silent(way.jump)
            raise Unready(explain(e, way, called)) from e
        return connection

    def _jump(self, leg: Route, called: str) -> fabric.Connection:
        """Return the connection to a jump host, which the first caller opens."""
        with self._lock:
            opening = self._opening.setdefault(leg, threading.Lock())
        with opening:
            jump = self._jumps.get(leg)
            if jump is None or not jump.is_connected:
                name = f"{called} cannot be reached: its jump host {leg.name}"
                jump = self._jumps[leg] = self._open(leg, name)
            return jump

    def _forget_if_silent(self, leg: Route) -> None:
        """Close the connection to a jump host that does not answer, so that the next caller opens a
        new one."""
        jump = self._jumps.get(leg)
        if jump is None:
            return
        try:
            jump.transport.open_session(timeout=CONNECT_WITHIN_S).close()
        except BROKEN:
            jump.client.close()


def _survey(machine: RemoteHost) -> requirements.HostFacts:
    """Survey a host. Raises Unready if it lacks something."""
    facts = requirements.facts(machine)
    if isinstance(facts, Problem):
        raise Unready(facts)
    for problem in requirements.lacking(machine.host, facts):
        raise Unready(problem)
    return facts


def _refuse_shared_address(
    each: RemoteHost | Problem, hosts: Sequence[InventoryHost]
) -> RemoteHost | Problem:
    """Return a problem if a fault between two hosts would cut us off as well."""
    if isinstance(each, Problem):
        return each
    for other in hosts:
        if other.address == each.our_address and other != each.host:
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
    """Make fabric's connection, with our own reading of ~/.ssh/config, deadlines and rules for host
    keys."""
    config = fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)
    connection = fabric.Connection(
        way.hostname,
        user=way.user,
        port=way.port,
        gateway=gateway or False,
        config=config,
        connect_timeout=AUTHENTICATE_WITHIN_S,  # of the handshake; many in parallel are slow
        connect_kwargs={
            "auth_strategy": _KeyAuthentication(way),
            "banner_timeout": AUTHENTICATE_WITHIN_S,  # a busy host starts its sshd late
            "auth_timeout": AUTHENTICATE_WITHIN_S,
            "channel_timeout": CHANNEL_WITHIN_S,
        },
    )
    for path in (*way.known_hosts, SYSTEM_KNOWN_HOSTS):
        try:
            connection.client.load_system_host_keys(path)
        except OSError:  # no such file
            continue
        except (InvalidHostKey, ValueError) as e:
            raise BadRequest(f"{path} has a line that cannot be used: {e}; correct it") from None
    policy = _AddUnknownKeys(way.known_hosts[0]) if accept_new_host_keys else _RefuseUnknownKeys()
    connection.client.set_missing_host_key_policy(policy)
    return connection


def _socket(way: Route) -> socket.socket:
    """Open a socket without delays. Behind a jump host, the jump host decides that for the last
    leg."""
    sock = socket.create_connection((way.hostname, way.port), CONNECT_WITHIN_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class _KeyAuthentication:
    """Authentication by key, in paramiko's interface: the configured keys, else the default ones
    and the agent's.

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
                raise AuthenticationRefused(tried, e.allowed_types) from e
            except paramiko.AuthenticationException as e:
                if "timeout" in str(e):
                    raise AuthenticationTimeout(str(e)) from e
                if not transport.is_active():  # too many wrong keys for the server
                    break
            else:
                if not allowed:
                    return None
                raise AuthenticationRefused(tried, allowed)
        raise AuthenticationRefused(
            tried, allowed or _methods(transport, self._way.user), self._locked
        )

    def _keys(self) -> Iterator[paramiko.PKey]:
        configured = [path for path in self._way.keys if Path(path).exists()]
        if self._way.keys and not configured:
            raise UnusableKey(
                f"is to be reached with the key {self._way.keys[0]}, which does not exist"
            )
        usual = (path for each in DEFAULT_KEYS if os.path.exists(path := os.path.expanduser(each)))
        for path in configured or usual:
            if key := _key(path):
                yield key
            else:
                self._locked.append(path)
        if self._locked or not configured:
            yield from _agent_keys()


def _key(path: str) -> paramiko.PKey | None:
    """Return the private key in a file, or None if it needs a passphrase.

    Raises UnusableKey if it cannot be read or is not a private key.
    """
    try:
        text = Path(path).read_bytes()
        if _PKCS8 in text:
            return _pkcs8(text)
        return paramiko.PKey.from_path(path)
    except PermissionError as e:
        raise UnusableKey(f"is to be reached with the key {path}, which we may not read") from e
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography raises TypeError for it
        return None
    except (ValueError, OSError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as e:
        raise UnusableKey(
            f"is to be reached with the key {path}, which is not a private key"
        ) from e


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


def _agent_keys() -> Iterator[paramiko.PKey]:
    with suppress(paramiko.SSHException, OSError), closing(paramiko.Agent()) as agent:
        yield from agent.get_keys()


def _methods(transport: paramiko.Transport, user: str) -> Sequence[str]:
    """Return the methods of authentication that the server accepts."""
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as e:
        return tuple(e.allowed_types)
    except BROKEN:
        pass
    return ()


class _RefuseUnknownKeys:
    """A policy of paramiko's that refuses unknown host keys."""

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        raise UnknownHostKey(key)


class _AddUnknownKeys:
    """A policy of paramiko's that adds unknown host keys to a file and keeps its other lines."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        if not HOST_NAME.fullmatch(hostname):
            raise UnknownHostKey(key)
        with _known_hosts_file:
            if str(self._path) != os.devnull:  # ssh's way to switch it off
                self._add(f"{hostname} {key.get_name()} {key.get_base64()}\n")

    def _add(self, line: str) -> None:
        """Add a line. Raises InvalidKnownHosts if the file is not a known_hosts file, so that no
        other file is changed."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = self._path.read_text(errors="replace") if self._path.exists() else ""
        lines = [each for each in text.splitlines() if each.strip() and each[0] != "#"]
        fits = all(map(KNOWN_HOST.fullmatch, lines)) if lines else "known_hosts" in self._path.name
        if not fits or (self._path.exists() and not self._path.is_file()):
            raise InvalidKnownHosts(str(self._path))
        with self._path.open("a") as file:
            file.write(line if not text or text.endswith("\n") else f"\n{line}")


# ---------------------------------------------------------------------------------- one command


def _complete(channel: paramiko.Channel, stdin: bytes, deadline: float) -> CommandResult:
    """Feed a command and read both its outputs to their end. Raises TimeoutError at the deadline.

    The three go on in parallel: a command whose output is not read stops reading, too.
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
    if code == CONNECTION_BROKE:
        raise EOFError("no exit code came")
    return CommandResult(code, out.decode(errors="replace"), errors.decode(errors="replace"))


def _feed(channel: paramiko.Channel, stdin: bytes) -> None:
    with suppress(*BROKEN):  # it may end without reading all
        for start in range(0, len(stdin), PORTION_BYTES):
            channel.sendall(stdin[start : start + PORTION_BYTES])
        channel.shutdown_write()


def _read(receive: Callable[[int], bytes], into: bytearray) -> None:
    with suppress(TimeoutError):
        while len(into) < MAX_OUTPUT_BYTES and (data := receive(PORTION_BYTES)):
            into += data
