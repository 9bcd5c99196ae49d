"""`seatrial check`: judge a stored run again."""

import click

from harness.cli.options import SPARK


@click.command("check", short_help="Check a stored run again.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print only the verdict, as JSON.")
@SPARK
def command(folder: str, as_json: bool, spark: str) -> int:
    """Check the history of the run in DIR, and write its verdict.json.

    DIR may be runs/latest, or the folder of a run that crashed: what was recorded is checked.
    It may be an address in storage, s3a://BUCKET/PATH or hdfs://HOST:PORT/PATH, as for report,
    explain, replay and shrink; the results are written there.
    """
    from harness.cli.session import ReportOptions, check
    from harness.history.run_files import open_run

    with open_run(folder) as run:
        return check(run, ReportOptions(as_json=as_json, page=False), spark)
