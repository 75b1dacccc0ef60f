"""The hook that runs before `helm uninstall`, against an API server of the test's own."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from manifests import chart, one

PATIENCE_S = 180  # for a machine that stands still now and then; met early on every other


class ApiServer:
    """One DaemonSet; its pods end a few looks after its selector fits no node."""

    def __init__(self, nodes: dict[str, int], *, exists: bool = True, broken: int = 0) -> None:
        """`nodes`: looks that still show the pod of a node. The first `broken` requests fail."""
        self.left = dict(nodes)
        self.exists = exists
        self.broken = broken
        self.selector: dict[str, str] = {"nvidia.com/gpu.deploy.client": "true"}
        self.requests: list[tuple[str, str, str]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(b"")

            def do_PATCH(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])))

            def _answer(self, body: bytes) -> None:
                token = self.headers["Authorization"]
                status, found = api.answer(self.command, self.path, body, token)
                raw = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, verb: str, path: str, body: bytes, token: str) -> tuple[int, Any]:
        address = urlsplit(path)
        self.requests.append((verb, address.path, token))
        if self.broken:
            self.broken -= 1
            return 500, {}
        if address.path.endswith("/pods"):
            assert (
                "app.kubernetes.io/component=agent" in parse_qs(address.query)["labelSelector"][0]
            )
            if self.selector != {"nvidia.com/gpu.deploy.client": "true"}:
                self.left = {node: n - 1 for node, n in self.left.items() if n > 0}
            items = [
                {"spec": {"nodeName": node}, "status": {"phase": "Running"}} for node in self.left
            ]
            return 200, {"items": items}
        if not self.exists:
            return 404, {}
        if verb == "PATCH":
            self.selector = json.loads(body)["spec"]["template"]["spec"]["nodeSelector"]
        return 200, {}


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Any]:
    """Runs the script as the chart's Job does, against a server."""
    objects = chart("keeper")
    script = tmp_path / "withdraw.py"
    script.write_text(one(objects, "ConfigMap", "-withdraw")["data"]["withdraw.py"])
    (tmp_path / "token").write_text("secret-token\n")
    container = one(objects, "Job")["spec"]["template"]["spec"]["containers"][0]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    servers = []

    def run(server: ApiServer, wait_s: str = "120") -> subprocess.CompletedProcess[str]:
        servers.append(server)
        given = {**env, "WAIT_S": wait_s, "API_SERVER": server.url, "IDENTITY": str(tmp_path)}
        return subprocess.run(
            [sys.executable, str(script)],
            env={**given, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    yield run
    for server in servers:
        server.close()


def test_it_ends_every_pod_and_waits_for_the_last(hook: Any) -> None:
    server = ApiServer({"node1": 1, "node2": 2})
    done = hook(server)
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.selector == {"joulecut.io/withdrawn": "true"}
    assert not server.left
    assert "restored" in done.stdout


def test_a_node_that_does_not_answer_is_named(hook: Any) -> None:
    done = hook(ApiServer({"node1": 0, "node-gone": 10**6}), wait_s="1")
    assert done.returncode == 1
    assert "node-gone" in done.stdout
    assert "node1" not in done.stdout
    assert "--no-hooks" in done.stdout


def test_an_api_server_that_stumbles_is_asked_again(hook: Any) -> None:
    done = hook(ApiServer({"node1": 1}, broken=2))
    assert done.returncode == 0, done.stdout
    assert "trying again" in done.stdout


def test_nothing_to_withdraw_is_fine(hook: Any) -> None:
    assert hook(ApiServer({}, exists=False)).returncode == 0


def test_it_asks_for_nothing_beyond_its_role(hook: Any) -> None:
    server = ApiServer({"node1": 2})
    hook(server)
    (apps, core) = one(chart("keeper"), "Role")["rules"]
    for verb, path, token in server.requests:
        assert token == "Bearer secret-token"
        if found := re.fullmatch(r"/apis/apps/v1/namespaces/joulecut/daemonsets/(.+)", path):
            assert verb.lower() in apps["verbs"]
            assert [found[1]] == apps["resourceNames"]
        else:
            assert path == "/api/v1/namespaces/joulecut/pods"
            assert (verb, core["verbs"]) == ("GET", ["list"])


def test_the_job_outlives_its_own_wait() -> None:
    job = one(chart("keeper"), "Job")["spec"]
    env = {e["name"]: e["value"] for e in job["template"]["spec"]["containers"][0]["env"]}
    assert job["activeDeadlineSeconds"] > float(env["WAIT_S"])


def test_its_selector_is_that_of_the_daemonset() -> None:
    objects = chart("keeper")
    env = {
        e["name"]: e["value"]
        for e in one(objects, "Job")["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    labels = one(objects, "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert dict(pair.split("=") for pair in env["SELECTOR"].split(",")) == labels
    assert env["DAEMONSET"] == one(objects, "DaemonSet")["metadata"]["name"]


def test_metrics_only_has_nothing_to_withdraw() -> None:
    assert not [o for o in chart() if o["kind"] == "Job"]
