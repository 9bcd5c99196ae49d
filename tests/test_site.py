"""The documentation as a site: it is built without a warning, asks nobody for anything, and is read
and searched from a folder, without a server or a network.
"""

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import page_lab
import pytest
from playwright.sync_api import Page, expect

SHIM = "e8e412dbcfea9b7e"  # npm: iframe-worker 1.0.4, shim/index.js, MIT
LOADS = re.compile(
    r'<(?:script|img|iframe|source|embed)\b[^>]*\bsrc="([^"]+)"'
    r'|<link\b(?=[^>]*\brel="(?!canonical|next|prev)[^"]*")[^>]*\bhref="([^"]+)"'
)
SCREENS = [(1280, False), (390, True)]
READ = ("index.html", "verdicts.html", "tutorial/first-system.html", "reading-a-report.html")


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=root,
        env={"PATH": "", "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    return folder


def test_every_page_is_there_and_loads_its_own(root: Path, site: Path) -> None:
    """Whatever a page loads lies beside it."""
    pages = [path.relative_to(root / "docs") for path in (root / "docs").rglob("*.md")]
    assert pages
    for page in pages:
        path = site / page.with_suffix(".html")
        loaded = [script or link for script, link in LOADS.findall(path.read_text())]
        assert loaded
        assert not [url for url in loaded if not (path.parent / url.split("?")[0]).is_file()]


def test_what_is_carried_is_what_was_published(root: Path) -> None:
    """With its licence."""
    folder = root / "docs" / "scripts"
    assert {path.name for path in folder.iterdir()} == {"iframe-worker.js", "iframe-worker.LICENSE"}
    digest = hashlib.sha256((folder / "iframe-worker.js").read_bytes()).hexdigest()
    assert digest.startswith(SHIM)


@pytest.fixture(scope="module")
def reader(site: Path) -> Iterator[page_lab.Reader]:
    path = page_lab.chromium()
    if not path:
        pytest.skip("no browser: apt-get install chromium")
    with page_lab.reader(path) as opened:
        yield opened


@pytest.fixture(params=SCREENS)
def tab(request: pytest.FixtureRequest, reader: page_lab.Reader) -> Iterator[Page]:
    """A page that, in the end, has asked for files only, and complained of nothing."""
    width, dark = request.param
    context = reader.browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    shown = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    shown.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("request", lambda wanted: asked.append(wanted.url))
    try:
        yield shown
        assert said == []
        assert not [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
    finally:
        context.close()


@pytest.mark.bed  # a browser is several busy processes
def test_it_is_read_and_searched_without_a_server(site: Path, tab: Page) -> None:
    """Pages are no wider than the screen, pictures are drawn, and a code is found by its name."""
    for page in READ:
        tab.goto((site / page).as_uri())
        screen, wide = tab.evaluate("[innerWidth, document.documentElement.scrollWidth]")
        assert wide <= screen, page
        for picture in tab.locator("article img").all():
            assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300
    tab.goto((site / "index.html").as_uri())
    if tab.locator("label[for=__search].md-header__button").is_visible():
        tab.locator("label[for=__search].md-header__button").click()
    words = tab.locator("input.md-search__input")
    words.focus()  # only now the index is read
    expect(tab.locator(".md-search-result__meta")).to_contain_text("start search", timeout=60_000)
    words.press_sequentially("ELECTED_OUTSIDE")
    found = tab.locator(".md-search-result__link[href*='verdicts.html']")
    expect(found.first).to_be_attached(timeout=60_000)
