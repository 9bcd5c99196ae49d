"""Known-bad variants and faults, tried to see whether they are noticed."""
