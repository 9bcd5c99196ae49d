"""`seatrial import`: turns a history recorded by another tool into the folder of a run."""

import json
import shlex
from pathlib import Path

import click

from harness.cli.options import SPARK, NameList

MAX_PRINTED = 5


@click.command("import", short_help="Import a history recorded by another tool.")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--as", "name", required=True, metavar="FORMAT", help="`seatrial list importers`.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder to create.",
)
@click.option(
    "--initial",
    metavar="VALUE",
    show_default="nothing",
    help="Initial value of registers, as written in FILE.",
)
@click.option(
    "--contract",
    type=NameList(),
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
    help="Maximum size of FILE, or of a line of it, when unpacked.",
)
@click.option(
    "--check", "checked", is_flag=True, help="Check it, too, as `seatrial check DIR` does."
)
@SPARK
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    file: Path,
    name: str,
    out: Path,
    initial: str | None,
    contract: tuple[str, ...] | None,
    most_mb: int,
    checked: bool,
    spark: str,
    as_json: bool,
) -> int:
    """Read the history in FILE, plain or gzipped, and write it to DIR as the folder of a run.

    `seatrial check DIR` then checks it. Invalid lines are reported with their numbers; the others
    are imported, and the verdict says what is missing. The exit code is 0 if DIR was written.

    With --check, Spark starts while FILE is read, and output and exit code are those of the check.
    """
    from harness import registry
    from harness.cli.console import working
    from harness.cli.session import ReportOptions, check, say, starting_spark
    from harness.history.journal import skip_pandas
    from harness.importers import _recording, _run_folder, _source
    from harness.run.interrupts import stop_signals_interrupt
    from harness.text.sanitize import sanitize

    read = registry.load("importer", name)
    _run_folder.refuse_existing(out)
    _source.MAX_UNPACKED_MB.set(most_mb)
    _recording.use_system_memory()
    if not checked:
        skip_pandas()  # an interrupt during its import in a callback of pyarrow is lost
    size = file.stat().st_size if file.is_file() else 0
    with (
        stop_signals_interrupt(),
        starting_spark(spark, wanted=checked, file_bytes=size) as sessions,
    ):
        with working(f"importing {file.name}") as step:
            step("reading")
            recording = read(file)
            step(f"writing {len(recording.events):,} events")
            run = _run_folder.write(recording, file, name, out, initial, contract)
        printed = recording.slips.first[:MAX_PRINTED]
        for slip in printed:
            say(f"{file} {slip}")
        hidden = sum(recording.slips.counts.values()) - len(printed)
        if hidden > 0:
            say(f"{file}: and {hidden:,} more such lines; the first are in {run.path}/run.json")
        if checked:
            del recording  # the memory is needed
            return check(run, ReportOptions(as_json=as_json, page=False), spark, sessions)
    events, out_words = len(recording.events), shlex.quote(str(out))
    if as_json:
        slips = dict(recording.slips.counts)
        result = {"run": str(run.path), "kind": recording.kind, "events": events, "slips": slips}
        print(json.dumps(result, indent=2))
    else:
        print(sanitize(f"{events:,} events of {recording.kind}: seatrial check {out_words}"))
    return 0
