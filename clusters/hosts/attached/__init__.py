"""Nodes of a cluster that exists already: containers or machines by SSH, from `--attach FILE`."""

from clusters.hosts.attached.hosts import PLUGIN

__all__ = ["PLUGIN"]
