"""The Docker engine: where it is, whether it answers, and, if not, why and what to do about it.

The address is found as the `docker` command finds it: DOCKER_HOST (with DOCKER_TLS_VERIFY and
DOCKER_CERT_PATH), else the context that DOCKER_CONTEXT or `docker context use` chose, else the
socket of this machine. Whatever keeps the engine from answering ends as one sentence with that
address in it, because most failures are a wrong address.

The SDK wraps causes in causes (a DockerException of a ConnectionError of a ProtocolError of a
FileNotFoundError), and passes some through bare (paramiko's). So a failure is explained by the
first thing known in its chain, never by its class alone.
"""

import os
import pwd
import socket
import ssl
from collections.abc import Iterator, Mapping
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

from clusters.hosts._agent.errors import Unready
from clusters.hosts._agent.threads import started
from clusters.hosts.local.requirements import Problem
from harness.errors import BedFailed

CONNECT_WITHIN_S = 5.0
CALL_WITHIN_S = 120.0
CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
CONNECTIONS_KEPT = 64  # one for each thread that raises a node
FAILURES = (DockerException, requests.RequestException, paramiko.SSHException, OSError, EOFError)
_ENGINES_MATTER = "the nodes of a trial on Docker hosts are containers of this engine"
_START = (
    "start the engine (sudo systemctl start docker), or set DOCKER_HOST to the address of one "
    "that runs"
)
_CHECK_ADDRESS = "correct DOCKER_HOST, or choose another with `docker context use`"
_API_REMEDIES = {  # what an engine says -> what helps
    "overlaps with other one": "choose a free one with --bed subnet=198.18.N.0/24",
    "is already in use": "remove what an earlier run left with `seatrial heal --all`",
    "range of cpus": "lower bed.cpus to what the engine's machine has",
    "no space left": "make room on the engine's disk (docker system prune)",
    "no chain/target/match": "restart the engine: its iptables rules were removed under it",
    "iptables failed": "restart the engine: its iptables rules were changed under it",
    "cgroup": "see that the engine may set resource limits (docker info shows warnings)",
    "executable file not found": "remove the image (docker image rm), it is built anew",
    "http request to an https": "this engine wants TLS: set DOCKER_TLS_VERIFY and DOCKER_CERT_PATH",
    "invalid reference format": "write the image as NAME:TAG (--bed base=python:3.11-slim)",
    "unpause": "resume it with `docker unpause`",
}


@dataclass(frozen=True)
class Address:
    """Where the engine is, and who said so. `tls`: as `DockerClient` takes it."""

    url: str
    origin: str
    tls: TLSConfig | None = None

    def __str__(self) -> str:
        return f"{self.url} ({self.origin})"


# -------------------------------------------------------------------------------- connecting


def connect() -> DockerClient:
    """A client of the engine in use, which has answered. BedFailed: why there is none."""
    where = address()
    try:
        client = _within(CONNECT_WITHIN_S, where)
    except (*FAILURES, ValueError) as e:
        raise Unready(_explained(e, where)) from e
    client.api.timeout = CALL_WITHIN_S
    return client


def problems() -> list[Problem]:
    """Why no engine can be used; nothing: it answers, and runs Linux containers."""
    try:
        client = connect()
    except Unready as e:
        return [e.problem]
    with closing(client):
        try:
            return list(_unfit(client))
        except BedFailed as e:
            return [Problem(str(e), _ENGINES_MATTER, "see what `docker info` says")]


def address(environ: Mapping[str, str] = os.environ) -> Address:
    """Where the `docker` command would look for the engine. BedFailed: nowhere sensible."""
    try:
        given = kwargs_from_env(environment=dict(environ))
    except TLSParameterError as e:
        raise Unready(_without_certificates(e)) from e
    if "base_url" in given:
        return _given(given["base_url"].strip(), given.get("tls"))
    return _of_context(environ.get("DOCKER_CONTEXT"))


def _given(url: str, tls: TLSConfig | None) -> Address:
    try:
        parse_host(url)
    except (DockerException, ValueError) as e:
        raise Unready(_no_address(url)) from e
    return Address(url, "from DOCKER_HOST", tls)


def _of_context(name: str | None) -> Address:
    try:
        context = ContextAPI.get_context(name)
    except Exception as e:  # the SDK raises the bare class for a torn file
        raise Unready(_bad_context(name or "in use", str(e))) from e
    if context is None:
        raise Unready(_bad_context(name or "in use", "there is no such context"))
    origin = "the default" if context.name == "default" else f"from the context {context.name}"
    return Address(str(context.Host).removeprefix("http+"), origin, context.TLSConfig or None)


def _within(timeout_s: float, where: Address) -> DockerClient:
    """Open it in a thread of its own, because the SDK sets no deadline for an ssh:// address."""
    return started(partial(_opened, where, timeout_s)).result(timeout_s + 1)


def _opened(where: Address, timeout_s: float) -> DockerClient:
    """Making the client asks for the version, so this is the ping as well."""
    return DockerClient(
        base_url=where.url,
        tls=where.tls or False,
        timeout=timeout_s,
        max_pool_size=CONNECTIONS_KEPT,
        version="auto",
    )


def _unfit(client: DockerClient) -> Iterator[Problem]:
    with translated("the Docker engine does not say what it is"):
        runs = client.info().get("OSType", "linux")
    if runs != "linux":
        yield Problem(
            f"the Docker engine at {address()} runs Windows containers",
            _ENGINES_MATTER,
            "switch it to Linux containers, or set DOCKER_HOST to an engine on Linux",
        )


