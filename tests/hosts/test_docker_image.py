"""The node image: made without a registry, made once, and with the right content.

A real engine without any network builds it (tests/labs). Most of these tests use the base of this
machine's programs, since it needs nothing.
"""

import contextlib
import gzip
import hashlib
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import image_registry
import pytest
from docker import DockerClient
from docker_lab import DockerLab

from clusters.hosts._agent import archive as _archive
from clusters.hosts.docker import image as _docker_image
from clusters.images import local_base
from harness import registry
from harness.contracts import ContainerNeeds
from harness.errors import BedFailed

pytestmark = pytest.mark.bed

LOSS = """*filter
:SEATRIAL - [0:0]
-A INPUT -j SEATRIAL
-A SEATRIAL -s 198.18.0.9 -m statistic --mode random --probability 0.8 -j DROP
COMMIT
"""
NOTHING = ContainerNeeds()
ALONE = "ERL_FLAGS='-start_epmd false -dist_listen false' HOME=/tmp"
Serve = Callable[..., str]


class Client:
    """A client of the lab's engine, and the messages during builds."""

    def __init__(self, docker: DockerClient) -> None:
        self.docker = docker
        self.said: list[str] = []

    def image(self, base: str = "", needs: ContainerNeeds = NOTHING) -> str:
        self.said.clear()
        return _docker_image.image(self.docker, base, self.said.append, needs)

    def ids(self) -> set[str]:
        return {str(image.id) for image in self.docker.images.list()}

    def run(self, image: str, *argv: str, stdin: str = "") -> str:
        """Return a command's output in a container as bare as a node's, without any network."""
        script = f"cat <<'END' | {' '.join(argv)}\n{stdin}END\n"
        out: bytes = self.docker.containers.run(
            image,
            ["sh", "-ec", script if stdin else " ".join(argv)],
            cap_drop=["ALL"],
            cap_add=["NET_ADMIN"],
            network_mode="none",
            init=True,
            stderr=True,
            remove=True,
        )
        return out.decode()


@pytest.fixture(scope="module")
def client(docker_lab: DockerLab) -> Iterator[Client]:
    with contextlib.closing(DockerClient(docker_lab.host)) as docker:
        yield Client(docker)


@pytest.fixture(scope="module")
def node(client: Client) -> str:
    return client.image()


@pytest.fixture(scope="module")
def local() -> bytes:
    """The base of this machine's programs."""
    return local_base.archive()


@pytest.fixture
def serve(docker_lab: DockerLab, tmp_path: Path) -> Iterator[Serve]:
    """Start a registry beside the engine; return the name of its image."""
    with contextlib.ExitStack() as running:

        def start(port: int, layer: bytes = b"", *how: str) -> str:
            file = tmp_path / f"{port}.tar"
            file.write_bytes(layer)
            argv = [sys.executable, image_registry.__file__, str(file), str(port), *how]
            process = running.enter_context(
                subprocess.Popen(
                    docker_lab.inside(argv),
                    env=docker_lab.environment,
                    stdout=subprocess.PIPE,
                )
            )
            running.callback(process.kill)
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            return f"127.0.0.1:{port}/base:1"

        yield start


def with_a_new_file(archive: bytes) -> bytes:
    """The code with another file."""
    out = io.BytesIO(gzip.decompress(archive))
    with tarfile.open(fileobj=out, mode="a") as tar:
        member = tarfile.TarInfo("harness/newer.py")
        member.size = 10
        tar.addfile(member, io.BytesIO(b"NEWER = 1\n"))
    return gzip.compress(out.getvalue(), mtime=0)


def without(tar: bytes, *names: str) -> bytes:
    """The same base without a program."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(tar)) as old,
        tarfile.open(fileobj=out, mode="w") as new,
    ):
        for member in old:
            if member.name.rsplit("/", 1)[-1] not in names:
                new.addfile(member, old.extractfile(member) if member.isreg() else None)
    return out.getvalue()


# -------------------------------------------------------------------- building and finding again


def test_it_is_built_once(client: Client, node: str) -> None:
    """Without a registry the base is made of this machine; the second time nothing is done."""
    before = client.ids()
    assert client.image() == node
    assert client.said == []
    assert client.ids() == before


def test_new_code_makes_a_new_image(
    client: Client, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name follows the content; the base stays; the old image is still there."""
    newer = with_a_new_file(_archive.archive())
    monkeypatch.setattr(_archive, "archive", lambda: newer)
    name = client.image()
    assert name != node
    assert len(client.said) == 1
    assert "building the node image" in client.said[0]
    assert client.run(name, "cat /opt/seatrial/harness/newer.py") == "NEWER = 1\n"
    monkeypatch.undo()
    assert client.image() == node
    assert client.said == []


def test_nothing_but_images_stays(client: Client, node: str) -> None:
    """No container, volume or network remains of a build, and every image is labelled as ours."""
    assert client.docker.containers.list(all=True) == []
    assert client.docker.volumes.list() == []
    assert {n.name for n in client.docker.networks.list()} == {"bridge", "host", "none"}
    built = [i for i in client.docker.images.list() if any("seatrial" in t for t in i.tags)]
    assert len(built) >= 2
    assert all(image.labels.get("seatrial") == "image" for image in built)


# ----------------------------------------------------------------------------- what is in it


def test_a_node_can_do_its_work_with_one_capability(client: Client, node: str) -> None:
    """NET_ADMIN and no other capability, no network: Python, rules with chance, ip and ps."""
    version = client.run(node, "python3 -c 'import sys; print(sys.version_info >= (3, 11))'")
    assert version == "True\n"
    rules = client.run(node, "iptables-restore -w --noflush && iptables-save", stdin=LOSS)
    assert "-A SEATRIAL -s 198.18.0.9/32 -m statistic --mode random --probability 0." in rules
    assert "lo" in client.run(node, "ip -batch -", stdin="link set lo up\naddr show dev lo\n")
    assert "ps" in client.run(node, "ps -e -o pid,stat,args")


