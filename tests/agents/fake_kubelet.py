"""A kubelet's pod-resources socket and an API server's pods, as far as an agent asks for them.

    with FakeKubelet(folder / "kubelet.sock") as kubelet:
        kubelet.give("train", "gpt-0", ["GPU-a"])

Real gRPC over a unix socket, and real HTTPS with an authority of its own.
"""

import json
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import grpc

from joulecut_wire.kubelet import podresources_pb2 as pb
from joulecut_wire.kubelet import podresources_pb2_grpc

GPU = "nvidia.com/gpu"


class FakeKubelet(podresources_pb2_grpc.PodResourcesListerServicer):
    """`pods` is what List answers; `start` and `stop` are a kubelet's own life."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: dict[tuple[str, str], pb.PodResources] = {}
        self.questions = 0
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(2))
        podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
        self._server = None
        self.socket.unlink(missing_ok=True)

    def List(
        self, request: pb.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        self.questions += 1
        return pb.ListPodResourcesResponse(pod_resources=list(self.pods.values()))

    def give(
        self, namespace: str, name: str, devices: list[str], resource: str = GPU
    ) -> pb.PodResources:
        """A pod with two containers, one of which holds these devices."""
        pod = pb.PodResources(namespace=namespace, name=name)
        pod.containers.add(name="sidecar")
        pod.containers.add(name="main").devices.add(resource_name=resource, device_ids=devices)
        self.pods = {**self.pods, (namespace, name): pod}
        return pod

    def claim(
        self, namespace: str, name: str, *, driver: str, device: str, cdi: list[str]
    ) -> pb.PodResources:
        """A pod whose GPU comes from a resource claim."""
        pod = pb.PodResources(namespace=namespace, name=name)
        container = pod.containers.add(name="main")
        claim = container.dynamic_resources.add(claim_name="gpu", claim_namespace=namespace)
        one = claim.claim_resources.add(driver_name=driver, pool_name="n1", device_name=device)
        for word in cdi:
            one.cdi_devices.add(name=word)
        self.pods = {**self.pods, (namespace, name): pod}
        return pod

    def take(self, namespace: str, name: str) -> None:
        self.pods = {key: pod for key, pod in self.pods.items() if key != (namespace, name)}


class FakeApi:
    """Pods over HTTPS at `port`; `credentials` holds `ca.crt` and `token` for a client."""

    def __init__(self, folder: Path) -> None:
        self.credentials = folder / "credentials"
        self.credentials.mkdir()
        self.token = "first"
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.status = 0  # answered to everything, where it is not 0
        self.asked: list[str] = []
        key, certificate = folder / "key.pem", self.credentials / "ca.crt"
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=api",
                "-addext", "subjectAltName=IP:127.0.0.1",
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip
        self.write_token()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                api.asked.append(self.path)
                status, words = api.answer(self.path, self.headers.get("Authorization", ""))
                raw = json.dumps(words).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        class Http(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass

        self._http = Http(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def write_token(self) -> None:
        (self.credentials / "token").write_text(self.token + "\n")

    def run(
        self,
        namespace: str,
        name: str,
        uid: str,
        labels: dict[str, str],
        phase: str = "Running",
        **annotations: str,
    ) -> None:
        about: dict[str, Any] = {"namespace": namespace, "name": name, "uid": uid}
        about |= {"labels": labels, "annotations": annotations}
        self.pods[namespace, name] = {"metadata": about, "status": {"phase": phase}}

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        if self.status:
            return self.status, {"kind": "Status"}
        if authorization != f"Bearer {self.token}":
            return 401, {"kind": "Status"}
        *_, namespace, _, name = path.split("/")
        found = self.pods.get((namespace, name))
        return (200, found) if found else (404, {"kind": "Status"})
