"""`seatrial import`: a history that another tool recorded, as a run's folder."""

import json
import shlex
from pathlib import Path

import click

from harness.cli.options import Words

MOST_SAID = 5


@click.command("import", short_help="Import a history recorded by another tool.")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--as", "name", required=True, metavar="FORMAT", help="`seatrial list importers`.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder to make.",
)
@click.option(
    "--initial",
    metavar="VALUE",
    show_default="nothing",
    help="Initial value of registers, as FILE writes it.",
)
@click.option(
    "--contract",
    type=Words(),
    metavar="WORDS",
    show_default="everything",
    help="Demands: no-loss,at-least-once of a queue without an order, no-loss of one that"
    " may also deliver twice, snapshot-isolation of transactions.",
)
@click.option(
    "--max-unpacked-mb",
    "most_mb",
    type=click.IntRange(1, 1 << 20),
    default=512,
    help="How large FILE may be when it is unpacked, or a line of it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    file: Path,
    name: str,
    out: Path,
    initial: str | None,
    contract: tuple[str, ...] | None,
    most_mb: int,
    as_json: bool,
) -> int:
    """Read the history in FILE, plain or gzipped, and write it to DIR as the folder of a run.

    `seatrial check DIR` then checks it. Invalid lines are reported with their numbers; the others
    are imported, and the verdict says what is missing. The exit code is 0 when DIR was written.
    """
    from harness import registry
    from harness.cli.console import working
    from harness.cli.session import say
    from harness.importers._recording import run_folder as _folder
    from harness.importers._text import source as _source
    from harness.text.sanitize import sayable

    read = registry.load("importer", name)
    _folder.see_that_it_is_free(out)
    _source.MAX_UNPACKED_MB.set(most_mb)
    with working(f"importing {file.name}") as step:
        step("reading")
        recording = read(file)
        step(f"writing {len(recording.events):,} events")
        run = _folder.write(recording, file, name, out, initial, contract)
    said = recording.slips.first[:MOST_SAID]
    for slip in said:
        say(f"{file} {slip}")
    hidden = sum(recording.slips.counts.values()) - len(said)
    if hidden > 0:
        say(f"{file}: and {hidden:,} more such lines; {run.path}/run.json has some of each rule")
    events, out_words = len(recording.events), shlex.quote(str(out))
    if as_json:
        slips = dict(recording.slips.counts)
        told = {"run": str(run.path), "kind": recording.kind, "events": events, "slips": slips}
        print(json.dumps(told, indent=2))
    else:
        print(sayable(f"{events:,} events of {recording.kind}: seatrial check {out_words}"))
    return 0
