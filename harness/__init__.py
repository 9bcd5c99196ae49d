"""Run a trial: start a cluster, load it, inject faults, record every operation.

A *trial* is one run: system x hosts x workload x faults x seed. *Clients* invoke operations and
record how each completes: `ok` (it took effect), `fail` (it did not), `info` (unknown, so it stays
concurrent with everything after it). A *nemesis* carries out a *plan* of *faults* meanwhile.
Everything that is recorded is the *history*; *checkers* turn the history into a *verdict*: valid,
invalid, or unknown if the run proved nothing. What the harness cannot prove, it records as unknown.

This package knows no fault, property, system or report by name: `registry` finds them.
"""
