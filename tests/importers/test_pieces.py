"""A history means the same wherever its file is cut into pieces."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from harness.importers import _jepsen, _lines, _run_folder, _source, jepsen_kafka
from harness.importers._jepsen import recording
from harness.importers._recording import Recording, Slips
from harness.importers.jepsen import FORMATS
from harness.importers.jepsen_kafka import FORMAT

WRITTEN = 50  # each so many cuts the run is written, too
LOG = r"""; a remark { [
#jepsen.history.Op{:index 0, :type :invoke, :process 0, :f :send, :value [[:send 1 7]], :time 5}
{:type :ok, :process 0, :f :send, :value [[:send 1 [0 7]]], :time 6}
{:type :invoke, :process 1, :f :poll,
  :value [[:poll]] ; until here {

  :time 7}
{:type :ok :process 1 :f :poll :value [[:poll {1 [[0 7]]}]] :time 8, :rebalance-log [{:keys [1]}]}

{:type :invoke, :process 2, :f :txn, :value [[:send 1 "a ] } \" {
[ b"] [:send #foo [2] #inst "2020-01-01T00:00:00Z"] [:poll]], :time 9}
{:type :info, :process 2, :f :txn, :error "no \\ \"answer", :time 10}
#_ {:type :ok, :process 3}
{:type :info, :process :nemesis, :f :kill, :value {"n1" :killed}, :time 11}
{:type :invoke, :process 3, :f :assign, :value [1 2], :time 12}
{:type :ok, :process 3, :f :assign, :value [1 2], :time 13}
{:type :invoke, :process 4, :f :send, :value [[:send 1 8 9]], :time 14}
[]
{:type :ok, :process 4, :f :send, :value nil, :time 15}
"""
TRUNCATED = "{:type :invoke, :process 5, :f :send, :value [[:send 2 "
REGISTER = """{:type :invoke, :f :write, :value 3, :process 0}
{:type :ok, :f :write, :value "a
{ b", :process 0}
{:type :invoke, :f :read, :value nil, :process 1}
{:type :fail, :f :read, :value nil, :process 1}
{:type :invoke, :f :read, :value [1 2], :process 1}
{:type :ok, :f :read, :value 3, :process 1}"""


def _content(read: Recording) -> tuple[Any, ...]:
    events = [getattr(read.events, name).tolist() for name in read.events.__dataclass_fields__]
    slips = (list(read.slips.counts.items()), list(read.slips.first), read.slips.gaps)
    return events, read.parts.to_pydict(), read.parts.schema, read.notes, read.caveats, slips


def _folder(read: Recording, path: Path, form: _jepsen.Format, out: Path) -> dict[str, bytes]:
    run = _run_folder.write(read, path, form.name, out)
    return {str(f.relative_to(out)): f.read_bytes() for f in run.path.rglob("*") if f.is_file()}


@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize(
    ("form", "text"),
    [
        (FORMAT, LOG),
        (FORMAT, LOG.replace("\n", "\r\n") + TRUNCATED),
        (FORMAT, f"[{LOG}]"),
        (FORMATS["jepsen-register"], REGISTER),
    ],
    ids=["lines", "crlf-truncated", "vector", "registers"],
)
def test_a_cut_anywhere_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: _jepsen.Format, text: str, scanned: bool
) -> None:
    """Cut at each byte, a file becomes the same run, to the byte: operations of several lines,
    comments, strings with brackets and line ends, tags, CRLF, a truncated last line."""
    data = text.encode()
    path = tmp_path / "history.edn"
    path.write_bytes(data)
    for module in (_lines, jepsen_kafka):
        monkeypatch.setattr(module, "is_worth_compiling", lambda size_bytes=0: scanned)
    whole = recording(path, form)
    expected = _content(whole)
    folder = _folder(whole, path, form, tmp_path / "whole")
    for at in range(1, len(data)):

        def cut(path: Path, slips: Slips, size: int, at: int = at) -> Iterator[bytes]:
            yield from (data[:at], data[at:])

        monkeypatch.setattr(_source, "blocks", cut)
        read = recording(path, form)
        assert _content(read) == expected, at
        if at % WRITTEN == 0:
            assert _folder(read, path, form, tmp_path / f"cut-{at}") == folder, at


@pytest.mark.parametrize("size", [1, 2, 50, 97, 1000])
def test_pieces_of_any_size_are_the_file(tmp_path: Path, size: int) -> None:
    """Pieces are whole lines, in order and numbered, and begin where an operation does."""
    path = tmp_path / "history.edn"
    path.write_text(LOG + TRUNCATED)
    found = list(_source.pieces(path, Slips(), size))
    assert b"".join(data for _, data in found).decode() == LOG + TRUNCATED
    line = 1
    for first, data in found:
        assert first == line
        assert first == 1 or data[:1] in (b"{", b"#")
        line += data.count(b"\n")


def test_an_operation_without_an_end_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without the beginning of an operation does not have to fit in memory."""
    monkeypatch.setattr(_source, "MAX_OPERATION_BYTES", 100)
    path = tmp_path / "history.edn"
    path.write_text(" 1 2 3\n" * 1000)
    sizes = [len(data) for _, data in _source.pieces(path, Slips(), 10)]
    assert sum(sizes) == 7000
    assert max(sizes) < 120


def test_an_import_that_is_stopped_reads_no_more_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece is interrupted; of those that wait, at most the one that began is read."""
    path = tmp_path / "long.edn"
    path.write_text("{:type :invoke, :process 0, :f :poll, :value [[:poll]]}\n" * 10)
    stopping = Event()
    read: list[int] = []

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            stopping.set()
            super().shutdown(wait)

    def read_piece(form: _jepsen.Format, line: int, data: bytes) -> None:
        read.append(line)
        if line == 1:
            raise KeyboardInterrupt
        stopping.wait(60)

    monkeypatch.setattr(_jepsen, "_pool", lambda form, compiled: Pool(1))
    monkeypatch.setattr(_jepsen, "read_piece", read_piece)
    with pytest.raises(KeyboardInterrupt):
        recording(path, FORMAT, 60)
    assert len(read) <= 2
