"""The pictures of docs/pictures, taken anew: real runs, in a real browser.

    python tests/acceptance/pictures.py                 what is missing is run first: ten minutes
    python tests/acceptance/pictures.py --look FOLDER   the same pages in both themes, also on a
                                                        phone, to be looked at

Runs are kept below `runs/pictures` and used again; remove that folder to have them anew.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import lab_paths  # noqa: F401 - the labs below are found by it

# isort: split

import page_lab
import site_lab
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]


SEATRIAL = Path(sys.executable).with_name("seatrial")
PICTURES = ROOT / "docs" / "pictures"
RUNS = ROOT / "runs" / "pictures"
LARGEST_BYTES = 200_000
PLAN = "suites/plans/isolate-then-kill.toml"
CUT = ("--hosts", "simulated", "--plan", PLAN, "--load", "rate=200")
TRIALS: Mapping[str, tuple[str, ...]] = {
    "demo": ("suites/trials/demo.toml",),
    "unsafe": ("messages", "--profile", "unsafe-default", *CUT),
    "safe": ("messages", "--profile", "allack-min2", *CUT),
}
SUITE, NIGHTS = "nightly", 4
MATRIX = """
[[trial]]
run = "messages"
name = "short"
with = { hosts = "simulated", load = { rate = 100 }, duration_s = 22.0 }
expect = "valid"
[trial.matrix.faults]
kill = { faults = ["kill"] }
pause = { faults = ["pause"] }
partition = { faults = ["partition"] }
[trial.matrix.profile]
allack-min1 = { profile = "allack-min1" }
allack-min2 = { profile = "allack-min2" }

[[trial]]
run = "messages"
name = "isolate-then-kill"
with = { hosts = "simulated", plan = "suites/plans/isolate-then-kill.toml", load = { rate = 100 } }
expect = "invalid"
findings = ["LOST_ACKED"]
[trial.matrix.profile]
unsafe-default = { profile = "unsafe-default" }
"""


@dataclass(frozen=True)
class Shot:
    """A picture: the page, what of it (a selector; else the first screen), how high that is."""

    name: str
    page: str
    part: str = ""
    height: int = 800


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--look", type=Path, metavar="FOLDER")
    look: Path | None = asked.parse_args().look
    path = page_lab.chromium()
    assert path, "no browser: apt-get install chromium"
    runs = _runs()
    with site_lab.served(RUNS) as port, page_lab.reader(path) as reader:
        for shot in shots(f"http://127.0.0.1:{port}", runs):
            if look is None:
                _taken(reader.browser, shot, PICTURES / f"{shot.name}.png", 1280, False)
            else:
                _looked_at(reader.browser, shot, look)


def shots(site: str, runs: Mapping[str, str]) -> Iterator[Shot]:
    yield Shot("demo", f"{site}/runs/{runs['demo']}", height=640)
    yield Shot("over-time", f"{site}/runs/{runs['demo']}", "section:has(#over-time)", 1400)
    yield Shot("invalid", f"{site}/runs/{runs['unsafe']}", height=900)
    yield Shot("counterexample", f"{site}/runs/{runs['register']}", "#finding-0 figure")
    both = f"run={runs['safe']}&run={runs['unsafe']}"
    yield Shot("compare", f"{site}/compare?{both}", height=1180)
    yield Shot("matrix", f"{site}/suites", height=620)


# ---------------------------------------------------------------------------------------- runs


def _runs() -> dict[str, str]:
    """The folder of each run, by what the picture is of; made where it is not there."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for name, arguments in TRIALS.items():
        if not _made(name):
            _seatrial("run", *arguments, "--name", name)
    if not _made("register"):
        file = RUNS / "register.edn"
        file.write_text(page_lab.REGISTER)
        folder = RUNS / "20261121-000000-register"
        _seatrial("import", file, "--as", "jepsen-register", "--out", folder)
        _seatrial("check", folder)
    nights = RUNS / "suites" / "nights.jsonl"
    while not nights.is_file() or nights.read_text().count("\n") < NIGHTS:
        (RUNS / f"{SUITE}.toml").write_text(MATRIX)
        _seatrial("suite", RUNS / f"{SUITE}.toml", "--no-report")
    return {name: folder for name in (*TRIALS, "register") if (folder := _made(name))}


def _made(name: str) -> str:
    folders = sorted(path.name for path in RUNS.glob(f"*-{name}"))
    return folders[-1] if folders else ""


def _seatrial(command: str, *arguments: object) -> None:
    where = () if command in ("import", "check") else ("--runs", RUNS)
    argv = [str(word) for word in (SEATRIAL, command, *arguments, *where)]
    ended = subprocess.run(argv, cwd=ROOT, check=False).returncode
    assert ended in (0, 1, 2), argv


# -------------------------------------------------------------------------------------- pictures


def _looked_at(browser: Browser, shot: Shot, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for width, dark in product((1280, 390), (False, True)):
        name = f"{shot.name}-{width}{'-dark' if dark else ''}.png"
        _taken(browser, shot, folder / name, width, dark)


def _taken(browser: Browser, shot: Shot, path: Path, width: int, dark: bool) -> None:
    with _opened(browser, shot, width, dark) as page:
        if shot.part:
            page.locator(shot.part).screenshot(path=path)
        else:
            page.screenshot(path=path)
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    assert width != 1280 or size < LARGEST_BYTES, path


@contextmanager
def _opened(browser: Browser, shot: Shot, width: int, dark: bool) -> Iterator[Page]:
    context = browser.new_context(
        viewport={"width": width, "height": shot.height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(shot.page, wait_until="load")
    if "/runs/" in shot.page:
        page.wait_for_selector("#time[data-drawn]")
    if "/compare" in shot.page:
        page.wait_for_selector("#curves canvas")
    yield page
    context.close()


if __name__ == "__main__":
    main()
