"""Apache RocketMQ 5 itself: nameservers, controllers and brokers, of the jars that Maven has."""

from clusters.systems.rocketmq.service import PLUGIN

__all__ = ["PLUGIN"]
