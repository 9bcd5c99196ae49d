"""What clients do: `workloads/NAME.py` is `seatrial run NAME`. See `harness.contracts.Workload`."""
