"""Spark Connect: a session on an existing server, without a JVM here.

Everything that our jobs use (`range`, `mapInArrow`, `repartition`, `sortWithinPartitions`,
`toArrow`) exists there, for it needs no RDD. Our packages travel as an artifact of the session. The
client needs gRPC: `pip install 'seatrial[connect]'`.
"""

import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import BadRequest, BedFailed
from harness.spark.master import Master, pack_code
from harness.spark.probe import LEAVE_WITHIN_S, error_line, finishes_within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRPC_WITHIN_S = 15.0
ANSWER_WITHIN_S = 60.0
RUNTIME_OPTIONS = {  # which can be set on a running server's session
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
}
LEFT_VARIABLES = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")  # by PySpark


class ConnectLauncher:
    """Opens a session on a Connect server in the background."""

    def __init__(self, master: Master) -> None:
        check_server(master)
        self.master = master
        self._session: Any = None
        self._failure: Exception | None = None
        self._ready = threading.Thread(target=self._start, name="spark-connect", daemon=True)
        self._ready.start()

    def session(self) -> "SparkSession":
        self._ready.join(ANSWER_WITHIN_S)
        if self._session is None or self._ready.is_alive():
            why = f"it did not answer within {ANSWER_WITHIN_S:.0f} s"
            if self._failure is not None:
                why = error_line(self._failure)
            raise BedFailed(
                f"{self.master.url} did not accept the session: {why}; check that it is a "
                "Spark Connect server of the same version"
            ) from self._failure
        return self._session  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._session is not None:
            finishes_within(LEAVE_WITHIN_S, self._session.stop)
        for name in LEFT_VARIABLES:
            os.environ.pop(name, None)

    def _start(self) -> None:
        from pyspark.sql.connect.session import SparkSession

        try:
            session: Any = SparkSession.builder.remote(self.master.url).create()
            with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
                session.addArtifacts(str(pack_code(Path(folder))), pyfile=True)
            for name, value in RUNTIME_OPTIONS.items():
                session.conf.set(name, value)
            self._session = session
        except Exception as e:
            self._failure = e


def check_server(master: Master) -> None:
    """Raise BadRequest if the client is missing, BedFailed if no such server answers."""
    _check_client()
    master.local_address()
    _check_grpc(master)


def _check_client() -> None:
    """Raise BadRequest if the client's libraries are not installed. Under `python -c` PySpark then
    takes us for its own doctests, and would exit with 0."""
    try:
        import pyspark.sql.connect.session  # noqa: F401
    except (ImportError, SystemExit) as e:
        why = " ".join(str(e).split()) if isinstance(e, ImportError) else "it is not installed"
        raise BadRequest(
            f"sc:// needs Spark Connect's client ({why}); run `pip install 'seatrial[connect]'`"
        ) from e


def _check_grpc(master: Master) -> None:
    """Raise BedFailed if the listener does not speak gRPC: the client itself would retry for long,
    without a way to end it."""
    import grpc

    if "use_ssl=true" in master.url:
        return  # the client itself checks it
    channel = grpc.insecure_channel(":".join(map(str, master.address)))
    try:
        grpc.channel_ready_future(channel).result(timeout=GRPC_WITHIN_S)
    except grpc.FutureTimeoutError as e:
        raise BedFailed(
            f"{master.url} is not a Spark Connect server; check address and port"
        ) from e
    finally:
        channel.close()
