"""Reports of a judged run: one format a file, each with `render(run) -> path written, or None`.

Reports read `verdict.json` and the history's small tables. They compute no verdict and cannot
change one. They treat the contents of a run as text, never as markup.
"""
