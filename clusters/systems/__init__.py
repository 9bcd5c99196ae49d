"""Drivers: `systems/NAME.py` is `--system NAME`. See `harness.contracts.System`."""
