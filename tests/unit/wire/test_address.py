"""What counts as leading nowhere but here."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_wire.address import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1", "0:0:0:0:0:0:0:1"])
def test_what_is_here(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "10.0.0.1", "::2", "localhost.", "LOCALHOST.example", "127.0.0.1.example",
     "127.1", "2130706433", "[::1]", "127.0.0.1:80", " 127.0.0.1"],
)  # fmt: skip
def test_what_is_not_or_not_surely(host: str) -> None:
    assert not is_loopback(host)


@given(st.ip_addresses())
def test_of_addresses_only_the_loopback_ranges(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    here = address in ipaddress.ip_network("127.0.0.0/8" if address.version == 4 else "::1/128")
    mapped = getattr(address, "ipv4_mapped", None)
    assert is_loopback(str(address)) == here or mapped is not None


@given(st.text())
def test_any_text_has_an_answer(host: str) -> None:
    assert is_loopback(host) in {True, False}
