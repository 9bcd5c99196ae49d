"""`seatrial doctor`: can this machine run a trial, and if not, what fixes it?"""

import click


@click.command("doctor", short_help="Say what this machine can do, and what fixes the rest.")
@click.option("--hosts", default="local", show_default=True, help="The kind of hosts to ask about.")
def command(hosts: str) -> int:
    """Probe what trials need. Exit code 0 when a trial on these hosts can run, 255 when not."""
    from harness.doctor import examine, show

    return show(examine(hosts))
