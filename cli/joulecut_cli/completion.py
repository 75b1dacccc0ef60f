"""`joulecut completion bash|zsh|fish`: a script that completes commands, flags and jobs.

The script asks the program for flags and jobs when they are completed, so no list is kept twice
and a shell starts no slower (docs/adr/0012).
"""

from joulecut_cli.controller_client import DEFAULT_URL, Controller
from joulecut_cli.main import COMMANDS
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import JoulecutError

JOBS_OF = ("explain", "pause", "resume", "restore", "recommend")
ACTIONS = {
    "deploy": "systemd helm kustomize slurm grafana",
    "policy": "check diff profiles upload remove",
    "completion": "bash zsh fish",
}

BASH = """\
# joulecut: eval "$(joulecut completion bash)"
declare -A _joulecut_flags
_joulecut() {
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "@COMMANDS@" -- "$word"))
  elif [[ $word == -* ]]; then
    [[ -v _joulecut_flags[$command] ]] ||
      _joulecut_flags[$command]=$(joulecut completion --flags "$command" 2>/dev/null)
    COMPREPLY=($(compgen -W "${_joulecut_flags[$command]}" -- "$word"))
  else
    case $command in
@ACTIONS@
      @JOBS@) COMPREPLY=($(compgen -W "$(joulecut completion --jobs 2>/dev/null)" -- "$word")) ;;
      *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
  fi
}
complete -o default -F _joulecut joulecut
"""

ZSH = """\
#compdef joulecut
# joulecut: source <(joulecut completion zsh)
typeset -gA _joulecut_flags
_joulecut() {
  local command=${words[2]}
  if ((CURRENT == 2)); then
    compadd -- @COMMANDS@
  elif [[ ${words[CURRENT]} == -* ]]; then
    (( ${+_joulecut_flags[$command]} )) ||
      _joulecut_flags[$command]=$(joulecut completion --flags "$command" 2>/dev/null)
    compadd -- ${=_joulecut_flags[$command]}
  else
    case $command in
@ACTIONS@
      @JOBS@) compadd -- ${=$(joulecut completion --jobs 2>/dev/null)} ;;
      *) _files ;;
    esac
  fi
}
compdef _joulecut joulecut
"""

FISH = """\
# joulecut: joulecut completion fish | source
complete -c joulecut -n __fish_use_subcommand -f -a "@COMMANDS@"
function __joulecut_flags
  joulecut completion --flags (commandline -opc)[2] 2>/dev/null | string split ' '
end
complete -c joulecut \\
  -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' \\
  -a '(__joulecut_flags)'
@ACTIONS@
complete -c joulecut -n '__fish_seen_subcommand_from @JOBS@' -f \\
  -a '(joulecut completion --jobs 2>/dev/null | string split " ")'
"""


def run(argv: list[str]) -> int:
    """Prints a script, or the words it completes. Raises BadInput."""
    parser = Parser("joulecut completion", "Prints a completion script for a shell.")
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("shell", nargs="?", choices=("bash", "zsh", "fish"), metavar="bash|zsh|fish")
    one.add_argument("--flags", metavar="COMMAND", help="used by the script: a command's flags")
    one.add_argument(
        "--jobs", action="store_true", help="used by the script: jobs of the controller"
    )
    given = parser.parse_args(argv)
    if given.shell:
        print(script(given.shell), end="")
    elif given.jobs:
        print(*_jobs())
    else:
        print(*_flags(given.flags))
    return FINE


def script(shell: str) -> str:
    """The script for the commands of this version."""
    template, join = {"bash": (BASH, "|"), "zsh": (ZSH, "|"), "fish": (FISH, " ")}[shell]
    action = {
        "bash": '      {0}) COMPREPLY=($(compgen -W "{1}" -- "$word")) ;;',
        "zsh": "      {0}) compadd -- {1} ;;",
        "fish": "complete -c joulecut -n '__fish_seen_subcommand_from {0}' -f -a '{1}'",
    }[shell]
    actions = "\n".join(action.format(name, words) for name, words in ACTIONS.items())
    return (
        template.replace("@COMMANDS@", " ".join(COMMANDS))
        .replace("@ACTIONS@", actions)
        .replace("@JOBS@", join.join(JOBS_OF))
    )


def _jobs() -> list[str]:
    """Jobs of the controller at the default URL; none where it does not answer."""
    try:
        return [job["name"] for job in Controller(DEFAULT_URL).brief()["jobs"]]
    except JoulecutError:
        return []


def _flags(command: str) -> list[str]:
    """The long flags in a command's help; none for an unknown command."""
    import contextlib
    import io
    import re

    from joulecut_cli.main import dispatch

    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit, JoulecutError):
        dispatch([command, "--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.getvalue())))
