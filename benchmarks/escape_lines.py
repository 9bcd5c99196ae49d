"""Counts what serving special messages for an absent master takes: `benchmarks/escape_lines.py`.

Prints one JSON object: `scan_lines`, the lines of code of what a master needs for delayed messages,
transactions and POP, and `escape_lines`, those of what a slave needs besides, to serve them for an
absent master. Lines are those with code on them: no comments, docstrings or blank lines.
`scan_states` and `escape_states`: the attributes in which their objects keep what they know.
"""

import ast
import json
import tokenize
from pathlib import Path

SPECIAL = Path(__file__).parent.parent / "clusters" / "flotilla" / "special"
SCANS = ("delay.py", "halves.py", "pop.py", "pop_records.py")
ESCAPES = ("escape.py",)
SHARED, NOTES = "progress.py", "EscapedRecords"  # of which this class is for escapes alone
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def lines_of_code(path: Path) -> set[int]:
    """Return the numbers of the lines that have code."""
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    shown = {n for t in tokens if t.type not in SILENT for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            shown -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return shown


def fields_of(path: Path) -> int:
    """Return the number of attributes that the classes of a module set on themselves."""
    found = set[tuple[str, str]]()
    body = ast.parse(path.read_text()).body
    for each in (node for node in body if isinstance(node, ast.ClassDef)):
        for node in ast.walk(each):
            targets = node.targets if isinstance(node, ast.Assign) else ()
            targets = [node.target] if isinstance(node, ast.AnnAssign) else list(targets)
            for target in (name for one in targets for name in ast.walk(one)):
                if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                    found.add((each.name, target.attr))
    return len(found)


def main() -> None:
    shared = SPECIAL / SHARED
    [notes] = [
        node
        for node in ast.parse(shared.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == NOTES
    ]
    of_notes = {n for n in lines_of_code(shared) if notes.lineno <= n <= (notes.end_lineno or 0)}
    scans = sum(len(lines_of_code(SPECIAL / name)) for name in SCANS)
    escapes = sum(len(lines_of_code(SPECIAL / name)) for name in ESCAPES)
    figures = {
        "scan_lines": scans + len(lines_of_code(shared)) - len(of_notes),
        "escape_lines": escapes + len(of_notes),
        "scan_states": sum(fields_of(SPECIAL / name) for name in SCANS),
        "escape_states": sum(fields_of(SPECIAL / name) for name in ESCAPES),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
