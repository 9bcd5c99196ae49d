"""Spark Connect: a session on a server that somebody else started; no JVM here.

Everything our jobs are made of (`range`, `mapInArrow`, `repartition`, `sortWithinPartitions`,
`toArrow`) exists there, for it needs no RDD. Our packages travel as an artifact of the session.
The client needs gRPC: `pip install 'seatrial[connect]'`.
"""

import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import BadRequest, BedFailed
from harness.spark.master import Master, packed
from harness.spark.probe import LEAVE_WITHIN_S, reason, within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GREETED_WITHIN_S = 15.0
ANSWER_WITHIN_S = 60.0
RUNTIME = {  # what can be set on a session that somebody else started
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
}
LEFT = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")  # by PySpark


class Connected:
    """A session on a Connect server, on its way."""

    def __init__(self, master: Master) -> None:
        refuse(master)
        self._master = master
        self._session: Any = None
        self._failure: Exception | None = None
        self._ready = threading.Thread(target=self._start, name="spark-connect", daemon=True)
        self._ready.start()

    def session(self) -> "SparkSession":
        self._ready.join(ANSWER_WITHIN_S)
        if self._session is None or self._ready.is_alive():
            why = f"it did not answer within {ANSWER_WITHIN_S:.0f} s"
            if self._failure is not None:
                why = reason(self._failure)
            raise BedFailed(
                f"{self._master.url} did not take our work: {why}; see that it is a Spark Connect "
                "server of the same version"
            ) from self._failure
        return self._session  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._session is not None:
            within(LEAVE_WITHIN_S, self._session.stop)
        for name in LEFT:
            os.environ.pop(name, None)

    def _start(self) -> None:
        from pyspark.sql.connect.session import SparkSession

        try:
            session: Any = SparkSession.builder.remote(self._master.url).create()
            with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
                session.addArtifacts(str(packed(Path(folder))), pyfile=True)
            for name, value in RUNTIME.items():
                session.conf.set(name, value)
            self._session = session
        except Exception as e:
            self._failure = e


def refuse(master: Master) -> None:
    """BadRequest without the client, BedFailed when no such server answers."""
    _import()
    master.reached_from()
    _greeted(master)


def _import() -> None:
    """BadRequest when the client's libraries are not installed. Under `python -c` PySpark takes us
    for its own doctests then, and would end the process with a 0."""
    try:
        import pyspark.sql.connect.session  # noqa: F401
    except (ImportError, SystemExit) as e:
        why = " ".join(str(e).split()) if isinstance(e, ImportError) else "it is not installed"
        raise BadRequest(
            f"sc:// needs Spark Connect's client ({why}); run `pip install 'seatrial[connect]'`"
        ) from e


def _greeted(master: Master) -> None:
    """BedFailed when whoever listens there speaks no gRPC: the client itself would ask for long,
    and could not be ended meanwhile."""
    import grpc

    if "use_ssl=true" in master.url:
        return  # a stranger to us, and asked by the client
    channel = grpc.insecure_channel(":".join(map(str, master.address)))
    try:
        grpc.channel_ready_future(channel).result(timeout=GREETED_WITHIN_S)
    except grpc.FutureTimeoutError as e:
        raise BedFailed(
            f"{master.url} is not a Spark Connect server; check address and port"
        ) from e
    finally:
        channel.close()
