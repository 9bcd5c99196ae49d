"""Jepsen's histories: fields, values, pairing."""
