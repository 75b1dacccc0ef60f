"""A release window on disk: believed where it is whole, of this boot, and within its bound."""

import json
import signal
import threading
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.control.release_file import NAME, ReleaseFile
from joulecut_agent.keeper.keeper import RELEASE_S_MAX
from joulecut_wire.messages import GpuDescription

GPUS = (
    GpuDescription("GPU-0", 0, "A100", (210, 1410), 0, 1200, 400.0, 100.0, 400.0, True, "", 1.0),
    GpuDescription("GPU-1", 1, "A100", (), controllable=False, reason="MIG is on"),
)


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    began_s = time.monotonic()
    ReleaseFile(str(tmp_path), "boot").write(600.0, GPUS)
    again = ReleaseFile(str(tmp_path), "boot")
    left_s, passed_s = again.left_s(), time.monotonic() - began_s
    assert 600.0 - passed_s <= left_s <= 600.0
    assert again.gpus() == GPUS
    again.forget()
    assert (again.left_s(), again.gpus()) == (0.0, ())


def test_another_boot_has_no_window(tmp_path: Path) -> None:
    ReleaseFile(str(tmp_path), "boot").write(600.0, GPUS)
    later = ReleaseFile(str(tmp_path), "the next one")
    assert (later.left_s(), later.gpus()) == (0.0, ())


def test_no_window_is_longer_than_any_may_be(tmp_path: Path) -> None:
    file = ReleaseFile(str(tmp_path), "boot")
    file.write(RELEASE_S_MAX + 60.0, GPUS)
    assert file.left_s() == 0.0


def test_cut_off_anywhere_it_is_none(tmp_path: Path) -> None:
    file = ReleaseFile(str(tmp_path), "boot")
    file.write(600.0, GPUS)
    whole = (tmp_path / NAME).read_bytes()
    for size in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:size])
        assert (file.left_s(), file.gpus()) == (0.0, ())


@given(st.binary(max_size=200))
def test_no_bytes_are_an_exception(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    folder = tmp_path_factory.mktemp("release")
    (folder / NAME).write_bytes(raw)
    assert ReleaseFile(str(folder), "boot").left_s() == 0.0


@pytest.mark.parametrize(
    "words",
    [
        1,
        [],
        [2, "boot", 1e12, []],
        [1, "boot", "soon", []],
        [1, "boot", None, []],
        [1, "boot", 1e308, [{}]],
        [1, "boot", 1e3, [1]],
        [1, "boot", 1e3, [{"uuid": "GPU-0", "clocks_mhz": 3}]],
        [1, "boot", float("nan"), []],
        [1, "boot", float("inf"), []],
    ],
)
def test_whole_and_still_nonsense(tmp_path: Path, words: object) -> None:
    body = json.dumps(words).encode()
    (tmp_path / NAME).write_bytes(b"%08x %s" % (zlib.crc32(body), body))
    assert ReleaseFile(str(tmp_path), "boot").left_s() == 0.0


def test_where_nothing_can_be_written_it_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ReleaseFile(str(tmp_path / "nowhere"), "boot").write(600.0, GPUS)
    assert "a restart would end the release window" in capfd.readouterr().err


def test_a_signal_that_arrives_as_soon_as_it_is_ready_ends_the_wait(tmp_path: Path) -> None:
    file = ReleaseFile(str(tmp_path), "boot")
    file.write(600.0, GPUS)
    assert not file.wait(lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
