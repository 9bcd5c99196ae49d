"""The pins of constraints.txt serve every Python that Seatrial supports.

This looks at what is installed. .ci/pins asks the package index about every pin, and about wheels.
"""

import re
import tomllib
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PYTHONS = ("3.11.0", "3.12.0", "3.13.0", "3.14.0")
OF_PYTHON = {"seatrial", "setuptools"}  # the clone itself, and what venv puts there


@pytest.fixture(scope="module")
def pins(root: Path) -> Mapping[str, Requirement]:
    lines = re.sub(r"#.*", "", (root / "constraints.txt").read_text()).split("\n")
    found = [Requirement(line) for line in lines if line.strip()]
    return {canonicalize_name(pin.name): pin for pin in found}


@pytest.fixture(scope="module")
def installed() -> Mapping[str, Distribution]:
    return {canonicalize_name(each.name): each for each in distributions()}


def test_what_is_installed_is_what_is_pinned(
    pins: Mapping[str, Requirement], installed: Mapping[str, Distribution]
) -> None:
    """Every package below the clone's own is pinned, at the version that is installed."""
    others = {name: each for name, each in installed.items() if name not in OF_PYTHON}
    unlike = {
        name: each.version
        for name, each in others.items()
        if name not in pins or not pins[name].specifier.contains(each.version)
    }
    assert len(others) > 80
    assert not unlike


@pytest.mark.parametrize("python", PYTHONS)
def test_every_installed_package_admits_every_supported_python(
    python: str, installed: Mapping[str, Distribution]
) -> None:
    """Requires-Python of no package excludes the first release of a supported Python."""
    asked = {name: each.metadata.get("Requires-Python", "") for name, each in installed.items()}
    assert not {name: spec for name, spec in asked.items() if python not in SpecifierSet(spec)}


def test_pins_are_tried_for_the_pythons_that_are_declared(root: Path) -> None:
    """The classifiers in pyproject.toml, and .ci/pins, name the same versions."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = [line.rpartition(" :: ")[2] for line in project["classifiers"] if "Python :: 3" in line]
    assert [f"{name}.0" for name in names] == list(PYTHONS)
    assert f"PYTHONS = {PYTHONS!r}".replace("'", '"') in (root / ".ci" / "pins").read_text()
    assert "3.11.0" in SpecifierSet(project["requires-python"])
