"""Finds the commands that README and docs show, so that tests can run every one of them.

A command is a line of a fenced block without a language (or of `sh`, `console`, `text` where it
begins with `$`), or an indented line, that begins with a program of ours or one we name.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ("joulecut", "joulecut-agent", "joulecut-controller")
OTHERS = (
    "curl", "deploy/systemd/install", "docker", "helm", "kubectl", "make", "pip", "python", "sed",
    "sh", "ssh", "systemctl",
)  # fmt: skip
SHELL = ("", "sh", "console", "bash")


@dataclass(frozen=True, slots=True)
class Command:
    """One line that a reader may type."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        try:
            return shlex.split(self.text, comments=True)
        except ValueError:
            return self.text.split()

    @property
    def program(self) -> str:
        return self.words[0].removeprefix(".venv/bin/")

    @property
    def is_synopsis(self) -> bool:
        """Shows what may be given, as `[--json]`: not a line to type."""
        return bool(re.search(r"(^|\s)\[", self.text))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[Path]:
    named = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [*named, ROOT / "deploy" / "README.md", ROOT / "grafana" / "README.md"]


def blocks(text: str) -> Iterator[tuple[str, int, str]]:
    """Language, number of the first line and content of every fenced block."""
    language, begun, lines = None, 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            if language is None:
                language, begun, lines = line[3:].strip(), number + 1, []
            else:
                yield language, begun, "\n".join(lines)
                language = None
        elif language is not None:
            lines.append(line)


def commands_of(page: Path) -> list[Command]:
    name, text = str(page.relative_to(ROOT)), page.read_text()
    found = list[Command]()
    fenced = set[int]()
    for language, begun, content in blocks(text):
        lines = content.splitlines()
        fenced.update(range(begun - 1, begun + len(lines) + 1))
        for offset, line in enumerate(lines):
            if language in SHELL or (language == "text" and line.startswith("$ ")):
                found.extend(_command(name, begun + offset, _whole(lines[offset:])))
    for number, line in enumerate(text.splitlines(), start=1):
        if number not in fenced and line.startswith("    "):
            found.extend(_command(name, number, line))
    return found


def _whole(lines: list[str]) -> str:
    """The first line, with those that a backslash at its end continues it on."""
    whole, *rest = lines
    for line in rest:
        if not whole.endswith("\\"):
            break
        whole = f"{whole.removesuffix(chr(92)).rstrip()} {line.strip()}"
    return whole


def _command(page: str, number: int, line: str) -> Iterator[Command]:
    text = line.strip().removeprefix("$ ").removeprefix("sudo ")
    first = text.split(maxsplit=1)[0].removeprefix(".venv/bin/") if text else ""
    if first in OURS or first in OTHERS or first.startswith("tools/"):
        yield Command(page, number, text)
