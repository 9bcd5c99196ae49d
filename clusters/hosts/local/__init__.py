"""Nodes as network namespaces of this machine. No root is needed, and nothing outlives the run."""

from clusters.hosts.local.hosts import PLUGIN

__all__ = ["PLUGIN"]
