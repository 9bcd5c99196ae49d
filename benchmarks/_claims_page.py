"""The page docs/claims.md, from suites/claims.toml and docs/claims.json. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from _figures import table

from harness.suite.claims import (
    CONFIRMED,
    FAULTS_A_YEAR,
    NOT_MEASURED,
    PARTLY,
    REFUTED,
    ClaimCheck,
    ClaimMode,
    ClaimsFile,
    ClaimVerdict,
    Measurement,
    Measurements,
    PublishedClaim,
    judge_claim,
    valid_measurements,
)

HEAD = """<!-- generated: python benchmarks/claims.py --page -->
# Claims, measured

Published articles about RocketMQ claim things about its ways to be highly available. Each claim is
an entry of `suites/claims.toml`: the experiment, the figure that is taken from it, and its bound.
`python benchmarks/claims.py` runs the experiments that have no record, and writes this page from
that file and from `docs/claims.json`, where the measured values are. Verdicts are computed from
both: no verdict is written by hand. Most experiments are trials in simulated worlds, whose time
does not depend on the machine; Flotilla's modes are tested there, not RocketMQ's program. What is
called *not measured* has its reason. Beside a figure stands what its run found besides what its
trial expects.
"""
WORDS = {
    CONFIRMED: "confirmed",
    PARTLY: "confirmed in some cases",
    REFUTED: "refuted",
    NOT_MEASURED: "not measured",
}
SOURCES = """
The articles: *New design* is "Exploring the New High-availability Design of RocketMQ 5.0"; *Raft*
is "A Comprehensive Explanation of How RocketMQ Leverages Raft for High Availability"; *Replication*
describes the replication modes of primary and secondary servers; *Low latency* is "Low-Latency
Distributed Messaging with RocketMQ", part 2; *HA implementation* is "RocketMQ: HA Implementation"
(DZone). H1 to H41 are hypotheses that were derived from them."""


def page(file: ClaimsFile, rows: Iterable[Measurement], root: Path) -> str:
    """Return the page's text."""
    known = valid_measurements(file, rows, root)
    verdicts = {claim.id: judge_claim(claim, known) for claim in file.claims}
    parts = [
        HEAD,
        "## Modes\n",
        *_modes(file, known),
        "## Verdicts\n",
        _overview(file, verdicts),
        *_quiet(file, known),
        *(part for claim in file.claims for part in _claim(claim, verdicts[claim.id], known)),
        "## Measurements\n",
        records(known),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _modes(file: ClaimsFile, known: Measurements) -> Iterator[str]:
    heads = ["mode", "acknowledged", "copies", *(f"RTO {kind}, s" for kind in file.shares)]
    heads += ["lost: kill, pause, cut", "lost: power", "sends in faults", "p50 / p99 ms"]
    yield table(heads, [_mode(mode, file, known) for mode in file.modes])
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in file.shares.items())
    yield f"""
RTO: seconds from the fault of a master to the first acknowledgement, the median and the slowest; a
fault lasts 40 s, so about 40 s means that the mode did not recover by itself. Lost: acknowledged
messages that were gone at the end. Sends in faults: the share of sends that were acknowledged while
a fault was in force. Latency is that of a simulated network and disk, for comparison only. All
times are those of `timeScale` 1.

Minutes without service in a year with so many faults of a master, and nines. Of the faults we
assume {shares}. Where no part of a mode replaces a master, a repair by hand within 20 minutes is
assumed instead of the measured time.
"""
    heads = ["mode", *(f"{n} a year: minutes" for n in FAULTS_A_YEAR)]
    heads += [f"{n}: nines" for n in FAULTS_A_YEAR]
    names = [f"minutes_a_year_{n}" for n in FAULTS_A_YEAR] + [f"nines_{n}" for n in FAULTS_A_YEAR]
    lines = [
        [mode.name, *(number(known.value(f"availability/{mode.name}", name)) for name in names)]
        for mode in file.modes
    ]
    yield table(heads, lines) + "\n"


def _mode(mode: ClaimMode, file: ClaimsFile, known: Measurements) -> list[str]:
    def of(kind: str, figure: str, take: str = "median") -> float | None:
        return known.value(mode.trials.get(kind, ""), figure, take)

    times = [
        f"{number(of(kind, 'to_ack_s_p50'))}, {number(of(kind, 'to_ack_s_p99', 'max'))}"
        for kind in file.shares
    ]
    lost = ", ".join(number(of(kind, "lost", "max")) for kind in file.shares)
    power = number(known.value(mode.outage, "lost", "max")) if mode.outage else "-"
    during = ", ".join(number(of(kind, "success_in_faults")) for kind in file.shares)
    latency = f"{number(of('kill', 'ack_ms_p50'))} / {number(of('kill', 'ack_ms_p99'))}"
    return [mode.name, mode.acknowledged, mode.copies, *times, lost, power, during, latency]


