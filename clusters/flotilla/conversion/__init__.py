"""Conversion of a running broker set to another haMode (docs/flotilla-conversion.md)."""
