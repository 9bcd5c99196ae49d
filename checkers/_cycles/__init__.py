"""Isolation anomalies of transactions, from the cycles of their dependencies.

After Adya ("Weak Consistency", 1999), and Kingsbury and Alvaro ("Elle", VLDB 2020). Transactions
append to lists and read them, or write unique values to registers and read those. Reads show the
order in which the versions of an object were installed, which gives three kinds of dependency:

    ww   T2 installed the version after T1's
    wr   T2 read the version that T1 installed
    rw   T1 read a version, and T2 installed the next one

No serial order of the transactions explains a cycle of dependencies. The kinds of dependency in it
determine the isolation level that it violates. Process order and real time are further edges, for
the two levels that promise to keep them.

    rows               rows of the history -> transactions, appends, reads (by file, in workers)
    branches           which lists are prefixes of which
    lists              version orders, direct anomalies and edges of lists (by key, in workers)
    registers          the same for registers
    collect            the two stages of Spark
    graph              all edges together; strongly connected components (on the driver)
    anomalies          root causes, from the weakest level upwards
    paths              the shortest cycle of a cause
    cycle_findings     causes as findings, with their cycles as text
"""
