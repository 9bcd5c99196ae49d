"""Drivers of systems: `systems/NAME/` is `--system NAME`. See `harness.contracts.System`."""

SEVERAL = {"valkey": ("valkey", "valkey-cluster")}
