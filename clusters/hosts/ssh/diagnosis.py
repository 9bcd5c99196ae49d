"""Explains why a host cannot be reached: what is wrong, why it matters, and the command that fixes
it.

paramiko and the operating system have a dozen exceptions for that, and some say little ("No
existing session": the server accepted the connection and then sent nothing). Here each becomes one
sentence for the user who has to fix it.
"""

import base64
import errno
import hashlib
import os
import shlex
import socket
from collections.abc import Sequence

import paramiko

from clusters.hosts._problems import Problem
from clusters.hosts.ssh.config import KNOWN_HOSTS, SSH_PORT, Route

CONNECT_WITHIN_S = 3.0
AUTHENTICATE_WITHIN_S = 10  # a server that waits for a slow DNS server takes five
_NODES_LIVE_THERE = "a node of the trial is to run there"
_PROHIBITED, _CONNECT_FAILED = 1, 2  # RFC 4254, 5.1


class SshRefusal(Exception):
    """Why we or the server ended the connection."""


class UnknownHostKey(SshRefusal):
    """The host's key is not in known_hosts."""

    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__("unknown host key")
        self.key = key


class UnusableKey(SshRefusal):
    """A private key that cannot be used, and why."""


class InvalidKnownHosts(SshRefusal):
    """A new host key would be written to a file that is not a known_hosts file. `str`: its path."""


class AuthenticationTimeout(SshRefusal):
    """The server took too long to check a key."""


class AuthenticationRefused(SshRefusal):
    """The server refused every key.

    tried: how many keys allowed: methods that the server accepts instead locked: files of keys that
    were not tried, because they need a passphrase
    """

    def __init__(self, tried: int, allowed: Sequence[str], locked: Sequence[str] = ()) -> None:
        super().__init__("refused")
        self.tried, self.allowed, self.locked = tried, tuple(allowed), tuple(locked)


BROKEN = (SshRefusal, paramiko.SSHException, OSError, EOFError)  # what a connection may raise


def explain(error: BaseException, route: Route, called: str) -> Problem:
    """Explain why the last leg of a route failed. `called`: the host's name for the user."""
    what, fix = _explain(error, route)
    return Problem(f"{called} {what}", _NODES_LIVE_THERE, fix)


def _explain(error: BaseException, route: Route) -> tuple[str, str]:
    try_it = f"try `{ssh_command(route)}` by hand"
    match error:
        case UnknownHostKey():
            return _unknown_key(error.key, route)
        case InvalidKnownHosts():
            return (
                f"has a new host key, and {error} is not a known_hosts file, so it is not written",
                "name another `known_hosts`; a new file must have known_hosts in its name",
            )
        case paramiko.BadHostKeyException():
            return _changed_key(error, route)
        case AuthenticationRefused():
            return _authentication_refused(error, route)
        case UnusableKey():
            return str(error), "correct `key` in the inventory or IdentityFile in ~/.ssh/config"
        case AuthenticationTimeout():
            return (
                f"did not decide within {AUTHENTICATE_WITHIN_S} s whether to let {route.user} in",
                f"see what its sshd waits for (UseDNS, PAM, a full disk); {try_it}",
            )
        case paramiko.ChannelException():
            return _channel_refused(error, route)
        case paramiko.SSHException() if "opening channel" in str(error):
            return _channel_refused(paramiko.ChannelException(_CONNECT_FAILED, str(error)), route)
        case paramiko.IncompatiblePeer():
            return f"has an incompatible SSH server ({error})", "update its SSH server"
        case socket.gaierror():
            return (
                f"has a name that cannot be resolved ({route.hostname})",
                "correct `host` in the inventory, or HostName in ~/.ssh/config",
            )
        case ConnectionRefusedError():
            return (
                f"refuses connections to port {route.port}",
                "start its SSH server (sudo systemctl start ssh), or correct `port`",
            )
        case TimeoutError():
            return (
                f"does not answer on port {route.port} within {CONNECT_WITHIN_S:g} s",
                "see that it is up and that no firewall is between",
            )
        case paramiko.SSHException() if isinstance(error.__context__, EOFError | ConnectionError):
            return _explain(error.__context__, route)
        case paramiko.SSHException() if "session" in str(error) or "banner" in str(error):
            return (
                f"accepts connections on port {route.port}, but its SSH server sends nothing",
                f"see whether sshd hangs there, or whether that port is another service; {try_it}",
            )
        case OSError(errno=errno.EHOSTUNREACH | errno.ENETUNREACH):
            return (
                f"cannot be reached: there is no way to {route.hostname}",
                "see that it is up, and correct `host` in the inventory if it is another",
            )
        case EOFError() | ConnectionError():
            return "closed the connection before it let us in", f"see its sshd's log; {try_it}"
        case _:
            return f"cannot be reached ({error or type(error).__name__})", try_it


