"""Pages of real runs, opened in a real browser, which must neither ask the network nor complain.

Runs are short simulated trials and a small imported history, made once for a file of tests, before
the browser is there (its driver has an event loop of its own).
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import axe_playwright_python
import sinking
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from harness import registry
from harness.campaign.simulation import simulate
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.judge.judge import judge_small
from harness.judge.verdict import Finding, Verdict
from harness.trial import Trial
from reports import page

HOSTILE = (
    "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"
    "\"'&`${window.pwned=1}"
)
ODD = "\u202e\u0000\u00e9\U0001d54f\u2028\ud800 \ufdfd"
# text of boxes that hold more than they show without being moved sideways
HIDDEN = """boxes => [...document.querySelectorAll(boxes)]
  .filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent.trim().slice(0, 80))"""
MEGABYTE = "long " * 200_000
expect.set_options(timeout=60_000)  # for every test, on a busy machine
SOUND = Trial(
    name="sound",
    hosts="simulated",
    profile="allack-min2",
    duration_s=7.0,
    nodes={"controller": 3, "client": 2},
    settings={"timeScale": 0.1},
    short_faults=True,
    load={"rate": 200.0, "queues": 2},
)
PLAN = """\
[[fault]]
kind = "kill"
at_s = 1.5
for_s = 2.0
target = "master"

[[fault]]
kind = "loss"
at_s = 5.0
for_s = 1.0
target = "controller-leader"
params = { probability = 0.8 }
"""
REGISTER = """\
{:type :invoke, :f :write, :value [1 3], :process 0, :time 1000000}
{:type :ok, :f :write, :value [1 3], :process 0, :time 4000000}
{:type :invoke, :f :read, :value [1 nil], :process 1, :time 5000000}
{:type :invoke, :f :write, :value [1 4], :process 2, :time 5500000}
{:type :ok, :f :read, :value [1 3], :process 1, :time 7000000}
{:type :ok, :f :write, :value [1 4], :process 2, :time 9000000}
{:type :invoke, :f :write, :value [1 5], :process 0, :time 9500000}
{:type :invoke, :f :read, :value [1 nil], :process 1, :time 10000000}
{:type :ok, :f :read, :value [1 3], :process 1, :time 12000000}
{:type :info, :f :write, :value [1 5], :process 0, :time 19000000}
"""


def chromium() -> str | None:
    """Debian's browser, or what others call it."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def axe() -> str:
    """The accessibility checker's own script."""
    (path,) = Path(axe_playwright_python.__file__).parent.rglob("axe.min.js")
    return path.read_text()


# --------------------------------------------------------------------------------------- runs


def pages(folder: Path) -> dict[str, Path]:
    """The reports of all kinds of runs, by name."""
    made = {
        "valid": simulate(SOUND, PLAN, folder / "valid").run,
        "invalid": sinking.sunk(folder / "invalid").run,
        "register": _imported(folder),
    }
    made["unknown"] = _changed(made["valid"], folder / "unknown", _interrupt)
    made["hostile"] = _changed(made["invalid"], folder / "hostile", _poison)
    made["half-written"] = _changed(made["valid"], folder / "half-written", _halve)
    made["empty"] = _changed(made["valid"], folder / "empty", _empty)
    return {name: _rendered(run) for name, run in made.items()}


def _rendered(run: RunDir) -> Path:
    path = page.render(run)
    assert path is not None
    return path


def _imported(folder: Path) -> RunDir:
    """A register that was read stale, as another tool recorded it."""
    path = folder / "register.edn"
    path.write_text(REGISTER)
    recording = registry.load("importer", "jepsen-register")(path)
    run = _folder.write(recording, path, "jepsen-register", folder / "register")
    judge_small(History.open(run))
    return run


def _changed(run: RunDir, folder: Path, change: Callable[[RunDir], None]) -> RunDir:
    shutil.copytree(run.path, folder)
    changed = RunDir(folder)
    change(changed)
    return changed


def _interrupt(run: RunDir) -> None:
    run.update_state(interrupted=True)
    judge_small(History.open(run))


def _empty(run: RunDir) -> None:
    """It was stopped before anything happened."""
    for folder in (run.journal, run.history, run.path / "nodes"):
        shutil.rmtree(folder, ignore_errors=True)
    run.journal.mkdir()
    _interrupt(run)


def _halve(run: RunDir) -> None:
    """As after a power cut, and copied by somebody in a hurry."""
    for path in [*run.journal.glob("*.arrows"), *run.history.glob("*.parquet")]:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) * 2 // 3])
    (run.path / "run.json").write_text((run.path / "run.json").read_text()[:100])


def _poison(run: RunDir) -> None:
    """Markup, script, odd letters and a megabyte, wherever a run can put them."""
    text = (run.path / "names.json").read_text()
    node, key = f"broker-1{HOSTILE}", f"orders-0{HOSTILE}"
    for old, new in (("broker-1", node), ("orders-0", key)):
        text = text.replace(f'"{old}"', _json(new))
    (run.path / "names.json").write_text(text)
    verdict = Verdict.read(run.verdict_file)
    rows = ({"queue": key, "node": node, "at_s": 1.5, HOSTILE: ODD, "long": MEGABYTE},)
    message = f"{HOSTILE} {ODD} {MEGABYTE}"
    finding = Finding(f"LOST_ACKED{HOSTILE}", 7, message, "no-loss", rows, (2,))
    first, *others = verdict.checkers
    first = replace(first, findings=(finding, *first.findings))
    changed = replace(verdict, sentence=f"Invalid: {HOSTILE}", checkers=(first, *others))
    run.verdict_file.write_text(changed.to_json())
    run.update_state(error=HOSTILE, versions={HOSTILE: ODD, "python": MEGABYTE}, started=HOSTILE)
    run.plan_file.write_text(f"# {HOSTILE}\n")
    log = run.node("broker-1") / "flotilla.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"{HOSTILE}\n{MEGABYTE}")


def _json(text: str) -> str:
    return json.dumps(text)


# --------------------------------------------------------------------------------------- a browser


@dataclass
class Reader:
    """Opens pages, and keeps what they said and asked for."""

    browser: Browser
    axe: str = field(default_factory=axe)
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @contextmanager
    def reading(
        self, path: Path, *, at: str = "", width: int = 1280, dark: bool = False, **options: Any
    ) -> Iterator[Page]:
        """The page, drawn; afterwards it must have asked for nothing and complained of nothing."""
        context = self._context(width, dark, **options)
        url = path.as_uri()
        shown = context.new_page()
        asked: list[str] = []
        said: list[str] = []
        shown.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        shown.on("request", lambda request: asked.append(request.url))
        try:
            shown.goto(f"{url}{at}")
            if options.get("java_script_enabled", True):
                shown.wait_for_selector("#time[data-drawn]")
            yield shown
            assert said == []
            assert {one.split("#")[0] for one in asked} <= {url, "data:,"}
        finally:
            context.close()

    def _context(self, width: int, dark: bool, **options: Any) -> BrowserContext:
        return self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            **options,
        )


@contextmanager
def reader(path: str) -> Iterator[Reader]:
    """A browser without a screen."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield Reader(browser)
        finally:
            browser.close()
