"""Golden transcripts: files in tests/flotilla/golden, reviewed as a diff.

    compare("log-cases", transcript, rewrite)     # `rewrite` is the fixture of tests/conftest.py

`pytest --rewrite` writes the file instead. Every transcript begins with the source that it follows.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "flotilla/golden"


def compare(name: str, transcript: str, rewrite: bool) -> None:
    path = FOLDER / f"{name}.txt"
    if rewrite:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(transcript)
    assert path.exists(), f"there is no {path.name} yet; run pytest with --rewrite"
    assert transcript == path.read_text(), f"{path.name} differs"
