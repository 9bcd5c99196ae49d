"""What we carry of others is what they published, with its licence."""

import hashlib
from pathlib import Path

import pytest

PUBLISHED = {  # npm: uplot 1.6.32
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_is_unchanged(root: Path, name: str) -> None:
    """Byte for byte; no newer one slips in unseen."""
    data = (root / "reports" / "_vendor" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == PUBLISHED[name]


def test_nothing_else_is_carried(root: Path) -> None:
    """Each file is listed, and there is a word of where it came from."""
    there = {path.name for path in (root / "reports" / "_vendor").iterdir()}
    assert there == {*PUBLISHED, "README.md"}
