"""A line of a log: one event is one line, in text and in JSON."""

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_wire import log_line
from joulecut_wire.command import guarded
from joulecut_wire.errors import BadInput

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture(autouse=True)
def text_again() -> Iterator[None]:
    yield
    log_line.use(log_line.TEXT)


@pytest.mark.parametrize("log_format", log_line.FORMATS)
@given(message=st.text() | st.text(max_size=2).map(lambda text: text * 3000))
def test_any_message_is_one_line_that_a_pipe_takes_whole(log_format: str, message: str) -> None:
    log_line.use(log_format)
    line = log_line.rendered("agent", message, "warning")
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) <= log_line.LINE_BYTES_MAX + 1
    if log_format == log_line.JSON:
        told = json.loads(line)
        assert TIME.fullmatch(told.pop("time"))
        assert message.startswith(told.pop("message"))
        assert told == {"level": "warning", "component": "agent"}


def test_text_hides_nothing_printable_and_says_what_is_no_information() -> None:
    assert log_line.rendered("keeper", "a\x1b\n é") == "keeper: a?? é\n".encode()
    assert log_line.rendered("keeper", "it left", "error") == b"keeper: error: it left\n"
    assert log_line.rendered("keeper", "warning: x", "warning") == b"keeper: warning: x\n"


@given(job=st.text(min_size=1, max_size=253))
def test_the_job_of_a_line_is_a_field_whatever_its_name(job: str) -> None:
    log_line.use(log_line.JSON)
    line = log_line.rendered("agent", "x" * 5000, job=job)
    assert len(line) <= log_line.LINE_BYTES_MAX + 1
    assert json.loads(line)["job"] == job


def test_a_short_message_is_whole_in_json() -> None:
    log_line.use(log_line.JSON)
    told = json.loads(log_line.rendered("keeper", "a\n é \ud800", "info"))
    assert told["message"] == "a\n é \ud800"


def test_a_daemon_that_logs_json_ends_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        log_line.use(log_line.JSON)
        raise BadInput("a.yaml", "no key policy", "policy")

    assert guarded("joulecut-controller", run) == 2
    told = json.loads(capsys.readouterr().err)
    assert (told["level"], told["component"]) == ("error", "joulecut-controller")
    assert told["message"].startswith("a.yaml: no key policy")
