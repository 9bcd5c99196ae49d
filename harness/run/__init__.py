"""Run a trial: raise the cluster, load it, break it, heal it, take it down."""
