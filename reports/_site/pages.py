"""The pages: the list, a run's report, two runs compared, suites over nights, a run in progress.

A report is always rendered from its run, never taken from the file in the run's folder, which may
come from an untrusted source. The last few are cached until a file of their run changes. They are
rendered one at a time, because a large one uses all cores.

A run's folder can be fetched as a compressed archive, made while it is sent. Files are read a piece
at a time and nothing is stored, so a run of any size needs little memory. A run in progress is
archived as it is: a file that grows meanwhile is cut at its first size, one that shrinks is padded.
Only regular files are included, under the run's own name.
"""

import os
import stat
import tarfile
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from harness.errors import SeatrialError
from harness.history.run_files import entries
from harness.history.rundir import RunDir
from harness.history.runs import BALLAST, LATEST, LOCK
from harness.judge.stored_verdict import BROKEN
from reports import page
from reports._format import VERDICT_WORDS, clip
from reports._run import RunView, read_run
from reports._site import live
from reports._site.access import AccessControl, AllowedHosts
from reports._site.compare import compare_runs
from reports._site.matrix import ALL, FIGURES, matrices, trend
from reports._site.run_index import RunIndex, RunNotFound, unfit
from reports._site.run_list import (
    FOREIGN,
    PER_PAGE,
    RUNNING,
    STATES,
    ListQuery,
    RunList,
    RunRow,
    facets,
)

REPORTS_KEPT, KEPT_BYTES = 6, 64 << 20
MAX_CHOICES = 1_000  # runs to choose from
MAX_HISTORY = 200  # runs on a trial's page
HEADINGS = {
    "state": "verdict",
    "name": "run",
    "trial": "trial",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "rto": "fault to ack",
    "load": "load",
    "seed": "seed",
}
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
SCRIPT, STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
STATIC = {  # our own files by name
    "style.css": (("_templates/style.css", "_templates/site.css"), STYLE),
    "plot.css": (("_vendor/uPlot.min.css",), STYLE),
    "plot.js": (("_vendor/uPlot.iife.min.js",), SCRIPT),
    "live.js": (("_templates/live.js",), SCRIPT),
    "compare.js": (("_templates/compare.js",), SCRIPT),
}


def application(shelf: RunIndex, door: AllowedHosts) -> Starlette:
    """Return the site over a folder of runs, behind its access control."""
    site = Site(RunList(shelf))
    return Starlette(
        routes=[
            Route("/", site.runs),
            Route("/runs.json", site.runs_json),
            Route("/runs/{name}", site.run),
            Route("/runs/{name}/archive", site.archive),
            Route("/runs/{name}/live", site.live),
            Route("/runs/{name}/nodes/{node}/{file}", site.log),
            Route("/trial", site.trial),
            Route("/compare", site.compare),
            Route("/suites", site.suites),
            Route("/static/{name}", site.static),
        ],
        middleware=[Middleware(AccessControl, door=door)],
        exception_handlers={404: _not_found, RunNotFound: _not_found},
    )


