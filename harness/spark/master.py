"""Which Spark judges: a master by its address, and what travels to executors elsewhere.

    local[N]            threads of one JVM here: the default
    spark://HOST:PORT   a standalone cluster
    yarn, k8s://...     as the files in HADOOP_CONF_DIR and SPARK_CONF_DIR configure it
    sc://HOST:PORT      a Spark Connect server: no JVM here at all

Executors read the run's folder themselves, so it has to be where they run, under the same path.
What they run comes with us: our packages as one archive. Python and the libraries (numpy, pyarrow,
pandas, numba, scipy) are theirs: `PYSPARK_PYTHON` names their interpreter. Their Java is the one
that started them. A cluster that can not do the work is found out by a small job before any
checker is asked, within a deadline.
"""

import os
import re
import socket
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from harness import registry
from harness.errors import BadRequest, BedFailed
from harness.text.parsing import text_of

LOCAL, STANDALONE, YARN, K8S, CONNECT = "local", "spark", "yarn", "k8s", "sc"
FORMS = {
    LOCAL: r"local(\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\])?",
    STANDALONE: r"spark://[^/,:\s]+:\d+(,[^/,:\s]+:\d+)*",
    YARN: "yarn",
    K8S: r"k8s://\S+",
    CONNECT: r"sc://[^/:;\s]+(:\d+)?(/;?\S*)?",
}
MEANT = "local[N], spark://HOST:PORT, yarn, k8s://ADDRESS or sc://HOST:PORT"
DEFAULT = "local[2]"
CONNECT_PORT = 15002
CONNECT_WITHIN_S = 5.0
CODE = ("harness", "checkers")  # whose functions executors run
HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
ARCHIVE = "seatrial.zip"
SAFE_PATH = "PYTHONSAFEPATH"  # children import nothing from their working directory


@dataclass(frozen=True)
class Master:
    """A master: its address, and of which kind it is."""

    url: str
    kind: str

    @classmethod
    def of(cls, text: str) -> "Master":
        """BadRequest when it is none that Spark has, or lacks what it is reached by."""
        kind = next((name for name, form in FORMS.items() if re.fullmatch(form, text)), "")
        if not kind:
            raise BadRequest(f"{text!r} is not a Spark master; write {MEANT}")
        if any(port > 65535 for _, port in _addresses(text)):
            raise BadRequest(f"{text!r} is not a Spark master: the largest port is 65535")
        if kind == YARN and not any(os.environ.get(name) for name in HADOOP):
            raise BadRequest("yarn is found by its files: set HADOOP_CONF_DIR to their folder")
        return cls(text, kind)

    @property
    def here(self) -> bool:
        """Executors are on this machine, in the JVM that we start."""
        return self.kind == LOCAL

    @property
    def python(self) -> str:
        """The interpreter of executors."""
        return sys.executable if self.here else os.environ.get("PYSPARK_PYTHON") or sys.executable

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first who listens."""
        return next(_addresses(self.url))

    def reached_from(self) -> str:
        """Our address as the master sees it; empty where Spark has to find out by itself.
        BedFailed when nobody listens there."""
        if self.here:
            return "127.0.0.1"
        failures = []
        for host, port in _addresses(self.url):
            try:
                with socket.create_connection((host, port), CONNECT_WITHIN_S) as connection:
                    return str(connection.getsockname()[0])
            except OSError as e:
                failures.append(f"{host}:{port}: {e.strerror or e}")
        if failures:
            raise BedFailed(
                f"no response from the Spark master {self.url} ({'; '.join(failures)}); start "
                "it, or leave --spark out to judge on this machine"
            )
        return ""

    def class_path(self) -> list[str]:
        """Where the driver finds the files of a Hadoop cluster."""
        folders = [os.environ.get(name, "") for name in HADOOP] if self.kind == YARN else []
        return [folder for folder in folders if folder]

    def options(self, address: str) -> Mapping[str, str]:
        """Spark's options for executors elsewhere; what the user's own file says comes first."""
        ours = {"spark.driver.host": address, "spark.driver.bindAddress": address}
        if self.here:
            return ours
        own = {f"spark.executorEnv.{SAFE_PATH}": "1", **(ours if address else {})}
        if self.kind == YARN:
            own["spark.yarn.isPython"] = "true"  # so that executors are given PySpark too
        return {**own, **_defaults()}


def _addresses(url: str) -> Iterator[tuple[str, int]]:
    """Who listens, where the address says it."""
    kind, _, rest = url.partition("://")
    if kind not in (STANDALONE, CONNECT):
        return
    for each in rest.split("/")[0].split(","):
        host, _, port = each.partition(":")
        yield host, int(port or CONNECT_PORT)


def _defaults() -> dict[str, str]:
    """$SPARK_CONF_DIR/spark-defaults.conf, which `spark-submit` would have read."""
    folder = os.environ.get("SPARK_CONF_DIR")
    path = Path(folder or ".") / "spark-defaults.conf"
    if not folder or not path.is_file():
        return {}
    lines = (line.strip() for line in text_of(path, "the settings of Spark").splitlines())
    pairs = (re.split(r"[\s=:]+", line, maxsplit=1) for line in lines if line.startswith("spark."))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def packed(folder: Path) -> Path:
    """Our packages, and those of checkers from outside, as one archive."""
    path = folder / ARCHIVE
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted({*CODE, *(m.split(".")[0] for m in registry.modules("checker"))}):
            for file, inside in _sources(name):
                archive.write(file, inside)
    return path


def _sources(name: str) -> Iterator[tuple[Path, str]]:
    """The files of a package or module, and what they are called in an archive."""
    spec = find_spec(name)
    if spec is None:
        return
    for root in map(Path, spec.submodule_search_locations or ()):
        for file in sorted(root.rglob("*.py")):
            yield file, f"{name}/{file.relative_to(root)}"
    if spec.submodule_search_locations is None and spec.origin:
        yield Path(spec.origin), f"{name}.py"
