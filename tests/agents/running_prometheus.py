"""A real Prometheus server on a configuration that a test wrote, for as long as the test runs."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from held_port import held_port

END_S = 120.0  # it writes its data down first, on a machine busy with other tests


@contextmanager
def prometheus_in(folder: Path) -> Iterator[str]:
    """Its address, while it runs on `folder`/prometheus.yml; skips where it is not installed."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("Debian package prometheus is not installed")
    with (
        held_port() as port,
        subprocess.Popen(
            [
                binary,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=END_S)
