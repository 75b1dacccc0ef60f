"""`joulecut completion bash|zsh|fish`: a script that completes commands, flags, words and jobs.

The script asks the program what may stand next, and the program asks the parser of the command, so
no list is kept twice and a shell starts no slower (docs/adr/0012).
"""

import argparse
import importlib

from joulecut_cli.commands import all_commands, find
from joulecut_cli.controller_client import DEFAULT_URL, Controller
from joulecut_cli.main import dispatch
from joulecut_wire.command import FINE, Parser, described
from joulecut_wire.errors import JoulecutError

JOB = "JOB"  # how a parser calls a job of the controller
SCRIPTS = {
    "bash": """\
# joulecut: eval "$(joulecut completion bash)"
_joulecut() {
  local before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  COMPREPLY=($(compgen -W "$(joulecut completion --after "${before[@]}" 2>/dev/null)" \\
    -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _joulecut joulecut
""",
    "zsh": """\
#compdef joulecut
# joulecut: source <(joulecut completion zsh)
_joulecut() {
  local found=(${=$(joulecut completion --after "${(@)words[2,CURRENT-1]}" 2>/dev/null)})
  if (( ${#found} )); then compadd -- $found; else _files; fi
}
compdef _joulecut joulecut
""",
    "fish": """\
# joulecut: joulecut completion fish | source
function __joulecut_after
  joulecut completion --after (commandline -opc)[2..] 2>/dev/null | string split ' '
end
complete -c joulecut -n __fish_use_subcommand -f -a '(__joulecut_after)'
complete -c joulecut -n 'not __fish_use_subcommand' -a '(__joulecut_after)'
""",
}


def run(argv: list[str]) -> int:
    """Prints a script, or the words that it completes. Raises BadInput."""
    if argv[:1] == ["--after"]:  # whatever words follow
        print(*after(argv[1:]))
        return FINE
    parser = Parser("joulecut completion", "Prints a completion script for a shell.")
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="|".join(SCRIPTS))
    print(SCRIPTS[parser.parse_args(argv).shell], end="")
    return FINE


def after(words: list[str]) -> list[str]:
    """What may stand after the words; empty where files may, or nothing known."""
    if not words:
        return [*all_commands()]
    command = find(words[0])
    if command is None:
        return []
    try:
        module = importlib.import_module(command.target.partition(":")[0])
        subcommands = getattr(module, "SUBCOMMANDS", {})
        parser = described(lambda: dispatch([*words[:2], "--help"] if subcommands else words[:1]))
    except (ImportError, JoulecutError):
        return []
    depth = 2 if len(words) > 1 and words[1] in subcommands else 1
    found = [*subcommands] if len(words) == 1 else []
    return found + (_of(parser, words[depth:]) if parser else [])


def _of(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """What one parser takes after the words."""
    shown = [one for one in parser._actions if one.help is not argparse.SUPPRESS]
    flags = {name: one for one in shown for name in one.option_strings}
    if words and words[-1] in flags and flags[words[-1]].nargs is None:
        return _values(flags[words[-1]])
    places = [action for action in parser._actions if not action.option_strings]
    given = sum(not word.startswith("-") for word in words)
    here = _values(places[min(given, len(places) - 1)]) if places else []
    return here + sorted(name for name in flags if name.startswith("--"))


def _values(action: argparse.Action) -> list[str]:
    if action.choices is not None:
        return [str(one) for one in action.choices]
    return _jobs() if action.metavar == JOB else []


def _jobs() -> list[str]:
    """Jobs of the controller at the default URL; none where it does not answer."""
    try:
        return [job["name"] for job in Controller(DEFAULT_URL).brief()["jobs"]]
    except JoulecutError:
        return []
