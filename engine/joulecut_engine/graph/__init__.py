"""Graph of one iteration: operations and their dependencies.

`build` makes it from a schedule, `graph_of` from explicit operations and edges; `shape` checks
which pipeline shapes a schedule supports.
"""

from joulecut_engine.graph.build import build
from joulecut_engine.graph.graph import Circular, Graph, graph_of, longest_path

__all__ = ["Circular", "Graph", "build", "graph_of", "longest_path"]
