"""Which names a pattern means, and which names a certificate proves."""

import pytest

from joulecut_agent.control.access import matches, proven_names


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "anything.test", True),
        ("controller.test", "controller.test", True),
        ("Controller.Test", "controller.test", True),
        ("controller.test", "xcontroller.test", False),
        ("controller.test", "controllerxtest", False),
        ("*.oncall.test", "alice.oncall.test", True),
        ("*.oncall.test", "evil.alice.oncall.test", False),
        ("*.oncall.test", ".oncall.test.evil", False),
        ("spiffe://site/ns/*/sa/joulecut", "spiffe://site/ns/a.b/sa/joulecut", True),
        ("spiffe://site/ns/*/sa/joulecut", "spiffe://site/ns/a/b/sa/joulecut", False),
        ("spiffe://site/*", "spiffe://SITE/x", False),
        ("CN=alice", "CN=alice", True),
        ("alice", "CN=alice", False),
        ("CN=alice", "alice", False),
        ("CN=*", "alice.test", False),
        ("controller.*", "spiffe://controller.x", False),
        ("", "", True),
    ],
)  # fmt: skip
def test_patterns(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) is fits


def test_a_common_name_counts_only_where_there_is_no_other() -> None:
    proofs = {"x509_common_name": [b"apply.test"], "peer_dns": [b"look.test"]}
    assert proven_names(proofs) == ["look.test"]
    assert proven_names({"x509_common_name": [b"alice"]}) == ["CN=alice"]
    for odd in (b"", b"a\nb", b"\xff", b"x" * 300, b" a"):
        assert proven_names({"peer_dns": [odd], "x509_common_name": [b"alice"]}) == []


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("peer_uri", b"controller.test"),
        ("peer_uri", b"CN=alice"),
        ("peer_uri", b"CN=alice:x"),
        ("peer_dns", b"spiffe://site/controller"),
        ("peer_dns", b"CN=alice"),
    ],
)
def test_a_name_that_looks_like_one_of_another_field_does_not_count(
    field: str, name: bytes
) -> None:
    assert proven_names({field: [name], "x509_common_name": [b"alice"]}) == []
    both = {"peer_uri": [b"spiffe://site/a"], "peer_dns": [b"a.test"]}
    assert proven_names({**both, field: [name, *both[field]]}) == ["spiffe://site/a", "a.test"]
