"""Choice points: usual in production, and every one has a reason."""

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.flotilla.world.choices import POINTS, delay
from clusters.flotilla.world.ports import real

ROOT = Path(__file__).resolve().parents[2]
FLOTILLA = ROOT / "clusters" / "flotilla"
DESIGN = ROOT / "docs" / "flotilla-design.md"
ASK = {"chance": 0, "moment_s": 0, "fewer": 0, "delay": 1}  # the position of the point's name


def _asked(source: str) -> Iterator[str]:
    """Yield the name of the point of each question in a module."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ASK and len(node.args) > ASK[name]:
            point = node.args[ASK[name]]
            assert isinstance(point, ast.Constant), ast.unparse(node)
            yield str(point.value)


@pytest.mark.parametrize("point", POINTS)
def test_production_makes_no_choice(point: str) -> None:
    """The real ports answer every question in the usual way, and a usual delay takes no turn of
    the event loop."""
    choices = real().choices
    assert {choices.chance(point) for _ in range(100)} == {False}
    assert {choices.moment_s(point, 9.0) for _ in range(100)} == {0.0}
    assert {choices.fewer(point, most) - most for most in range(1, 100)} == {0}

    async def turns() -> int:
        seen = list[int]()
        asyncio.get_running_loop().call_soon(seen.append, 1)
        await delay(choices, point, 9.0)
        return len(seen)

    assert asyncio.run(turns()) == 0


def test_every_point_of_the_code_is_listed_once_with_its_reason() -> None:
    """The names in the code are those of the list, and each is asked in one place."""
    files = (path for path in FLOTILLA.rglob("*.py") if path.name != "choices.py")
    asked = [point for path in files for point in _asked(path.read_text())]
    assert sorted(asked) == sorted(POINTS)


@pytest.mark.parametrize("point", POINTS)
def test_a_reason_refers_to_what_permits_it(point: str) -> None:
    """Each reason refers to the paper, a module or a section of the design, which exist."""
    why = POINTS[point]
    modules = re.findall(r"[a-z]+/\w+\.py", why)
    heads = re.findall(r"design, ([A-Z][A-Za-z ]+)", why)
    assert modules or heads or "paper" in why
    assert all((FLOTILLA / module).exists() for module in modules)
    assert {f"## {head}" for head in heads} <= set(DESIGN.read_text().splitlines())
