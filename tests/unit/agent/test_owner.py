"""Who holds a GPU, settled: one answer a GPU, whatever the sources say."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.jobs.owner import (
    JOB_LABELS,
    KUBERNETES,
    PROCESS,
    REPORT,
    SHARED,
    SLURM,
    SOURCES,
    Owner,
    allocation,
    changed,
    job_of,
    printable,
    settle,
    shared,
)

words = st.sampled_from(["a", "b", "c"])
owners_of = {
    source: st.lists(st.builds(Owner, st.just(source), words, words, words), max_size=3).map(tuple)
    for source in SOURCES
}
claims = st.fixed_dictionaries(
    {source: st.fixed_dictionaries({"GPU-a": owners_of[source]}) for source in SOURCES}
)


@given(claims, st.permutations(SOURCES))
def test_one_gpu_has_one_allocation_of_the_first_source_that_knows(
    claims: dict[str, dict[str, tuple[Owner, ...]]], order: list[str]
) -> None:
    owners = settle(order, claims, "GPU-a")
    knowing = [source for source in order if claims[source]["GPU-a"]]
    one = allocation("GPU-a", owners)
    if not knowing:
        assert owners == ()
        assert one is None
        return
    assert one.source == knowing[0]
    distinct = {owner.key for owner in claims[knowing[0]]["GPU-a"]}
    assert len(owners) == len(distinct)
    assert (one.job == SHARED) == (len(distinct) > 1)
    assert bool(shared(owners)) == (len(distinct) > 1)
    assert set(owners) <= set(claims[knowing[0]]["GPU-a"])


def test_a_shared_gpu_says_by_how_many() -> None:
    owners = (Owner(SLURM, "1"), Owner(SLURM, "2"), Owner(SLURM, "3"))
    one = allocation("GPU-a", owners)
    assert (one.job, one.source, dict(one.labels)) == (SHARED, SLURM, {"joulecut/owners": "3"})


def test_a_slice_is_not_controlled_even_with_one_owner() -> None:
    assert shared((Owner(KUBERNETES, "gpt3", "n", "p", sliced=True),))
    assert not shared((Owner(KUBERNETES, "gpt3", "n", "p"),))


def test_what_becomes_known_of_an_owner_makes_no_other_owner() -> None:
    pod = Owner(KUBERNETES, "gpt3-0", "train", "gpt3-0")
    named = Owner(KUBERNETES, "gpt3", "train", "gpt3-0", "uid", labels={"app": "gpt3"})
    assert not changed((pod,), (named,))
    assert changed((pod,), (Owner(KUBERNETES, "gpt3", "train", "gpt3-1"),))
    assert changed((pod,), ())
    assert changed((), (pod,))
    assert changed((Owner(SLURM, "1"),), (Owner(SLURM, "2"),))
    assert changed((Owner(SLURM, "1"),), (Owner(SLURM, "1"), Owner(SLURM, "2")))


def test_a_process_that_begins_to_report_is_still_itself() -> None:
    process, report = Owner(PROCESS, "python"), Owner(REPORT, "gpt3")
    assert not changed((process,), (report,))
    assert not changed((report,), (process,))
    assert changed((report,), ())
    assert changed((process,), ())
    assert changed((report,), (Owner(SLURM, "4"),))


def test_the_label_of_what_a_person_created_names_the_job() -> None:
    labels = {label: f"by-{place}" for place, label in enumerate(JOB_LABELS)}
    for place in range(len(JOB_LABELS)):
        assert job_of(labels, "pod-0") == f"by-{place}"
        del labels[JOB_LABELS[place]]
    assert job_of({}, "pod-0") == "pod-0"
    for order in permutations(list(labels)):
        assert job_of({label: labels[label] for label in order}, "p") == "p"


@given(st.lists(st.text(max_size=300)))
def test_names_are_fit_for_a_label(names: list[str]) -> None:
    good = printable(names)
    assert all(name.isprintable() and 0 < len(name) <= 253 and " " not in name for name in good)
    assert len(set(good)) == len(good)
