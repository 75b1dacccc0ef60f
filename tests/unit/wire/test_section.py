"""Sections of a YAML file: every key once, and of several faults the first in the file."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent import config as agent_config
from joulecut_agent.config import AgentKeys
from joulecut_cli import jobfile
from joulecut_cli.jobkeys import JobKeys
from joulecut_controller import config as controller_config
from joulecut_controller.config import ConfigKeys
from joulecut_controller.policy.parse import parse
from joulecut_controller.policy.schema import PolicyKeys
from joulecut_wire import document
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import choice, whole
from joulecut_wire.section import (
    Either,
    Listed,
    Named,
    Section,
    key,
    read,
    section_of,
    whether_given,
)

LEAVES = st.sampled_from(
    [None, True, False, 0, 1, -1, 7, 10**400, 0.5, float("nan"), "", "x", "1%", "10s", "hook",
     "off", "enforce", "gpipe", "n1/0-1", [], {}, ["n1/0"], {"a": "b"}, {"promql": "vllm"}]
)  # fmt: skip


def trees(take: Any) -> st.SearchStrategy[Any]:
    """Values for a key of the schema, drawn from the schema itself: most fit, or nearly."""
    if isinstance(take, Listed):
        return st.lists(trees(take.take), max_size=2) | LEAVES
    if isinstance(take, Either):
        return trees(take.first) | trees(take.otherwise)
    if isinstance(take, Named):
        return st.dictionaries(st.sampled_from("ab"), LEAVES, max_size=2) | LEAVES
    if not isinstance(take, type | Section):
        return LEAVES
    keys = (section_of(take) if isinstance(take, type) else take).keys
    needed = {name: trees(one.take) for name, one in keys.items() if one.required}
    more = {name: trees(one.take) for name, one in keys.items() if not one.required}
    return st.fixed_dictionaries(needed, optional=more | {"nope": LEAVES}) | LEAVES


def trees_of_file(file: type, /, **words: Any) -> st.SearchStrategy[bytes]:
    """Files of one kind; with `words` they are not refused for being another kind at once."""

    def written(tree: Any, named: bool) -> bytes:
        if isinstance(tree, dict) and named:
            tree = {**tree, **words}
        return yaml.safe_dump(tree, sort_keys=False).encode()

    return st.builds(written, trees(file), st.booleans())


def one_line_or_a_value(read_file: Callable[[document.Document], object], raw: bytes) -> None:
    try:
        read_file(document.parse(raw, "/none/file.yaml"))
    except BadInput as error:
        assert str(error).startswith("/none/")  # the file, or one that it names
        assert "\n" not in str(error)


@given(trees_of_file(PolicyKeys, apiVersion="joulecut/v1", kind="Policy"))
def test_a_policy_of_any_values(raw: bytes) -> None:
    def read_policy(found: document.Document) -> None:
        parse(found, lambda _: pytest.fail("a profile was read for a policy without any"))

    one_line_or_a_value(read_policy, raw)


@given(trees_of_file(ConfigKeys, agents=["localhost:1"], policy="p.yaml", store="sqlite:///s"))
def test_a_controller_configuration_of_any_values(raw: bytes) -> None:
    one_line_or_a_value(lambda found: controller_config.settings_of(found, Path("/none")), raw)


@given(trees_of_file(AgentKeys, device="simulated"))
def test_an_agent_configuration_of_any_values(raw: bytes) -> None:
    one_line_or_a_value(lambda found: agent_config.settings_of(found, Path("/none")), raw)


@given(trees_of_file(JobKeys, pipeline={"schedule": "1f1b", "stages": 1, "microbatches": 1}))
def test_a_job_file_of_any_values(raw: bytes) -> None:
    one_line_or_a_value(lambda found: jobfile.of_document(found, Path("/none/file.yaml")), raw)


@dataclass(frozen=True)
class Inner:
    size: int = key(whole(0, 9))
    kind: str = key(choice("a", "b"), "a", name="sort")


@dataclass(frozen=True)
class Outer:
    inner: Inner = key(Inner)
    many: tuple[Inner, ...] = key(Listed(Inner), ())
    names: tuple[tuple[str, int], ...] = key(Named(whole(0, 9)), ())
    unwritten: int = 5
    named: bool = whether_given("names")


def taken(text: str) -> Any:
    found = document.parse(text.encode(), "f.yaml")
    return read(found, Outer, found.data)


def test_a_section_becomes_its_value() -> None:
    assert taken("inner: {size: 1}") == Outer(Inner(1))
    text = "inner: {size: 1, sort: b}\nmany: [{size: 2}]\nnames: {b: 2, a: 1}"
    assert taken(text) == Outer(Inner(1, "b"), (Inner(2),), (("a", 1), ("b", 2)), named=True)


FAULTS = {  # each on a line of its own, in the order of the file
    "inner: {size: 10}": "inner.size: 10 is out of range",
    "nope: 1": "nope: unknown key",
    "many: [{size: 1, sort: c}]": 'many[0].sort: "c" is not allowed',
    "names: {a: x}": 'names.a: "x" is not a whole number',
}


@given(st.permutations(list(FAULTS)), st.integers(1, len(FAULTS)))
def test_the_first_fault_in_the_file_is_the_one_reported(order: list[str], count: int) -> None:
    with pytest.raises(BadInput) as caught:
        taken("\n".join(order[:count]) + "\n")
    missing = not any(line.startswith("inner") for line in order[:count])
    first = "inner: key missing" if missing else FAULTS[order[0]]  # a missing key stands at line 1
    assert str(caught.value).startswith(f"f.yaml:1: {first}") or (
        missing and str(caught.value).startswith(f"f.yaml:1: {FAULTS[order[0]]}")
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("inner:", "f.yaml:1: inner: has no value; allowed: a value, or leave the key out"),
        ("inner: 3", "f.yaml:1: inner: 3 is not a mapping; allowed: a mapping of size, sort"),
        ("inner: {}", "f.yaml:1: inner.size: key missing; allowed: size, sort"),
        ("inner: {size: 1, siz: 2}", "unknown key (did you mean size?); allowed: size, sort"),
        ("inner: {size: 1}\nmany: {}", "f.yaml:2: many: a mapping is not a list"),
        ("inner: {size: 1}\nnames: []", "f.yaml:2: names: a list is not a mapping"),
    ],
)
def test_a_fault_is_named_with_its_place_and_what_is_allowed(text: str, line: str) -> None:
    with pytest.raises(BadInput) as caught:
        taken(text)
    assert line in str(caught.value)


def test_every_key_of_the_policy_has_a_default_that_fits_or_is_required() -> None:
    """A default is the value that the reader would make; None stands for no value."""

    def check(kind: type) -> None:
        defaults = {field.name: field.default for field in fields(kind)}
        for one in section_of(kind).keys.values():
            if isinstance(one.take, type):
                check(one.take)
                assert one.required or isinstance(defaults[one.field], one.take | None)

    check(PolicyKeys)
