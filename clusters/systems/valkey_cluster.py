"""Valkey Cluster: shards of Valkey servers that elect another primary for a shard that has lost its
own.

Everything is as with `clusters.systems.redis_cluster`, except where the program comes from.
"""

from typing import ClassVar

from clusters.kit import plugin
from clusters.systems.redis import BROKER
from clusters.systems.redis_cluster import RedisCluster
from clusters.systems.valkey import Valkey


class ValkeyCluster(RedisCluster):
    """Three primaries and a replica of each by default."""

    name, programs, log = "valkey-cluster", Valkey.programs, Valkey.log
    names: ClassVar = {BROKER: "valkey"}


PLUGIN = plugin(ValkeyCluster)
