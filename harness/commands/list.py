"""`seatrial list`: what there is to name."""

from collections.abc import Iterator

import click

from harness import registry
from harness.errors import UnknownName


def kind_named(word: str) -> str:
    """`fault` or `faults`. UnknownName lists the kinds."""
    for kind in registry.KINDS:
        if word in (kind, f"{kind}s"):
            return kind
    raise UnknownName("kind of plug-in", word, registry.KINDS)


@click.command("list", short_help="Name the systems, hosts, workloads, faults, checkers, reports.")
@click.argument("kinds", nargs=-1)
def command(kinds: tuple[str, ...]) -> int:
    """Name every plug-in of KINDS (all when none is given) with the first sentence about it."""
    for kind in [kind_named(word) for word in kinds] or registry.KINDS:
        click.secho(f"{kind if kind == 'hosts' else f'{kind}s'}", bold=True)
        for name, sentence in registry.described(kind):
            click.echo(f"  {name:<14} {sentence}")
            for profile, about in profiles(kind, name):
                click.echo(f"    {profile:<16} {about}")
            for mutant, about in mutants(kind, name):
                click.echo(f"    mutant={mutant:<18} {about}")
    return 0


def profiles(kind: str, name: str) -> Iterator[tuple[str, str]]:
    """A system's named configurations, if its module has `profiles()`."""
    return _named(kind, name, "profiles")


def mutants(kind: str, name: str) -> Iterator[tuple[str, str]]:
    """A system's known-bad variants, if its module has `mutants()`."""
    return _named(kind, name, "mutants")


def _named(kind: str, name: str, what: str) -> Iterator[tuple[str, str]]:
    of = getattr(registry.module(kind, name), what, dict) if kind == "system" else dict
    for each in of().values():
        yield each.name, each.about