def test_our_code_runs_and_is_compiled_already(client: Client, node: str) -> None:
    """A node imports the cluster and the agent from the image, and compiles nothing."""
    started = "import clusters.flotilla.node, clusters.hosts._agent.agent, tomli_w"
    argv = f"python3 -S -s -v -c '{started}' 2>&1"
    out = client.run(node, f"cd /opt/seatrial && {argv} | grep -c -E '^# wrote|could not' || true")
    assert out == "0\n"
    owner = client.run(node, "find /opt/seatrial -name '*.py' ! -user root | wc -l")
    assert owner == "0\n"


def test_the_local_base_is_the_same_each_time(local: bytes) -> None:
    """The same machine gives the same bytes and the same name, without files of users."""
    assert hashlib.sha256(local_base.archive()).digest() == hashlib.sha256(local).digest()
    assert local_base.name() == local_base.name()
    with tarfile.open(fileobj=io.BytesIO(local)) as tar:
        members = {member.name: member for member in tar}
    assert not [name for name in members if name.startswith(("home/", "var/", "opt/"))]
    assert not [name for name in members if "site-packages" in name or "dist-packages/" in name]
    assert {(m.uid, m.gid, m.uname) for m in members.values()} == {(0, 0, "")}
    assert not members["etc/passwd"].size > 200


def test_the_interpreter_that_runs_this_will_do(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the machine's own Python is too old, the running one is used, wherever it is."""
    monkeypatch.setattr(local_base, "_candidates", lambda: [Path(sys.executable).resolve()])
    name = client.image()
    version = client.run(name, "python3 -c 'import sys; print(sys.version)'")
    assert version.strip() == sys.version
    started = "import clusters.flotilla.node, asyncio, ssl, hashlib, tomllib"
    assert client.run(name, f"cd /opt/seatrial && python3 -S -s -c '{started}'") == ""


def test_programs_of_packages_come_with_their_files(client: Client, node: str) -> None:
    """They run, and are in the images of no other system."""
    name = client.image(needs=registry.system("rabbitmq").containers)
    assert name != node
    command = "/usr/lib/rabbitmq/bin/rabbitmqctl version"
    assert re.search(r"\d+\.\d+\.\d+", client.run(name, f"export {ALONE}; {command}"))
    assert client.run(node, "ls /usr/lib | grep erlang || true") == ""


def test_programs_of_packages_come_with_their_libraries(local: bytes) -> None:
    """Those of libraries that they load while they run, too."""
    files = registry.system("postgres").containers.files
    with tarfile.open(fileobj=io.BytesIO(local_base.archive(files))) as tar:
        names = {Path(name).name for name in tar.getnames()}
    with tarfile.open(fileobj=io.BytesIO(local)) as tar:
        names -= {Path(name).name for name in tar.getnames()}
    assert {"postgres", "initdb", "postgres.bki", "plpgsql.so", "libpqwalreceiver.so"} <= names
    assert [name for name in names if name.startswith("libpq.so")]  # of libpqwalreceiver
    assert not [name for name in names if "llvm" in name.lower()]


# -------------------------------------------------------------------------------- other bases


def test_a_base_from_a_registry(client: Client, node: str, local: bytes, serve: Serve) -> None:
    """The requested base is pulled and built on, and is found again without its registry. The image
    differs from the one on the local base."""
    name = serve(5001, local)
    built = client.image(name)
    assert client.said[0] == f"pulling {name}"
    assert built != node
    assert "Python 3." in client.run(built, "python3 --version")
    assert client.image(name) == built
    assert client.said == []
    client.docker.images.get(name).tag(_docker_image.DEFAULT_BASE)
    assert client.image() == built  # the default, once it is there, before a base of our own
    client.docker.images.remove(_docker_image.DEFAULT_BASE)


def test_a_base_that_nobody_has(client: Client, serve: Serve) -> None:
    """A requested base that does not exist is an error with the registry's message; nothing else is
    tried."""
    name = serve(5002).replace("base:1", "other:2")
    with pytest.raises(BedFailed, match=rf"the image {name} \(--bed base\) is not on the engine"):
        client.image(name)
    with pytest.raises(BedFailed, match=r"cannot be pulled: .*; to fix it: correct its name"):
        client.image("no.such.registry.invalid/base:1")
    with pytest.raises(BedFailed, match="write the image as NAME:TAG"):
        client.image("No NameChange")


def test_a_registry_that_hangs(
    client: Client, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets a deadline."""
    monkeypatch.setattr(_docker_image, "PULL_SILENCE_S", 0.3)
    name = serve(5003, b"", "silent")
    with pytest.raises(BedFailed, match=r"no answer of the registry for 0\.3 s"):
        client.image(name)


def test_a_base_that_lacks_something(client: Client, node: str, local: bytes) -> None:
    """The error has the last line of the build, and names the base."""
    client.docker.api.import_image_from_data(without(local, "ip", "ps"), "poor", "1")
    lacks = "this base has no iproute2 procps, and no apt-get to install them"
    with pytest.raises(BedFailed, match=f"cannot be built on poor:1: {lacks}; to fix it: choose"):
        client.image("poor:1")
    needs = ContainerNeeds({"sh-there": ["no-sh", "/bin/s[h]"], "queues": ["q", "/opt/*/q"]})
    with pytest.raises(BedFailed, match="this base has no iproute2 procps queues, and no apt-get"):
        client.image("poor:1", needs)
    assert client.docker.containers.list(all=True) == []
