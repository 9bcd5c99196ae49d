"""Carry out a plan: inject each fault, observe it, heal it, record it."""
