"""The image of the nodes, built once and found by its content.

Its name is a hash of the Dockerfile, of the base and of our own code, so a change of any of them
makes another image. There are two bases: the requested one (by default python:3.11-slim), if the
engine has it or can pull it; and, if none was requested and no registry can be reached, programs of
this machine (`clusters.images.local_base`). Building needs no pip and, on the second base, no
network. A run leaves nothing on an engine but these images; all carry the label `seatrial=image`:

    docker image prune --all --filter label=seatrial=image
"""

import hashlib
import io
import queue
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import BuildError, ImageNotFound
from docker.utils import parse_repository_tag

from clusters.hosts._agent import archive
from clusters.hosts.docker.engine import FAILURES, translate_errors
from clusters.images import local_base
from harness.contracts import ContainerNeeds
from harness.errors import BedFailed
from harness.text.sanitize import STYLES

DEFAULT_BASE = "python:3.11-slim"
NODE, LOCAL_BASE = "seatrial-node", "seatrial-base"  # repositories
PYTHON, PACKAGES = "python3", "/opt/seatrial"  # of `harness.contracts.Python`, in a container
PULL_SILENCE_S = 20.0  # without an event from the registry
DOCKERFILE = Path(local_base.__file__).with_name("Dockerfile")
BUILDERS_OWN = ("Step ", "--->", "Removing intermediate", "Removal intermediate")

NOTHING = ContainerNeeds()
Say = Callable[[str], None]


def image(client: DockerClient, base: str, say: Say, needs: ContainerNeeds = NOTHING) -> str:
    """Return the tag of an image for nodes; build it if it is missing. `base`: empty for the
    default; `needs`: of the system that nodes run.

    Raises BedFailed if there is no base, or if the build fails.
    """
    chosen = _base(client, base, say, needs.files)
    ours = _name_of(chosen).startswith(f"{LOCAL_BASE}:")
    packages = "" if ours else _packages(needs)
    tag = f"{NODE}:{_content_hash(chosen, packages)}"
    if _find(client, tag) is None:
        _build(client, chosen, tag, say, packages)
    return tag


def _packages(needs: ContainerNeeds) -> str:
    """Return the packages as the Dockerfile takes them: PACKAGE:PROGRAM:PROGRAM, with spaces
    between them."""
    return " ".join(":".join([package, *having]) for package, having in needs.packages.items())


def _content_hash(base: Any, packages: str) -> str:
    code = archive.archive()
    parts = (DOCKERFILE.read_bytes(), str(base.id).encode(), packages.encode(), code)
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(digests).hexdigest()[:16]


def _find(client: DockerClient, name: str) -> Any | None:
    with translate_errors(f"the engine does not say whether it has the image {name}"):
        try:
            return client.images.get(name)
        except ImageNotFound:
            return None


# ------------------------------------------------------------------------------------ the base


def _base(client: DockerClient, named: str, say: Say, files: Sequence[str]) -> Any:
    """Return the image to build on: an existing one before one that has to be pulled or made."""
    wanted = named or DEFAULT_BASE
    if image := _find(client, wanted):
        return image
    if not named and (made := _local_base_if_made(client, files)):
        return made
    refused = _pull(client, wanted, say)
    if not refused and (image := _find(client, wanted)):
        return image
    if named:
        raise BedFailed(
            f"the image {named} (--bed base) is not on the engine and cannot be pulled: {refused}; "
            "to fix it: correct its name, load it with `docker load`, or leave out --bed base"
        )
    say(f"{wanted} cannot be pulled ({refused}): making a base of this machine's own programs")
    return _make_local_base(client, files)


def _pull(client: DockerClient, name: str, say: Say) -> str:
    """Pull an image; return why that failed, or an empty string."""
    repository, tag = parse_repository_tag(name)
    say(f"pulling {name}")
    try:
        for event in _each_within(PULL_SILENCE_S, lambda: _pull_events(client, repository, tag)):
            if error := event.get("error"):
                return " ".join(str(error).split())
    except TimeoutError:
        return f"no answer of the registry for {PULL_SILENCE_S:g} s"
    except FAILURES as e:
        return " ".join(str(getattr(e, "explanation", None) or e).split())
    return ""


def _pull_events(
    client: DockerClient, repository: str, tag: str | None
) -> Iterator[dict[str, Any]]:
    events: Iterator[dict[str, Any]] = client.api.pull(
        repository, tag=tag or "latest", stream=True, decode=True
    )
    return events


def _each_within(
    silence_s: float, events: Callable[[], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Yield the events, read in a thread, because the SDK waits for a registry without a deadline.

    Raises TimeoutError after a silence.
    """
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


def _local_base_if_made(client: DockerClient, files: Sequence[str]) -> Any | None:
    try:
        return _find(client, f"{LOCAL_BASE}:{local_base.name(files)}")
    except (BedFailed, OSError):  # it cannot be made here; fail only if it is needed
        return None


def _make_local_base(client: DockerClient, files: Sequence[str]) -> Any:
    _check_architecture(client)
    try:
        name, packed = local_base.name(files), local_base.archive(files)
    except OSError as e:
        raise BedFailed(
            f"no registry can be reached, and reading this machine's own programs failed: {e}; "
            f"to fix it: give the engine a base with `docker load` and --bed base={DEFAULT_BASE}"
        ) from e
    with translate_errors("the base of this machine's programs cannot be put on the engine"):
        client.api.import_image_from_data(
            packed, LOCAL_BASE, name, changes=["LABEL seatrial=image", 'CMD ["sleep", "infinity"]']
        )
        return client.images.get(f"{LOCAL_BASE}:{name}")


def _check_architecture(client: DockerClient) -> None:
    with translate_errors("the engine does not say what it runs on"):
        theirs = client.version().get("Arch", "")
    if theirs and theirs != local_base.machine():
        raise BedFailed(
            f"no registry can be reached, and this machine's programs ({local_base.machine()}) do "
            f"not run on the engine's ({theirs}); to fix it: give the engine a base with "
            f"`docker load`, {DEFAULT_BASE} for example"
        )


# --------------------------------------------------------------------------------- building


def _build(client: DockerClient, base: Any, tag: str, say: Say, packages: str) -> None:
    say(f"building the node image {tag}, once for this version of the code")
    ours = _name_of(base).startswith(f"{LOCAL_BASE}:")
    with translate_errors(f"the node image cannot be built on {_name_of(base)}"):
        try:
            client.images.build(
                fileobj=io.BytesIO(_context()),
                custom_context=True,
                buildargs={"BASE": base.id, "PACKAGES": packages},
                tag=tag,
                rm=True,
                forcerm=True,
                network_mode="none" if ours else None,
            )
        except BuildError as e:
            raise BedFailed(_why_not_built(e, base)) from e


def _context() -> bytes:
    """Return the build context: the Dockerfile and our code."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in (
            ("Dockerfile", DOCKERFILE.read_bytes()),
            ("seatrial.tar.gz", archive.archive()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _name_of(base: Any) -> str:
    return str(base.tags[0] if base.tags else base.id)


def _why_not_built(e: BuildError, base: Any) -> str:
    """Return an error message with the last line that the build printed."""
    printed = "".join(str(line.get("stream", "")) for line in e.build_log)
    lines = [line.strip() for line in STYLES.sub("", printed).splitlines()]
    output = [line for line in lines if line and not line.startswith(BUILDERS_OWN)]
    last = output[-1] if output else str(e.msg)
    return (
        f"the node image cannot be built on {_name_of(base)}: {last.rstrip('.')}; to fix it: "
        "choose a base that has Python 3.11, iptables, ip and ps, with --bed base=NAME"
    )
