"""Puts the folders of tests/labs on `sys.path`, as pytest's `pythonpath` does: scripts import it
before a module of these folders."""

import sys
from pathlib import Path

LABS = Path(__file__).resolve().parents[1] / "labs"
sys.path.extend(str(each) for each in sorted(LABS.iterdir()) if each.is_dir())
