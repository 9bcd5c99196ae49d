"""An ordinary user who attacks a host that runs of root use: `python ssh_mallory.py DRIVER`.

Before a run it occupies everything that it can: folders and links with names of runs, processes
that look like agents and like processes of a run, names and ports of agents. It prints "ready", and
on each line from standard input attacks what is there now; it prints what succeeded as a JSON list.
"""

import contextlib
import fcntl
import glob
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

LOCK = "/run/seatrial-agent.lock"
PROBE_PORT = 1007
PRECIOUS = "/var/tmp/precious"  # a folder of root's
SLEEP = ["sleep", "1000"]


def squat(driver: str) -> list[object]:
    """Make everything that an earlier or another run could leave."""
    mine = "/var/tmp/seatrial-mine"
    os.mkdir(mine)
    with open(f"{mine}/owner.json", "w") as file:
        json.dump({"driver": driver, "run": "/gone"}, file)
    os.symlink(PRECIOUS, "/var/tmp/seatrial-link")
    agent = [sys.executable, "-c", "input()", "/x/daemon.py"]
    held: list[object] = [
        subprocess.Popen(SLEEP, env={"SEATRIAL_RUN": PRECIOUS}),
        subprocess.Popen(SLEEP, env={"SEATRIAL_RUN": "/etc"}),
        subprocess.Popen([*agent, PRECIOUS], stdin=subprocess.PIPE),
        subprocess.Popen([*agent, mine], stdin=subprocess.PIPE),
    ]
    name = socket.socket(socket.AF_UNIX)
    name.bind("\0seatrial-agent")
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.bind(("0.0.0.0", 61007))
    return [*held, name, port]


def kill() -> None:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        pid = int(path.split("/")[2])
        words = ""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path) as file:
            words = file.read()
        if "daemon.py\0/var/tmp/seatrial-2" in words:
            os.kill(pid, signal.SIGKILL)
            return
    raise PermissionError("no agent is to be seen")


def enter() -> None:
    """Connect to the socket of the agent, as a driver does."""
    (folder,) = glob.glob("/var/tmp/seatrial-2*")
    socket.socket(socket.AF_UNIX).connect(f"{folder}/agent.sock")


def look() -> None:
    (folder,) = glob.glob("/var/tmp/seatrial-2*")
    os.listdir(folder)


def move() -> None:
    (folder,) = glob.glob("/var/tmp/seatrial-2*")
    os.rename(folder, f"{folder}-away")


def lock() -> None:
    fcntl.flock(os.open(LOCK, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX | fcntl.LOCK_NB)


def take_port() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("0.0.0.0", PROBE_PORT))


def shout(token: str) -> None:
    """Send datagrams that look like probes of the run. Sending is harmless; the test checks that
    none counts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for _ in range(50):
            out.sendto(f"seatrial probe {token}".encode(), ("127.0.0.1", PROBE_PORT))
            out.sendto(b"seatrial probe  " + token.encode(), ("127.0.0.1", PROBE_PORT))


def achieved() -> list[str]:
    attacks: list[Callable[[], None]] = [kill, enter, look, move, lock, take_port]
    found = []
    for attack in attacks:
        try:
            attack()
        except PermissionError:
            continue
        except OSError as e:
            found.append(f"{attack.__name__}: {e}")
        else:
            found.append(attack.__name__)
    return found


def main(driver: str) -> None:
    held = squat(driver)
    print("ready", flush=True)
    for line in sys.stdin:
        shout(line.strip())
        print(json.dumps(achieved()), flush=True)
    for one in held:
        if isinstance(one, subprocess.Popen):
            assert one.poll() is None, "one of ours was ended"
            one.kill()
    print("alive", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