def _overview(file: ClaimsFile, verdicts: dict[str, ClaimVerdict]) -> str:
    counts = Counter(verdict.word for verdict in verdicts.values())
    said = ", ".join(f"{counts[word]} {text}" for word, text in WORDS.items() if counts[word])
    lines = [[f"[{c.id}](#{anchor(c)})", c.claim, verdicts[c.id].text] for c in file.claims]
    return f"{said}.\n{SOURCES}\n\n{table(['', 'claim', 'verdict'], lines)}\n"


def _quiet(file: ClaimsFile, known: Measurements) -> Iterator[str]:
    """Say which claims need a machine without other load, and what it did when they were
    measured."""
    lines = []
    for claim in (claim for claim in file.claims if claim.quiet):
        rows = [row for name in claim.experiments for row in known.of.get(name, ()) if row.edition]
        when, load = _provenance(rows)[2:4] if rows else ("", "")
        lines.append([f"[{claim.id}](#{anchor(claim)})", when, load])
    if lines:
        only = ",".join(claim.id for claim in file.claims if claim.quiet)
        yield f"""These rows need a machine without other load. The load is the average number of
processes that were ready to run when the measurement ended, other work included: times that were
measured at a high one are upper bounds, and only ratios within one row count. They are measured
again by `python benchmarks/claims.py --again --only {only}`.
"""
        yield table(["", "measured (UTC)", "load"], lines) + "\n"


def anchor(claim: PublishedClaim) -> str:
    return f"claim-{claim.id.lower()}"


def _claim(claim: PublishedClaim, verdict: ClaimVerdict, known: Measurements) -> Iterator[str]:
    yield f"### Claim {claim.id}\n"
    yield f"{claim.claim} ({claim.source})\n"
    yield f"**{verdict.text}**\n"
    quiet = " It needs a machine without other load." if claim.quiet else ""
    yield f"Experiment: {claim.experiment}{quiet}\n"
    if claim.checks:
        heads = ["figure", "case", "measured", "bound", "holds"]
        yield table(heads, _checks(claim, verdict, known)) + "\n"
    if claim.because and verdict.word != NOT_MEASURED:
        yield f"{claim.because}\n"


def _checks(claim: PublishedClaim, verdict: ClaimVerdict, known: Measurements) -> list[list[str]]:
    lines = []
    for check, value in zip(claim.checks, verdict.values, strict=True):
        bound = f"{'at most' if check.bound.most else 'at least'} {number(check.bound.value)}"
        holds = "" if value is None else "yes" if check.bound.holds(value) else "no"
        under = check.over_figure or check.figure
        over = f", over `{under}` of `{check.over}`" if check.over else ""
        take = "" if check.take == "median" else f"{check.take} of "
        what = f"{take}`{check.figure}` of `{check.of}`{over}"
        lines.append([what, check.where, number(value) + unexpected(check, known), bound, holds])
    return lines


def unexpected(check: ClaimCheck, known: Measurements) -> str:
    """Return what stands beside a figure of a run that did not end as its trial expects."""
    ends = (known.unexpected.get(name) for name in dict.fromkeys((check.of, check.over)) if name)
    said = "; ".join(filter(None, ends))
    return f" (its run: {said})" if said else ""


def records(known: Measurements) -> str:
    """Return when, where and how each experiment was measured."""
    lines = []
    for name, rows in sorted(known.of.items()):
        if rows[0].edition:
            lines.append([f"`{name}`", *_provenance(rows), f"`{rows[0].command}`"])
    heads = ["experiment", "runs", "verdicts", "date (UTC)", "load", "edition", "command"]
    return table(heads, lines)


def _provenance(rows: Sequence[Measurement]) -> list[str]:
    words = Counter(", ".join((row.word, *row.codes)) for row in rows if row.word)
    said = "; ".join(f"{word} {count}" if count > 1 else word for word, count in words.items())
    loads = [row.load for row in rows if row.load is not None]
    load = f"{min(loads):g} to {max(loads):g}" if len(set(loads)) > 1 else f"{loads[0]:g}"
    editions = ", ".join(dict.fromkeys(row.edition for row in rows))
    return [str(len(rows)), said, max(row.when for row in rows)[:16], load, editions]


def number(value: float | None) -> str:
    """Return a figure as text: three digits that count."""
    if value is None:
        return "?"
    if math.isinf(value):
        return "never"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
