"""A scanner's tricks against the real server: nothing leaves the folder of runs, nothing falls
over."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import site_lab
from site_lab import SECRET, get, said

from harness.history.rundir import RunDir
from harness.history.runs import locked
from harness.run.status_file import StatusFile
from reports._site import MAX_CONNECTIONS, PromptProtocol
from reports._site.access import AllowedHosts

Written = Callable[..., RunDir]
NAME = "20261121-101500-demo"
TRAVERSALS = (
    *("/../secret.txt", "/runs/../secret.txt", "/runs/../../secret.txt", "/static/../secret.txt"),
    *("/runs/%2e%2e/secret.txt", "/runs/%2e%2e%2fsecret.txt", "/runs/..%2f..%2fsecret.txt"),
    *("/runs/..%5c..%5csecret.txt", "/runs/%252e%252e%252fsecret.txt", "/runs/....//secret.txt"),
    *(
        "/runs/%c0%ae%c0%ae%c0%afsecret.txt",
        "/runs/%00",
        f"/runs/{NAME}%00/archive",
        "//secret.txt",
    ),
    *("/runs/../archive", "/runs/%2e%2e/archive", "/runs/%2e/archive", "/runs/./archive"),
    *(f"/runs/{NAME}/../../secret.txt", f"/runs/{NAME}/verdict.json", f"/runs/{NAME}/nodes/x.log"),
    *("/static/%2e%2e%2f%2e%2e%2fpage.py", "/static/style.css/../../page.py", "/static/"),
    *("/runs/.hidden", "/runs/.hidden/archive", "/runs/away", "/runs/away/archive", "/runs/"),
    *("file:///etc/passwd", "http://127.0.0.1/runs/../secret.txt", "/etc/passwd", "*"),
)
MALFORMED = (
    *(b"", b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"),
    *(b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\n\r\n"),
    *(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n", b"\x00" * 70_000),
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n" + b"z" * 100_000,
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
)


@pytest.fixture
def runs(tmp_path: Path, written: Written) -> Path:
    """A run, and beside the folder a secret; a hidden folder and a link are in it."""
    folder = tmp_path / "runs"
    site_lab.shelved(written(), folder, NAME)
    for path in (tmp_path, folder / ".hidden"):
        path.mkdir(exist_ok=True)
        (path / "secret.txt").write_text(SECRET)
    (folder / "away").symlink_to(tmp_path)
    return folder


@pytest.fixture
def port(runs: Path) -> Iterator[int]:
    with site_lab.served(runs) as number:
        yield number
        assert b"200 OK" in get(number, "/").splitlines()[0]  # it stands


def status(answer: bytes) -> int:
    """Return the status code; 0 without a response."""
    first = answer.split(b"\r\n", 1)[0].split()
    return int(first[1]) if len(first) > 1 else 0


def test_no_path_leads_out(port: int) -> None:
    """Whatever is written for `..`, the answer is that there is nothing."""
    for path in TRAVERSALS:
        answer = get(port, path)
        assert status(answer) in (400, 404, 405), path
        assert SECRET.encode() not in answer, path
        assert b"root:" not in answer, path
        assert b"Traceback" not in answer, path


def test_malformed_and_huge_requests_are_turned_away(port: int) -> None:
    """Each is refused or not answered at all, and the next one is answered as ever."""
    for request in MALFORMED:
        answer = said(port, request, quiet_s=1.0)  # some are waited for, as if more would come
        assert status(answer) == 0 or status(answer) >= 400 or b"websocket" in request, request[:60]
        assert b"Traceback" not in answer
    assert status(get(port, "/?q=" + "a" * 10_000)) == 414


def test_only_get_and_head_are_heard(port: int) -> None:
    """Nothing here can be changed; a HEAD has no body, not even of an archive."""
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        head = f"{method} / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        assert status(said(port, head.encode())) == 405, method
    for path in ("/", f"/runs/{NAME}", f"/runs/{NAME}/archive", f"/runs/{NAME}/live"):
        head = f"HEAD {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        answer = said(port, head.encode())
        assert status(answer) == 200, path
        assert answer.endswith(b"\r\n\r\n"), path


@pytest.mark.parametrize(
    ("host", "opens"),
    [
        *(("127.0.0.1", True), ("127.0.0.1:8321", True), ("localhost:1", True), ("[::1]:80", True)),
        *(("LOCALHOST.", True), ("host_lab.example", True), ("evil.example", False), ("", False)),
        *(("127.0.0.1.evil.example", False), ("localhost.evil.example", False)),
        *(("0.0.0.0", False), ("192.0.2.7", False), ("2130706433", False), ("[::1", False)),
        *(("127.0.0.1@evil.example", False), ("localhost:80:80", False), ("localhost\n", False)),
    ],
)
def test_whose_name_is_answered_to(host: str, opens: bool) -> None:
    """Loopback and allowed names; no name that another party could resolve to this machine."""
    assert AllowedHosts.of("127.0.0.1", ["host_lab.example"]).accepts(host) is opens


def test_a_rebound_name_is_told_nothing(port: int) -> None:
    """Nor another site's page that asks by the right name; a link from there may be followed."""
    answer = get(port, "/", "evil.example")
    assert status(answer) == 421
    assert NAME.encode() not in answer
    head = (
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nSec-Fetch-Site: cross-site\r\n"
    )
    for mode, code in (("no-cors", 403), ("cors", 403), ("navigate", 200)):
        answer = said(port, f"{head}Sec-Fetch-Mode: {mode}\r\n\r\n".encode())
        assert status(answer) == code, mode


