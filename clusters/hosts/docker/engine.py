"""The Docker engine: finds its address, connects, and explains failures.

The address is found as the `docker` command finds it: DOCKER_HOST (with DOCKER_TLS_VERIFY and
DOCKER_CERT_PATH), else the context that DOCKER_CONTEXT or `docker context use` selected, else the
socket of this machine. Every failure is reported in one sentence with that address, because most
failures are a wrong address.

The SDK wraps causes in causes (a DockerException of a ConnectionError of a ProtocolError of a
FileNotFoundError), and lets some through unwrapped (paramiko's). So a failure is explained by the
first known exception in its chain, never by its class alone.
"""

import os
import pwd
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import paramiko
import requests
from docker import DockerClient
from docker.constants import MINIMUM_DOCKER_API_VERSION
from docker.context import ContextAPI
from docker.errors import (
    APIError,
    DockerException,
    InvalidVersion,
    TLSParameterError,
)
from docker.tls import TLSConfig
from docker.utils import kwargs_from_env, parse_host

from clusters.hosts._agent.threads import start_thread
from clusters.hosts._problems import Problem, Unready
from harness.errors import BedFailed

CONNECT_WITHIN_S = 5.0
CALL_WITHIN_S = 120.0
CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
CONNECTIONS_KEPT = 64  # one for each thread that starts a node
FAILURES = (DockerException, requests.RequestException, paramiko.SSHException, OSError, EOFError)
_ENGINES_MATTER = "the nodes of a trial on Docker hosts are containers of this engine"
_START = (
    "start the engine (sudo systemctl start docker), or set DOCKER_HOST to the address of one "
    "that runs"
)
_CHECK_ADDRESS = "correct DOCKER_HOST, or choose another with `docker context use`"
_REFUSED = "no Docker engine answers at {where}: the connection was refused"
_SILENT = "the Docker engine at {where} did not answer in time"
_RESTART = "check that it answers `docker version`; restart it, or correct DOCKER_HOST"
_UNTRUSTED = "the Docker engine at {where} cannot be trusted: TLS reports {text}"
_NO_ENGINE = "the server at {where} is not a Docker engine"
_API_REMEDIES = {  # part of an engine's message -> how to fix it
    "overlaps with other one": "choose a free one with --bed subnet=198.18.N.0/24",
    "is already in use": "remove what an earlier run left with `seatrial heal --all`",
    "range of cpus": "lower bed.cpus to what the engine's machine has",
    "no space left": "make room on the engine's disk (docker system prune)",
    "no chain/target/match": "restart the engine: its iptables rules were removed under it",
    "iptables failed": "restart the engine: its iptables rules were changed under it",
    "cgroup": "see that the engine may set resource limits (docker info shows warnings)",
    "executable file not found": "remove the image (docker image rm); the next run builds it",
    "http request to an https": "this engine wants TLS: set DOCKER_TLS_VERIFY and DOCKER_CERT_PATH",
    "invalid reference format": "write the image as NAME:TAG (--bed base=python:3.11-slim)",
    "unpause": "resume it with `docker unpause`",
}


@dataclass(frozen=True)
class EngineAddress:
    """The engine's address and its source. `tls`: as `DockerClient` takes it."""

    url: str
    origin: str
    tls: TLSConfig | None = None

    def __str__(self) -> str:
        return f"{self.url} ({self.origin})"


# -------------------------------------------------------------------------------- connecting


def connect() -> DockerClient:
    """Return a client of the engine, which has answered. Raises BedFailed with the reason
    otherwise."""
    where = address()
    try:
        client = _open_in_thread(CONNECT_WITHIN_S, where)
    except (*FAILURES, ValueError) as e:
        raise Unready(_explain(e, where)) from e
    client.api.timeout = CALL_WITHIN_S
    return client


def problems() -> list[Problem]:
    """Return why no engine can be used; an empty list if it answers and runs Linux containers."""
    try:
        client = connect()
    except Unready as e:
        return [e.problem]
    with closing(client):
        try:
            return list(_unusable(client))
        except BedFailed as e:
            return [Problem(str(e), _ENGINES_MATTER, "see what `docker info` says")]


