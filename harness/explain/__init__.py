"""The story of one finding, from the run's recorded facts."""
