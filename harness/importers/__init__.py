"""Importers: histories recorded by other tools, as run folders that `seatrial check` judges.

An importer is a file with `PLUGIN = ImporterPlugin(read=...)`, which turns a path into a
`Recording`; dashes in a name are underscores in the file's. Files of several formats that share a
reader are in `SEVERAL`. Every format takes the same steps:

    events     the file's lines as columns: line, time, type, process, operation (`_recording`)
    pairing    each completion finds its invocation; broken rules become slips (`_pairing`)
    rows       the tables of `harness.history.schema`, with names and originals (`_rows`,
               `_run_folder`)

`_jepsen` reads all formats of Jepsen and Porcupine, `_table` those of tables.

The number of an operation is the line of the file on which it was invoked, so every row of the
history has its source. Values that are whole numbers from 0 are kept, others are numbered, with
their texts in `names.json` ("values"). Messages are renumbered, dense for each producer;
`origin/messages.parquet` has each one's key, value and line in the file.

A file that breaks rules is imported as far as possible. What is dropped makes the verdict unknown
unless something certain outweighs it, and is never blamed on the system.
"""

SEVERAL = {
    "jepsen": (
        *("jepsen-append", "jepsen-counter", "jepsen-lock", "jepsen-mutex", "jepsen-queue"),
        *("jepsen-register", "jepsen-set", "jepsen-wr"),
    ),
    "porcupine": ("porcupine", "porcupine-kv"),
    "table": ("csv", "parquet"),
}
