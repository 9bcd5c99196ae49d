"""Nodes as containers of a Docker engine, on this machine or another."""

from clusters.hosts.docker.hosts import PLUGIN

__all__ = ["PLUGIN"]
