"""Each wrong policy and its line, as text that a person can review."""

import os
from pathlib import Path

import pytest

from joulecut_controller.policy.parse import parse
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Profile
from joulecut_wire import document
from joulecut_wire.errors import BadInput

FILE = Path(__file__).with_name("policy_faults.txt")


def _two_stages(path: str) -> Profile:
    options = (ClockOption(855, 0.08, 18.0), ClockOption(1410, 0.05, 24.0))
    return Profile({(stage, kind): options for stage in (0, 1) for kind in KINDS}, path)


def _answer(text: str) -> str:
    try:
        policy = parse(document.parse(text.encode(), "policy.yaml"), _two_stages)
    except BadInput as error:
        return f"=> {error}"
    return f"=> fine, {len(policy.jobs)} jobs"


def _cases() -> list[tuple[str, str, str]]:
    """(title, policy, expected line) of every case in the file."""
    cases = []
    for block in FILE.read_text().split("\n## ")[1:]:
        title, _, rest = block.partition("\n")
        policy, _, expected = rest.partition("=> ")
        cases.append((title, policy.strip("\n") + "\n", f"=> {expected.strip()}"))
    return cases


def _rewrite() -> None:
    head = FILE.read_text().split("\n## ")[0].rstrip("\n")
    blocks = [
        f"## {title}\n{policy}{_answer(policy)}\n".replace(f"## {title}\n\n", f"## {title}\n")
        for title, policy, _ in _cases()
    ]
    FILE.write_text(head + "\n\n" + "\n".join(blocks))


if os.environ.get("JOULECUT_REWRITE_GOLDEN") == "1":
    _rewrite()
CASES = _cases()


@pytest.mark.parametrize(("title", "policy", "expected"), CASES, ids=[case[0] for case in CASES])
def test_a_wrong_policy_gets_its_line(title: str, policy: str, expected: str) -> None:
    assert _answer(policy) == expected


def test_nothing_in_the_file_of_faults_is_fine() -> None:
    assert [title for title, policy, _ in CASES if _answer(policy).startswith("=> fine")] == []
