"""An API server with EndpointSlices, for one test."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fake_kubelet import FakeApi

NAMESPACE, SERVICE = "joulecut", "joulecut-agent"


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