@dataclass
class Site:
    """The request handlers; each method is one address."""

    catalogue: RunList
    _reports: "OrderedDict[str, tuple[object, bytes]]" = field(default_factory=OrderedDict)
    _making: threading.Lock = field(default_factory=threading.Lock)

    def runs(self, request: Request) -> Response:
        """The list."""
        rows, wish = self.catalogue.rows(), ListQuery.of(request.query_params)
        chosen = wish.chosen(rows)
        pages = max(1, -(-len(chosen) // PER_PAGE))
        wish = replace(wish, page=min(max(1, wish.page), pages))
        first = (wish.page - 1) * PER_PAGE
        return _page(
            "runs.html",
            rows=chosen[first : first + PER_PAGE],
            wish=wish,
            total=len(rows),
            found=len(chosen),
            pages=pages,
            facets=facets(rows, wish),
            heads={name: heading(wish, name, words) for name, words in HEADINGS.items()},
        )

    def runs_json(self, request: Request) -> Response:
        """The whole list for programs."""
        chosen = ListQuery.of(request.query_params).chosen(self.catalogue.rows())
        return JSONResponse([_sayable(row.plain()) for row in chosen])

    def run(self, request: Request) -> Response:
        """A run's report; without a verdict, what is known of the run."""
        name = request.path_params["name"]
        if name == LATEST:
            return RedirectResponse(address(self.catalogue.index.latest()), 302)
        folder = self.catalogue.index.find(name)
        row = self.catalogue.row(name)
        if row.state in VERDICT_WORDS.values():
            content, why = self._report(folder)
            if content:
                return Response(
                    content,
                    media_type=HTML,
                    headers={"content-security-policy": f"{page.policy()}; frame-ancestors 'none'"},
                )
            row = _with_note(row, why)
        return _page("no_report.html", row=row, running=row.state == RUNNING)

    def archive(self, request: Request) -> Response:
        """The run's folder as a download."""
        folder = self.catalogue.index.run(request.path_params["name"])
        name = quote(os.fsencode(f"{folder.name}.tar.gz"), safe="")
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
        if request.method == "HEAD":
            return Response(media_type="application/gzip", headers=headers)
        return StreamingResponse(
            archive_pieces(folder), media_type="application/gzip", headers=headers
        )

    def log(self, request: Request) -> Response:
        """A node's log, as plain text whatever it contains."""
        words = request.path_params
        path = self.catalogue.index.log(words["name"], words["node"], words["file"])
        return FileResponse(path, media_type=TEXT)

    def trial(self, request: Request) -> Response:
        """All runs of a trial, newest first, and the trends of its numbers."""
        name = request.query_params.get("name", "")
        wish = ListQuery(only={"trial": name})
        rows = wish.chosen(self.catalogue.rows())
        if not name or not rows:
            raise RunNotFound
        states = Counter(row.state for row in rows)
        oldest_first = rows[MAX_HISTORY - 1 :: -1] if len(rows) >= MAX_HISTORY else rows[::-1]
        return _page(
            "trial.html",
            name=name,
            rows=rows[:MAX_HISTORY],
            total=len(rows),
            heads={word: _plain_heading(words) for word, words in HEADINGS.items()},
            states=[(states[state], state) for state in STATES if states[state]],
            trends=[(trend([f.of_row(r) for r in oldest_first], f.words), f) for f in FIGURES],
            asked_trial=list_address(wish),
        )

    def live(self, request: Request) -> Response:
        """A run in progress, as server-sent events."""
        folder = self.catalogue.index.run(request.path_params["name"])
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(live.live_events(folder), media_type="text/event-stream")

    def compare(self, request: Request) -> Response:
        """Two runs side by side; without two, a form to choose them."""
        names = request.query_params.getlist("run")[:2]
        rows = self.catalogue.rows()
        by_name = {row.name: row for row in rows}
        notes = [f"there is no run {clip(name, 80)}" for name in names if name not in by_name]
        with self._making:
            views = [self._read_run(by_name[name], notes) for name in names if name in by_name]
            pair = [one for one in views if one]
            if len(pair) < 2:
                return _choice(rows, names, notes)
            made = compare_runs(pair[0], pair[1])
        return _page(
            "compare.html",
            runs=[by_name[name] for name in names],
            views=pair,
            made=made,
            data=page.embedded({**made.curves, "names": names}),
        )

    def suites(self, request: Request) -> Response:
        """Trials by nights."""
        made = matrices(self.catalogue.index, self.catalogue.rows())
        any_suite = any(matrix.name != ALL for matrix in made)
        return _page("suites.html", matrices=made, figures=FIGURES, any_suite=any_suite)

    def static(self, request: Request) -> Response:
        """Our own files."""
        parts, kind = STATIC.get(request.path_params["name"], ((), ""))
        if not parts:
            raise RunNotFound
        text = "\n".join(page.asset(part) for part in parts)
        return Response(text, media_type=kind, headers={"cache-control": "no-cache"})

    def _read_run(self, row: RunRow, notes: list[str]) -> RunView | None:
        """Return a run that can be compared; otherwise add a note with the reason."""
        folder = self.catalogue.index.path / row.name
        if row.state not in VERDICT_WORDS.values():
            notes.append(f"{row.name} has no verdict: {row.state}")
        elif why := unfit(folder):
            notes.append(f"{row.name} is not shown: {why}")
        else:
            try:
                return read_run(RunDir(folder))
            except BROKEN as e:
                notes.append(_why(e))
        return None

    def _report(self, folder: Path) -> tuple[bytes, str]:
        """Return the report, from the cache if no file changed; or the reason why there is none."""
        with self._making:
            mark = _mark(folder)
            cached = self._reports.pop(folder.name, None)
            if cached is None or cached[0] != mark:
                if why := unfit(folder):
                    return b"", f"no report is made of it: {why}"
                try:
                    html = page.page_html(
                        read_run(RunDir(folder)), _links(folder.name), f"{address(folder.name)}/"
                    )
                except BROKEN as e:
                    return b"", _why(e)
                cached = (mark, html.encode("utf-8", "replace"))
            self._reports[folder.name] = cached
            while len(self._reports) > REPORTS_KEPT or (
                len(self._reports) > 1
                and sum(len(made) for _, made in self._reports.values()) > KEPT_BYTES
            ):
                self._reports.popitem(last=False)
            return cached[1], ""


def _choice(rows: Sequence[RunRow], names: Sequence[str], notes: Sequence[str]) -> Response:
    """Return the form to choose two runs: by default those that were named, else the newest."""
    judged = [row for row in rows if row.state in VERDICT_WORDS.values()]
    offered = judged[:MAX_CHOICES]
    offered += [row for row in judged[MAX_CHOICES:] if row.name in names]
    if len(judged) > len(offered):
        more = f"the newest {MAX_CHOICES:,} of {len(judged):,} are to be chosen from here"
        notes = [*notes, f"{more}; any two can be ticked in the list of runs"]
    named = [name for name in names if name in {row.name for row in judged}]
    rest = (row.name for row in offered if row.name not in named)
    chosen = [name if name in named else next(rest, "") for name in (*names, "", "")[:2]]
    return _page("choose.html", rows=offered, chosen=chosen, remarks=notes)


def _links(name: str) -> Sequence[tuple[str, str]]:
    """Return the links of a report to other pages."""
    return (
        ("All runs", "/"),
        ("Compare", f"/compare?run={quote(os.fsencode(name), safe='')}"),
        ("Download", f"{address(name)}/archive"),
    )


def _mark(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return a value that changes when a file of the report changes."""
    run = RunDir(folder)
    marks = []
    for part in (run.path, run.journal, run.history, *_folders(run.path / "nodes")):
        try:
            with os.scandir(part) as entries:
                known = [(e.path, e.stat(follow_symlinks=False)) for e in entries if e.is_file()]
        except OSError:
            continue
        marks += [(path, stat.st_mtime_ns, stat.st_size) for path, stat in known]
    return tuple(sorted(marks))


def _folders(path: Path) -> Sequence[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return ()


def _with_note(row: RunRow, note: str) -> RunRow:
    return replace(row, notes=(*row.notes, clip(note, 400)))


def _why(error: BaseException) -> str:
    is_ours = isinstance(error, SeatrialError)
    return clip(str(error) if is_ours else f"it could not be read: {type(error).__name__}", 400)


# --------------------------------------------------------------------------------------- templates


def address(name: str) -> str:
    """Return the address of a run's page."""
    return f"/runs/{quote(os.fsencode(name), safe='')}"


def history(name: str) -> str:
    """Return the address of the runs of a trial."""
    return f"/trial?{urlencode({'name': os.fsencode(name)})}"


def list_address(wish: ListQuery, **changes: str) -> str:
    """Return the list's address with some parameters changed."""
    words = {name: os.fsencode(value) for name, value in wish.query(**changes).items()}
    return f"/?{urlencode(words)}"


def heading(wish: ListQuery, name: str, words: str) -> Markup:
    """Return a column's head, which sorts by it and shows the current order."""
    here = wish.sort == name
    order = ("asc" if wish.descending else "desc") if here else ""
    mark = (" ▾" if wish.descending else " ▴") if here else ""
    sorting = ("descending" if wish.descending else "ascending") if here else "none"
    target = list_address(wish, sort=name, order=order)
    return Markup('<th scope="col" aria-sort="{}"><a href="{}">{}{}</a></th>').format(
        sorting, target, words, mark
    )


def _plain_heading(words: str) -> Markup:
    return Markup('<th scope="col">{}</th>').format(words)


TEMPLATES = page.TEMPLATES.overlay()
TEMPLATES.filters = page.TEMPLATES.filters | {"address": address, "history": history}
TEMPLATES.globals = page.TEMPLATES.globals | {
    "list_address": list_address,
    "heading": heading,
    "FOREIGN": FOREIGN,
    "RUNNING": RUNNING,
}


def _page(template: str, status: int = 200, **values: Any) -> Response:
    text = TEMPLATES.get_template(template).render(**values)
    return Response(text.encode("utf-8", "replace"), status, media_type=HTML)


def _not_found(request: Request, error: Exception) -> Response:
    return _page("not_found.html", 404)


def _sayable(value: Any) -> Any:
    """Replace characters that cannot be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {name: _sayable(item) for name, item in value.items()}
    return [_sayable(item) for item in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------ a run's folder as a file


PIECE_BYTES = 1 << 18
BLOCK_BYTES = 512
LEFT_OUT = (BALLAST, LOCK)
GZIP = 31  # zlib's number for a window of 32 KB with gzip's header and trailer
FAST = 1  # most of a run is compressed already


def archive_pieces(folder: Path) -> Iterator[bytes]:
    """Yield the archive, piece by piece."""
    squeeze = zlib.compressobj(FAST, wbits=GZIP)
    for path, mode in entries(folder):
        if stat.S_ISREG(mode) and path.name not in LEFT_OUT:
            for piece in _member(path, folder):
                if small := squeeze.compress(piece):
                    yield small
    yield squeeze.compress(bytes(2 * BLOCK_BYTES)) + squeeze.flush()


def _member(path: Path, folder: Path) -> Iterator[bytes]:
    """Yield a file's header and content; nothing if it is gone, or no regular file any more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with open(descriptor, "rb", buffering=0) as file:
        known = os.fstat(descriptor)
        if not stat.S_ISREG(known.st_mode):
            return
        info = tarfile.TarInfo(str(path.relative_to(folder.parent)))
        info.size, info.mtime = known.st_size, int(known.st_mtime)
        yield info.tobuf(tarfile.PAX_FORMAT)
        left = info.size
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            left -= len(piece)
            yield piece
    while left:
        filling = min(PIECE_BYTES, left)
        left -= filling
        yield bytes(filling)
    yield bytes(-info.size % BLOCK_BYTES)
