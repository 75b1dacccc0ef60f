"""YAML files with the line of every key, for errors of the form "file:line: key".

Agent, controller and command line read files of users; a plain loader loses the lines.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer, ComposerError

from joulecut_wire import user_file
from joulecut_wire.errors import BadInput

FILE_BYTES_MAX = 1 << 20  # A policy for 10,000 jobs is half of this; beyond it is a mistake.
NODES_MAX = (
    200_000  # Keys and values; a node costs up to 7 us, a policy for 10,000 jobs has 120,000.
)
DEPTH_MAX = 50  # Levels; no document of ours has ten, and each costs the parser several calls.
WHOLE_MAX = 10**300  # Larger ones fit no float, and Python prints no 4300 digits.

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A parsed YAML file: `data`, and the line of every key path in it."""

    name: str
    data: Any
    lines: dict[KeyPath, int]

    def where(self, path: Iterable[str | int] = ()) -> str:
        """`file:line: key.path[0]` of the nearest place that exists in the file; of values that
        come from a program, which have no lines, `name: key.path[0]`.
        """
        wanted = tuple(path)
        place = f"{self.name}:{self.line(wanted)}" if self.lines else self.name
        label = show(wanted)
        return f"{place}: {label}" if label else place

    def line(self, path: KeyPath) -> int:
        """Of the nearest place that exists in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def bad(self, path: Iterable[str | int], what: str, allowed: str = "") -> BadInput:
        return BadInput(self.where(path), what, allowed)

    def behind(self, path: Iterable[str | int], fault: BadInput) -> BadInput:
        """A fault of the file that a key names: both places."""
        return BadInput(f"{self.where(path)}: {fault.where}", fault.what, fault.allowed)


def show(path: Iterable[str | int]) -> str:
    """`("jobs", 0, "slo")` as text: `jobs[0].slo`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def load(path: Path) -> Document:
    """Reads a YAML file. Raises BadInput with file and line on anything unreadable."""
    return parse(user_file.read(path, FILE_BYTES_MAX), str(path))


def parse(raw: bytes, name: str) -> Document:
    """As `load`, from bytes."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(name, f"byte {error.start} is not UTF-8", "UTF-8 text") from None
    try:
        node = _Loader(text, name).get_single_node()
        lines: dict[KeyPath, int] = {(): 1}
        data = None if node is None else _build(node, (), lines, name, _Loader("", name))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise BadInput(f"{name}:{line}", error.problem or "not YAML", "a YAML mapping") from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(name, str(error) or type(error).__name__, "a YAML mapping") from None
    return Document(name, data, lines)


_Parser: Any = yaml.SafeLoader
if yaml.__with_libyaml__:  # reads four times as fast
    _Parser = type("_Parser", (Composer, yaml.CSafeLoader), {"__init__": yaml.CSafeLoader.__init__})


class _Loader(_Parser):  # type: ignore[misc]
    """Refuses aliases: they hide values, and nested ones grow without bound."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name, self.nodes, self.depth, self.anchors = name, 0, 0, dict[str, yaml.Node]()

    def compose_node(self, parent: yaml.Node | None, index: int) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, "aliases (*name) are not supported", mark)
        self.nodes, self.depth = self.nodes + 1, self.depth + 1
        if self.nodes > NODES_MAX or self.depth > DEPTH_MAX:
            what = "nested too deeply" if self.depth > DEPTH_MAX else "too many keys and values"
            raise BadInput(self.name, what, f"at most {NODES_MAX}, in {DEPTH_MAX} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _build(
    node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], name: str, loader: _Loader
) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = f"{name}:{key_node.start_mark.line + 1}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise BadInput(where, "a key that is not a word", "plain keys")
            key = str(key_node.value)
            if key in built:
                raise BadInput(f"{where}: {show((*path, key))}", "key given twice", "one of each")
            lines[(*path, key)] = key_node.start_mark.line + 1
            built[key] = _build(value_node, (*path, key), lines, name, loader)
        return built
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, i), lines, name, loader) for i, item in enumerate(node.value)]
    where = f"{name}:{node.start_mark.line + 1}: {show(path)}"
    try:
        value = loader.construct_object(node, deep=True)
    except (ValueError, KeyError, IndexError, AttributeError):  # errors of a tag's constructor
        what = f'"{node.value}" is not a valid {node.tag.rpartition(":")[2]}'
        raise BadInput(where, what, "a plain value, or quotes") from None
    if isinstance(value, int) and abs(value) > WHOLE_MAX:
        raise BadInput(where, "a huge number", f"whole numbers up to {WHOLE_MAX:.0e}")
    return value
