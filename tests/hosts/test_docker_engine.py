"""The Docker engine is found as the `docker` command finds it; every failure is one sentence.

The engine is a real one (tests/labs). Each attempt runs in a process of its own, as for a user: an
error of another kind would be a traceback there.
"""

import contextlib
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import docker_lab as labs
import pytest
from docker import DockerClient
from docker_lab import DockerLab

from clusters.hosts.docker import engine as _docker_engine
from harness.errors import BedFailed

pytestmark = pytest.mark.bed

CONNECT = """
from clusters.hosts.docker import engine
from harness.errors import BedFailed
engine.CONNECT_WITHIN_S = 30.0
try:
    print("connected to", engine.connect().version()["Version"])
except BedFailed as e:
    print(e)
"""
CONNECT_SOON = CONNECT.replace("30.0", "0.5")
ASK_LATER = """
import os, docker
from clusters.hosts.docker import engine
from harness.errors import BedFailed
client = docker.DockerClient(os.environ["DOCKER_HOST"], version="1.41")
try:
    with engine.translate_errors("node n1 cannot be asked"):
        client.containers.get("n1")
except BedFailed as e:
    print(e)
"""
POWERLESS = ("setpriv", "--bounding-set=-all")  # root that may not what others may not
Connect = Callable[..., str]


@pytest.fixture
def connect(root: Path, tmp_path: Path) -> Connect:
    """Connect in this environment, and return the one line that was printed."""

    def attempt(env: Mapping[str, str], *before: str, script: str = CONNECT) -> str:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DOCKER_")}
        done = subprocess.run(
            [*before, sys.executable, "-c", script],
            env={**kept, "PYTHONPATH": str(root), "HOME": str(tmp_path), **env},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout.count("\n") == 1
        return done.stdout.strip()

    return attempt


@pytest.fixture
def client(docker_lab: DockerLab) -> Iterator[DockerClient]:
    with contextlib.closing(DockerClient(docker_lab.host)) as client:
        yield client


@contextlib.contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server on this machine that answers each request with these bytes, or never."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while answer is not None:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def http(body: str, status: str = "200 OK") -> bytes:
    kind = "Content-Type: application/json\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def context(folder: Path, name: str, host: str) -> None:
    """Write what `docker context create NAME --docker host=HOST` and `docker context use NAME`
    write."""
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    endpoints = {"docker": {"Host": host, "SkipTLSVerify": False}}
    (meta / "meta.json").write_text(
        json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoints})
    )
    (folder / "config.json").write_text(json.dumps({"currentContext": name}))


