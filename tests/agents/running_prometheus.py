"""A real Prometheus server on a configuration that a test wrote, for as long as the test runs."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

END_S = 60.0  # it writes its data down first, on a machine busy with other tests


@contextmanager
def prometheus_in(folder: Path) -> Iterator[str]:
    """Its address, while it runs on `folder`/prometheus.yml; skips where it is not installed."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("Debian package prometheus is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with subprocess.Popen(
        [
            binary,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        process.wait(timeout=END_S)
