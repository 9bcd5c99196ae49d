"""`seatrial explain`: the story of one message, or of the operations that contradict each other."""

import json

import click


@click.command("explain", short_help="Explain a finding, event by event.")
@click.argument("folder", type=click.Path(), metavar="RUN")
@click.argument("finding", required=False, metavar="[FINDING]")
@click.option("--json", "as_json", is_flag=True, help="The same, as JSON.")
def command(folder: str, finding: str | None, as_json: bool) -> int:
    """Tell what happened to a message or an object that convicts the run in RUN.

    FINDING is a code, such as LOST_ACKED, or a code and the number of a witness, LOST_ACKED:2.
    Without one it is the first finding. Nothing is judged: the verdict is the stored one.
    """
    from harness.explain import explained, nothing
    from harness.openable import stored_run
    from harness.sayable import sayable

    with stored_run(folder) as run:
        told = explained(run, finding)
        if as_json:
            plain = told.plain() if told else {"explainable": []}
            print(json.dumps(plain, indent=2, sort_keys=True))
        else:
            print(sayable("\n".join(told.lines() if told else [nothing(run)])))
    return 0
