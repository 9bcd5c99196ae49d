"""The commands of `seatrial`, one a file.

Each is thin: it reads options, calls one function elsewhere, and returns an exit code.
"""
