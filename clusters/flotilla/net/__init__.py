"""Connections, frames and request schemas."""
