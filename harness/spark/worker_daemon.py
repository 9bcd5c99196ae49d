"""The process that Spark forks its Python workers from, with everything heavy already imported.

Spark's own daemon imports nothing, so each worker spends its first half second on numpy and Arrow.
Workers forked from this one start at once. `SEATRIAL_PRELOAD` names further modules, the checkers'
kernels among them, and functions to call (`module:function`); what fails here fails again, with its
message, in the worker that needs it. Imported objects are permanent, so the garbage collector is
made to ignore them: workers collect after every task, and would scan all of them each time. Pandas
is not among them: no checker needs it.

Importing takes as long as a JVM needs to start, so this process is started beside the JVM (`-m
harness.spark.worker_daemon ahead SOCKET`). The daemon that Spark starts later finds it there
(`SEATRIAL_AHEAD`), hands over its pipes and its environment, and exits when it exits. If there is
none, it is the daemon itself.

Spark ends its daemon by closing the pipe to it, which the daemon sees once everything is imported.
That takes seconds on a slow machine; a SIGIO from the pipe ends it at any time before.
"""

import fcntl
import gc
import json
import os
import select
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

PRELOAD, AHEAD = "SEATRIAL_PRELOAD", "SEATRIAL_AHEAD"
ALWAYS = (
    "harness.history.journal:skip_pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "harness.history.reader",
)
PIPES = (0, 1, 2)


def preload() -> None:
    for name in (*ALWAYS, *os.environ.get(PRELOAD, "").split()):
        module, _, function = name.partition(":")
        with suppress(ImportError):
            imported = import_module(module)
            if function:
                _try(getattr(imported, function))
    gc.freeze()


def _try(function: Callable[[], None]) -> None:
    """Call it. If it fails, it fails again where it is needed."""
    with suppress(Exception):
        function()


def serve() -> None:
    """Be Spark's daemon, until Spark ends."""
    from pyspark.daemon import manager

    manager()


@contextmanager
def killed_on_close(pipe: int) -> Iterator[None]:
    """Die by SIGIO during the block if the other side of the pipe is closed or written to. Raises
    SystemExit if it is closed already."""
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_ASYNC)
    poll = select.poll()
    poll.register(pipe, 0)
    if poll.poll(0):
        raise SystemExit(1)
    try:
        yield
    finally:
        fcntl.fcntl(pipe, fcntl.F_SETFL, flags)


# ---------------------------------------------------------------------------- started beforehand


def wait_for_spark(path: str) -> socket.socket:
    """Import everything, then take over the work of the first process that connects to the socket;
    return the connection to it, which ends with this process."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(1)
        preload()
        peer, _ = door.accept()
    os.unlink(path)
    _, pipes, _, _ = socket.recv_fds(peer, 1, len(PIPES))
    with peer.makefile("rb") as file:
        state = json.loads(file.read())
    for pipe, ours in zip(pipes, PIPES, strict=True):
        os.dup2(pipe, ours)
        os.close(pipe)
    os.chdir(state["folder"])
    os.environ.clear()
    os.environ.update(state["environment"])
    sys.argv = state["argv"]
    sys.path += [path for path in state["path"] if path not in sys.path]
    os.register_at_fork(after_in_child=peer.close)
    return peer


def hand_over(path: str) -> bool:
    """Let the process at the socket do our work, and wait for its end; return False if there is
    none."""
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(path)
        except OSError:
            return False
        socket.send_fds(peer, [b"!"], PIPES)
        state = {"environment": dict(os.environ), "argv": sys.argv, "path": sys.path}
        peer.sendall(json.dumps({**state, "folder": os.getcwd()}).encode())
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
    return True


def main() -> None:
    if sys.argv[1:2] == ["ahead"]:
        with wait_for_spark(sys.argv[2]):
            serve()
        return
    path = os.environ.get(AHEAD)
    if path and hand_over(path):
        return
    with killed_on_close(0):
        preload()
    serve()


if __name__ == "__main__":
    main()
