"""Show a judged run: one format a file, each with `render(run) -> path written, or None`.

Reports read `verdict.json` and the history's small tables; they compute no verdict and can change
none. Whatever a run contains is text to them, never markup.
"""
