"""The page in a browser: it draws, moves, shows details and filters, on any screen and on paper."""

import re
from collections.abc import Iterator
from pathlib import Path

import page_lab
import pytest
from page_lab import Reader
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.bed  # a browser is several busy processes

KINDS = ("valid", "invalid", "unknown", "register", "hostile", "half-written", "empty")
OVERLAPS = """names => {
  const boxes = [...document.querySelectorAll(names)]
    .map(e => [e.textContent, e.getBoundingClientRect()])
    .filter(([text, box]) => text && box.width);
  const bad = [];
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const [a, b] = [boxes[i][1], boxes[j][1]];
    const beside = a.left >= b.right - 1 || b.left >= a.right - 1;
    const below = a.top >= b.bottom - 3 || b.top >= a.bottom - 3;
    if (!beside && !below) bad.push(`${boxes[i][0]} | ${boxes[j][0]}`);
  }
  return bad;
}"""
FRAMES = "() => new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))"
SERIOUS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter(v => ['serious', 'critical'].includes(v.impact))
  .map(v => `${v.id}: ${v.nodes.map(n => n.target).slice(0, 3)} ${v.nodes[0].failureSummary}`)"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if not page_lab.chromium():
        pytest.skip("no browser: apt-get install chromium")
    return page_lab.pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def reader(pages: dict[str, Path]) -> Iterator[Reader]:
    path = page_lab.chromium()
    assert path
    with page_lab.reader(path) as opened:
        yield opened


def shown(page: Page) -> tuple[float, float]:
    """The part of the run that is in view, in milliseconds."""
    page.evaluate(FRAMES)
    begin, end = (page.get_attribute("#time", "data-drawn") or "").split()
    return float(begin), float(end)


def drag(page: Page, begin: float, end: float) -> None:
    """Over the lanes, from one share of the axis to another."""
    box = page.locator("#lanes").bounding_box()
    assert box
    left = 150 + (box["width"] - 164) * begin
    right = 150 + (box["width"] - 164) * end
    y = box["y"] + 8
    page.mouse.move(box["x"] + left, y)
    page.mouse.down()
    page.mouse.move(box["x"] + (left + right) / 2, y, steps=3)
    page.mouse.move(box["x"] + right, y, steps=3)
    page.mouse.up()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_run_on_every_screen(
    reader: Reader, pages: dict[str, Path], kind: str, width: int, dark: bool
) -> None:
    """No request, no failure, nothing wider than the screen, no overlapping labels, and axe finds
    nothing serious."""
    with reader.reading(pages[kind], width=width, dark=dark) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERLAPS, "#lanes text.name") == []
        assert page.evaluate(OVERLAPS, "#axis text") == []
        page.evaluate(reader.axe)
        assert page.evaluate(SERIOUS) == []


def test_a_story_is_read_on_a_phone_without_moving_it(
    reader: Reader, pages: dict[str, Path]
) -> None:
    """Its words are what the table is for: they wrap, and none is out of sight to the right."""
    with reader.reading(pages["invalid"], width=390) as page:
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert page.locator(".story").count()
        assert page.evaluate(page_lab.HIDDEN, ".scroll:has(> .story)") == []


def test_the_verdict_is_on_the_first_screen(reader: Reader, pages: dict[str, Path]) -> None:
    """In words, with the numbers, without scrolling."""
    with reader.reading(pages["invalid"]) as page:
        for selector in ("h1", ".badge >> nth=0", ".number >> nth=0", ".number.bad"):
            box = page.locator(selector).first.bounding_box()
            assert box
            assert box["y"] + box["height"] < 900, selector
        assert "acknowledged messages were lost" in page.inner_text("h1")


def test_zooming_is_kept_by_the_address(reader: Reader, pages: dict[str, Path]) -> None:
    """Drag, and the axis shows that part; its address opens the same view elsewhere, and Back goes
    back to the whole."""
    with reader.reading(pages["valid"]) as page:
        page.locator("#time").scroll_into_view_if_needed()
        whole = shown(page)
        drag(page, 0.25, 0.5)
        begin, end = shown(page)
        length = whole[1] - whole[0]
        assert begin == pytest.approx(whole[0] + 0.25 * length, abs=0.01 * length)
        assert end == pytest.approx(whole[0] + 0.5 * length, abs=0.01 * length)
        address = page.url[page.url.index("#") :]
        assert "t=" in address
        page.go_back()
        assert shown(page) == pytest.approx(whole)
    with reader.reading(pages["valid"], at=address) as page:
        assert shown(page) == pytest.approx((begin, end), abs=0.01)


def test_hovering_tells(reader: Reader, pages: dict[str, Path]) -> None:
    """The time, the fault under the pointer, the master, the throughput, and the lag."""
    with reader.reading(pages["valid"]) as page:
        page.locator("#lanes .bar.fault.kill").first.hover()
        text = page.inner_text("#readout")
        assert re.match(r"\d+\.\d+ s\n", text)
        assert "fault 0: kill on broker-" in text
        assert "a second" in text
        assert re.search(r"broker-\d is [\d.]+ k?B behind, takes [\d.]+ k?B a second", text)
        page.mouse.move(2, 2)
        assert page.is_hidden("#readout")


def test_selecting_filters_the_rest(reader: Reader, pages: dict[str, Path]) -> None:
    """A click on a fault leaves its row, its findings and its part of the log; Escape lets go."""
    with reader.reading(pages["invalid"]) as page:
        rows = page.locator("#fault-rows tbody tr:visible").count()
        events = page.locator("#log-rows tr").count()
        page.locator("#lanes [data-k='fault-3'].bar.fault").click()
        page.wait_for_selector("#fault-3.chosen")
        assert page.locator("#fault-rows tbody tr:visible").count() == 1 < rows
        assert 0 < page.locator("#log-rows tr").count() < events
        assert "Fault 3: kill" in page.inner_text("#selected")
        assert "select=fault-3" in page.url
        page.locator("#time").focus()
        page.keyboard.press("Escape")
        page.wait_for_selector("#selection", state="hidden")
        assert page.locator("#fault-rows tbody tr:visible").count() == rows


