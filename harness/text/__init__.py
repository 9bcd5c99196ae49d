"""Reading and writing of text: TOML lines, sanitized names, digests of code."""
