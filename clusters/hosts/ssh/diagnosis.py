"""Why a host can not be reached, in a sentence: what is wrong, why, and the command that mends it.

paramiko and the operating system between them have a dozen exceptions for it, some of which say
little ("No existing session": the server accepted and then said nothing). Here each becomes one
sentence, in the words of somebody who has to do something about it.
"""

import base64
import errno
import hashlib
import os
import shlex
import socket
from collections.abc import Sequence

import paramiko

from clusters.hosts.local.requirements import Problem
from clusters.hosts.ssh.config import KNOWN_HOSTS, SSH_PORT, Route

CONNECT_WITHIN_S = 3.0
LET_IN_WITHIN_S = 10  # a server that asks a slow DNS server for our name takes five
_NODES_LIVE_THERE = "a node of the trial is to live there"
_PROHIBITED, _CONNECT_FAILED = 1, 2  # RFC 4254, 5.1


class Refused(Exception):
    """Why we, or the server, would not go on."""


class UnknownHostKey(Refused):
    """Nobody vouches for this key yet."""

    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__("unknown host key")
        self.key = key


class NoKey(Refused):
    """A private key that can not be used, and why."""


class NotKnownHosts(Refused):
    """A new host key was to be written to a file that is something else. `str`: its path."""


class Undecided(Refused):
    """The server took too long over a key."""


class NotLetIn(Refused):
    """The server refused every key. `tried`: how many; `allowed`: what it would take instead;
    `locked`: files of keys that were not tried, as they need a passphrase."""

    def __init__(self, tried: int, allowed: Sequence[str], locked: Sequence[str] = ()) -> None:
        super().__init__("refused")
        self.tried, self.allowed, self.locked = tried, tuple(allowed), tuple(locked)


BROKEN = (Refused, paramiko.SSHException, OSError, EOFError)  # whatever a connection may raise


def explained(error: BaseException, route: Route, called: str) -> Problem:
    """Why the last leg of a route failed; `called`: the host's name for people."""
    what, fix = _explained(error, route)
    return Problem(f"{called} {what}", _NODES_LIVE_THERE, fix)


def _explained(error: BaseException, route: Route) -> tuple[str, str]:
    try_it = f"try `{ssh_command(route)}` by hand"
    match error:
        case UnknownHostKey():
            return _unknown_key(error.key, route)
        case NotKnownHosts():
            return (
                f"has a new host key, and {error} is not a known_hosts file, so it is not written",
                "name another `known_hosts`; a new file must have known_hosts in its name",
            )
        case paramiko.BadHostKeyException():
            return _changed_key(error, route)
        case NotLetIn():
            return _not_let_in(error, route)
        case NoKey():
            return str(error), "correct `key` in the inventory or IdentityFile in ~/.ssh/config"
        case Undecided():
            return (
                f"did not decide within {LET_IN_WITHIN_S} s whether to let {route.user} in",
                f"see what its sshd waits for (UseDNS, PAM, a full disk); {try_it}",
            )
        case paramiko.ChannelException():
            return _no_way_on(error, route)
        case paramiko.SSHException() if "opening channel" in str(error):
            return _no_way_on(paramiko.ChannelException(_CONNECT_FAILED, str(error)), route)
        case paramiko.IncompatiblePeer():
            return f"speaks another SSH than we do ({error})", "update its SSH server"
        case socket.gaierror():
            return (
                f"has a name that nobody knows ({route.hostname})",
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
            return _explained(error.__context__, route)
        case paramiko.SSHException() if "session" in str(error) or "banner" in str(error):
            return (
                f"accepts connections on port {route.port}, but its SSH server says nothing",
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
    """What somebody would type to try the same."""
    return shlex.join(["ssh", *options, *_asked(route), f"{route.user}@{route.hostname}", "true"])


def _asked(route: Route) -> list[str]:
    """ssh's options for a route. ssh's own -J would lead through with neither key nor known_hosts,
    which are the last leg's alone."""
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
        before = ["ssh", *_asked(jump), "-W", "%h:%p", f"{jump.user}@{jump.hostname}"]
        argv += ["-o", f"ProxyCommand={shlex.join(before)}"]
    return argv


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen -l prints it."""
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
        f"knows ({fingerprint(error.expected_key)}): it was installed anew, or it is not that host",
        "if you know why, forget the old key: "
        f"ssh-keygen -f {shlex.quote(route.known_hosts[0])} -R {shlex.quote(route.known_as)}",
    )


def _not_let_in(error: NotLetIn, route: Route) -> tuple[str, str]:
    copy = f"ssh-copy-id -i KEY.pub -p {route.port} {route.user}@{route.hostname}"
    if error.allowed and "publickey" not in error.allowed:
        return (
            f"takes no keys, only {' or '.join(error.allowed)}, and nobody can type a password "
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


def _locked_key(error: NotLetIn, route: Route) -> tuple[str, str]:
    """A key that needs a passphrase, and no agent that holds it."""
    path = shlex.quote(error.locked[0])
    what = f"does not let {route.user} in: the key {error.locked[0]} needs a passphrase, and "
    if os.environ.get("SSH_AUTH_SOCK"):
        return f"{what}the ssh-agent does not hold it", f"add it to the agent: ssh-add {path}"
    fix = f"start one and add the key: eval $(ssh-agent); ssh-add {path}"
    return f"{what}no ssh-agent runs", fix


def _no_way_on(error: paramiko.ChannelException, route: Route) -> tuple[str, str]:
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
