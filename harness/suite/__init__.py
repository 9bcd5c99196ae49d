"""Suites: many trials, each with the verdict expected of it, carried out and summed up.

`cells` reads the file, `entry` says what is wrong with it, `codes` are the findings that there are,
`course` carries it out within its budget, `log` lets it go on where it was cut off. `row` is what
one run came to, with `figures` its numbers, and `expected` says whether that was to come of it.
`trend` compares nights, `record` keeps what was measured of which code, `view` sums up, `night` is
all of it from end to end; `names` says which runs are kept.
"""
