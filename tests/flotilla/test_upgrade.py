"""A rolling upgrade of real processes under load, from the same code in another folder.

It proves the procedure, and that nodes give their folders over; `tests/acceptance/upgrade.py` does
the same from another revision's code, and `test_older.py` opens what the first edition left.
"""

import asyncio
import shutil
from pathlib import Path

import pytest
from upgrade import HANDOVER, Outcome, upgraded
from upgrade_fleet import ROOT
from upgrade_traffic import Sent, Traffic, lost_or_moved

from clusters.flotilla.client import CallOutcome as Ended
from clusters.flotilla.client import SendResult

pytestmark = pytest.mark.bed
EVERYBODY = {
    *(f"broker-{n}" for n in (1, 2, 3)),
    *(f"controller-{n}" for n in (1, 2, 3)),
    *(f"nameserver-{n}" for n in (1, 2)),
}


def test_an_upgrade_under_load_loses_nothing(tmp_path: Path) -> None:
    """Every node is replaced once, under load, and the mastership is handed over as planned: what
    was acknowledged is read, replicas are equal, and no send fails at the handover."""
    old = tmp_path / "old"
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "clusters", old / "clusters", ignore=unwanted)
    with (old / "clusters" / "flotilla" / "__init__.py").open("a") as text:
        text.write('\nEDITION = "the one before"\n')
    outcome: Outcome = asyncio.run(upgraded(tmp_path / "fleet", old, ROOT))
    assert outcome.deviations == []
    assert {row["step"] for row in outcome.rows if row["what"] == "replaced"} == EVERYBODY
    assert [row["what"] for row in outcome.rows].count(HANDOVER) == 1
    assert sum(row["acked"] for row in outcome.rows) > 0


def test_what_an_upgrade_lost_is_told() -> None:
    """Gone, elsewhere, out of order, and there twice after one try."""

    async def judged(*read: bytes) -> list[str]:
        traffic = Traffic(["127.0.0.1:1"])
        traffic.sent[0] = [
            Sent("a step", b"%d" % n, SendResult(Ended.HAPPENED, n, attempts=1)) for n in range(3)
        ]
        traffic.read[0] = list(read)
        await traffic.close()
        return list(lost_or_moved(traffic))

    assert asyncio.run(judged(b"0", b"1", b"2")) == []
    assert asyncio.run(judged(b"0", b"1"))[0].startswith("queue 0: acknowledged at 2 under")
    assert len(asyncio.run(judged(b"0", b"2", b"1"))) == 2
    assert asyncio.run(judged(b"0", b"1", b"2", b"0")) == ["queue 0: b'0' is there 2 times"]
    assert asyncio.run(judged(b"0", b"1", b"2", b"?")) == ["queue 0: b'?' is there 1 times"]