def address(environ: Mapping[str, str] = os.environ) -> EngineAddress:
    """Return the address that the `docker` command would use. Raises BedFailed if the settings are
    invalid."""
    try:
        given = kwargs_from_env(environment=dict(environ))
    except TLSParameterError as e:
        raise Unready(_without_certificates(e)) from e
    if "base_url" in given:
        return _of_environment(given["base_url"].strip(), given.get("tls"))
    return _of_context(environ.get("DOCKER_CONTEXT"))


def _of_environment(url: str, tls: TLSConfig | None) -> EngineAddress:
    try:
        parse_host(url)
    except (DockerException, ValueError) as e:
        raise Unready(_no_address(url)) from e
    return EngineAddress(url, "from DOCKER_HOST", tls)


def _of_context(name: str | None) -> EngineAddress:
    try:
        context = ContextAPI.get_context(name)
    except Exception as e:  # the SDK raises Exception itself for a malformed file
        raise Unready(_bad_context(name or "in use", str(e))) from e
    if context is None:
        raise Unready(_bad_context(name or "in use", "there is no such context"))
    origin = "the default" if context.name == "default" else f"from the context {context.name}"
    return EngineAddress(str(context.Host).removeprefix("http+"), origin, context.TLSConfig or None)


def _open_in_thread(timeout_s: float, where: EngineAddress) -> DockerClient:
    """Open a client in a thread, because the SDK sets no deadline for an ssh:// address."""
    return start_thread(partial(_open, where, timeout_s)).result(timeout_s + 1)


def _open(where: EngineAddress, timeout_s: float) -> DockerClient:
    """Return a client. Making it asks for the version, so this is the ping as well."""
    return DockerClient(
        base_url=where.url,
        tls=where.tls or False,
        timeout=timeout_s,
        max_pool_size=CONNECTIONS_KEPT,
        version="auto",
    )


def _unusable(client: DockerClient) -> Iterator[Problem]:
    with translate_errors("the Docker engine does not say what it is"):
        runs = client.info().get("OSType", "linux")
    if runs != "linux":
        yield Problem(
            f"the Docker engine at {address()} runs Windows containers",
            _ENGINES_MATTER,
            "switch it to Linux containers, or set DOCKER_HOST to an engine on Linux",
        )


