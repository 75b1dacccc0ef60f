"""`joulecut resume`: its own module, because a subcommand is found by its module."""

from joulecut_cli.release import resume as run

__all__ = ["run"]
