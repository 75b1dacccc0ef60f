"""What workers share: imported once, in the process that they are forked from.

Modules and machine code of the solver are half of a worker's memory and a second of its start. The
process loads them before it forks, in one thread, and holds no connection that a fork would break.
"""

import gc
import os

for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # a fork keeps one thread only
    os.environ.setdefault(library, "1")

import joulecut_controller.reconcile.worker_calls  # noqa: E402, F401
from joulecut_engine.optimize.compiled import kept  # noqa: E402
from joulecut_engine.optimize.warmup import warm_up  # noqa: E402

if kept():  # else they are compiled elsewhere first
    warm_up()
gc.freeze()  # or the first collection of every worker would write to these pages
