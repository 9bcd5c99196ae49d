"""The part of Kubernetes' API that Spark uses, on loopback: pods of executors are processes here.

It keeps what is posted, lists pods with their phases, and ends those that are deleted. A pod is the
command of Spark's own image (`entrypoint.sh executor`), with the environment that Spark gave it.
Images, volumes, config maps, limits of memory, accounts and TLS are not there.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import spark_lab

from harness.spark import java

EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
FIELDS = {  # the executor's options, and where their values are
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
PODS = re.compile(r"/api/v1/namespaces/default/pods(/(?P<name>[\w.-]+))?(\?.*)?")
HERE = "127.0.0.1"
STOP_WITHIN_S = 20.0
Json = dict[str, Any]


@dataclass
class Pods:
    """The pods: what was posted, and their processes. `starts` counts them."""

    folder: Path
    posted: dict[str, Json] = field(default_factory=dict)
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    starts: int = 0

    def start(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        folder = self.folder / name
        folder.mkdir()
        environment = _environment(pod, folder)
        with self.lock, (folder / "log").open("wb") as log:
            self.posted[name] = pod
            self.starts += 1
            self.running[name] = subprocess.Popen(
                _command(environment),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def listed(self) -> list[Json]:
        with self.lock:
            return [{**self.posted[name], "status": self._status(name)} for name in self.posted]

    def stop(self, name: str | None = None) -> None:
        """End one pod, or all of them."""
        with self.lock:
            ended = [self.running.pop(each) for each in list(self.running) if name in (None, each)]
            self.posted = {each: self.posted[each] for each in self.running}
        for process in ended:
            process.terminate()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _status(self, name: str) -> Json:
        code = self.running[name].poll()
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        return {"phase": phase, "podIP": HERE, "hostIP": HERE}


def _environment(pod: Json, folder: Path) -> dict[str, str]:
    """Return a pod's environment; nothing in it leads to this repository."""
    given: dict[str, str] = {}
    for each in pod["spec"]["containers"][0]["env"]:
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        own = {"status.podIP": HERE, "metadata.name": pod["metadata"]["name"]}.get(path, "")
        given[each["name"]] = each.get("value", own)
    of_image = {
        "PATH": os.environ["PATH"],
        "SPARK_HOME": str(spark_lab.HOME),
        "CLASSPATH": f"{spark_lab.HOME}/jars/*",
        "SPARK_LOCAL_IP": HERE,
    }
    return {**of_image, **given, "SPARK_LOCAL_DIRS": str(folder)}


def _command(environment: Mapping[str, str]) -> list[str]:
    names = [name for name in environment if name.startswith("SPARK_JAVA_OPT_")]
    options = [environment[name] for name in sorted(names, key=lambda n: int(n.split("_")[-1]))]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    fields = [word for option, name in FIELDS.items() for word in (option, environment[name])]
    runtime = str(java.find_java().executable)
    return [runtime, *options, f"-Xms{memory}", f"-Xmx{memory}", EXECUTOR, *fields]


class ApiHandler(BaseHTTPRequestHandler):
    """Answers requests about `pods`. Resources of other kinds are accepted and not kept."""

    protocol_version = "HTTP/1.1"
    pods: Pods

    def do_POST(self) -> None:
        resource = json.loads(self._body())
        resource["metadata"]["uid"] = resource["metadata"]["name"]
        if PODS.fullmatch(self.path):
            self.pods.start(resource)
        self._answer(201, resource)

    def do_GET(self) -> None:
        listed = self.pods.listed() if PODS.fullmatch(self.path) else []
        more = {"metadata": {"resourceVersion": "1"}, "items": listed}
        self._answer(200, {"kind": "PodList", "apiVersion": "v1", **more})

    def do_DELETE(self) -> None:
        self._body()
        if found := PODS.fullmatch(self.path):
            self.pods.stop(found["name"])
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def do_PATCH(self) -> None:
        self._body()
        self._answer(200, {"kind": "Pod", "apiVersion": "v1", "metadata": {}})

    def log_message(self, *unused: object) -> None:
        """Nothing: the test says what went wrong."""

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, code: int, resource: Json) -> None:
        body = json.dumps(resource).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[str, Pods]]:
    """Yield the address of a server, for Spark, and its pods; all of them are ended afterwards."""
    pods = Pods(folder)
    handler = type("PodsHandler", (ApiHandler,), {"pods": pods})
    with ThreadingHTTPServer((HERE, 0), handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"k8s://http://{HERE}:{server.server_port}", pods
        finally:
            server.shutdown()
            pods.stop()
