"""Flotilla: RocketMQ 5's controller-mode high availability, in Python. By default one nameserver,
three controllers, one broker set of three and two client nodes.
"""

from clusters.systems.flotilla.driver import PLUGIN

__all__ = ["PLUGIN"]
