"""The keeper is small enough to read in one sitting, and has no way to the network.

So is the hand, the other program that runs with the right to set clocks.
"""

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (ROOT / "agent", ROOT / "protos")
KEEPER = ("joulecut_agent.keeper.keeper",)
HAND = ("joulecut_agent.keeper.writer_process", "joulecut_agent.nvml.writer")
LINES_MAX = 800  # of code: blank lines, comments and docstrings do not count
HAND_LINES_MAX = 350  # with the device back end that it loads
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
FRONT = {"main", "config", "settings", "loop", "server", "exporter", "jobs", "sampler", "devices"}


def _file(module: str) -> Path | None:
    path = Path(*module.split("."))
    for source in SOURCES:
        for candidate in (source / path.with_suffix(".py"), source / path / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _imports(tree: ast.Module, *, on_demand: bool) -> set[str]:
    """Modules named by an import that runs: not those for types alone, and those inside of
    functions only where asked for.
    """
    found: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.FunctionDef) and not on_demand:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        pending.extend(ast.iter_child_nodes(node))
    return found


def _closure(start: tuple[str, ...] = KEEPER) -> dict[str, Path]:
    """Module by module what a program loads of ours, the packages' own files included."""
    modules: dict[str, Path] = {}
    pending = list(start)
    while pending:
        module = pending.pop()
        path = _file(module) if module.startswith("joulecut") else None
        if path is None or module in modules:
            continue
        modules[module] = path
        pending.append(module.rpartition(".")[0])
        # The back end's door loads reader or writer on demand; the hand demands the writer.
        door = module == "joulecut_agent.nvml"
        pending.extend(_imports(ast.parse(path.read_text()), on_demand=not door))
    return modules


def _lines_of_code(path: Path) -> int:
    text = path.read_text()
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            first = node.body[0]
            prose |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - prose)


def test_the_keeper_can_be_read_in_one_sitting() -> None:
    sizes = {module: _lines_of_code(path) for module, path in _closure().items()}
    assert {"joulecut_agent.keeper.lease", "joulecut_agent.keeper.journal"} <= set(sizes)
    assert sum(sizes.values()) <= LINES_MAX, sizes


def test_so_can_the_hand_with_its_back_end() -> None:
    sizes = {module: _lines_of_code(path) for module, path in _closure(HAND).items()}
    assert "joulecut_agent.nvml.driver" in sizes
    assert sum(sizes.values()) <= HAND_LINES_MAX, sizes


def test_neither_carries_a_front_end() -> None:
    for start in (KEEPER, HAND):
        loaded = {module.removeprefix("joulecut_agent.") for module in _closure(start)}
        assert not loaded & FRONT
    assert "joulecut_agent.keeper.writer_process" not in _closure(), (
        "the keeper itself never opens the driver"
    )


def test_the_keeper_has_no_network_socket() -> None:
    for path in {**_closure(), **_closure(HAND)}.values():
        tree = ast.parse(path.read_text())
        words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not {word for word in words if word.startswith("AF_INET")}, path
        network = {"http", "grpc", "urllib", "ssl", "asyncio", "socketserver", "xmlrpc"}
        assert not {name.partition(".")[0] for name in _imports(tree, on_demand=True)} & network, (
            path
        )
