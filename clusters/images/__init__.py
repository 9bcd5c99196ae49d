"""The images of nodes on a Docker engine: one Dockerfile, and a base image where no registry is."""