def test_a_finding_leads_to_its_faults(reader: Reader, pages: dict[str, Path]) -> None:
    """And a link to a finding opens with it selected; the others are out of the way."""
    with reader.reading(pages["invalid"], at="#finding-0") as page:
        assert page.locator("[data-finding]:visible").count() == 1
        assert 0 < page.locator("#fault-rows tbody tr:visible").count() < 5
        page.click("#clear")
        page.wait_for_selector("#selection", state="hidden")
        assert page.locator("[data-finding]:visible").count() > 1
    with reader.reading(pages["invalid"], at="#again") as page:  # a place, and no view of a run
        expect(page.locator("#again")).to_be_in_viewport()
        assert page.url.endswith("#again")


def test_the_keyboard_does_it_all(reader: Reader, pages: dict[str, Path]) -> None:
    """Zoom, move, go from fault to fault, zoom to it, and back to the whole run."""
    with reader.reading(pages["valid"]) as page:
        whole = shown(page)
        page.locator("#time").focus()
        page.keyboard.press("+")
        near = shown(page)
        assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
        page.keyboard.press("ArrowRight")
        assert shown(page)[0] > near[0]
        page.keyboard.press("]")
        page.wait_for_selector("tr.chosen")
        page.keyboard.press("Enter")
        begin, end = shown(page)
        assert end - begin < (whole[1] - whole[0]) / 2
        page.keyboard.press("0")
        assert shown(page) == pytest.approx(whole)
        expect(page.locator("#said")).to_have_text(re.compile("^Showing "))


def test_the_wheel_zooms_where_it_is(reader: Reader, pages: dict[str, Path]) -> None:
    """What is under the pointer stays there."""
    with reader.reading(pages["valid"]) as page:
        page.locator("#time").scroll_into_view_if_needed()
        whole = shown(page)
        box = page.locator("#lanes").bounding_box()
        assert box
        page.mouse.move(box["x"] + 150 + (box["width"] - 164) / 4, box["y"] + 40)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -200)
        page.keyboard.up("Control")
        begin, end = shown(page)
        length = whole[1] - whole[0]
        assert end - begin < length / 2
        under = whole[0] + length / 4
        assert (under - begin) / (end - begin) == pytest.approx(0.25, abs=0.02)


def test_dark_and_light(reader: Reader, pages: dict[str, Path]) -> None:
    """As the system's setting, until the reader changes it."""
    paper = "getComputedStyle(document.body).backgroundColor"
    with reader.reading(pages["valid"], dark=True) as page:
        dark = page.evaluate(paper)
        page.click("#theme")
        light = page.evaluate(paper)
        page.click("#theme")
        assert page.evaluate(paper) == dark != light


def test_paper(reader: Reader, pages: dict[str, Path]) -> None:
    """It prints, without buttons, in light colours, on pages that are not wider than paper."""
    with reader.reading(pages["invalid"], dark=True) as page:
        page.emulate_media(media="print")
        assert page.is_hidden("#tools")
        assert page.is_hidden(".copy >> nth=0")
        assert page.is_visible("h1")
        assert page.pdf().startswith(b"%PDF")


def test_without_script_the_words_are_there(reader: Reader, pages: dict[str, Path]) -> None:
    """Verdict, findings, stories and faults need none."""
    with reader.reading(pages["invalid"], java_script_enabled=False) as page:
        assert "acknowledged messages were lost" in page.inner_text("h1")
        assert "Conclusion" in page.content() or page.locator(".conclusion").count()
        assert page.locator("#fault-rows tbody tr").count() == 5
        assert page.is_visible("noscript")


def test_a_counterexample_is_drawn(reader: Reader, pages: dict[str, Path]) -> None:
    """Each operation on its client's line; the one that nothing explains is marked."""
    with reader.reading(pages["register"]) as page:
        bars = page.locator(".intervals .op")
        assert bars.count() >= 2
        assert page.locator(".intervals .op.failing").count() == 1
        assert "read" in page.inner_text("figure") or "get" in page.inner_text("figure")
        assert page.evaluate(OVERLAPS, ".intervals .word") == []


def test_nothing_from_a_run_acts(reader: Reader, pages: dict[str, Path]) -> None:
    """Hostile names, errors and values are words wherever they show up, also when pointed at."""
    with reader.reading(pages["hostile"]) as page:
        page.locator("#lanes .bar.fault").first.hover()
        for bar in page.locator("#lanes .name.link").all()[:2]:
            bar.click()
        assert page.evaluate("window.pwned") is None
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 3
        assert "window.pwned=1" in page.inner_text("h1")


def test_searching_the_log(reader: Reader, pages: dict[str, Path]) -> None:
    """What is typed is looked for, and the address keeps it."""
    with reader.reading(pages["valid"]) as page:
        page.fill("#search", "election")
        expect(page.locator("#log-count")).to_have_text(re.compile(" of "))
        told = page.locator("#log-rows tr").all_inner_texts()
        assert told
        assert all("election" in row for row in told)
        assert "search=election" in page.url


def test_the_command_is_copied(reader: Reader, pages: dict[str, Path]) -> None:
    """One click, with a confirmation."""
    with reader.reading(
        pages["invalid"], permissions=["clipboard-read", "clipboard-write"]
    ) as page:
        page.locator(".copy").first.click()
        expect(page.locator(".copy").first).to_have_text("Copied")
