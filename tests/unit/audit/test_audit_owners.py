"""Whose a GPU was, from labels as exporters really have them."""

import pytest

from joulecut_lab.audit.owners import OwnerHistory, of_dcgm, of_ours, stem
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


def test_an_allocation_without_owner_does_not_take_the_name_of_the_scrape() -> None:
    assert of_ours({"job": "joulecut-agent", "source": "none"}) == NO_OWNER
    assert of_ours({"job": "joulecut-agent", "workload": "77", "source": "slurm"}) == "77"
    assert of_ours({"job": "joulecut-agent", "exported_job": "77", "source": "slurm"}) == "77"
    assert of_ours({"job": "77", "source": "slurm"}) == "77"
    assert of_ours({"job": "shared", "source": "kubernetes"}) == SHARED


def test_a_change_of_hands_is_no_sharing_but_staying_is() -> None:
    hands = OwnerHistory()
    assert hands.owner("g", ["a"]) == "a"
    assert hands.owner("g", ["a", "b"]) == "b"
    assert hands.owner("g", ["b"]) == "b"
    assert hands.owner("g", ["b", "c"]) == "c"
    assert hands.owner("g", ["b", "c"]) == SHARED
    assert hands.owner("g", [NO_OWNER, "b"]) == "b"
    assert hands.owner("g", []) == NO_OWNER
