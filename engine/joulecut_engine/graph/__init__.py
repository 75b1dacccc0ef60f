"""The pipeline graph: operations of one iteration and what each must wait for.

`build` lays out a schedule, `listed` a graph given operation by operation; `shape` says which
shapes a schedule takes. Pure.
"""

from joulecut_engine.graph.build import build
from joulecut_engine.graph.graph import Circular, Graph, graph_of, longest_path

__all__ = ["Circular", "Graph", "build", "graph_of", "longest_path"]
