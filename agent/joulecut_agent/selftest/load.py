"""A load of the self-test's own: a child process that keeps one GPU busy until it is ended."""

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress

from joulecut_wire.errors import BadInput

# A chain of matrix products, as large as a layer's: the SMs are busy, and draw near the limit.
TORCH = """
import os, torch
tester = os.getppid()
a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
b = torch.empty_like(a)
while os.getppid() == tester:
    for _ in range(50):
        torch.mm(a, a, out=b)
    torch.cuda.synchronize()
"""
GPU_VARIABLE = "JOULECUT_SELFTEST_GPU"  # UUID, for a command of the user's
END_S = 10.0


class Load:
    """`command` "" is torch, where it is installed. Raises BadInput on a command that is none."""

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise BadInput("--load", str(error), "a command line") from None
        if not self._words and importlib.util.find_spec("torch") is not None:
            self._words = [sys.executable, "-c", TORCH]
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def known(self) -> bool:
        return bool(self._words)

    def start(self, uuid: str) -> None:
        """Raises BadInput where the command cannot be started."""
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid, GPU_VARIABLE: uuid}
        null = subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(  # noqa: S603 -- the user's own command
                self._words, env=env, stdin=null, stdout=null, stderr=null, start_new_session=True
            )
        except OSError as error:
            raise BadInput("--load", f"{self._words[0]}: {error.strerror}", "a command") from None

    def end(self) -> None:
        """Idempotent; waits for its end."""
        child, self._child = self._child, None
        if child is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=END_S)
                return
