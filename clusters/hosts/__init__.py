"""Kinds of hosts: `hosts/NAME/` is `--hosts NAME`. See `harness.contracts.Hosts`."""
