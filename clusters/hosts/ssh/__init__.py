"""Nodes as machines that are reached by SSH: one node per machine, chosen from an inventory."""

from clusters.hosts.ssh.hosts import PLUGIN

__all__ = ["PLUGIN"]
