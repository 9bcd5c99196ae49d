"""`seatrial serve` gives access to runs, and to no other folders among them."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import site_lab

from harness.history.rundir import RunDir
from reports._site.run_index import OWN

Written = Callable[..., RunDir]
NAME = "20261121-101500-demo"


@pytest.fixture
def runs(tmp_path: Path, written: Written) -> Path:
    """A run, and what else may be in such a folder."""
    folder = tmp_path / "runs"
    site_lab.shelved(written(), folder, NAME)
    for name in ("Documents", *OWN):
        (folder / name).mkdir()
        (folder / name / "letter.txt").write_text(site_lab.SECRET)
    for name in OWN:
        (folder / name / "trial.toml").write_text("")
    return folder


@pytest.mark.parametrize("name", ["Documents", *OWN])
@pytest.mark.parametrize("part", ["archive", "live"])
def test_only_runs_are_given_away(runs: Path, name: str, part: str) -> None:
    """A folder without a trial is no run; neither are our own folders."""
    asked = site_lab.browser(runs)
    assert asked.get(f"/runs/{NAME}/{part}").status_code == 200
    assert asked.get(f"/runs/{name}/{part}").status_code == 404


def test_a_folder_that_is_no_run_says_so(runs: Path) -> None:
    """It is listed, because a reader may look for it; our own folders are not."""
    asked = site_lab.browser(runs)
    assert "there is no trial.toml in it" in asked.get("/runs/Documents").text
    assert [asked.get(f"/runs/{name}").status_code for name in OWN] == [404, 404]


def test_a_run_with_a_link_out_of_it_has_a_line_and_no_report(runs: Path) -> None:
    """Its regular files are shown; the link is not followed."""
    (runs / NAME / "nodes").mkdir(exist_ok=True)
    (runs / NAME / "nodes" / "letter").symlink_to(runs / "Documents" / "letter.txt")
    asked = site_lab.browser(runs)
    assert '<span class="badge small valid">valid</span>' in asked.get("/").text
    shown = asked.get(f"/runs/{NAME}").text
    assert "no report is made of it: nodes/letter is a link that leads out of its folder" in shown
    archive = gzip.decompress(asked.get(f"/runs/{NAME}/archive").content)
    for text in (asked.get("/").text, shown, archive.decode("latin-1")):
        assert site_lab.SECRET not in text
