"""Spark masters: their addresses, and what travels to remote executors.

    local[N]            threads of one JVM here: the default
    spark://HOST:PORT   a standalone cluster
    yarn, k8s://...     as the files in HADOOP_CONF_DIR and SPARK_CONF_DIR configure it
    sc://HOST:PORT      a Spark Connect server: no JVM here at all
    none                no Spark: small histories are judged by the same kernels in this process

Executors read the run's folder themselves, so it has to exist where they run, under the same path.
The code that they run is sent: our packages as one archive. Python and the libraries (numpy,
pyarrow, pandas, numba, scipy) are theirs: `PYSPARK_PYTHON` names their interpreter. Their Java is
the one that started them. A small job checks, within a deadline, whether a cluster can do the work
before any checker runs.
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
from harness.text.parsing import read_text

LOCAL, STANDALONE, YARN, K8S, CONNECT, NONE = "local", "spark", "yarn", "k8s", "sc", "none"
FORMS = {
    LOCAL: r"local(\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\])?",
    STANDALONE: r"spark://[^/,:\s]+:\d+(,[^/,:\s]+:\d+)*",
    YARN: "yarn",
    K8S: r"k8s://\S+",
    CONNECT: r"sc://[^/:;\s]+(:\d+)?(/;?\S*)?",
    NONE: "none",
}
FORMS_TEXT = "local[N], spark://HOST:PORT, yarn, k8s://ADDRESS, sc://HOST:PORT or none"
DEFAULT = "local[2]"
VARIABLE = "SEATRIAL_SPARK"
CONNECT_PORT = 15002
CONNECT_WITHIN_S = 5.0
CODE = ("harness", "checkers")  # packages with functions that executors run
HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
# for a resource manager that is down: 40 s, as an attempt takes 10; Hadoop's default is 15 minutes
YARN_PATIENCE = {
    "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": "10000",
    "spark.hadoop.yarn.resourcemanager.connect.retry-interval.ms": "5000",
}
ARCHIVE = "seatrial.zip"
SAFE_PATH = "PYTHONSAFEPATH"  # children import nothing from their working directory


@dataclass(frozen=True)
class Master:
    """A master: its address, and its kind."""

    url: str
    kind: str

    @classmethod
    def of(cls, text: str) -> "Master":
        """Parse an address. Raises BadRequest if it is not one of Spark, or its configuration is
        missing."""
        kind = next((name for name, form in FORMS.items() if re.fullmatch(form, text)), "")
        if not kind:
            raise BadRequest(f"{text!r} is not a Spark master; write {FORMS_TEXT}")
        if any(port > 65535 for _, port in _addresses(text)):
            raise BadRequest(f"{text!r} is not a Spark master: the largest port is 65535")
        if kind == YARN and not any(os.environ.get(name) for name in HADOOP):
            raise BadRequest("yarn is found by its files: set HADOOP_CONF_DIR to their folder")
        return cls(text, kind)

    @property
    def is_local(self) -> bool:
        """Whether executors are on this machine, in the JVM that we start."""
        return self.kind == LOCAL

    @property
    def is_managed(self) -> bool:
        """Whether a resource manager starts executors for each session."""
        return self.kind in (YARN, K8S)

    @property
    def python(self) -> str:
        """The interpreter of executors."""
        return (
            sys.executable if self.is_local else os.environ.get("PYSPARK_PYTHON") or sys.executable
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first listener."""
        return next(_addresses(self.url))

    def local_address(self) -> str:
        """Return our address as the master sees it; empty if Spark has to find it. Raises BedFailed
        if there is no listener."""
        if self.is_local:
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
        """Return where the driver finds the files of a Hadoop cluster."""
        folders = [os.environ.get(name, "") for name in HADOOP] if self.kind == YARN else []
        return [folder for folder in folders if folder]

    def options(self, address: str) -> Mapping[str, str]:
        """Return Spark's options for remote executors; the user's own file takes precedence."""
        ours = {"spark.driver.host": address, "spark.driver.bindAddress": address}
        if self.is_local:
            return ours
        own = {f"spark.executorEnv.{SAFE_PATH}": "1", **(ours if address else {})}
        if self.kind == YARN:
            own["spark.yarn.isPython"] = "true"  # so that executors are given PySpark too
            own |= YARN_PATIENCE
        return {**own, **_defaults()}


def default_master() -> str:
    """Return the master of a command that is given none. Raises BadRequest if the variable names no
    master."""
    return Master.of(os.environ.get(VARIABLE) or DEFAULT).url


def _addresses(url: str) -> Iterator[tuple[str, int]]:
    """Yield the listeners that the address names."""
    kind, _, rest = url.partition("://")
    if kind not in (STANDALONE, CONNECT):
        return
    for each in rest.split("/")[0].split(","):
        host, _, port = each.partition(":")
        yield host, int(port or CONNECT_PORT)


def _defaults() -> dict[str, str]:
    """Read $SPARK_CONF_DIR/spark-defaults.conf, as `spark-submit` does."""
    folder = os.environ.get("SPARK_CONF_DIR")
    path = Path(folder or ".") / "spark-defaults.conf"
    if not folder or not path.is_file():
        return {}
    lines = (line.strip() for line in read_text(path, "the settings of Spark").splitlines())
    pairs = (re.split(r"[\s=:]+", line, maxsplit=1) for line in lines if line.startswith("spark."))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def pack_code(folder: Path) -> Path:
    """Pack our packages, and those of other packages' checkers, into one archive."""
    path = folder / ARCHIVE
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted({*CODE, *(m.split(".")[0] for m in registry.modules("checker"))}):
            for file, inside in _sources(name):
                archive.write(file, inside)
    return path


def _sources(name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of a package or module, with their names in an archive."""
    spec = find_spec(name)
    if spec is None:
        return
    for root in map(Path, spec.submodule_search_locations or ()):
        for file in sorted(root.rglob("*.py")):
            yield file, f"{name}/{file.relative_to(root)}"
    if spec.submodule_search_locations is None and spec.origin:
        yield Path(spec.origin), f"{name}.py"
