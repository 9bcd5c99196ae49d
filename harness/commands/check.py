"""`seatrial check`: judge a stored run again."""

import click

from harness.options import SPARK


@click.command("check", short_help="Check a stored run again.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Only the verdict, as JSON.")
@SPARK
def command(folder: str, as_json: bool, spark: str) -> int:
    """Judge the run in DIR from its history, and write its verdict.json.

    DIR may be runs/latest, or the folder of a run that crashed: what was recorded is judged.
    It may be an address in storage, s3a://BUCKET/PATH or hdfs://HOST:PORT/PATH, as for report,
    explain, replay and shrink; what is made of the run is put there.
    """
    from harness.openable import stored_run
    from harness.session import Shown, check

    with stored_run(folder) as run:
        return check(run, Shown(as_json=as_json, page=False), spark)
