"""Isolation anomalies of transactions, from the cycles of what depended on what.

After Adya ("Weak Consistency", 1999), and Kingsbury and Alvaro ("Elle", VLDB 2020). Transactions
append to lists and read them, or write registers with values of their own and read those. What was
read tells in which order the versions of an object were installed, and that gives three kinds of
dependency:

    ww   T2 installed the version after T1's
    wr   T2 read the version that T1 installed
    rw   T1 read a version, and T2 installed the next one

A cycle of dependencies is something that no order of the transactions explains; which kinds it
needs says what level of isolation it offends. Process order and real time are further edges, for
the two levels that promise to keep them.

    rows       rows of the history -> transactions, appends, reads (in each worker, by file)
    branches   which lists are prefixes of which
    lists      version orders, plain anomalies and edges of lists (in each worker, by key)
    registers  the same of registers
    graph      all edges together; strongly connected parts (on the driver)
    peel       root causes, from the weakest level upwards
    witness    the shortest cycle of a cause, and what it says in words
"""
