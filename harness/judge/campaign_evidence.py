"""Evidence adds up: all campaigns of exactly one kind, each seed once.

Each campaign adds a line to `campaigns.jsonl` in the folder of runs: its options, the edition of
the code, a row for each seed, and the seeds without a result. Only campaigns that do the same for
the same seed are summed, if they were judged in full: the same code, options, profile, mutant and
plan. A seed is a failure if it failed in any campaign, and lost only if no campaign finished it.
"""

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.campaign.checkpoint import CampaignCheckpoint
from harness.campaign.run import CampaignState, in_full
from harness.campaign.tally import CampaignTotals, SeedResult
from harness.errors import BedFailed
from harness.text.parsing import parse_json

LOG = "campaigns.jsonl"


@dataclass(frozen=True)
class CampaignTotal:
    """The sum of all campaigns of a kind. `lost`: seeds whose worker died; `abandoned`: seeds that
    were in progress when their campaign ended."""

    tally: CampaignTotals = field(default_factory=CampaignTotals)
    lost: frozenset[int] = frozenset()
    abandoned: frozenset[int] = frozenset()

    @property
    def seeds(self) -> int:
        """The number of all seeds that were begun."""
        return self.tally.seeds + len(self.lost) + len(self.abandoned)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            **self.tally.plain(),
            "seeds_lost": len(self.lost),
            "seeds_abandoned": len(self.abandoned),
        }


def sum_campaigns(state: CampaignState, runs: Path) -> CampaignTotal:
    """Sum this campaign and all recorded ones of its kind; nothing, if it is not judged in full."""
    kind, rows = state.kind, dict[int, SeedResult]()
    lost, abandoned = set[int](), set[int]()
    for line in (*_recorded_campaigns(runs / LOG), _line(state)):
        try:
            if {key: line[key] for key in kind} == kind and in_full(line["base"]):
                _add(rows, [SeedResult.read(row) for row in line["rows"]])
                lost |= set(map(int, line.get("lost", ())))
                abandoned |= set(map(int, line.get("abandoned", ())))
        except (KeyError, TypeError, AttributeError, ValueError):
            continue  # written by an older version
    lost -= rows.keys()
    abandoned -= rows.keys() | lost
    return CampaignTotal(CampaignTotals.of(rows.values()), frozenset(lost), frozenset(abandoned))


def _add(rows: dict[int, SeedResult], more: Iterable[SeedResult]) -> None:
    """Add rows; a failure outweighs a clean row, which outweighs one that proves nothing."""
    for row in more:
        before = rows.get(row.seed)
        if before is None or row.weight > before.weight:
            rows[row.seed] = row


def _recorded_campaigns(file: Path) -> Iterator[Any]:
    """Yield the campaigns of a file, without lines that were cut short."""
    try:
        lines = file.read_bytes().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield parse_json(line)
        except ValueError:
            continue


def record_campaign(
    state: CampaignState, runs: Path, checkpoint: CampaignCheckpoint | None = None
) -> None:
    """Add a line about the campaign to the file."""
    file = runs / LOG
    try:
        runs.mkdir(parents=True, exist_ok=True)
        _append(file, json.dumps(_line(state)).encode())
    except OSError as e:
        why = e.strerror or e
        raise BedFailed(f"this campaign cannot be added to {file}: {why}; free space") from e
    if checkpoint:
        checkpoint.discard()


def _append(file: Path, line: bytes) -> None:
    """Append in one write, on a line of its own even after a torn line."""
    log = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(log).st_size
        torn = size > 0 and os.pread(log, 1, size - 1) != b"\n"
        text = b"\n" * torn + line + b"\n"
        if os.write(log, text) < len(text):
            raise OSError("it was cut short, for the disk is full")
    finally:
        os.close(log)


def _line(state: CampaignState) -> Mapping[str, Any]:
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        **state.kind,
        "base": tomllib.loads(state.campaign.base.to_toml()),
        "took_s": round(state.took_s, 1),
        "rows": [row.without_search().plain() for row in (*state.rows, *state.beside)],
        "lost": state.lost,
        "abandoned": state.abandoned,
    }
