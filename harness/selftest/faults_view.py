"""The table of `seatrial list faults --verify`."""

from harness.cli.console import standard_output
from harness.selftest.faults import Seen, Verified, words

HEADINGS = ("", "fault", "on", "applied", "seen", "healed", "measured")


def show(verified: Verified) -> None:
    """On standard output: a row for each fault, what these hosts can not do, and a sentence."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for seen in verified.faults:
        table.add_row(*map(escape, row(seen)), style="" if seen.works else "red")
    console = standard_output()
    if verified.faults:
        console.print(table)
    for kind, why in verified.lacking.items():
        console.print(f"not here  {kind}: {why}", markup=False, soft_wrap=True)
    console.print(conclusion(verified), markup=False, soft_wrap=True)


def row(seen: Seen) -> tuple[str, ...]:
    times = (seen.applied_s, seen.observed_s, seen.healed_s)
    told = seen.measured if seen.works else ": ".join(filter(None, (seen.why, seen.measured)))
    return (
        "ok" if seen.works else "FAILED",
        words(seen),
        ", ".join(seen.nodes) or seen.target,
        *("-" if time is None else f"{1000 * time:.0f} ms" for time in times),
        told,
    )


def conclusion(verified: Verified) -> str:
    """The last line."""
    if verified.error:
        return f"The run ended early: {verified.error} ({verified.run})"
    if not verified.faults:
        return f"{verified.hosts} hosts can do none of these faults."
    failed = [seen for seen in verified.faults if not seen.works]
    if not failed:
        count = len(verified.faults)
        return f"All {count} faults were seen in effect on {verified.hosts} hosts, and seen healed."
    kinds = ", ".join(dict.fromkeys(seen.kind for seen in failed))
    return (
        f"Not seen in effect, or not seen healed, on {verified.hosts} hosts: {kinds}."
        f" What was recorded is in {verified.run}."
    )
