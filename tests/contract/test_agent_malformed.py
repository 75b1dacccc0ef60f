"""Bytes that are no request: the caller is told so, it is counted, and nothing changes."""

import json
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from running_agent import PATIENCE_S, RunningAgent

CALLS = ("Describe", "Apply", "Renew", "Clear", "Release", "Resume")
STREAMS = ("Watch", "ReadSamples")
CUT = b"\x0a\xff\x01abc"  # a field of 255 bytes, of which three are there
NO_TEXT = b"\x12\x02\xff\xfe"  # a text that is no UTF-8


@pytest.fixture(scope="module")
def node() -> Iterator[RunningAgent]:
    with RunningAgent(cards=1) as agent:
        yield agent.start()


def _raw(node: RunningAgent, call: str, request: bytes) -> tuple[str, str]:
    """The status code and sentence of a call with these bytes; the answer is not looked at."""
    assert node.channel is not None
    path = f"/joulecut_wire.v1.AgentService/{call}"
    try:
        if call in STREAMS:
            stream = node.channel.unary_stream(path)(request, timeout=PATIENCE_S)
            try:
                next(stream)
            finally:
                stream.cancel()
        else:
            node.channel.unary_unary(path)(request, timeout=PATIENCE_S)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


@pytest.mark.parametrize("call", [*CALLS, *STREAMS])
def test_what_is_no_request_is_reported_to_its_sender(node: RunningAgent, call: str) -> None:
    code, sentence = _raw(node, call, CUT)
    assert code == "INVALID_ARGUMENT"
    assert sentence == f"{len(CUT)} bytes are not a request of {call.lower()}: nothing was changed"
    assert f'joulecut_requests_malformed_total{{call="{call.lower()}"}} 1.0' in node.metrics()
    assert "Traceback" not in node.log


def test_a_command_that_is_none_is_in_the_audit_log(node: RunningAgent) -> None:
    assert _raw(node, "Apply", NO_TEXT)[0] == "INVALID_ARGUMENT"
    trail = (node.state_dir / "audit.jsonl").read_text().splitlines()
    (entry,) = (e for e in map(json.loads, trail) if "are not a request of apply" in str(e))
    assert (entry["op"], entry["result"]) == ("apply", "refused")


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(("Apply", "Renew", "Clear")), st.binary(max_size=60))
@example("Apply", NO_TEXT)
def test_no_bytes_are_our_failure(node: RunningAgent, call: str, request: bytes) -> None:
    code, _ = _raw(node, call, request)
    assert code in {"OK", "INVALID_ARGUMENT"}
    assert node.writes() == 0
