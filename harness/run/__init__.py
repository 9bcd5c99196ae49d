"""Run a trial: start the cluster, load it, inject faults, heal, collect, stop."""
