"""The operator's tool in a simulated cluster: command lines, exit codes, what it says."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from simulated_fleet import Fleet, Sailor

from clusters.flotilla.admin import DONE, REFUSED, run_command
from clusters.flotilla.net.wire import Json

CONTROLLERS = [f"controller-{n}" for n in (1, 2, 3)]


class Ears:
    """A `ports.Process` that hears."""

    def __init__(self) -> None:
        self.output: list[str] = []
        self.complained: list[str] = []

    def pid(self) -> int:
        return 1

    def on_stop_request(self, stop: Callable[[], object]) -> None: ...

    def print_line(self, line: str) -> None:
        self.output.append(line)

    def print_error(self, line: str) -> None:
        self.complained.append(line)


async def run(*words: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error."""
    ears = Ears()
    code = await run_command(words, ears)
    return code, "\n".join(ears.output), "\n".join(ears.complained)


class Tool:
    """The operator's tool in a simulated cluster."""

    def __init__(self, sailor: Sailor) -> None:
        self.sailor = sailor

    def at(self, *names: str) -> str:
        return ",".join(self.sailor.fleet.address(name) for name in names)

    @property
    def controllers(self) -> tuple[str, str]:
        return "--controllers", self.at(*CONTROLLERS)

    @property
    def nameservers(self) -> tuple[str, str]:
        return "--namesrv", self.at("nameserver-1")

    async def ask(self, words: str, *more: str) -> Json:
        """Return the JSON answer of a command that succeeds."""
        where = more or (*self.controllers, *self.nameservers)
        code, output, complained = await run(*words.split(), *where, "--json")
        assert (code, complained) == (DONE, ""), words
        answer: Json = json.loads(output)
        assert (answer["code"], answer["status"]) == (0, "SUCCESS")
        return answer

    async def refusal(self, words: str, *more: str) -> str:
        """Return the sentence of a refused command; its JSON has the same status."""
        where = more or (*self.controllers, *self.nameservers)
        code, output, complained = await run(*words.split(), *where, "--json")
        assert code == REFUSED, (output, complained)
        assert complained.startswith(json.loads(output)["status"] + ": ")
        assert "\n" not in complained
        return complained


def sail(scenario: Callable[[Tool], Awaitable[None]], seed: int = 1, **settings: Any) -> Fleet:
    async def story(sailor: Sailor) -> None:
        await sailor.healthy()
        await scenario(Tool(sailor))

    fleet = Fleet(seed, "allack-min2", settings)
    fleet.sail(story)
    return fleet