def test_every_answer_says_what_a_browser_may_do(port: int) -> None:
    """Pages, files, refusals and what is not there."""
    for path in ("/", f"/runs/{NAME}", "/static/live.js", "/nowhere", f"/runs/{NAME}/archive"):
        head = get(port, path).split(b"\r\n\r\n", 1)[0].decode().lower()
        assert "x-content-type-options: nosniff" in head, path
        assert "default-src 'none'" in head, path
        assert "frame-ancestors 'none'" in head, path
        assert "access-control-allow" not in head, path


def test_half_a_request_holds_no_connection(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there may be connections, first ones and second ones: each ends by its
    deadline, and then others are answered."""
    monkeypatch.setattr(PromptProtocol, "request_within_s", 2.0)
    whole = b"GET /static/style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with site_lab.served(runs) as port, ExitStack() as open_wires:
        wires = []
        for number in range(MAX_CONNECTIONS + 5):
            wire = socket.create_connection(("127.0.0.1", port), site_lab.WITHIN_S)
            wires.append(open_wires.enter_context(wire))
            if number in (0, 50):
                wire.sendall(whole)
                assert wire.recv(1 << 20).startswith(b"HTTP/1.1 200")
            wire.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        for wire in wires:
            wire.settimeout(site_lab.WITHIN_S)
            with suppress(ConnectionResetError):
                while wire.recv(1 << 20):
                    pass
        assert status(get(port, "/")) == 200


def test_only_who_has_the_token_is_answered(runs: Path) -> None:
    """By the printed address once, then by its cookie; programs by a header. Every address needs
    it, and the way in leads to no other site."""
    token = "t0ken-t0ken"
    with site_lab.served(runs, token) as port:
        for path in (
            "/",
            f"/runs/{NAME}",
            f"/runs/{NAME}/archive",
            "/runs.json",
            "/static/live.js",
        ):
            assert status(get(port, path)) == 401
        for wrong in ("/?token=", "/?token=t0ken-t0ke", "/?token=t0ken-t0kenn", "/?token=%ff"):
            assert status(get(port, wrong)) == 401
        entered = get(port, f"//evil.example/x?q=a&token={token}&sort=name").decode("latin-1")
        assert "303 See Other" in entered
        assert "\r\nlocation: /evil.example/x?q=a&sort=name\r\n" in entered.lower()
        (cookie,) = re.findall(r"set-cookie: (\S+); HttpOnly; Path=/; SameSite=strict", entered)
        for header in (f"Cookie: {cookie}", f"Authorization: Bearer {token}"):
            head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{header}\r\n\r\n"
            assert status(said(port, head.encode())) == 200
        assert status(get(port, f"/?token={token}", "evil.example")) == 421


def test_events_of_a_run_in_progress(runs: Path, port: int) -> None:
    """A browser gets the state at once, and again when it changes; then the stream ends."""
    run = RunDir(runs / NAME)
    wire = http.client.HTTPConnection("127.0.0.1", port, timeout=site_lab.WITHIN_S)
    with locked(run), StatusFile(run) as bulletin:
        bulletin.update({"phase": "load"})
        wire.request("GET", f"/runs/{NAME}/live")
        answer = wire.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = (json.loads(line[6:]) for line in answer if line.startswith(b"data: "))
        assert next(events)["status"]["phase"] == "load"
        bulletin.update({"phase": "drain"})
        assert next(e for e in events if e["status"]["phase"] == "drain")["state"] == "running"
    assert [event["state"] for event in events][-1] == "judged"
    wire.close()


def test_the_command(runs: Path, tmp_path: Path) -> None:
    """It prints its address, answers there, and ends on Ctrl-C; a port in use and a missing folder
    are invalid requests."""
    script = Path(sys.executable).with_name("seatrial")
    command = [script, "serve", runs, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert "every user of this machine can read them, unless --token is given" in line
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
            assert found
            assert status(get(int(found[1]), "/runs.json")) == 200
            assert refused(script, runs, "--port", found[1]).startswith("seatrial: cannot listen")
            assert refused(script, tmp_path / "nowhere").startswith("seatrial: there is no folder")
            process.send_signal(signal.SIGINT)
            assert process.wait(site_lab.WITHIN_S) == 0
        finally:
            process.kill()


def test_the_command_with_a_token(runs: Path) -> None:
    """The printed address has it, is new each time; other users are not mentioned."""
    script, tokens = Path(sys.executable).with_name("seatrial"), set()
    for _ in range(2):
        command = [script, "serve", runs, "--port", "0", "--token"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{20,})", line)
            assert found
            assert "every user" not in line
            assert status(get(int(found[1]), "/")) == 401
            assert status(get(int(found[1]), f"/?token={found[2]}")) == 303
            tokens.add(found[2])
            process.send_signal(signal.SIGINT)
            assert process.wait(site_lab.WITHIN_S) == 0
    assert len(tokens) == 2


def refused(script: Path, *arguments: str | Path) -> str:
    """The one line on standard error, for what makes no sense."""
    ran = subprocess.run(
        [script, "serve", *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 254
    (line,) = ran.stderr.splitlines()
    return line
