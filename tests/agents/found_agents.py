"""A name server with SRV records, and an API server with EndpointSlices, for one test."""

import socket
import threading
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
from fake_kubelet import FakeApi

NAMESPACE, SERVICE = "joulecut", "joulecut-agent"
NAME = "_grpc._tcp.agents.example."


class NameServer:
    """Answers for NAME over UDP; long answers are truncated there and come over TCP."""

    def __init__(self) -> None:
        self.targets: tuple[tuple[str, int], ...] = ()
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._tcp = socket.create_server(self._udp.getsockname())
        self.address: tuple[str, int] = self._udp.getsockname()
        self._threads = [
            threading.Thread(target=serve, daemon=True) for serve in (self._datagrams, self._calls)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._udp, self._tcp):
            server.shutdown(socket.SHUT_RDWR) if server is self._tcp else None
            server.close()

    def _answer(self, raw: bytes, bytes_max: int) -> bytes:
        asked = dns.message.from_wire(raw)
        answer = dns.message.make_response(asked)
        if asked.question[0].name.to_text() != NAME or not self.targets:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        else:
            records = [f"0 0 {port} {host}." for host, port in self.targets]
            answer.answer.append(dns.rrset.from_text(NAME, 5, "IN", "SRV", *records))
        whole = answer.to_wire(max_size=65_535)
        if len(whole) <= bytes_max:
            return whole
        answer.answer.clear()
        answer.flags |= dns.flags.TC
        return answer.to_wire()

    def _datagrams(self) -> None:
        while True:
            try:
                raw, sender = self._udp.recvfrom(4096)
            except OSError:
                return
            self._udp.sendto(self._answer(raw, 512), sender)

    def _calls(self) -> None:
        while True:
            try:
                caller, _ = self._tcp.accept()
            except OSError:
                return
            with caller, caller.makefile("rwb") as stream:
                raw = stream.read(int.from_bytes(stream.read(2), "big"))
                whole = self._answer(raw, 65_535)
                stream.write(len(whole).to_bytes(2, "big") + whole)


class SliceApi(FakeApi):
    """EndpointSlices of SERVICE in pages of one slice, with a slice of another service."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.credentials / "namespace").write_text(NAMESPACE)
        self.slices: list[dict[str, Any]] = []

    def add(self, *endpoints: dict[str, Any], family: str = "IPv4", port: int = 9431) -> None:
        self.slices.append(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"labels": {"kubernetes.io/service-name": SERVICE}},
                "addressType": family,
                "endpoints": list(endpoints),
                "ports": [
                    {"name": "grpc", "port": port, "protocol": "TCP"},
                    {"name": "metrics", "port": 9430, "protocol": "TCP"},
                ],
            }
        )

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        if self.status:
            return self.status, {"kind": "Status", "code": self.status}
        if authorization != f"Bearer {self.token}":
            return 401, {"kind": "Status", "code": 401}
        address = urlsplit(path)
        if address.path != f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices":
            return 404, {"kind": "Status", "code": 404}
        asked = {key: values[0] for key, values in parse_qs(address.query).items()}
        found = (
            self.slices if asked["labelSelector"] == f"kubernetes.io/service-name={SERVICE}" else []
        )
        first = int(asked.get("continue", "0"))
        more = str(first + 1) if first + 1 < len(found) else ""
        about = {"resourceVersion": "7", "continue": more}
        items = found[first : first + 1]
        return 200, {"kind": "EndpointSliceList", "metadata": about, "items": items}


def endpoint(*addresses: str, uid: str = "", ready: bool = True, **more: bool) -> dict[str, Any]:
    """As the API server writes one; `uid` is that of its pod."""
    found: dict[str, Any] = {
        "addresses": list(addresses),
        "conditions": {"ready": ready, "serving": ready, "terminating": False, **more},
        "nodeName": f"node-{addresses[0]}",
    }
    if uid:
        found["targetRef"] = {"kind": "Pod", "name": f"agent-{uid}", "uid": uid}
    return found
