"""What a library prints behind our back does not arrive; what we print does."""

import subprocess
import sys

WRITES = """
import ctypes
from joulecut_cli.stray import no_stray_output
print("before")
with no_stray_output():
    ctypes.CDLL(None).puts(b"stray")
print("after")
"""


def test_only_our_own_words_arrive() -> None:
    told = subprocess.run([sys.executable, "-c", WRITES], capture_output=True, check=True)
    assert told.stdout == b"before\nafter\n"


def test_a_closed_output_is_no_fault() -> None:
    silent = WRITES.replace("print", "len")
    told = subprocess.run([sys.executable, "-c", f"import os\nos.close(1)\n{silent}"], check=False)
    assert told.returncode == 0
