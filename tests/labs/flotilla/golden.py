"""Golden transcripts: what a story says is a text in tests/flotilla/golden, reviewed as a diff.

    compare("log-cases", told, rewrite)     # `rewrite` is the fixture of tests/conftest.py

`pytest --rewrite` writes the file instead. Every transcript begins with the source that it follows.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "flotilla/golden"


def compare(name: str, told: str, rewrite: bool) -> None:
    path = FOLDER / f"{name}.txt"
    if rewrite:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(told)
    assert path.exists(), f"there is no {path.name} yet; run pytest with --rewrite"
    assert told == path.read_text(), f"{path.name} tells another story"
