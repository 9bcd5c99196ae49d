"""Redis with Sentinel: one primary that acknowledges alone, its replicas, and the sentinels that
elect another.
"""

from clusters.systems.redis.driver import PLUGIN

__all__ = ["PLUGIN"]
