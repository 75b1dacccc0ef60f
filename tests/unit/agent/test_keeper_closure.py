"""What the keeper and its writer process import: no front end, and nothing that uses a network."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (ROOT / "agent", ROOT / "protos")
KEEPER = ("joulecut_agent.keeper.service",)
WRITER = ("joulecut_agent.keeper.writer_process", "joulecut_agent.nvml.writer")
FRONT = (
    "main",
    "config",
    "settings",
    "loop",
    "parts",
    "control",
    "export",
    "jobs",
    "monitor",
    "devices",
)


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
        # The back end loads reader or writer on demand.
        lazy = module == "joulecut_agent.nvml"
        pending.extend(_imports(ast.parse(path.read_text()), on_demand=not lazy))
    return modules


def test_neither_imports_a_front_end() -> None:
    assert {"joulecut_agent.keeper.lease", "joulecut_agent.keeper.journal"} <= set(_closure())
    for start in (KEEPER, WRITER):
        loaded = {
            module.removeprefix("joulecut_agent.").partition(".")[0] for module in _closure(start)
        }
        assert not loaded & {*FRONT}
    assert "joulecut_agent.keeper.writer_process" not in _closure(), (
        "the keeper itself never opens the driver"
    )


def test_neither_has_a_network_socket() -> None:
    for path in {**_closure(), **_closure(WRITER)}.values():
        tree = ast.parse(path.read_text())
        words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not {word for word in words if word.startswith("AF_INET")}, path
        network = {
            "http",
            "grpc",
            "google",
            "urllib",
            "ssl",
            "asyncio",
            "socketserver",
            "xmlrpc",
            "numpy",
        }
        assert not {name.partition(".")[0] for name in _imports(tree, on_demand=True)} & network, (
            path
        )
