"""Whose a GPU was, from labels as exporters really have them."""

import pytest

from joulecut_lab.audit.owners import OwnerHistory, joined_by_number, of_dcgm, of_ours, stem
from joulecut_lab.audit.reading import NO_OWNER, SHARED


@pytest.mark.parametrize(
    ("pod", "job"),
    [
        ("gpt3-worker-12", "gpt3"),
        ("gpt3-master-0", "gpt3"),
        ("llama-3-x7k2p", "llama"),
        ("set-0-1", "set"),
        ("notebook", "notebook"),
        ("notebook-abcde", "notebook-abcde"),
        ("7", "7"),
        ("pt-worker-0", "pt"),
        ("tf-chief-0", "tf"),
        ("mpi-launcher", "mpi"),
        ("mpi-launcher-x7k2p", "mpi"),
        ("vc-task-3", "vc"),
        ("rj-raycluster-ab1cd-head-x7k2p", "rj"),
        ("rj-raycluster-ab1cd-gpu-worker-x7k2p", "rj"),
        ("trainer2-node-0-1-x7k2p", "trainer2"),
        ("jobset-workers-0-3-x7k2p", "jobset"),
    ],
)
def test_pods_of_one_job_have_one_name(pod: str, job: str) -> None:
    assert stem(pod) == job


def test_the_exporters_own_pod_owns_nothing() -> None:
    scraped = {"namespace": "monitoring", "pod": "dcgm-exporter-abcde", "container": "exporter"}
    assert of_dcgm(scraped) == NO_OWNER
    both = {**scraped, "exported_namespace": "train", "exported_pod": "gpt3-worker-1"}
    assert of_dcgm(both) == "train/gpt3"
    assert of_dcgm({**both, "hpc_job": "4711"}) == "4711"
    assert of_dcgm({**both, "team": "x"}, "team") == "x"


def test_a_trailing_number_alone_is_said_to_be_no_proof_of_one_job() -> None:
    plain = {"exported_namespace": "a", "exported_pod": "exp-1"}
    assert (of_dcgm(plain), joined_by_number(plain)) == ("a/exp", "exp-1")
    for more in (
        {"label_batch_kubernetes_io_job_name": "exp-1"},
        {"training_kubeflow_org_job_name": "exp-1"},
    ):
        assert of_dcgm({**plain, **more}) == "a/exp-1", "the label names the job"
        assert not joined_by_number({**plain, **more})
    assert not joined_by_number({**plain, "label_statefulset_kubernetes_io_pod_name": "exp-1"})
    assert joined_by_number({"pod": "exp-1-x7k2p"}), "an Indexed Job `exp`, or a Job `exp-1`"
    assert not joined_by_number({"pod": "exp-1-x7k2p", "label_batch_kubernetes_io_job_name": "exp"})
    assert not joined_by_number({"pod": "exp-worker-1"})
    ours = {"source": "kubernetes", "namespace": "a", "workload": "exp-1"}
    assert of_ours({**ours, "pod": "exp-1-abcde"}) == "a/exp-1", "its label named it"
    assert of_ours({**ours, "pod": "exp-1"}) == "a/exp"


def test_an_allocation_without_owner_does_not_take_the_name_of_the_scrape() -> None:
    assert of_ours({"job": "joulecut-agent", "source": "none"}) == NO_OWNER
    assert of_ours({"job": "joulecut-agent", "workload": "77", "source": "slurm"}) == "77"
    assert of_ours({"workload": "shared", "source": "kubernetes"}) == SHARED


def test_a_change_of_hands_is_no_sharing_but_staying_is() -> None:
    hands = OwnerHistory()
    assert hands.owner("g", ["a"]) == "a"
    assert hands.owner("g", ["a", "b"]) == "b"
    assert hands.owner("g", ["b"]) == "b"
    assert hands.owner("g", ["b", "c"]) == "c"
    assert hands.owner("g", ["b", "c"]) == SHARED
    assert hands.owner("g", [NO_OWNER, "b"]) == "b"
    assert hands.owner("g", []) == NO_OWNER
