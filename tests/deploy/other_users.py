"""Programs of ours as other users of this machine.

from other_users import PYTHONPATH, python_for_others, write_command
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from manifests import ROOT

PACKAGES = ("agent", "cli", "client", "controller", "protos", "sim")
# Any Python of our version that another user may run and read: ours may be in a home directory.
PYTHONS = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
PYTHONPATH = os.pathsep.join(
    [sysconfig.get_path("purelib"), *(str(ROOT / package) for package in PACKAGES)]
)


def python_for_others() -> str:
    """A Python that other users may run; skips the test without one, or without root."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv, to become other users")
    python = next(filter(_runs_for_others, PYTHONS), "")
    if not python:
        pytest.skip("no Python here that another user may run")
    return python


def write_command(path: Path, python: str) -> None:
    """`joulecut-agent` for any user; needs PYTHONPATH in its environment."""
    path.write_text(f'#!/bin/sh\nexec {python} -m joulecut_agent.main "$@"\n')
    path.chmod(0o755)


def _runs_for_others(python: str) -> bool:
    """As a child of its own, too: the agent starts one."""
    child = "import joulecut_agent.main, joulecut_sim.device, grpc"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{child}'], check=True)"
    become = ["setpriv", "--reuid", "65532", "--regid", "65532", "--clear-groups", "--"]
    try:
        done = subprocess.run(
            [*become, python, "-c", code],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH},
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0
