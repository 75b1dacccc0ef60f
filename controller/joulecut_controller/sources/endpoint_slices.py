"""Agents behind a Kubernetes service, from the EndpointSlices of its API server.

The controller lists the slices with its service account, which needs `list` on endpointslices of
that namespace. An agent that is not ready stays: a driver that hangs is no reason to lose sight of
its node. A terminating one has gone: its keeper restores its GPUs.
"""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from joulecut_controller.sources.agents import WORD, checked, joined
from joulecut_wire import user_file
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.http_client import Answer, Server
from joulecut_wire.quantity import address, text
from joulecut_wire.section import key

ANSWER_S_MAX = 5.0
PAGE_SLICES = 100  # a slice has up to 100 endpoints by default, and up to 1,000
PAGE_BYTES_MAX = 64 << 20  # 100 slices of 1,000 endpoints of 500 bytes
PAGES_MAX = 100
_PATH = text(4096, "a path")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ADDRESS_TYPES = ("IPv4", "IPv6")  # in this order: a pod of a dual-stack service is in both


@dataclass(frozen=True, slots=True)
class AgentsOfService:
    """The agents behind `service`, the one key that is needed inside a pod. `account` is the folder
    with `token`, `ca.crt` and `namespace` that the kubelet mounts and renews. `port` is the name of
    the service's port.
    """

    service: str = key(WORD)
    api: tuple[str, int] = key(address(1), ("", 0))  # without one, that of the pod's environment
    namespace: str = key(WORD, "")  # empty: that of the service account
    port: str = key(WORD, "grpc")
    account: Path = key(lambda value: Path(_PATH(value)), ACCOUNT)
    moves: bool = True

    def addresses(self) -> tuple[str, ...]:
        where = f"service {self.service}"
        try:
            found = list(self._slices())
        except (OSError, BadInput) as error:
            raise Unavailable(f"agents of {where}: {_reason(error)}") from None
        agents: dict[str, str] = {}  # by pod
        for family in ADDRESS_TYPES:
            for one in found:
                if one.get("addressType") == family:
                    for pod, place in self._agents(one, where):
                        agents.setdefault(pod, place)
        return checked(sorted(agents.values()), where)

    def _agents(self, one: Any, where: str) -> Iterator[tuple[str, str]]:
        """The pod and the address of each endpoint that is not terminating."""
        try:
            ports = {port.get("name") or "": port.get("port") for port in one.get("ports") or ()}
            if not isinstance(ports.get(self.port), int):
                return
            for endpoint in one.get("endpoints") or ():
                if (endpoint.get("conditions") or {}).get("terminating"):
                    continue
                place = joined(str(endpoint["addresses"][0]), ports[self.port])
                yield str((endpoint.get("targetRef") or {}).get("uid") or place), place
        except (AttributeError, IndexError, KeyError, TypeError):
            raise Unavailable(f"agents of {where}: the answer is no EndpointSlice") from None

    def _slices(self) -> Iterator[Any]:
        """Every slice of the service, page by page."""
        context = ssl.create_default_context(cafile=self.account / "ca.crt")
        token = user_file.line(self.account / "token")
        namespace = self.namespace or user_file.line(self.account / "namespace")
        label = f"kubernetes.io/service-name={self.service}"
        asked = {"labelSelector": label, "limit": str(PAGE_SLICES)}
        path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, '')}/endpointslices"
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        server = Server(*self.api, context)
        for _ in range(PAGES_MAX):
            answer = server.ask(
                f"{path}?{urlencode(asked)}",
                within_s=ANSWER_S_MAX,
                bytes_max=PAGE_BYTES_MAX,
                headers=headers,
            )
            page = _page(answer, path)
            yield from page["items"]
            asked["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not asked["continue"]:
                return
        raise BadInput(path, f"more than {PAGES_MAX} pages", "one service of agents")


def _page(answer: Answer, path: str) -> Any:
    if answer.status != 200:
        raise Unavailable(f"{path}: status {answer.status}{_HINTS.get(answer.status, '')}")
    try:
        page = answer.json()
    except ValueError:
        page = None
    if not isinstance(page, dict) or not isinstance(page.get("items"), list):
        raise Unavailable(f"{path}: the answer is no list of EndpointSlices")
    return page


_HINTS = {
    401: ": the token of the service account is not accepted",
    403: ": the service account needs `list` on endpointslices (discovery.k8s.io)",
}


def _reason(error: Exception) -> str:
    text = str(error).splitlines()
    return text[0][:200] if text else type(error).__name__
