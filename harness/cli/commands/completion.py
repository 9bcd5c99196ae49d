"""`seatrial completion`: a script that completes commands, options and names in a shell."""

import click

from harness.cli.commands._names import COMPLETION

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print a script that completes commands in a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the completion script for SHELL. To use it in every new shell:

    \b
    bash  seatrial completion bash >> ~/.bashrc
    zsh   seatrial completion zsh >> ~/.zshrc
    fish  seatrial completion fish > ~/.config/fish/completions/seatrial.fish
    """
    from click.shell_completion import get_completion_class

    group = click.get_current_context().find_root().command
    chosen = get_completion_class(shell)
    assert chosen is not None
    click.echo(chosen(group, {}, "seatrial", COMPLETION).source())
    return 0
