"""The kernel names the user of a loopback connection, over either protocol."""

import os
import socket

import pytest

from joulecut_wire.loopback_socket import user_of


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_user_of_a_connection_is_known_and_of_none_is_not(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        own = server.getsockname()[1]
        with socket.create_connection((host, own)) as client:
            assert user_of(host, client.getsockname()[1], own) == os.geteuid()
            assert user_of(host, own, client.getsockname()[1] ^ 1) == -1
    assert user_of("not an address", 1, 2) == -1
