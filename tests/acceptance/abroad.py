"""Show, on the labs' engine and hosts, what trials on hosts that outlive them must do: `abroad.py`.

The trial of all kinds of hosts for its whole 90 s; each fault, verified; each unsafe plan, with as
many lost as the naive count; Redis, unharmed and split; killed and stopped drivers; nodes that die,
full disks, clusters that are kept. Ends with 1 at the first deviation. `abroad.py docker` or
`abroad.py ssh` shows one kind, `--only smoke` one passage, `--times 5` all of it five times.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lab_paths  # noqa: F401 - the labs below are found by it

# isort: split

import docker_lab
import harbours
import laws
import passages
import ssh_lab
from harbours import Harbour
from losses import LEAST

LABS: Mapping[str, Callable[[], Any]] = {
    "docker": docker_lab.raised,
    "ssh": lambda: ssh_lab.raised(ssh_lab.HOSTS),
}
UNSAFE = {**dict.fromkeys(LEAST, "unsafe-default"), "shrink-then-kill": "unclean"}
MADE = {"docker": "12 containers, 1 network and 6 volumes", "ssh": "6 folders"}
Shown = tuple[str, Callable[[Path], str]]


def shown(harbour: Harbour, lab: Any) -> Iterator[Shown]:
    """A name, and what shows it: AssertionError at a deviation, else what was seen."""

    def smoke(folder: Path) -> str:
        voyage = passages.smoke(harbour, folder, "--duration", "90s")
        laws.weathered(voyage)
        laws.came_home(voyage)
        return f"valid of {voyage.verdict['events']['ops']:,} events"

    def faults(folder: Path) -> str:
        voyage = passages.faults(harbour, folder)
        assert voyage.code == 0, voyage.words
        return f"each was seen, and seen healed\n{voyage.out}"

    def losing(plan: str, profile: str) -> Callable[[Path], str]:
        def lost(folder: Path) -> str:
            voyage = passages.losing(harbour, folder, plan, profile)
            laws.lost_what_was_acknowledged(voyage, LEAST.get(plan, 1))
            return f"{voyage.findings['LOST_ACKED']:,} lost, by both counts"

        return lost

    def redis_quiet(folder: Path) -> str:
        voyage = passages.foreign(harbour, folder, "redis-quiet")
        laws.whole(voyage, least=100)
        return str(voyage.verdict["sentence"])

    def redis_split(folder: Path) -> str:
        voyage = passages.foreign(harbour, folder, "redis-split")
        laws.lost_what_was_acknowledged(voyage, least=100)
        return f"{voyage.findings['LOST_ACKED']:,} lost, by both counts"

    def killed(folder: Path) -> str:
        left = passages.killed(harbour, folder)
        laws.healed(left, MADE[harbour.kind])
        laws.interrupted(left.voyage)
        return left.healed.out.strip()

    def kept(folder: Path) -> str:
        laws.could_be_looked_at(passages.kept(harbour, folder))
        return "up, looked at, down"

    yield "smoke", smoke
    yield "faults", faults
    yield from ((plan, losing(plan, profile)) for plan, profile in UNSAFE.items())
    yield "redis-quiet", redis_quiet
    yield "redis-split", redis_split
    yield "killed", killed
    yield "kept", kept
    yield from (of_docker if harbour.kind == "docker" else of_ssh)(harbour, lab)


def of_docker(harbour: Harbour, lab: docker_lab.DockerLab) -> Iterator[Shown]:
    def removed(folder: Path) -> str:
        voyage = passages.removed(harbour, folder, lab)
        laws.ended_early(voyage, "NODE_GONE", "its agent ended")
        return str(voyage.verdict["sentence"])

    def full(folder: Path) -> str:
        voyage = passages.full_containers(harbour, folder)
        laws.ended_early(voyage, "DISK_FULL", "no space was left for broker-")
        return str(voyage.verdict["sentence"])

    yield "removed", removed
    yield "full", full


def of_ssh(harbour: Harbour, lab: ssh_lab.SshLab) -> Iterator[Shown]:
    def stopped(folder: Path) -> str:
        voyage = passages.stopped(harbour, folder)
        laws.ended_early(voyage, "NODE_GONE", "no driver was heard")
        return str(voyage.verdict["sentence"])

    def hung(folder: Path) -> str:
        left = passages.hung(harbour, folder, lab)
        laws.ended_early(left.voyage, "NODE_GONE", "was not heard")
        laws.healed(left, "1 folder")
        return f"{left.voyage.verdict['sentence']}; {left.healed.out.strip()}"

    def full(folder: Path) -> str:
        voyage = passages.full_host(harbour, folder, lab)
        laws.ended_early(voyage, "DISK_FULL", "no space was left for broker-1")
        return str(voyage.verdict["sentence"])

    yield "stopped", stopped
    yield "hung", hung
    yield "full", full


def show_all(kind: str, only: str, folder: Path) -> bool:
    (folder / "home").mkdir(parents=True)
    with LABS[kind]() as lab:
        for name, show in shown(harbours.BY_KIND[kind](lab, folder / "home"), lab):
            if only not in ("", name):
                continue
            began = time.monotonic()
            print(f"{kind:6}  {name:24}  ", end="", flush=True)
            try:
                said = show(folder / name)
            except AssertionError as deviation:
                print(f"DEVIATION: {deviation}\nkept in {folder / name}")
                return False
            print(f"{time.monotonic() - began:4.0f} s  {said}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=LABS)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=int, default=1)
    asked = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="seatrial-abroad-"))
    sound = all(
        show_all(kind, asked.only, base / f"{kind}-{number}")
        for number in range(asked.times)
        for kind in ([asked.kind] if asked.kind else LABS)
    )
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
