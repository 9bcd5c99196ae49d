"""Importers: histories that others recorded, as run folders that `seatrial check` judges.

An importer is a file with `read(path) -> Recording`; a name's dashes are the file's underscores.
Reading happens in three steps, each the same for every format:

    events     the file's lines as columns: line, time, type, process, what was asked (`recording`)
    pairing    each completion finds its invocation; what breaks a rule is named (`pairing`)
    rows       the five tables of `harness.history.schema`, names and originals (`rows`,
    `run_folder`)

The number of an operation is the line of the file on which it was invoked, so every row of the
history says where it comes from. Values that are whole numbers from 0 stay what they are, anything
else is numbered, with its text in `names.json` ("values"). Messages are numbered anew, dense for
each producer; `origin/messages.parquet` tells each one's key, value and line in the file.

A file that breaks rules is imported as far as it can be. What is dropped makes the verdict unknown
unless something certain outweighs it, and is never taken for the system's fault.
"""
