"""Which pod holds which GPU, from the kubelet, and since when it does not any more.

The kubelet says what was given, the API server what it is called, the control groups when it
ended. Each may be silent for a while: the last word of the kubelet then stands for
`KEPT_S`, and a pod without labels is called by its own name.
"""

import threading
import time
from collections.abc import Callable
from math import inf

from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.kubelet import Kubelet, PodDevices, Silent
from joulecut_agent.jobs.owner import KUBERNETES, Claims, Owner, job_of
from joulecut_agent.jobs.pods import ApiPods, LoggedPods, Pod, Watched
from joulecut_agent.log import say

POLL_S = 0.5  # while something is held: an end is acted on within a second
IDLE_POLL_S = 5.0
KEPT_S = 120.0  # a kubelet restarts in seconds; its upgrade takes a minute or two
NO_POD = Pod()


class Kubernetes:
    """A thread of its own; `claims` is its last word, and `news` is called when that changes."""

    def __init__(
        self, kubelet: Kubelet, *, inventory: Callable[[], Inventory], api: ApiPods | None,
        logs: LoggedPods | None, watched: Watched, held: Callable[[], bool],
        news: Callable[[], None],
    ) -> None:  # fmt: skip
        self._kubelet = kubelet
        self._inventory = inventory
        self._api = api
        self._logs = logs
        self._watched = watched
        self._held = held
        self._news = news
        self._listed: tuple[PodDevices, ...] = ()
        self._answered_s = -inf
        self._asked_s = -inf
        self._unknown = ""
        self._hurry = False
        self._wake = threading.Event()
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="kubernetes", daemon=True)
        self.claims: Claims = {}
        self.answering = False  # the kubelet's word is not older than KEPT_S

    def start(self) -> None:
        """Returns after the first question, so that an owner is known from the start."""
        if self._api:
            self._api.start()
        self.turn()
        self._thread.start()

    def stop(self) -> None:
        self._leaving = True
        self._wake.set()
        if self._api:
            self._api.stop()
        self._thread.join(timeout=2.0)
        self._kubelet.close()

    def hurry(self) -> None:
        """Asks the kubelet at the next turn: somebody spoke for a GPU that he does not hold."""
        self._hurry = True
        self._wake.set()

    def turn(self) -> None:
        """One look: the kubelet where it is due, the rest always."""
        now_s = time.monotonic()
        held = self._held()
        # `hurry` is a stranger's doing too, so it makes no question more than POLL_S allows.
        wait_s = POLL_S if held or self._hurry else IDLE_POLL_S
        if now_s - self._asked_s >= wait_s * 0.9 or not self.answering:
            self._asked_s, self._hurry = now_s, False
            try:
                self._listed = self._kubelet.pods()
                self._answered_s = now_s
            except Silent:
                pass
        self.answering = now_s - self._answered_s <= KEPT_S
        claims = self._look() if self.answering else {}
        if claims != self.claims:
            self.claims = claims
            self._news()

    def _run(self) -> None:
        while not self._leaving:
            self._wake.wait(POLL_S)
            if self._wake.is_set():
                self._wake.clear()
                time.sleep(0.05)  # a stranger who rings without end gets 20 looks a second
            if not self._leaving:
                self.turn()

    def _look(self) -> Claims:
        inventory = self._inventory()
        keys = {(pod.namespace, pod.name) for pod in self._listed}
        if self._api:
            self._api.want(sorted(keys))
        known = {key: self._pod(key) for key in keys}
        self._watched.keep(pod.uid for pod in known.values())
        found: dict[str, dict[tuple[str, str], Owner]] = {}
        unknown = []
        for listed in self._listed:
            key = (listed.namespace, listed.name)
            pod = known[key]
            if pod.over:
                continue
            if pod.uid and self._watched.over(pod.uid):
                if self._api:
                    self._api.doubt(key)  # perhaps a new one of the same name is running
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
        self._say_unknown(unknown)
        return {uuid: tuple(owners.values()) for uuid, owners in found.items()}

    def _pod(self, key: tuple[str, str]) -> Pod:
        pod = self._api.pod(key) if self._api else None
        if pod is None and self._logs is not None:
            return Pod(self._logs.uid(key))
        return pod or NO_POD

    def _say_unknown(self, names: list[str]) -> None:
        line = ", ".join(sorted(set(names))[:4])
        if line and line != self._unknown:
            say("agent", f"devices given to pods that are no GPU known here: {line}")
        self._unknown = line
