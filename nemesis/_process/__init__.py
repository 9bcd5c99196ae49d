"""Faults of processes and their disks."""
