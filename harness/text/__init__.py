"""Reading and writing of text: TOML, JSON, sanitized text, plurals and lists, code hashes."""