def certificates(folder: Path, authority: str) -> Path:
    """Make a CA of that name, and a certificate from it for this machine, as server and as
    client."""
    folder.mkdir()
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    usage = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
    (folder / "usage").write_text(usage)
    for command in (
        f"req -x509 {key} -keyout ca-key.pem -out ca.pem -days 2 -subj /CN={authority}",
        f"req {key} -keyout key.pem -out request -subj /CN=127.0.0.1",
        "x509 -req -in request -CA ca.pem -CAkey ca-key.pem -CAcreateserial -out cert.pem -days 2"
        " -extfile usage",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder


def tiny_image(client: DockerClient) -> str:
    """Links into /usr, which a container then borrows from the machine."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("bin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    client.api.import_image_from_data(out.getvalue(), "tiny", "1")
    return "tiny:1"


# ------------------------------------------------------------------------------ finding it


def test_docker_host_is_respected(docker_lab: DockerLab, connect: Connect) -> None:
    """DOCKER_HOST takes precedence over a context."""
    said = connect({"DOCKER_HOST": docker_lab.host, "DOCKER_CONTEXT": "elsewhere"})
    assert said.startswith("connected to ")


def test_the_context_in_use_is_respected(
    docker_lab: DockerLab, connect: Connect, tmp_path: Path
) -> None:
    """`docker context use` applies without a variable; DOCKER_CONTEXT takes precedence."""
    context(tmp_path / "here", "lab", docker_lab.host)
    context(tmp_path / "lost", "gone", "unix:///no/such/socket")
    here, lost = str(tmp_path / "here"), str(tmp_path / "lost")
    assert connect({"DOCKER_CONFIG": here}).startswith("connected to ")
    assert "unix:///no/such/socket (from the context gone)" in connect({"DOCKER_CONFIG": lost})
    said = connect({"DOCKER_CONFIG": here, "DOCKER_CONTEXT": "other"})
    assert "the docker context other cannot be used: there is no such context" in said


def test_a_torn_context_is_a_sentence(connect: Connect, tmp_path: Path) -> None:
    """A context with a truncated file is named, without a crash."""
    context(tmp_path, "lab", "unix:///x")
    (meta,) = tmp_path.glob("contexts/meta/*/meta.json")
    meta.write_text(meta.read_text()[:20])
    said = connect({"DOCKER_CONFIG": str(tmp_path)})
    assert "the docker context in use cannot be used" in said


def test_the_doctor_finds_no_problem_with_the_engine(
    docker_lab: DockerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that answers is no problem; one that does not is one, with a remedy."""
    monkeypatch.setenv("DOCKER_HOST", docker_lab.host)
    assert _docker_engine.problems() == []
    monkeypatch.setenv("DOCKER_HOST", "bogus")
    (problem,) = _docker_engine.problems()
    assert "DOCKER_HOST=bogus" in problem.what
    assert problem.why
    assert "unset it" in problem.fix


# ------------------------------------------------------------------------ why there is none

REFUSALS = {  # DOCKER_HOST -> what is said of it
    "unix:///no/such/socket": "there is no such socket; to fix it: start the engine",
    "bogus": "is not the address of a Docker engine; to fix it: set it to unix:///PATH",
    "tcp://127.0.0.1:port": "is not the address of a Docker engine",
    "tcp://127.0.0.1:1": "the connection was refused; to fix it: start the engine",
    "ssh://root@127.0.0.1:1": "the connection was refused; to fix it: start the engine",
    "tcp://engine.invalid:2375": "cannot be resolved; to fix it: correct DOCKER_HOST",
}


@pytest.mark.parametrize("host", REFUSALS)
def test_each_wrong_address_has_its_sentence(host: str, connect: Connect) -> None:
    """One sentence, with the address in use and what to do."""
    said = connect({"DOCKER_HOST": host})
    assert host in said
    assert REFUSALS[host] in said


def test_a_socket_of_another_user(connect: Connect, tmp_path: Path) -> None:
    """Without permission for the socket: the error names the user, and how to get access."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0)
        before = POWERLESS if os.geteuid() == 0 else ()
        said = connect({"DOCKER_HOST": f"unix://{path}"}, *before)
    assert "may not use the Docker engine at unix://" in said
    assert "usermod -aG docker" in said


def test_an_engine_that_hangs(connect: Connect) -> None:
    """It accepts the connection and sends nothing: the deadline applies."""
    with answering(None) as host:
        assert "did not answer in time" in connect({"DOCKER_HOST": host}, script=CONNECT_SOON)


def test_an_engine_behind_a_hanging_sshd(connect: Connect) -> None:
    """The SDK has no deadline for ssh; we have one."""
    with answering(None) as host:
        at = {"DOCKER_HOST": host.replace("tcp://", "ssh://root@")}
        said = connect(at, script=CONNECT_SOON)
        assert "did not answer in time" in said


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n", b"", http("<html>"), http("{}")])
def test_what_answers_is_no_engine(answer: bytes, connect: Connect) -> None:
    """Another service on the port is distinguished from a broken engine."""
    with answering(answer) as host:
        said = connect({"DOCKER_HOST": host})
        assert "is not a Docker engine" in said or "no Docker engine can be used" in said
        assert host in said


def test_an_engine_that_is_too_old(connect: Connect) -> None:
    """Its API is older than any that the SDK supports."""
    with answering(http(json.dumps({"ApiVersion": "1.12"}))) as host:
        assert "is too old" in connect({"DOCKER_HOST": host})


def test_an_engine_that_wants_tls(connect: Connect) -> None:
    """Its error is reported, with the variables that help."""
    said = "Client sent an HTTP request to an HTTPS server."
    with answering(http(json.dumps({"message": said}), "400 Bad Request")) as host:
        assert "set DOCKER_TLS_VERIFY" in connect({"DOCKER_HOST": host})


def test_tls_without_certificates(connect: Connect, tmp_path: Path) -> None:
    """The folder that has none is named."""
    env = {"DOCKER_HOST": "tcp://127.0.0.1:1", "DOCKER_CERT_PATH": str(tmp_path)}
    assert f"{tmp_path} has no cert.pem and key.pem" in connect(env)


def test_certificates_are_respected(connect: Connect, tmp_path: Path) -> None:
    """An engine that demands certificates accepts ours; we do not trust one of another CA."""
    ours, others = (certificates(tmp_path / name, name) for name in ("ours", "others"))
    keys = [f"--tlscacert={ours}/ca.pem", f"--tlscert={ours}/cert.pem", f"--tlskey={ours}/key.pem"]
    address = "tcp://127.0.0.1:2376"
    with labs.raised(f"--host={address}", "--tlsverify", *keys) as lab:

        def said(folder: Path, **more: str) -> str:
            tls = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(folder)}
            own = dict.fromkeys(("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "")
            return connect({"DOCKER_HOST": address, **own, **tls, **more}, *lab.inside([]))

        assert said(ours).startswith("connected to ")
        assert "cannot be trusted: TLS reports" in said(others)
        bundle = str(others / "ca.pem")
        assert "to fix it: unset REQUESTS_CA_BUNDLE" in said(ours, REQUESTS_CA_BUNDLE=bundle)


# ------------------------------------------------------------------------------ later calls


def test_failing_calls_are_sentences(client: DockerClient) -> None:
    """Within `translate_errors`, the engine's error comes with what failed, and a known remedy."""
    with (
        pytest.raises(BedFailed, match=r"node n1 is gone: the engine says 'No such container: n1'"),
        _docker_engine.translate_errors("node n1 is gone"),
    ):
        client.containers.get("n1")
    subnets = client.networks.list(names=["bridge"])[0].attrs["IPAM"]["Config"]
    with (
        pytest.raises(BedFailed, match=r"to fix it: choose a free one with --bed subnet="),
        _docker_engine.translate_errors("the network cannot be made"),
    ):
        client.api.create_network("other", ipam={"Config": subnets})


def test_an_engine_that_went_away(connect: Connect) -> None:
    """A call to an engine that has ended says what failed, and that the engine is gone."""
    said = connect({"DOCKER_HOST": "unix:///no/such/socket"}, script=ASK_LATER)
    assert said.startswith("node n1 cannot be asked: no Docker engine runs at unix:///no/such")


def test_other_errors_pass(client: DockerClient) -> None:
    """`translate_errors` does not touch errors that are not the engine's."""
    with pytest.raises(KeyError), _docker_engine.translate_errors("x"):
        raise KeyError("ours")


# ------------------------------------------------------------------------------ the lab


def test_the_lab_leaves_nothing(docker_lab: DockerLab) -> None:
    """With a container running, it ends without processes, mounts, cgroups, files or rules."""
    with labs.raised() as lab, contextlib.closing(DockerClient(lab.host)) as client:
        container = client.containers.run(
            tiny_image(client),
            ["sleep", "1000"],
            volumes={"/usr": {"bind": "/usr", "mode": "ro"}},
            mem_limit="64m",
            detach=True,
        )
        container.reload()
        pid = int(container.attrs["State"]["Pid"])
        # the pid is one of the lab's own namespace
        seen = ["nsenter", f"--pid=/proc/{lab.pid}/ns/pid", f"--mount=/proc/{lab.pid}/ns/mnt"]
        state = subprocess.run([*seen, "cat", f"/proc/{pid}/cmdline"], capture_output=True)
        assert state.stdout == b"sleep\x001000\x00"
        assert "MASQUERADE" in lab.rules()
        folder = lab.folder
    assert not folder.exists()
    assert not Path(f"/proc/{lab.pid}").exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{folder.name}"))
