"""Whatever stands in the sections that protect: settings, or one line that says what is wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from joulecut_agent import config
from joulecut_agent.control.access import ROLES, LocalSocket, Rules
from joulecut_agent.control.audit_log import AuditLimits
from joulecut_wire.document import parse
from joulecut_wire.errors import BadInput
from joulecut_wire.web_config import WebConfig

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
AGENT_WORDS = ("cert", "key", "client_ca", *ROLES, "loopback", "bytes_max", "files_max",
               "grpc_socket", "grpc_socket_group")  # fmt: skip
WEB_WORDS = ("cert_file", "key_file", "client_ca_file", "client_auth_type",
             "min_version", "max_version", "headers", "http2", "X-Frame-Options")  # fmt: skip


def _section(words: tuple[str, ...]) -> st.SearchStrategy[Any]:
    return values | st.dictionaries(st.sampled_from(words) | st.text(max_size=8), values)


@given(
    st.dictionaries(
        st.sampled_from(["tls", "access", "audit", "web_config", "listen"]), _section(AGENT_WORDS)
    )
)
@example({"access": {"apply": ["*" * 9]}})
@example({"audit": {"files_max": 1e400}})
def test_any_agent_section(data: dict[str, Any]) -> None:
    doc = parse(yaml.safe_dump({"device": "simulated", **data}).encode(), "agent.yaml")
    _one_line(lambda: config.settings_of(doc, Path("/etc/joulecut")))


@given(
    st.dictionaries(
        st.sampled_from(["tls_server_config", "http_server_config", "basic_auth_users"]),
        _section(WEB_WORDS),
    )
)
def test_any_web_configuration(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "web.yaml"
    path.write_text(yaml.safe_dump(data))
    _one_line(lambda: WebConfig(path, lambda _: None))


def _one_line(read: Any) -> None:
    try:
        read()
    except BadInput as error:
        assert str(error).isprintable()


def test_nothing_said_means_looking_only_and_the_usual_limits() -> None:
    found = config.settings_of(parse(b"device: simulated\n", "agent.yaml"), Path("/etc/joulecut"))
    assert found.tls is None
    assert found.rules == Rules()
    assert found.audit == AuditLimits(1 << 20, 8)
    assert found.local_socket == LocalSocket("/var/lib/joulecut/grpc.sock", required=False)
    assert found.web_config is None
