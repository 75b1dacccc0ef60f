"""Owners of GPUs in Kubernetes.

The kubelet knows allocations, the API server labels, and control groups show when a pod has ended.
Each may be silent for a while: the kubelet's last answer holds for `KEPT_S`, and a job without
labels has its pod's name.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.kubelet import Kubelet, PodDevices, Silent
from joulecut_agent.jobs.owner import KUBERNETES, Claims, Owner, job_of, labels_of
from joulecut_agent.jobs.pods import ApiPods, Pod, Watched
from joulecut_agent.log import Warnings

POLL_S = 0.5  # under a lease, so that it ends within a second of its pod
IDLE_POLL_S = 5.0
KEPT_S = 120.0  # a kubelet restarts in seconds; its upgrade takes a minute or two


@dataclass(eq=False)
class Kubernetes:
    """Polls in its own thread; `changed` is called when `claims` changes."""

    kubelet: Kubelet
    inventory: Callable[[], Inventory]
    api: ApiPods | None
    watched: Watched
    held: Callable[[], bool]
    changed: Callable[[], None]

    def __post_init__(self) -> None:
        self._listed: tuple[PodDevices, ...] = ()
        self._answered_s = -inf
        self._asked_s = -inf
        self._warnings = Warnings()
        self._hurry = False
        self._wake = threading.Event()
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="kubernetes", daemon=True)
        self.claims: Claims = {}
        self.answering = False  # the last answer is not older than KEPT_S

    def start(self) -> None:
        """Returns after the first request, so that owners are known from the start."""
        if self.api:
            self.api.start()
        self.turn()
        self._thread.start()

    def stop(self) -> None:
        self._leaving = True
        self._wake.set()
        if self.api:
            self.api.stop()
        self._thread.join(timeout=2.0)
        self.kubelet.close()

    def hurry(self) -> None:
        """Makes a request due: a report contradicts the known owner."""
        self._hurry = True
        self._wake.set()

    def turn(self) -> None:
        """One poll: of the kubelet if due, of the rest always."""
        now_s = time.monotonic()
        held = self.held()
        # Reports are untrusted: `hurry` causes no more requests than one each POLL_S.
        wait_s = POLL_S if held or self._hurry else IDLE_POLL_S
        if now_s - self._asked_s >= wait_s * 0.9 or not self.answering:
            self._asked_s, self._hurry = now_s, False
            try:
                self._listed = self.kubelet.pods()
                self._answered_s = now_s
            except Silent:
                pass
        self.answering = now_s - self._answered_s <= KEPT_S
        claims = self._claims() if self.answering else {}
        if claims != self.claims or labels_of(claims) != labels_of(self.claims):
            self.claims = claims
            self.changed()

    def _run(self) -> None:
        while not self._leaving:
            self._wake.wait(POLL_S)
            if self._wake.is_set():
                self._wake.clear()
                time.sleep(0.05)  # bounds a flood of reports to 20 turns a second
            if not self._leaving:
                self.turn()

    def _claims(self) -> Claims:
        inventory = self.inventory()
        keys = {(pod.namespace, pod.name) for pod in self._listed}
        if self.api:
            self.api.want(sorted(keys))
        known = {key: self._pod(key) for key in keys}
        self.watched.keep(pod.uid for pod in known.values())
        found: dict[str, dict[tuple[str, str], Owner]] = {}
        unknown = []
        for listed in self._listed:
            key = (listed.namespace, listed.name)
            pod = known[key]
            if pod.over:
                continue
            if pod.uid and self.watched.over(pod.uid):
                if self.api:
                    self.api.recheck(key)  # a new pod of the same name may be running
                continue
            devices = [(name, inventory.device(name)) for name in listed.devices]
            devices += [(claim[1], inventory.claimed(*claim)) for claim in listed.claimed]
            for name, device in devices:
                if device is None:
                    unknown.append(name)
                    continue
                uuid, sliced = device
                before = found.setdefault(uuid, {}).get(key)
                sliced = sliced or (before is not None and before.sliced)
                job = job_of(pod.labels, listed.name)
                found[uuid][key] = Owner(KUBERNETES, job, *key, pod.uid, sliced, pod.labels)
        names = ", ".join(sorted(set(unknown))[:4])
        self._warnings.say(names and f"unknown devices allocated to pods: {names}")
        return {uuid: tuple(owners.values()) for uuid, owners in found.items()}

    def _pod(self, key: tuple[str, str]) -> Pod:
        return (self.api.pod(key) if self.api else None) or Pod()
