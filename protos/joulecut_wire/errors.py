"""Errors that reach a user as one line.

JoulecutError
  BadInput            the user can correct it: where, what, what is allowed (exit status 2)
  Unavailable         not possible now or here: a missing extra, a dead peer (exit status 1)
"""

import traceback
from pathlib import Path


class JoulecutError(Exception):
    """Root of all errors that reach a user as one line."""


class BadInput(JoulecutError, ValueError):
    """Invalid input of a user.

    `where` is a place that can be opened (`policy.yaml:12: jobs[0].slo`), `what` the fault,
    `allowed` the valid values. Always rendered as one line.
    """

    def __init__(self, where: str, what: str, allowed: str = "") -> None:
        self.where = _one_line(where)
        self.what = _one_line(what)
        self.allowed = _one_line(allowed)
        tail = f"; allowed: {self.allowed}" if self.allowed else ""
        super().__init__(f"{self.where}: {self.what}{tail}")

    def __reduce__(self) -> tuple[type, tuple[str, ...]]:
        return type(self), (self.where, self.what, self.allowed)


class Unavailable(JoulecutError):
    """An operation that cannot be done now or here; the line names the remedy."""

    def __init__(self, text: str) -> None:
        super().__init__(_flat(text))


def not_installed(what: str, extra: str, *, lab: bool = False) -> Unavailable:
    """`what` is missing. The line says how to install it from this checkout or a release's wheel:
    by an extra of the service or, with `lab`, of the lab; without an extra the package itself.
    """
    checkout = Path(__file__).resolve().parents[2]
    place = LAB_WHEEL if lab else WHEEL
    if (checkout / "pyproject.toml").exists():
        place = str(checkout / "lab" if lab else checkout)
    asked = f"[{extra}]" if extra else ""
    return Unavailable(f"{what}: pip install '{place}{asked}'")


def described(error: Exception) -> str:
    """One line. An error that is none of ours names its place in the code."""
    if isinstance(error, JoulecutError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__} at {place}: {_flat(str(error))[:200]}"


WHEEL = "joulecut-VERSION-py3-none-any.whl"
LAB_WHEEL = "joulecut_lab-VERSION-py3-none-any.whl"
LINE_LENGTH_MAX = 300  # A value pasted by accident must not fill the terminal.


def _one_line(text: str) -> str:
    flat = _flat(text)
    return flat if len(flat) <= LINE_LENGTH_MAX else flat[: LINE_LENGTH_MAX - 3] + "..."


def _flat(text: str) -> str:
    """On one line, without control characters and lone surrogates."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
