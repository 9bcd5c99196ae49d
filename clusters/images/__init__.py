"""What nodes on a Docker engine are made of: one Dockerfile, and a base where no registry is."""