# -------------------------------------------------------------------------------- explaining


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Within it, a failing call to the engine is BedFailed: `what` went wrong, why, what helps."""
    try:
        yield
    except FAILURES as e:
        raise BedFailed(f"{what}: {_reason(e)}") from e


def _reason(e: BaseException) -> str:
    if isinstance(e, APIError):
        said = " ".join(str(e.explanation or e).split()).rstrip(".")
        remedy = _remedy(said)
        return f"the engine says {said!r}" + (f"; to fix it: {remedy}" if remedy else "")
    if problem := _known(e, address()):
        return problem.advice()
    return _last_words(e)


def _remedy(said: str) -> str:
    known = (fix for fragment, fix in _API_REMEDIES.items() if fragment in said.lower())
    return next(known, "")


def _explained(e: BaseException, where: Address) -> Problem:
    if problem := _known(e, where):
        return problem
    told = next((c for c in _chain(e) if isinstance(c, OSError) and c.errno), e)
    what = f"no Docker engine can be used at {where}: {_last_words(told)}"
    return Problem(what, _ENGINES_MATTER, _CHECK_ADDRESS)


def _known(e: BaseException, where: Address) -> Problem | None:
    """The first thing in the chain of causes that we know."""
    for cause in _chain(e):
        for known, explain in _KNOWN.items():
            if isinstance(cause, known):
                what, fix = explain(where, cause)
                return Problem(what, _ENGINES_MATTER, fix)
    return None


def _chain(e: BaseException) -> list[BaseException]:
    """An exception, what it wraps and what caused it: the innermost first."""
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


def _no_socket(where: Address, _: BaseException) -> tuple[str, str]:
    return f"no Docker engine runs at {where}: there is no such socket", _START


def _refused(where: Address, _: BaseException) -> tuple[str, str]:
    return f"no Docker engine answers at {where}: the connection was refused", _START


def _not_allowed(where: Address, _: BaseException) -> tuple[str, str]:
    return (
        f"the user {_user()} may not use the Docker engine at {where}",
        "join its group (sudo usermod -aG docker $USER) and log in again, or set DOCKER_HOST to a "
        "rootless engine of your own",
    )


def _unresolved(where: Address, _: BaseException) -> tuple[str, str]:
    return f"the name in the Docker address {where} cannot be resolved", _CHECK_ADDRESS


def _silent(where: Address, _: BaseException) -> tuple[str, str]:
    return (
        f"the Docker engine at {where} gave no answer within its time",
        "see whether it answers `docker version`; restart it, or correct DOCKER_HOST",
    )


def _too_old(where: Address, _: BaseException) -> tuple[str, str]:
    return (
        f"the Docker engine at {where} is too old: it speaks no API {MINIMUM_DOCKER_API_VERSION}",
        "upgrade it to Docker 20.10 or later",
    )


def _untrusted(where: Address, e: BaseException) -> tuple[str, str]:
    fix = "see that DOCKER_CERT_PATH holds the ca.pem, cert.pem and key.pem of this engine"
    if bundles := [name for name in CA_BUNDLES if os.environ.get(name)]:
        fix = f"unset {' and '.join(bundles)}, which the SDK reads instead of ca.pem, or {fix}"
    said = _last_words(e)
    return f"the Docker engine at {where} cannot be trusted: TLS says {said}", fix


def _ssh_key_refused(where: Address, _: BaseException) -> tuple[str, str]:
    return (
        f"the machine of the Docker engine at {where} accepts none of our SSH keys",
        "see that `ssh HOST docker version` works without a password; ssh-add loads a key",
    )


def _ssh_failed(where: Address, e: BaseException) -> tuple[str, str]:
    return (
        f"the machine of the Docker engine at {where} cannot be entered by SSH: {_last_words(e)}",
        "see that `ssh HOST docker version` works; its host key must be in ~/.ssh/known_hosts",
    )


def _closed(where: Address, _: BaseException) -> tuple[str, str]:
    return f"what answers at {where} is no Docker engine", _CHECK_ADDRESS


def _said(where: Address, e: BaseException) -> tuple[str, str]:
    said = _last_words(Exception(getattr(e, "explanation", None) or e))
    return f"the Docker engine at {where} refuses to talk: {said}", _remedy(said) or _CHECK_ADDRESS


_KNOWN = {  # the innermost exception -> the sentence; the special before the general
    InvalidVersion: _too_old,
    paramiko.AuthenticationException: _ssh_key_refused,
    paramiko.ssh_exception.NoValidConnectionsError: _refused,
    paramiko.SSHException: _ssh_failed,
    ssl.SSLError: _untrusted,
    requests.exceptions.SSLError: _untrusted,
    socket.gaierror: _unresolved,
    FileNotFoundError: _no_socket,
    PermissionError: _not_allowed,
    ConnectionRefusedError: _refused,
    TimeoutError: _silent,
    requests.exceptions.Timeout: _silent,
    EOFError: _closed,
    ConnectionError: _closed,
    APIError: _said,
    ValueError: _closed,
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


def _bad_context(name: str, said: str) -> Problem:
    return Problem(
        f"the docker context {name} cannot be used: {said}",
        _ENGINES_MATTER,
        "choose another of `docker context ls` with `docker context use`, or set DOCKER_HOST",
    )


def _last_words(e: BaseException) -> str:
    words = " ".join(str(e).split()).removeprefix("Error while fetching server API version: ")
    return words[:200].rstrip(".") or type(e).__name__


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"number {os.geteuid()}"