def ssh_command(route: Route, *options: str) -> str:
    """Return the command by which the user can try the same."""
    return shlex.join(
        ["ssh", *options, *_options_of(route), f"{route.user}@{route.hostname}", "true"]
    )


def _options_of(route: Route) -> list[str]:
    """Return ssh's options for a route. ssh's own -J would not use the key and known_hosts for the
    jump hosts, as it applies them to the last leg only."""
    argv: list[str] = []
    if route.keys:
        argv += ["-i", route.keys[0]]
    if route.known_hosts[0] != os.path.expanduser(KNOWN_HOSTS[0]):
        file = route.known_hosts[0]
        argv += [
            "-o",
            f'UserKnownHostsFile="{file}"' if " " in file else f"UserKnownHostsFile={file}",
        ]
    if route.port != SSH_PORT:
        argv += ["-p", str(route.port)]
    if jump := route.jump:
        before = ["ssh", *_options_of(jump), "-W", "%h:%p", f"{jump.user}@{jump.hostname}"]
        argv += ["-o", f"ProxyCommand={shlex.join(before)}"]
    return argv


def fingerprint(key: paramiko.PKey) -> str:
    """Return the fingerprint as ssh-keygen -l prints it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


def _unknown_key(key: paramiko.PKey, route: Route) -> tuple[str, str]:
    what = f"has a host key that is not in {route.known_hosts[0]} ({fingerprint(key)})"
    if route.jump:
        command = ssh_command(route, "-o", "StrictHostKeyChecking=accept-new")
    else:
        kind = key.get_name().replace("ssh-", "").split("-")[0]
        port = "" if route.port == SSH_PORT else f"-p {route.port} "
        file = shlex.quote(route.known_hosts[0])
        command = f"ssh-keyscan -t {kind} {port}{route.hostname} >> {file}"
    return what, (
        "compare that with what `ssh-keygen -lf` says of the key on the machine itself, and if "
        f"they agree: {command}"
    )


def _changed_key(error: paramiko.BadHostKeyException, route: Route) -> tuple[str, str]:
    return (
        f"shows another host key ({fingerprint(error.key)}) than {' or '.join(route.known_hosts)} "
        f"knows ({fingerprint(error.expected_key)}): it was reinstalled, or it is not that host",
        "if you know why, forget the old key: "
        f"ssh-keygen -f {shlex.quote(route.known_hosts[0])} -R {shlex.quote(route.known_as)}",
    )


def _authentication_refused(error: AuthenticationRefused, route: Route) -> tuple[str, str]:
    copy = f"ssh-copy-id -i KEY.pub -p {route.port} {route.user}@{route.hostname}"
    if error.allowed and "publickey" not in error.allowed:
        return (
            f"takes no keys, only {' or '.join(error.allowed)}, and no password can be typed "
            "while a trial runs",
            "set PubkeyAuthentication yes in its sshd_config",
        )
    if error.locked:
        return _locked_key(error, route)
    if not error.tried:
        return (
            f"wants a key for {route.user}, and there is none: no `key` in the inventory, no "
            "IdentityFile in ~/.ssh/config, no ~/.ssh/id_* and no ssh-agent",
            'make one with ssh-keygen, and add key = "FILE" to the inventory',
        )
    tried = " or ".join(route.keys) or "any key of ~/.ssh or the ssh-agent"
    return (
        f"does not let {route.user} in with {tried}",
        f"correct `user` or `key`, or let that key in: {copy}",
    )


def _locked_key(error: AuthenticationRefused, route: Route) -> tuple[str, str]:
    """A key needs a passphrase, and no agent holds it."""
    path = shlex.quote(error.locked[0])
    what = f"does not let {route.user} in: the key {error.locked[0]} needs a passphrase, and "
    if os.environ.get("SSH_AUTH_SOCK"):
        return f"{what}the ssh-agent does not hold it", f"add it to the agent: ssh-add {path}"
    fix = f"start one and add the key: eval $(ssh-agent); ssh-add {path}"
    return f"{what}no ssh-agent runs", fix


def _channel_refused(error: paramiko.ChannelException, route: Route) -> tuple[str, str]:
    jump = route.jump.shorthand if route.jump else "the server"
    if error.code == _PROHIBITED:
        return (
            f"cannot be reached by {jump}, which forbids forwarding",
            "set AllowTcpForwarding yes in its sshd_config",
        )
    if error.code == _CONNECT_FAILED:
        return (
            f"cannot be reached from its jump host {jump}, which gets no answer from "
            f"{route.hostname}:{route.port}",
            "see that its SSH server runs and that the jump host may reach it",
        )
    return f"opens no channel ({error.text})", "raise MaxSessions in its sshd_config"