# -------------------------------------------------------------------------------- explaining


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise failures of calls to the engine as BedFailed: `what` failed, why, and what to do."""
    try:
        yield
    except FAILURES as e:
        raise BedFailed(f"{what}: {_reason(e)}") from e


def _reason(e: BaseException) -> str:
    if isinstance(e, APIError):
        text = " ".join(str(e.explanation or e).split()).rstrip(".")
        remedy = _remedy(text)
        return f"the engine says {text!r}" + (f"; to fix it: {remedy}" if remedy else "")
    if problem := _known_problem(e, address()):
        return problem.advice()
    return _last_line(e)


def _remedy(text: str) -> str:
    fixes = (fix for fragment, fix in _API_REMEDIES.items() if fragment in text.lower())
    return next(fixes, "")


def _explain(e: BaseException, where: EngineAddress) -> Problem:
    if problem := _known_problem(e, where):
        return problem
    cause = next((c for c in _chain(e) if isinstance(c, OSError) and c.errno), e)
    what = f"no Docker engine can be used at {where}: {_last_line(cause)}"
    return Problem(what, _ENGINES_MATTER, _CHECK_ADDRESS)


def _known_problem(e: BaseException, where: EngineAddress) -> Problem | None:
    """Return the problem of the first known exception in the chain of causes."""
    for cause in _chain(e):
        for kind, (what, fix) in _KNOWN.items():
            if isinstance(cause, kind):
                what = what.format(where=where, user=_user(), text=_last_line(cause))
                return Problem(what, _ENGINES_MATTER, fix if isinstance(fix, str) else fix(cause))
    return None


def _chain(e: BaseException) -> list[BaseException]:
    """Return an exception, what it wraps and its causes, the innermost first."""
    found: list[BaseException] = []
    left: list[Any] = [e]
    while left:
        cause = left.pop()
        if isinstance(cause, BaseException) and not any(cause is known for known in found):
            found.append(cause)
            left += [
                *cause.args,
                getattr(cause, "reason", None),
                cause.__cause__,
                cause.__context__,
            ]
    return found[::-1]


def _untrusted(e: BaseException) -> str:
    fix = "check that DOCKER_CERT_PATH holds the ca.pem, cert.pem and key.pem of this engine"
    if bundles := [name for name in CA_BUNDLES if os.environ.get(name)]:
        return f"unset {' and '.join(bundles)}, which the SDK reads instead of ca.pem, or {fix}"
    return fix


def _refusal_remedy(e: BaseException) -> str:
    return _remedy(_last_line(e)) or _CHECK_ADDRESS


# the innermost exception -> what is wrong, and how to fix it; special cases before general ones.
# Fields: {where} the engine's address, {user} this user, {text} the exception's text.
_KNOWN: Mapping[type[BaseException], tuple[str, str | Callable[[BaseException], str]]] = {
    InvalidVersion: (
        "the Docker engine at {where} is too old: it does not support API "
        f"{MINIMUM_DOCKER_API_VERSION}",
        "upgrade it to Docker 20.10 or later",
    ),
    paramiko.AuthenticationException: (
        "the machine of the Docker engine at {where} accepts none of our SSH keys",
        "check that `ssh HOST docker version` works without a password; ssh-add loads a key",
    ),
    paramiko.ssh_exception.NoValidConnectionsError: (_REFUSED, _START),
    paramiko.SSHException: (
        "the SSH connection to the machine of the Docker engine at {where} failed: {text}",
        "check that `ssh HOST docker version` works; its host key must be in ~/.ssh/known_hosts",
    ),
    ssl.SSLError: (_UNTRUSTED, _untrusted),
    requests.exceptions.SSLError: (_UNTRUSTED, _untrusted),
    socket.gaierror: ("the name in the Docker address {where} cannot be resolved", _CHECK_ADDRESS),
    FileNotFoundError: ("no Docker engine runs at {where}: there is no such socket", _START),
    PermissionError: (
        "the user {user} may not use the Docker engine at {where}",
        "join its group (sudo usermod -aG docker $USER) and log in again, or set DOCKER_HOST to a "
        "rootless engine of your own",
    ),
    ConnectionRefusedError: (_REFUSED, _START),
    TimeoutError: (_SILENT, _RESTART),
    requests.exceptions.Timeout: (_SILENT, _RESTART),
    EOFError: (_NO_ENGINE, _CHECK_ADDRESS),
    ConnectionError: (_NO_ENGINE, _CHECK_ADDRESS),
    APIError: ("the Docker engine at {where} refuses the connection: {text}", _refusal_remedy),
    ValueError: (_NO_ENGINE, _CHECK_ADDRESS),
}


def _without_certificates(e: BaseException) -> Problem:
    folder = os.environ.get("DOCKER_CERT_PATH") or "~/.docker"
    return Problem(
        f"DOCKER_TLS_VERIFY or DOCKER_CERT_PATH is set, but {folder} has no cert.pem and key.pem",
        _ENGINES_MATTER,
        "unset both, or point DOCKER_CERT_PATH to the folder of the engine's certificates",
    )


def _no_address(url: str) -> Problem:
    return Problem(
        f"DOCKER_HOST={url} is not the address of a Docker engine",
        _ENGINES_MATTER,
        "set it to unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST, or unset it",
    )


def _bad_context(name: str, text: str) -> Problem:
    return Problem(
        f"the docker context {name} cannot be used: {text}",
        _ENGINES_MATTER,
        "choose another of `docker context ls` with `docker context use`, or set DOCKER_HOST",
    )


def _last_line(e: BaseException) -> str:
    words = " ".join(str(getattr(e, "explanation", None) or e).split()).removeprefix(
        "Error while fetching server API version: "
    )
    return words[:200].rstrip(".") or type(e).__name__


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"number {os.geteuid()}"
