"""The pytest fixture `fake_nvml`; apart from `fixture`, which needs no pytest."""

from pathlib import Path

import pytest

from fixture import CompilerMissing, FakeNvml


@pytest.fixture
def fake_nvml(tmp_path: Path) -> FakeNvml:
    """Eight fake A100 of this test's own; skips where there is no compiler."""
    try:
        return FakeNvml(tmp_path / "gpus.state")
    except CompilerMissing as missing:
        pytest.skip(str(missing))
