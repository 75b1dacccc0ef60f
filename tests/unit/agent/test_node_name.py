"""By what name a node goes: a flag, its file, its environment, or its host's own."""

import socket
from pathlib import Path

import pytest

from joulecut_agent import config, main
from joulecut_wire.errors import BadInput


def _name(folder: Path, text: str, node: str | None = None) -> str:
    (folder / "agent.yaml").write_text("device: simulated\n" + text)
    return config.load(folder / "agent.yaml", node).node


def test_the_nearest_word_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(config.NODE, raising=False)
    assert _name(tmp_path, "") == socket.gethostname()
    monkeypatch.setenv(config.NODE, "10")  # YAML alone would take it for a number
    assert _name(tmp_path, "") == "10"
    assert _name(tmp_path, "node: n7\n") == "n7"
    assert _name(tmp_path, "node: n7\n", "n8") == "n8"
    monkeypatch.setenv(config.NODE, "")
    assert _name(tmp_path, "") == socket.gethostname()


@pytest.mark.parametrize("bad", ["a b", "a/b", "a" * 254, "a\n", "\x1b"])
def test_a_name_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    with pytest.raises(BadInput, match="--node"):
        _name(tmp_path, "", bad)
    monkeypatch.setenv(config.NODE, bad)
    with pytest.raises(BadInput, match=config.NODE):
        _name(tmp_path, "")


def test_an_empty_flag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--node"):
        _name(tmp_path, "", "")


def test_only_run_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("device: simulated\n")
    words = ["restore", "--config", str(tmp_path / "agent.yaml"), "--node", "n8"]
    with pytest.raises(BadInput, match="--node: has no meaning for restore"):
        main.dispatch(words)
