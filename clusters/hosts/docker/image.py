"""The image that nodes are made of: built once, found again by what is in it.

Its name is a hash of the Dockerfile, of the base and of our own code, so that a change of any makes
another image and nothing else does. There are two bases: the one that was asked for (by default
python:3.11-slim), if the engine has it or can pull it; and, where nobody asked for one and no
registry is in reach, programs of this machine (`clusters.images.local_base`). Neither pip nor, on
the second, any network is needed. What a run leaves on an engine are these images and nothing else;
all carry the label `seatrial=image`:

    docker image prune --all --filter label=seatrial=image
"""

import hashlib
import io
import queue
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import BuildError, ImageNotFound
from docker.utils import parse_repository_tag

from clusters.hosts._agent import archive as _archive
from clusters.hosts.docker.engine import FAILURES, translated
from clusters.images import local_base
from harness.errors import BedFailed

DEFAULT_BASE = "python:3.11-slim"
NODE, LOCAL_BASE = "seatrial-node", "seatrial-base"  # repositories
PYTHON, PACKAGES = "python3", "/opt/seatrial"  # of `harness.contracts.Python`, in a container
PULL_SILENCE_S = 20.0  # without a word from the registry
DOCKERFILE = Path(local_base.__file__).with_name("Dockerfile")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
BUILDERS_OWN = ("Step ", "--->", "Removing intermediate", "Removed intermediate")

Say = Callable[[str], None]


def image(client: DockerClient, base: str, say: Say) -> str:
    """The tag of an image for nodes, built if it is not there; `base`: empty for the default.

    BedFailed: there is no base, or building on it went wrong.
    """
    chosen = _base(client, base, say)
    tag = f"{NODE}:{_content(chosen)}"
    if _there(client, tag) is None:
        _build(client, chosen, tag, say)
    return tag


def _content(base: Any) -> str:
    parts = (DOCKERFILE.read_bytes(), str(base.id).encode(), _archive.archive())
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(digests).hexdigest()[:16]


def _there(client: DockerClient, name: str) -> Any | None:
    with translated(f"the engine does not say whether it has the image {name}"):
        try:
            return client.images.get(name)
        except ImageNotFound:
            return None


# ------------------------------------------------------------------------------------ the base


def _base(client: DockerClient, named: str, say: Say) -> Any:
    """The image to build on: what is there already before what has to be fetched or made."""
    wanted = named or DEFAULT_BASE
    if found := _there(client, wanted):
        return found
    if not named and (made := _local_base_if_made(client)):
        return made
    refused = _pull(client, wanted, say)
    if not refused and (found := _there(client, wanted)):
        return found
    if named:
        raise BedFailed(
            f"the image {named} (--bed base) is not on the engine and cannot be pulled: {refused}; "
            "to fix it: correct its name, load it with `docker load`, or leave --bed base away"
        )
    say(f"{wanted} cannot be pulled ({refused}): making a base of this machine's own programs")
    return _make_local_base(client)


def _pull(client: DockerClient, name: str, say: Say) -> str:
    """Pull it; why that did not work, or nothing."""
    repository, tag = parse_repository_tag(name)
    say(f"pulling {name}")
    try:
        for event in _each_within(PULL_SILENCE_S, lambda: _pulled(client, repository, tag)):
            if error := event.get("error"):
                return " ".join(str(error).split())
    except TimeoutError:
        return f"no word from the registry for {PULL_SILENCE_S:g} s"
    except FAILURES as e:
        return " ".join(str(getattr(e, "explanation", None) or e).split())
    return ""


def _pulled(client: DockerClient, repository: str, tag: str | None) -> Iterator[dict[str, Any]]:
    events: Iterator[dict[str, Any]] = client.api.pull(
        repository, tag=tag or "latest", stream=True, decode=True
    )
    return events


def _each_within(
    silence_s: float, events: Callable[[], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """The events, read in a thread, because the SDK waits for a registry without a deadline."""
    read: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()

    def pass_on() -> None:
        try:
            for event in events():
                read.put(event)
            read.put(None)
        except Exception as e:
            read.put(e)

    threading.Thread(target=pass_on, name="docker-pull", daemon=True).start()
    while True:
        try:
            event = read.get(timeout=silence_s)
        except queue.Empty:
            raise TimeoutError from None
        if event is None:
            return
        if isinstance(event, BaseException):
            raise event
        yield event


def _local_base_if_made(client: DockerClient) -> Any | None:
    try:
        return _there(client, f"{LOCAL_BASE}:{local_base.name()}")
    except (BedFailed, OSError):  # it cannot be made here: no reason to fail before it is needed
        return None


def _make_local_base(client: DockerClient) -> Any:
    _demand_same_machine(client)
    try:
        name, packed = local_base.name(), local_base.archive()
    except OSError as e:
        raise BedFailed(
            f"no registry can be reached, and reading this machine's own programs failed: {e}; "
            f"to fix it: give the engine a base with `docker load` and --bed base={DEFAULT_BASE}"
        ) from e
    with translated("the base of this machine's programs cannot be put on the engine"):
        client.api.import_image_from_data(
            packed, LOCAL_BASE, name, changes=["LABEL seatrial=image", 'CMD ["sleep", "infinity"]']
        )
        return client.images.get(f"{LOCAL_BASE}:{name}")


def _demand_same_machine(client: DockerClient) -> None:
    with translated("the engine does not say what it runs on"):
        theirs = client.version().get("Arch", "")
    if theirs and theirs != local_base.machine():
        raise BedFailed(
            f"no registry can be reached, and this machine's programs ({local_base.machine()}) do "
            f"not run on the engine's ({theirs}); to fix it: give the engine a base with "
            f"`docker load`, {DEFAULT_BASE} for example"
        )


# --------------------------------------------------------------------------------- building


def _build(client: DockerClient, base: Any, tag: str, say: Say) -> None:
    say(f"building the node image {tag}, once for this version of the code")
    ours = _called(base).startswith(f"{LOCAL_BASE}:")
    with translated(f"the node image cannot be built on {_called(base)}"):
        try:
            client.images.build(
                fileobj=io.BytesIO(_context()),
                custom_context=True,
                buildargs={"BASE": base.id},
                tag=tag,
                rm=True,
                forcerm=True,
                network_mode="none" if ours else None,
            )
        except BuildError as e:
            raise BedFailed(_why_not_built(e, base)) from e


def _context() -> bytes:
    """What the Dockerfile is built with: itself, and our code."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in (
            ("Dockerfile", DOCKERFILE.read_bytes()),
            ("seatrial.tar.gz", _archive.archive()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _called(base: Any) -> str:
    return str(base.tags[0] if base.tags else base.id)


def _why_not_built(e: BuildError, base: Any) -> str:
    """The last line that the build printed, which says more than the SDK does."""
    printed = "".join(str(line.get("stream", "")) for line in e.build_log)
    lines = [line.strip() for line in ESCAPES.sub("", printed).splitlines()]
    told = [line for line in lines if line and not line.startswith(BUILDERS_OWN)]
    last = told[-1] if told else str(e.msg)
    return (
        f"the node image cannot be built on {_called(base)}: {last.rstrip('.')}; to fix it: choose "
        "a base that has Python 3.11, iptables, ip and ps, with --bed base=NAME"
    )
