"""What an importer reads, and the run's folder made of it."""
