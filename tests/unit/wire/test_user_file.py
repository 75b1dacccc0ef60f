"""Files that a user names: what is no regular file is refused at once, secrets are one line."""

import os
from pathlib import Path

import pytest

from joulecut_controller.sources.agents import FileOfAgents
from joulecut_controller.store.postgres_url import parse_postgres_url
from joulecut_wire import user_file
from joulecut_wire.errors import BadInput, Unavailable

PG = "postgresql://joulecut@db.example:5432/joulecut"


@pytest.fixture(params=["pipe", "device"])
def endless(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A path that never ends, or never begins, to be read."""
    path = tmp_path / "endless"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("raw", [b"", b"\n", b"a\nb\n", b"\xff\xfe", b"a\0"])
def test_a_secret_is_the_line_of_its_file(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "password"
    path.write_bytes(b" open sesame \r\n")
    assert user_file.line(path) == " open sesame "
    path.write_bytes(raw)
    with pytest.raises(BadInput, match="not one printable line; allowed: one line of text"):
        user_file.line(path)


def test_a_file_that_never_ends_is_one_line(endless: Path) -> None:
    place = parse_postgres_url(PG, password_file=endless)
    for read in (place.password, FileOfAgents(endless, encrypted=True).addresses):
        with pytest.raises(Unavailable, match=f"{endless}: not a regular file"):
            read()
