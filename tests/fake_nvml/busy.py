"""Keeps one fake GPU busy until it is ended: `busy.py STATE INDEX`, a load for `selftest`."""

import signal
import sys
from pathlib import Path

from fixture import FakeNvml

ENDS = {signal.SIGTERM, signal.SIGINT}

signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
node = FakeNvml(Path(sys.argv[1]), gpus=None)
node.set_load(int(sys.argv[2]), 1.0)
signal.sigwait(ENDS)
node.set_load(int(sys.argv[2]), 0.0)
