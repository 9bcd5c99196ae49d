"""`seatrial serve` in a real browser: pages draw, send no requests elsewhere, and fit all
screens."""

from collections.abc import Iterator
from pathlib import Path

import page_lab
import pytest
import site_lab
from page_lab import Reader
from playwright.sync_api import Page, expect

from harness.history.rundir import RunDir
from harness.history.runs import locked
from harness.judge.lock import judging
from harness.run.status_file import StatusFile

pytestmark = pytest.mark.bed  # a browser is several busy processes

KINDS = {"valid": "20261120-000000-calm", "invalid": "20261121-000000-storm"}
LIVE = "20261122-000000-under-way"
SERIOUS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter(v => ['serious', 'critical'].includes(v.impact))
  .map(v => `${v.id}: ${v.nodes.map(n => n.target).slice(0, 3)} ${v.nodes[0].failureSummary}`)"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not page_lab.chromium():
        pytest.skip("no browser: apt-get install chromium")
    made = page_lab.pages(tmp_path_factory.mktemp("made"))
    folder = tmp_path_factory.mktemp("site") / "runs"
    for kind, name in (*KINDS.items(), ("hostile", "20261119-000000-hostile"), ("valid", LIVE)):
        site_lab.shelved(RunDir(made[kind].parent), folder, name)
    (folder / LIVE / "verdict.json").unlink()
    return folder


@pytest.fixture(scope="module")
def site(runs: Path) -> Iterator[str]:
    with site_lab.served(runs) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def reader(runs: Path) -> Iterator[Reader]:
    path = page_lab.chromium()
    assert path
    with page_lab.reader(path) as opened:
        yield opened


@pytest.fixture
def tab(reader: Reader, site: str) -> Iterator[Page]:
    """A page that, in the end, has no errors and sent requests only to the site."""
    context = reader.browser.new_context(viewport={"width": 1280, "height": 900})
    shown = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    shown.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    shown.on("request", lambda request: asked.append(request.url))
    try:
        yield shown
        assert said == []
        assert not [url for url in asked if not url.startswith((site, "data:,"))]
    finally:
        context.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "/?state=valid",
            "/suites",
            "/compare",
            "/trial?name=sound",
            "/runs/20261119-000000-hostile",
            f"/runs/{LIVE}",
        ),
        f"/compare?run={KINDS['valid']}&run={KINDS['invalid']}",
    ],
)
def test_every_page_on_every_screen(
    tab: Page, reader: Reader, site: str, path: str, width: int
) -> None:
    """No wider than the screen, and axe finds nothing serious."""
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto(f"{site}{path}", wait_until="load")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    # axe is handed over by the browser's own door, which the policy does not guard
    tab.evaluate(reader.axe)
    assert tab.evaluate(SERIOUS) == []


def test_two_runs_are_side_by_side_on_a_phone(tab: Page, site: str) -> None:
    """Both columns of each table are in sight."""
    tab.set_viewport_size({"width": 390, "height": 900})
    tab.goto(f"{site}/compare?run={KINDS['valid']}&run={KINDS['invalid']}", wait_until="load")
    assert tab.locator(".pairs").count()
    assert tab.evaluate(page_lab.HIDDEN, ".scroll:has(> .pairs)") == []


def test_the_list_is_read_without_moving_it_on_a_phone(tab: Page, site: str) -> None:
    """Each run is a card in which everything is in sight."""
    tab.set_viewport_size({"width": 390, "height": 900})
    tab.goto(site, wait_until="load")
    assert tab.evaluate(page_lab.HIDDEN, ".scroll:has(> .runs)") == []
    edges = (
        "() => [...document.querySelectorAll('.runs td')].map(e => e.getBoundingClientRect().right)"
    )
    assert max(tab.evaluate(edges)) <= 390


def test_from_the_list_to_two_runs_side_by_side(tab: Page, site: str) -> None:
    """Search, tick two, and see their curves on one axis."""
    tab.goto(site)
    tab.get_by_label("Search").fill("storm")
    tab.get_by_role("button", name="Search", exact=True).click()
    expect(tab.locator("tbody tr")).to_have_count(1)
    tab.goto(site)
    for name in KINDS.values():
        tab.get_by_label(f"Compare {name}").check()
    tab.get_by_role("button", name="Compare the two selected").click()
    expect(tab.locator("#curves canvas")).to_have_count(4)


def test_a_report_draws_as_its_file_does(tab: Page, site: str) -> None:
    """The policy of the server allows the page's own scripts, and it leads back to the list."""
    tab.goto(f"{site}/runs/{KINDS['valid']}")
    tab.wait_for_selector("#time[data-drawn]")
    tab.get_by_role("link", name="All runs").click()
    expect(tab.locator("h1")).to_have_text("Runs")


def test_a_run_is_watched(tab: Page, runs: Path, site: str) -> None:
    """Its status appears without a reload, until it is over."""
    run = RunDir(runs / LIVE)
    with locked(run), StatusFile(run) as bulletin:
        bulletin.update({"phase": "load"})
        tab.goto(f"{site}/runs/{LIVE}")
        expect(tab.locator("#phase")).to_have_text("load")
        bulletin.update({"standing": {"masters": {"a": "broker-2"}, "epochs": {"a": 7}}})
        expect(tab.locator("#cluster")).to_contain_text("a: master broker-2, epoch 7")
    with judging(run):
        expect(tab.locator("#phase")).to_have_text("check")
    expect(tab.locator("#phase")).to_have_text("over")
    expect(tab.locator("#load")).to_contain_text("seatrial check")
