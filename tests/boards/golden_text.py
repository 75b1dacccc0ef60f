"""Texts a person reads, kept as files: a changed one is read as a diff, not computed."""

import os
from pathlib import Path


def same_as_golden(path: Path, text: str) -> None:
    """Compares with the kept text; `make golden` keeps the new one instead."""
    text = text.rstrip("\n") + "\n"
    if os.environ.get("JOULECUT_REWRITE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.is_file(), f"{path} is missing: `make golden` writes it"
    assert text == path.read_text(), f"differs from {path.name}: `make golden`, then read the diff"
