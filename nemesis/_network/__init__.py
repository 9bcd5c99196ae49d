"""Faults of links: shapes, rules and probes."""
