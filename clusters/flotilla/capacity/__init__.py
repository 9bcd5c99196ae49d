"""Guarantees of capacity: limits, queues that fail fast, fuses and degradation (spec 10.7).

Each module is one mechanism, pure: time is an argument. The broker's gate and the producer use
them; what nobody uses is not here.
"""
