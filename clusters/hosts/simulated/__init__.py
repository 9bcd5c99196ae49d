"""Nodes in a simulated world inside the runner: the same code, a virtual clock, network and disks.
Everything that chance decides is drawn from one seed.
"""

from clusters.hosts.simulated.hosts import PLUGIN

__all__ = ["PLUGIN"]
