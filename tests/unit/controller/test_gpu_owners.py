"""Which agent speaks for which GPU: the first, and never two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.fleet.gpu_owners import EQUAL_S, GONE_S, OWNED_MAX, GpuOwners

A, B, C = "a:1", "b:1", "c:1"
AGENTS = (A, B, C)


def settled() -> GpuOwners:
    """GPU G belongs to agent A on node `na`."""
    owners = GpuOwners()
    for now_s in (0.0, 2.0 * EQUAL_S):
        owners.claim(A, "na", {"G", "H"}, AGENTS, now_s)
    return owners


def test_a_second_claim_is_shown_and_changes_nothing() -> None:
    owners = settled()
    owners.claim(B, "nb", {"G", "I"}, AGENTS, 200.0)
    assert owners.owns(A, "G")
    assert not owners.owns(B, "G")
    assert owners.owns(B, "I"), "the rest of a liar's node is not concerned"
    assert owners.conflict("G") == ""
    assert "GPU G of agent a:1" in owners.conflicts(B)
    assert owners.conflicts(A) == ""
    owners.claim(B, "nb", {"I"}, AGENTS, 230.0)
    assert owners.conflicts(B) == ""


def test_the_second_gets_a_gpu_that_the_first_has_not_shown_for_an_hour() -> None:
    owners = settled()
    shown_s = 2.0 * EQUAL_S
    owners.claim(B, "nb", {"G"}, AGENTS, shown_s + GONE_S)
    assert owners.owns(A, "G")
    owners.claim(B, "nb", {"G"}, AGENTS, shown_s + GONE_S + 1.0)
    assert owners.owns(B, "G")
    assert owners.conflicts(B) == ""


def test_an_operator_decides_at_once() -> None:
    owners = settled()
    owners.claim(B, "nb", {"G", "H"}, AGENTS, 200.0)
    assert sorted(owners.adopt("nb")) == ["G", "H"]
    assert owners.owns(B, "G")
    assert "of agent b:1" in owners.conflicts(A), "the other claim is still there"
    assert owners.adopt("nc") == ()
    owners.claim(A, "na", (), AGENTS, 230.0)
    assert owners.conflicts(A) == ""


def test_where_nobody_was_first_nobody_commands() -> None:
    owners = GpuOwners()
    owners.claim(A, "na", {"G", "H"}, AGENTS, 0.0)
    owners.claim(B, "nb", {"G"}, AGENTS, EQUAL_S / 2.0)
    assert "nodes na and nb both show it" in owners.conflict("G")
    assert owners.conflict("H") == "", "these GPUs alone"
    owners.claim(A, "na", {"G", "H"}, AGENTS, 3.0 * EQUAL_S)
    assert owners.conflict("G"), "time alone decides nothing"
    assert owners.adopt("na") == ("G",)
    assert owners.conflict("G") == ""
    assert owners.owns(A, "G")


@pytest.mark.parametrize("liar_first", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
def test_the_one_that_still_shows_an_undecided_gpu_owns_it(liar_first: bool, leaves: bool) -> None:
    owners, order = GpuOwners(), [(A, "na"), (B, "nb")]
    for address, node in reversed(order) if liar_first else order:
        owners.claim(address, node, {"G"}, AGENTS, 1.0)
    assert owners.conflict("G")
    if leaves:
        owners.claim(A, "na", {"G"}, (A, C), 30.0)
    else:
        owners.claim(B, "nb", {"I"}, AGENTS, 30.0)
    assert (owners.conflict("G"), owners.owns(A, "G")) == ("", True)


def test_a_rival_that_left_the_agents_is_forgotten() -> None:
    owners = settled()
    owners.claim(B, "nb", {"G"}, AGENTS, 200.0)
    owners.claim(A, "na", {"G", "H"}, (A, C), 230.0)
    assert owners.owns(A, "G")
    assert owners.conflicts(B) == ""


def test_a_pod_at_a_new_address_keeps_its_node() -> None:
    owners = settled()
    owners.claim("z:1", "na", {"G"}, (B, C, "z:1"), 130.0)
    assert owners.owns("z:1", "G")
    other = settled()
    other.claim("z:1", "na", {"G"}, (*AGENTS, "z:1"), 130.0)
    assert other.owns(A, "G"), "its old address is still among the agents"


def test_a_restart_remembers_who_was_first() -> None:
    text = settled().text(130.0)
    later = GpuOwners()
    later.claim(B, "nb", {"G"}, AGENTS, 0.0)
    later.restore(text, 1.0)
    assert later.owns(A, "G")
    assert "of agent a:1" in later.conflicts(B)
    later.claim(A, "na", {"G", "H"}, AGENTS, 2.0)
    assert later.conflict("G") == ""
    assert GpuOwners().text(0.0) == "{}"


def test_a_node_keeps_its_name() -> None:
    owners = settled()
    owners.claim(B, "na", {"I"}, AGENTS, 200.0)
    assert owners.named(A, "na") == "na"
    assert owners.named(B, "na") == B, "by its address"
    assert owners.conflicts(B).startswith("shows name na of agent a:1")
    owners.claim(B, "nb", {"I"}, AGENTS, 230.0)
    assert (owners.named(B, "nb"), owners.conflicts(B)) == ("nb", "")


def test_what_nobody_shows_for_an_hour_is_forgotten() -> None:
    owners = settled()
    for n in range(100):
        owners.claim(B, "nb", {f"made up {n}"}, AGENTS, 200.0 + n)
    assert "made up" not in owners.text(200.0 + n + GONE_S + 1.0)
    assert owners.text(1e9) == "{}"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(AGENTS),
            st.frozensets(st.sampled_from(("G", "H")), max_size=2),
            st.floats(0.0, 600.0),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_at_most_one_agent_owns_a_gpu_and_every_rival_is_told(
    claims: list[tuple[str, frozenset[str], float, bool]],
) -> None:
    owners, now_s = GpuOwners(), 0.0
    newest: dict[str, frozenset[str]] = {}
    for address, uuids, wait_s, adopts in claims:
        now_s += wait_s
        owners.claim(address, f"n{address[0]}", uuids, AGENTS, now_s)
        newest[address] = uuids
        if adopts:
            owners.adopt(f"n{address[0]}")
        for uuid in ("G", "H"):
            assert sum(owners.owns(one, uuid) for one in AGENTS) <= 1
        for uuid in uuids:
            told = owners.conflict(uuid) or owners.conflicts(address)
            assert owners.owns(address, uuid) or told


def test_an_agent_that_invents_gpus_takes_no_memory_and_loses_none_of_its_own() -> None:
    owners = settled()
    for turn in range(100):
        owners.claim(A, "na", {"G", "H", *(f"I-{turn}-{n}" for n in range(64))}, AGENTS, 200.0)
    assert owners.owns(A, "G")
    assert owners.text(200.0 + 2.0 * EQUAL_S).count(A) < OWNED_MAX + 64
