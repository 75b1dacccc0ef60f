"""Whose GPU it is, asked of a kubelet over its own socket, with pods from an API server."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from fake_kubelet import FakeApi, FakeKubelet
from running_agent import PATIENCE_S, eventually

from joulecut_agent.jobs import kubelet as kubelet_module
from joulecut_agent.jobs import pods as pods_module
from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.kubelet import Kubelet, Silent
from joulecut_agent.jobs.kubernetes import Kubernetes
from joulecut_agent.jobs.owner import Owner
from joulecut_agent.jobs.pods import ApiPods, Watched
from joulecut_agent.jobs.settings import ApiServer

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
MIG = "MIG-cccccccc-0000-0000-0000-000000000000"
UID = "12345678-1234-1234-1234-1234567890ab"


@pytest.fixture
def home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="jc"))
    yield home
    shutil.rmtree(home)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers at all is waited for, and what was told is as young as it was on any machine."""
    monkeypatch.setattr(kubelet_module, "ANSWER_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(pods_module, "ANSWER_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(pods_module, "RECHECK_S", 3600.0)
    monkeypatch.setattr(pods_module, "ABSENT_S", 3600.0)


@pytest.fixture
def kubelet(home: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(home / "kubelet.sock") as kubelet:
        yield kubelet


@pytest.fixture
def api(home: Path) -> Iterator[FakeApi]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here (Debian package openssl)")
    with FakeApi(home) as api:
        yield api


@pytest.fixture
def look(home: Path) -> Iterator[Callable[..., Kubernetes]]:
    made: list[Kubernetes] = []

    def make(api: FakeApi | None = None) -> Kubernetes:
        watched = Watched(home / "cgroup")
        pods = None
        if api is not None:
            pods = ApiPods(ApiServer("127.0.0.1", api.port, api.credentials), watched)
        kubernetes = Kubernetes(
            Kubelet(home / "kubelet.sock"),
            inventory=lambda: Inventory({0: A, 1: B}, {MIG: B}, {0: B}),
            api=pods,
            watched=watched,
            held=lambda: True,
            changed=lambda: None,
        )
        made.append(kubernetes)
        kubernetes.start()
        return kubernetes

    yield make
    for kubernetes in made:
        kubernetes.stop()


def _pods(kubernetes: Kubernetes) -> dict[str, list[tuple[str, str, bool]]]:
    return {
        uuid: [(owner.pod, owner.job, owner.sliced) for owner in owners]
        for uuid, owners in kubernetes.claims.items()
    }


def _only(kubernetes: Kubernetes, uuid: str) -> Owner:
    (owner,) = kubernetes.claims[uuid]
    return owner


def test_a_device_plugin_s_gpus(kubelet: FakeKubelet, look: Callable[..., Kubernetes]) -> None:
    kubelet.give("train", "gpt-0", [A])
    kubelet.give("train", "idle", [])
    kubelet.give("web", "nginx", ["eth0"], resource="intel.com/sriov")
    kubernetes = look()
    assert _pods(kubernetes) == {A: [("gpt-0", "gpt-0", False)]}
    assert kubernetes.answering
    owner = _only(kubernetes, A)
    assert (owner.namespace, owner.source, owner.uid) == ("train", "kubernetes", "")
    kubelet.take("train", "gpt-0")
    eventually("the pod is gone", lambda: not kubernetes.claims)


def test_our_annotation_is_a_label_and_is_followed(
    kubelet: FakeKubelet,
    api: FakeApi,
    look: Callable[..., Kubernetes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pods_module, "RECHECK_S", 0.05)
    kubelet.give("train", "gpt-0", [A])
    asked = {"joulecut.dev/policy": "small"}
    api.run("train", "gpt-0", UID, {"app": "gpt"}, **asked, **{"example.com/note": "x" * 9999})
    kubernetes = look(api)
    eventually("labels", lambda: _only(kubernetes, A).labels == {"app": "gpt", **asked})
    api.run("train", "gpt-0", UID, {"app": "gpt"}, **{"joulecut.dev/policy": "big"})
    wanted = {"app": "gpt", "joulecut.dev/policy": "big"}
    eventually("new labels", lambda: _only(kubernetes, A).labels == wanted)


def test_mig_instances_and_time_slices(
    kubelet: FakeKubelet, look: Callable[..., Kubernetes]
) -> None:
    kubelet.give("a", "one", [f"{A}::0", f"{A}::1"])
    kubelet.give("a", "two", [f"{A}::2"], resource="nvidia.com/gpu.shared")
    kubelet.give("a", "mig", [MIG], resource="nvidia.com/mig-1g.10gb")
    assert _pods(look()) == {
        A: [("one", "one", True), ("two", "two", True)],
        B: [("mig", "mig", True)],
    }


def test_resource_claims(
    kubelet: FakeKubelet, look: Callable[..., Kubernetes], capfd: pytest.CaptureFixture[str]
) -> None:
    kubelet.claim("a", "cdi", driver="gpu.nvidia.com", device="x", cdi=[f"nvidia.com/gpu={A}"])
    kubelet.claim("a", "minor", driver="gpu.nvidia.com", device="gpu-0", cdi=[])
    kubelet.claim("a", "lost", driver="gpu.nvidia.com", device="gpu-7", cdi=["nvidia.com/gpu=all"])
    kubelet.claim("a", "other", driver="net.example.com", device="gpu-0", cdi=[])
    kubernetes = look()
    assert _pods(kubernetes) == {A: [("cdi", "cdi", False)], B: [("minor", "minor", False)]}
    before = kubelet.questions
    eventually("asked again", lambda: kubelet.questions > before + 1)
    assert capfd.readouterr().err.count("unknown devices allocated to pods: gpu-7") == 1


def test_a_kubelet_that_restarts_is_found_again_and_kept_meanwhile(
    kubelet: FakeKubelet, look: Callable[..., Kubernetes]
) -> None:
    kubelet.give("train", "gpt-0", [A])
    kubernetes = look()
    for name in ("gpt-1", "gpt-2"):
        kubelet.stop()
        before = _pods(kubernetes)
        kubernetes.turn()
        kubernetes.turn()
        assert _pods(kubernetes) == before
        kubelet.pods = {}
        kubelet.give("train", name, [A])
        kubelet.start()
        eventually("the new pod", lambda name=name: _pods(kubernetes) == {A: [(name, name, False)]})


def test_no_kubelet_or_somebody_else_is_said_once(
    home: Path, kubelet: FakeKubelet, capfd: pytest.CaptureFixture[str]
) -> None:
    kubelet.stop()
    asker = Kubelet(kubelet.socket)
    for _ in range(3):
        with pytest.raises(Silent):
            asker.pods()
    other = grpc.server(__import__("concurrent.futures").futures.ThreadPoolExecutor(1))
    other.add_insecure_port(f"unix:{kubelet.socket}")
    other.start()
    for _ in range(3):
        with pytest.raises(Silent, match="unimplemented"):
            asker.pods()
    other.stop(0).wait()
    asker.close()
    assert len(capfd.readouterr().err.splitlines()) == 2


def test_labels_come_from_the_api_server_and_are_asked_for_once(
    kubelet: FakeKubelet, api: FakeApi, look: Callable[..., Kubernetes]
) -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "gpt3", "app": "llm"}
    api.run("train", "gpt3-w-0", UID, labels)
    kubelet.give("train", "gpt3-w-0", [A])
    kubernetes = look(api)
    eventually("its labels", lambda: _only(kubernetes, A).job == "gpt3")
    owner = _only(kubernetes, A)
    assert (owner.pod, owner.uid, owner.labels) == ("gpt3-w-0", UID, labels)
    before = kubelet.questions
    eventually("some more looks", lambda: kubelet.questions >= before + 3)
    assert api.asked == ["/api/v1/namespaces/train/pods/gpt3-w-0"]


def test_a_pod_that_is_over_holds_nothing_though_the_kubelet_lists_it(
    kubelet: FakeKubelet, api: FakeApi, look: Callable[..., Kubernetes]
) -> None:
    api.run("train", "done", UID, {}, phase="Succeeded")
    api.run("train", "next", "other", {})
    kubelet.give("train", "done", [A])
    kubelet.give("train", "next", [A])
    kubernetes = look(api)
    eventually("one owner", lambda: _pods(kubernetes) == {A: [("next", "next", False)]})


def test_an_end_is_seen_by_the_control_group_before_anybody_says_so(
    home: Path, kubelet: FakeKubelet, api: FakeApi, look: Callable[..., Kubernetes]
) -> None:
    flat = UID.replace("-", "_")
    group = home / "cgroup" / "kubepods.slice" / f"kubepods-pod{flat}.slice"
    group.mkdir(parents=True)
    api.run("train", "gpt-0", UID, {})
    kubelet.give("train", "gpt-0", [A])
    kubernetes = look(api)
    eventually("its uid", lambda: _only(kubernetes, A).uid == UID)
    before = kubelet.questions
    eventually("its group is seen", lambda: kubelet.questions >= before + 3)
    group.rmdir()
    eventually("the end", lambda: not kubernetes.claims)
    # A new pod of the same name, as a StatefulSet makes it, is another pod.
    api.run("train", "gpt-0", "99999999-1234-1234-1234-1234567890ab", {})
    eventually("the next one", lambda: A in kubernetes.claims)
    assert _only(kubernetes, A).uid.startswith("99999999")


def test_an_api_server_in_trouble_costs_labels_and_nothing_else(
    kubelet: FakeKubelet,
    api: FakeApi,
    look: Callable[..., Kubernetes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pods_module, "DOWN_S", 0.5)  # a constant, so that the test is quick
    api.run("train", "gpt-0", UID, {"job-name": "gpt"})
    api.status = 503
    kubelet.give("train", "gpt-0", [A])
    kubernetes = look(api)
    eventually("a first question", lambda: api.asked)
    assert _pods(kubernetes) == {A: [("gpt-0", "gpt-0", False)]}
    api.status = 0
    eventually("its labels", lambda: _only(kubernetes, A).job == "gpt")


def test_what_may_not_be_seen_is_not_asked_for_without_end(
    kubelet: FakeKubelet, api: FakeApi, look: Callable[..., Kubernetes]
) -> None:
    api.status = 403
    kubelet.give("train", "gpt-0", [A])
    kubernetes = look(api)
    before = kubelet.questions
    eventually("some more looks", lambda: kubelet.questions >= before + 4)
    assert len(api.asked) == 1
    assert _pods(kubernetes) == {A: [("gpt-0", "gpt-0", False)]}


def test_a_rotated_token_is_read_again(
    kubelet: FakeKubelet, api: FakeApi, look: Callable[..., Kubernetes]
) -> None:
    api.run("train", "one", UID, {"job-name": "one-job"})
    api.run("train", "two", "other", {"job-name": "two-job"})
    kubelet.give("train", "one", [A])
    kubernetes = look(api)
    eventually("the first", lambda: _only(kubernetes, A).job == "one-job")
    api.token = "second"
    api.write_token()
    kubelet.give("train", "two", [B])
    eventually("the second", lambda: B in kubernetes.claims)
    eventually("its labels", lambda: _only(kubernetes, B).job == "two-job")


def test_another_authority_is_not_believed(
    home: Path, kubelet: FakeKubelet, api: FakeApi, look: Callable[..., Kubernetes],
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (home / "other").mkdir()
    other = FakeApi(home / "other")
    with other:
        shutil.copy(other.credentials / "ca.crt", api.credentials / "ca.crt")
        api.run("train", "gpt-0", UID, {"job-name": "gpt"})
        kubelet.give("train", "gpt-0", [A])
        kubernetes = look(api)
        eventually("a complaint", lambda: "CERTIFICATE_VERIFY_FAILED" in capfd.readouterr().err)
        assert api.asked == []
        assert _only(kubernetes, A).job == "gpt-0"
