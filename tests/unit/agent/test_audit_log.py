"""The audit trail: bounded on disk, whole lines whoever writes, and never in a command's way."""

import json
import multiprocessing
import os
import resource
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.control.audit_log import (
    LINE_BYTES_MAX,
    AuditLimits,
    AuditLog,
    encode,
    record_command,
)

Entries = list[dict[str, Any] | None]


def _entries(folder: Path) -> Entries:
    """Every line of every file, oldest first; None for a broken one."""

    def entry(line: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads(line))
        except ValueError:
            return None

    older = sorted(folder.glob("audit.jsonl.*"), key=lambda path: -int(path.suffix[1:]))
    files = [*older, folder / "audit.jsonl"]
    return [entry(line) for path in files for line in path.read_text().splitlines()]


ENTRY = {"op": "apply", "who": "a.test", "via": "mtls", "result": "accepted"}


def test_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    trail = AuditLog(tmp_path, AuditLimits(bytes_max=2_000, files_max=3))
    for number in range(500):
        trail.write({**ENTRY, "generation": number}, now_unix_s=1e9 + number)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(path.stat().st_size <= 2_000 for path in tmp_path.iterdir())
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o640 for path in tmp_path.iterdir())
    kept = [entry["generation"] for entry in _entries(tmp_path) if entry]
    assert kept == list(range(kept[0], 500)), "the newest, in order, without a gap"
    assert len(kept) > 30


def _write(folder: Path, writer: int) -> None:
    trail = AuditLog(folder, AuditLimits(bytes_max=20_000, files_max=50))
    for number in range(200):
        trail.write({**ENTRY, "writer": writer, "number": number})


def test_processes_beside_each_other_lose_no_line(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(tmp_path, n)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
        assert writer.exitcode == 0
    entries = _entries(tmp_path)
    assert None not in entries
    seen = {(entry["writer"], entry["number"]) for entry in entries if entry}
    assert len(seen) == len(entries) == 600


def test_a_full_disk_loses_lines_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lost: list[int] = []
    trail = AuditLog(tmp_path, AuditLimits(), lambda: lost.append(1))
    for _ in range(100):  # the limit below holds for standard error too
        trail.write(ENTRY)
    size = (tmp_path / "audit.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        trail.write(ENTRY)  # cut off after ten bytes
        trail.write(ENTRY)
        trail.write(ENTRY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    trail.write({**ENTRY, "op": "clear"})
    assert len(lost) == 3
    assert 1 <= capfd.readouterr().err.count("a line is lost") <= 2, "not one for each"
    ops = [entry and entry["op"] for entry in _entries(tmp_path)]
    assert ops[99:] == ["apply", None, "clear"], "the broken line stands alone"


@pytest.mark.parametrize("kind", ["directory", "link", "second name", "pipe"])
def test_what_is_no_file_of_its_own_is_not_written(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "audit.jsonl", tmp_path / "other"
    other.write_text("untouched")
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(other)
    elif kind == "second name":
        os.link(other, path)
    else:
        os.mkfifo(path)
    lost: list[int] = []
    AuditLog(tmp_path, AuditLimits(), lambda: lost.append(1)).write(ENTRY)
    assert lost == [1]
    assert other.read_text() == "untouched"


def test_a_refusal_that_repeats_is_one_line(tmp_path: Path) -> None:
    trail = AuditLog(tmp_path, AuditLimits())
    for _ in range(50):
        trail.write_refusal({**ENTRY, "result": "denied"}, "a.test", "apply")
    trail.write_refusal({**ENTRY, "who": "b.test", "result": "denied"}, "b.test", "apply")
    assert [entry["who"] for entry in _entries(tmp_path) if entry] == ["a.test", "b.test"]


words = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=20), words, max_size=10))
def test_any_entry_is_one_bounded_line_that_comes_back(entry: dict[str, object]) -> None:
    line = encode({**entry, "t": 1.5, "op": "apply"})
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert len(line) <= LINE_BYTES_MAX
    assert json.loads(line)["op"] == "apply"


def test_what_is_done_on_the_node_leaves_a_line_also_when_it_fails(tmp_path: Path) -> None:
    assert record_command(tmp_path, AuditLimits(), "restore", lambda: 0) == 0
    assert record_command(tmp_path, AuditLimits(), "restore", lambda: 1) == 1

    def fails() -> int:
        raise ValueError("no keeper")

    with pytest.raises(ValueError, match="no keeper"):
        record_command(tmp_path, AuditLimits(), "release", fails, duration_s=60.0)
    lines = [entry for entry in _entries(tmp_path) if entry]
    assert [(e["op"], e["result"]) for e in lines] == [
        ("restore", "accepted"), ("restore", "failed"), ("release", "failed"),
    ]  # fmt: skip
    assert lines[2]["refused"] == "no keeper"
    assert all(e["who"].startswith(f"local uid {os.getuid()}") for e in lines)
