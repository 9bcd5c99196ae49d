"""Kinds of hosts: `hosts/NAME.py` is `--hosts NAME`. See `harness.contracts.Hosts`."""
