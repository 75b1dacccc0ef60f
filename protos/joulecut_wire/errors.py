"""One shape for bad input, so that every command answers it the same way.

The exception tree of the project's edges:

    JoulecutError
      BadInput            the person can mend it: what, where, what is allowed (exit status 2)
      Unavailable         not now, or not here: a missing extra, a dead peer (exit status 1)
"""


class JoulecutError(Exception):
    """Root of all errors that reach a person as one line."""


class BadInput(JoulecutError, ValueError):
    """Something a person wrote is wrong.

    `where` is a place the person can open (`policy.yaml:12: jobs[0].slo`), `what` is
    the fault, `allowed` what would be right. Rendered as one line, whatever was put in.
    """

    def __init__(self, where: str, what: str, allowed: str = "") -> None:
        self.where = _one_line(where)
        self.what = _one_line(what)
        self.allowed = _one_line(allowed)
        tail = f"; allowed: {self.allowed}" if self.allowed else ""
        super().__init__(f"{self.where}: {self.what}{tail}")


class Unavailable(JoulecutError):
    """What was asked cannot be done now or here; the line says what would help."""

    def __init__(self, text: str) -> None:
        super().__init__(_flat(text))


LINE_LENGTH_MAX = 300  # A value pasted by accident must not fill the terminal.


def _one_line(text: str) -> str:
    flat = _flat(text)
    return flat if len(flat) <= LINE_LENGTH_MAX else flat[: LINE_LENGTH_MAX - 3] + "..."


def _flat(text: str) -> str:
    """On one line, and nothing that a terminal would obey or that no encoding takes."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
