"""Labels, uid and phase of pods with GPUs, from the API server.

The kubelet's device list has no labels, and may keep a pod that has ended. `get` on pods is the
least permission that gives both. A node requests its own few GPU pods, once each and then seldom,
in a thread that nothing waits for.
"""

import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from joulecut_agent.jobs.settings import ApiServer
from joulecut_agent.log import Warnings
from joulecut_wire import user_file
from joulecut_wire.http_client import Server

ANSWER_WAIT_S = 2.0
ANSWER_BYTES_MAX = 4 << 20  # etcd holds no object above 1.5 MB
RECHECK_S = 10.0  # without a visible control group
WATCHED_RECHECK_S = 300.0  # with one, which shows the end
ABSENT_S = 30.0  # after a pod was not found, or not permitted
OVER_S = 5.0  # a pod of the same name may have taken its place
DOUBT_S = 2.0  # the control group is gone, and the API server does not know yet
DOWN_S = 5.0  # after a failed request
PODS_MAX = 256  # a node holds 110 by default, at most 250
LABELS_MAX = 64
UNREAD = "labels of pods cannot be read from the API server"
# A job's own word, by which a policy may match it. Other annotations are not kept.
ANNOTATION = "joulecut.dev/policy"
Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod; `over`: it will not run again. `labels` has its ANNOTATION too."""

    uid: str = ""
    over: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


class ApiPods:
    """`pod` answers from memory; a thread fetches what is missing."""

    def __init__(self, server: ApiServer, watched: "Watched") -> None:
        self._server = server
        self._watched = watched
        self._lock = threading.Lock()
        self._wanted: tuple[Key, ...] = ()
        self._known: dict[Key, tuple[Pod | None, float]] = {}
        self._wake = threading.Event()
        self._leaving = False
        self._warnings = Warnings()
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._leaving = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=ANSWER_WAIT_S + 1.0)

    def want(self, keys: Iterable[Key]) -> None:
        """Sets the pods to keep; others are forgotten."""
        with self._lock:
            self._wanted = tuple(dict.fromkeys(keys))[:PODS_MAX]
            self._known = {key: self._known[key] for key in self._wanted if key in self._known}
            missing = len(self._known) < len(self._wanted)
        if missing:
            self._wake.set()

    def pod(self, key: Key) -> Pod | None:
        with self._lock:
            return self._known.get(key, (None, 0.0))[0]

    def recheck(self, key: Key) -> None:
        """Requests a pod sooner: its known state contradicts what is seen on the node."""
        with self._lock:
            pod, due_s = self._known.get(key, (None, 0.0))
            if due_s > time.monotonic() + DOUBT_S:
                self._known[key] = (pod, time.monotonic() + DOUBT_S)

    def _run(self) -> None:
        while not self._leaving:
            pause_s = self._turn()
            self._wake.wait(pause_s)
            self._wake.clear()

    def _turn(self) -> float:
        """Fetches the pods that are due; returns the seconds until the next."""
        with self._lock:
            wanted = self._wanted
        now_s = time.monotonic()
        for key in wanted:
            if now_s < self._known.get(key, (None, 0.0))[1]:
                continue
            try:
                pod = self._fetch(key)
            except (OSError, ValueError) as error:
                self._warnings.say(f"{UNREAD}: {type(error).__name__}: {error}")
                return DOWN_S
            known = self._known.get(key, (None, 0.0))[0]
            if pod is None and known is not None:
                pod = Pod(known.uid, over=True, labels=known.labels)  # deleted since
            if pod is None or pod.over:
                wait_s = OVER_S if pod else ABSENT_S
            else:
                wait_s = WATCHED_RECHECK_S if self._watched.seen(pod.uid) else RECHECK_S
            with self._lock:
                if key in self._wanted:
                    self._known[key] = (pod, time.monotonic() + wait_s)
        return 1.0

    def _fetch(self, key: Key) -> Pod | None:
        """None if there is no such pod, or no permission to get it."""
        # Read each time: both are rotated.
        context = ssl.create_default_context(cafile=self._server.credentials / "ca.crt")
        token = user_file.line(self._server.credentials / "token")
        answer = Server(self._server.host, self._server.port, context).ask(
            f"/api/v1/namespaces/{quote(key[0], '')}/pods/{quote(key[1], '')}",
            within_s=ANSWER_WAIT_S,
            bytes_max=ANSWER_BYTES_MAX,
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
        )
        if answer.status == HTTPStatus.OK:
            self._warnings.say("")
            return _pod(answer.json())
        if answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
            return None
        self._warnings.say(f"{UNREAD}: status {answer.status} for pods of namespace {key[0]}")
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ValueError(f"status {answer.status}")
        return self._known.get(key, (None, 0.0))[0]


def _pod(words: Any) -> Pod:
    """Raises ValueError on anything but a pod."""
    try:
        about, phase = words["metadata"], words.get("status", {}).get("phase", "")
        labels = {
            str(k): str(v)[:253]
            for k, v in sorted((about.get("labels") or {}).items())[:LABELS_MAX]
        }
        given = about.get("annotations") or {}
        if ANNOTATION in given:
            labels[ANNOTATION] = str(given[ANNOTATION])[:253]
        return Pod(str(about["uid"]), phase in {"Succeeded", "Failed"}, labels)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a pod: {error}") from None


class Watched:
    """Pods by their control groups, which the kernel removes after the last process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: dict[str, Path] = {}

    def keep(self, uids: Iterable[str]) -> None:
        """Forgets the others."""
        wanted = set(uids)
        self._paths = {uid: path for uid, path in self._paths.items() if uid in wanted}

    def seen(self, uid: str) -> bool:
        """Whether the pod's group was ever seen."""
        return uid in self._paths

    def over(self, uid: str) -> bool:
        """Whether a group that was seen is gone. One never seen proves nothing."""
        known = self._paths.get(uid)
        if known is not None:
            return not known.exists()
        found = next((path for path in self._places(uid) if path.exists()), None)
        if found is not None:
            self._paths = {**self._paths, uid: found}
        return False

    def _places(self, uid: str) -> Iterable[Path]:
        flat = uid.replace("-", "_")
        for root in (self._root, self._root / "systemd", self._root / "memory"):
            for prefix in ("", "kubelet.slice/kubelet-"):
                base = root / f"{prefix}kubepods.slice"
                name = f"{prefix.rpartition('/')[2]}kubepods"
                yield base / f"{name}-pod{flat}.slice"
                for kind in ("burstable", "besteffort"):
                    yield base / f"{name}-{kind}.slice" / f"{name}-{kind}-pod{flat}.slice"
            for prefix in ("kubepods", "kubelet/kubepods"):
                for kind in ("", "burstable", "besteffort"):
                    yield root / prefix / kind / f"pod{uid}"
