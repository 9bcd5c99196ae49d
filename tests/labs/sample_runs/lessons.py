"""The tutorial's pages as what they tell a reader to do: files to write, commands to type, and what
they will see.

A block of code whose first line is a comment with a path is a file; that line is not part of a file
that begins with `#!`. A block of `sh` is commands,
and what stands in a block of another kind is looked for in their output, in this order, where
numbers are any numbers, white space any white space, and `...` is anything.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w./-]+/?[\w-]+\.\w+)\n")
WILD = re.compile(r"(\.\.\.)|(\d[\d.,:]*)|(\s+)")


@dataclass
class Step:
    """Commands, and what they say; or a file that is written."""

    commands: tuple[str, ...] = ()
    says: list[str] = field(default_factory=list)
    file: str = ""
    text: str = ""


def steps(page: str) -> list[Step]:
    """What a page tells to do, in its order. ValueError: output without a command."""
    found: list[Step] = []
    for language, text in FENCE.findall(page):
        if named := NAMED.match(text):
            rest = text[named.end() :]
            found.append(Step(file=named[1], text=rest if rest.startswith("#!") else text))
        elif language == "sh":
            found.append(Step(commands=tuple(_commands(text))))
        elif found and found[-1].commands:
            found[-1].says.append(text)
        else:
            raise ValueError(f"what says this? {text}")
    return found


def _commands(text: str) -> Iterator[str]:
    """One a line, or several lines with a backslash at the end of all but the last."""
    for line in text.replace("\\\n", " ").splitlines():
        if command := " ".join(line.partition(" #")[0].split()):
            yield command


def missing(expected: str, said: str) -> str:
    """The first line of what was expected that was not said after the others; nothing: all was."""
    at, words = 0, " ".join(said.split())
    for line in filter(str.strip, expected.splitlines()):
        found = re.compile(pattern(line.strip())).search(words, at)
        if not found:
            return line.strip()
        at = found.end()
    return ""


def pattern(line: str) -> str:
    """What a line of the page means."""
    parts, at = [], 0
    for wild in WILD.finditer(line):
        parts.append(re.escape(line[at : wild.start()]))
        parts.append(".*?" if wild[1] else r"\d[\d.,:]*" if wild[2] else " ?" if wild[3] else "")
        at = wild.end()
    return "".join((r"(?<!\w)", *parts, re.escape(line[at:])))


def workshop(clone: Path, outer: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """An empty folder with a `.venv` of its own that has all that the one at `outer` has, so that
    what is installed stays there. The environment in which nothing is fetched from anywhere."""
    inner = clone / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", inner], check=True)
    (packages,) = inner.glob("lib/python*/site-packages")
    shared = sysconfig.get_path("purelib")
    (packages / "outer.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    for name in ("seatrial", "pip"):
        script = (outer / name).read_text().split("\n", 1)[1]
        (inner / "bin" / name).write_text(f"#!{inner / 'bin' / 'python'}\n{script}")
        (inner / "bin" / name).chmod(0o755)
    path = environment.get("PATH", "").split(os.pathsep)
    return {
        **environment,
        "PATH": os.pathsep.join(each for each in path if Path(each) != outer),  # of an active venv
        "COLUMNS": "200",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which means that there is none
        "PIP_NO_INDEX": "1",
    }
