"""`seatrial explain`: the history of a lost message, or of contradictory operations."""

import json

import click


@click.command("explain", short_help="Explain a finding, event by event.")
@click.argument("folder", type=click.Path(), metavar="RUN")
@click.argument("finding", required=False, metavar="[FINDING]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(folder: str, finding: str | None, as_json: bool) -> int:
    """Print the timeline of a message or an object that violates the contract in RUN.

    FINDING is a code, such as LOST_ACKED, or a code and the number of an example, LOST_ACKED:2.
    The default is the first finding. The run is not checked again: the verdict is the stored one.
    """
    from harness import registry
    from harness.cli.console import wrap_lines
    from harness.history.run_files import limit_memory, open_run
    from harness.text.sanitize import sanitize

    limit_memory()
    stories = registry.stories()
    with open_run(folder) as run:
        story = stories.explain(run, finding)
        if as_json:
            print(json.dumps(story.plain() if story else stories.NOTHING, indent=2, sort_keys=True))
        else:
            lines = story.lines() if story else [stories.nothing_to_explain(run)]
            text = sanitize("\n".join(lines)).split("\n")
            print("\n".join(wrap_lines(text, stories.STEPS_INDENT)))
    return 0
