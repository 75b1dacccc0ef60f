"""Ends every pod of the agent before its DaemonSet is deleted, and waits until they are gone.

Deleting a DaemonSet does not wait for its pods. A keeper restores its GPUs while it ends, so a
node without the pod is a restored node. A node that does not answer is named in the log.

Standard library only; needs `get` and `patch` on one DaemonSet, and `list` of pods.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

NOWHERE = {"joulecut.io/withdrawn": "true"}  # a label that no node has
POLL_S = 1.0
REQUEST_WAIT_S = 10.0
IDENTITY = Path(os.environ.get("IDENTITY", "/var/run/secrets/kubernetes.io/serviceaccount"))


def main() -> int:
    namespace, daemonset = os.environ["NAMESPACE"], os.environ["DAEMONSET"]
    selector, wait_s = os.environ["SELECTOR"], float(os.environ["WAIT_S"])
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{daemonset}"
    pods = f"/api/v1/namespaces/{namespace}/pods?" + urllib.parse.urlencode(
        {"labelSelector": selector}
    )
    change = {"spec": {"template": {"spec": {"nodeSelector": NOWHERE}}}}
    until_s = time.monotonic() + wait_s
    asked, left = False, ["unknown: the API server was not reached"]
    while True:
        try:
            if not asked:
                if ask("PATCH", path, change) is None:
                    print("no such DaemonSet: nothing to withdraw")
                    return 0
                asked = True
            listed = ask("GET", pods) or {}
            left = sorted(
                pod["spec"].get("nodeName", "(none)")
                for pod in listed["items"]
                if pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}
            )
            if not left:
                print("every pod is gone: every GPU that a keeper held was restored")
                return 0
        except (OSError, KeyError, ValueError) as error:
            print(f"the API server: {error}; trying again", flush=True)
        if time.monotonic() >= until_s:
            print(
                f"after {wait_s:g} s pods are left on: {', '.join(left)}. A keeper there may hold"
                " clocks. Look at these nodes, then uninstall again, or with --no-hooks."
            )
            return 1
        time.sleep(POLL_S)


def ask(method: str, path: str, change: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """One request; None if the object does not exist. Raises OSError, ValueError."""
    request = urllib.request.Request(
        address() + path,
        method=method,
        data=None if change is None else json.dumps(change).encode(),
        headers={
            "Authorization": f"Bearer {(IDENTITY / 'token').read_text().strip()}",
            "Content-Type": "application/merge-patch+json",
        },
    )
    authority = IDENTITY / "ca.crt"
    context = ssl.create_default_context(cafile=authority) if authority.exists() else None
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_WAIT_S, context=context) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def address() -> str:
    if "API_SERVER" in os.environ:
        return os.environ["API_SERVER"]
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}:{os.environ['KUBERNETES_SERVICE_PORT']}"


if __name__ == "__main__":
    sys.exit(main())
