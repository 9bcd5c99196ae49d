"""Suites: lists of trials with expected verdicts.

`suite_file` reads and checks the file, `execution` carries it out within its budget, `log` lets it
resume after an interruption. `store` has the stored results and their files; `figures` are the
numbers of a run, and `expected` compares it with the expectation. `record` keeps results with the
code they were measured with, `view` formats summaries, and `command` is the whole command, which
compares its results with those of earlier nights. `claims` computes what a suite's results say
about claims (suites/claims.toml).
"""
