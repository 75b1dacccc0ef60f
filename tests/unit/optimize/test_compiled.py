"""Results do not depend on machine code: the same functions run as Python."""

import json
import os
import subprocess
import sys

import joulecut_engine.optimize.solver  # noqa: F401  (so that all is compiled that will be)
from joulecut_engine.optimize import compiled

PROGRAM = """
import json
import sys
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.compiled import kept
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile

menu = tuple(ClockOption(1400 - 100 * k, 1 + 0.1 * k**1.3, 90.0 - 9 * k) for k in range(4))
profile = Profile({(stage, kind): menu for stage in range(2) for kind in KINDS})
computation = Computation(problem(Pipeline("1f1b", 2, 3), profile, 20.0), combinations_all=0)
goal = Goal(1.07 * computation.fastest_s)
plan = computation.solve(goal, computation.relax(goal), effort="point")
found = [[plan.energy_j, plan.lower_bound_j, [o.clock_mhz for o in plan.clocks]]]
compiler = {"scipy", "coverage", "numba.np.arraymath", "numba.typed.typeddict"} & set(sys.modules)
print(json.dumps([kept(), found, sorted(compiler)]))
"""


def test_the_same_without_a_compiler() -> None:
    answers = []
    for disabled in ("0", "0", "1"):
        said = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled, "NUMBA_CPU_NAME": "junk"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stderr == ""
        answers.append(json.loads(said.stdout))
    _, (_, compiled, compiler), (kept, plain, _) = answers
    assert kept  # nothing to wait for
    assert compiler == []  # half a second to import, where all machine code is on disk
    for one, other in zip(compiled, plain, strict=True):
        assert one[2] == other[2]
        assert abs(one[0] - other[0]) <= 1e-12 * one[0]
        assert abs(one[1] - other[1]) <= 1e-8 * one[1]


def test_no_compiled_function_calls_one_of_another_module() -> None:
    """Kept machine code is renewed when its own module changes, and only then."""
    functions = [f.py_func for f in compiled._compiled]
    assert len(functions) > 15
    for function in functions:
        for name in function.__code__.co_names:
            called = getattr(function.__globals__.get(name), "py_func", function)
            assert called.__module__ == function.__module__, f"{function.__name__}: {name}"
