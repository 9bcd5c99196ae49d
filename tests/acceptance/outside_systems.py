"""A package outside the repository that offers drivers of its own: copies of those of etcd and
NATS under other names, one in a package and one in a module that is a single file."""

from collections.abc import Mapping
from pathlib import Path

from run_command import ROOT

SYSTEMS = ROOT / "clusters" / "systems"
OWN_ETCD, OWN_NATS = "own-etcd", "own-nats"
FILES = {OWN_ETCD: ("etcd", "own_systems/etcd_driver.py"), OWN_NATS: ("nats", "own_nats.py")}
ENTRIES = f"[seatrial.system]\n{OWN_ETCD} = own_systems.etcd_driver\n{OWN_NATS} = own_nats\n"


def install(site: Path) -> Mapping[str, str]:
    """Install the package into a folder; return the environment in which it is found."""
    for name, (original, file) in FILES.items():
        text = (SYSTEMS / f"{original}.py").read_text()
        declared = f'name, programs, client = "{original}"'
        assert declared in text
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text.replace(declared, f'name, programs, client = "{name}"'))
    (site / "own_systems" / "__init__.py").write_text("")
    info = site / "own_systems-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-systems\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    return {"PYTHONPATH": str(site)}
