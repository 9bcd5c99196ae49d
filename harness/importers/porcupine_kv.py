"""Porcupine's key-value histories: `:put`, `:append` to a string, and `:get`, by key.

    {:process 0, :type :invoke, :f :append, :key "4", :value "x 0 1 y"}

The maps may be EDN or JSON, one on each line or all in one vector.
Strings are numbered; `names.json` has them under "values", so `append` and `get` are about texts.
A key that holds the empty string is one that was never written. There are no times, so a line is a
microsecond.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.importers._jepsen.history import edn_items
from harness.importers._recording.recording import UNTIMED, Recording, Sheet, Slip, Slips
from harness.importers._text.edn import unreadable
from harness.importers._text.json_text import is_json, items
from harness.importers._text.source import whole
from harness.importers.porcupine import TYPES, events_of
from harness.operation import F, Type

FS = {"get": F.GET, "put": F.PUT, "append": F.APPEND}


def read(path: Path) -> Recording:
    slips = Slips()
    sheet = Sheet()
    rows: list[tuple[int, int, int, int, int, bool]] = []
    for number, form in _forms(whole(path, slips), slips):
        if why := _wrong(form):
            slips.add(Slip("ODD_LINE", number, why, gap=True))
            continue
        kind, f = TYPES[form["type"]], FS[form["f"]]
        _said(sheet, len(rows), kind, f, form)
        rows.append((number, UNTIMED, kind, form["process"], int(f), False))
    if not rows:
        why = f": {slips.first[0]}" if slips.first else ""
        raise BadRequest(f"{path} is no key-value history of Porcupine's{why}")
    return Recording("registers", events_of(rows), sheet.table(), slips)


PLUGIN = ImporterPlugin(read=read)


def _forms(data: bytes, slips: Slips) -> Iterable[tuple[int, Any]]:
    """The maps of a file with their lines: in JSON, one on each line, or in a vector."""
    if is_json(data):
        return list(items(data, slips))
    trial = Slips()
    found = list(edn_items(data, trial))
    if not trial:
        return found
    lines = enumerate(data.split(b"\n"), start=1)  # some are broken: the others are read
    return [
        (number, form)
        for number, line in lines
        for _, form in edn_items(line, slips, first_line=number)
    ]


def _wrong(form: Any) -> str:
    if odd := unreadable(form):
        return f"{odd[:40]} cannot be read"
    if not isinstance(form, dict):
        return "not a map, as every operation is"
    if not _among(form.get("type"), TYPES) or not _among(form.get("f"), FS):
        return ":type must be :invoke, :ok, :fail or :info, and :f one of :get, :put, :append"
    if not isinstance(form.get("process"), int) or not 0 <= form["process"] < 1 << 31:
        return ":process must be a number"
    if not isinstance(form.get("key"), str | int):
        return ":key must be a string"
    return "" if isinstance(form.get("value"), str | None) else ":value must be a string"


def _among(word: Any, words: Mapping[str, Any]) -> bool:
    return isinstance(word, str) and word in words


def _said(sheet: Sheet, event: int, kind: int, f: F, form: dict[str, Any]) -> None:
    if f is F.GET:
        sheet.add(event, f, form["key"], (form.get("value") or None) if kind == Type.OK else None)
    elif kind <= Type.OK:
        sheet.add(event, f, form["key"], form.get("value") or None)
